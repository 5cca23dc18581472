"""How long the program takes to start: `mergepipe --help`, and `mergepipe check` of a family.

    python -m benchmarks.startup [--experts 8] [--runs 9]

The targets are 0.3 s and 1 s, and that neither imports torch. Files are warm, as at the second time they are run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.families import SHAPES, Shape
from benchmarks.hollow import write_hollow_family
from benchmarks.machine import machine
from benchmarks.measure import CommandFailed, installed_environment, measure
from benchmarks.recipes import recipe_text
from benchmarks.rounds import PROJECT
from benchmarks.summary import aligned
from mergepipe.core.units import format_bytes

TARGETS: Final = {"--help": 0.3, "check": 1.0}
_HEAVY: Final = ("torch", "transformers", "numba")

# Runs the program's own entry point with the words given, then says which heavy modules that has imported.
_WATCHED: Final = """
import sys
from mergepipe.cli.main import main
try:
    main()
except SystemExit as ended:
    if ended.code:
        raise
finally:
    sys.stderr.flush()
    open(sys.argv[0], "w").write(" ".join(sorted(name for name in {heavy!r} if name in sys.modules)))
"""


@dataclass(frozen=True, slots=True)
class Start:
    """One command: median, least and greatest seconds, most memory, and the heavy modules it imported."""

    command: str
    wall: tuple[float, float, float]
    cpu: float
    peak_rss: int
    target: float
    imported: tuple[str, ...]

    @property
    def met(self) -> bool:
        """Whether it took no more than its target, without torch."""
        return self.wall[0] <= self.target and "torch" not in self.imported


def measure_starts(folder: Path, shape: Shape, experts: int, runs: int) -> list[Start]:
    """Measure each command `runs` times; headers of a hollow family in `folder` are what `check` reads."""
    family = write_hollow_family(folder / "family", shape, experts)
    recipe = folder / "recipe.yml"
    recipe.write_text(recipe_text("ties", family))
    environment = installed_environment(folder / "compiled")
    found = []
    for command, words in (("--help", ["--help"]), ("check", ["check", str(recipe)])):
        imported = _imported(folder, words, environment)  # compiles the program, too
        each = [measure([sys.executable, "-m", "mergepipe", *words], PROJECT, environment) for _ in range(runs)]
        walls = [figures.wall for figures in each]
        found.append(
            Start(
                command=command,
                wall=(median(walls), min(walls), max(walls)),
                cpu=median(figures.cpu for figures in each),
                peak_rss=max(figures.peak_rss for figures in each),
                target=TARGETS[command],
                imported=imported,
            )
        )
    return found


def _imported(folder: Path, words: Sequence[str], environment: dict[str, str]) -> tuple[str, ...]:
    noted = folder / "imported"
    script = f"import sys; sys.argv[0] = {str(noted)!r}\n" + _WATCHED.format(heavy=_HEAVY)
    measure([sys.executable, "-c", script, *words], PROJECT, environment)
    return tuple(noted.read_text().split())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description="How long starting takes.")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mergepipe-startup-") as temporary:
        try:
            found = measure_starts(Path(temporary), SHAPES[given.shape], given.experts, given.runs)
        except (CommandFailed, OSError) as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
        about = machine(Path(temporary))
    body = [
        (
            f"mergepipe {each.command}",
            f"{each.wall[0]:.2f} ({each.wall[1]:.2f}–{each.wall[2]:.2f})",
            f"{each.target:.1f}",
            f"{each.cpu:.2f}",
            format_bytes(each.peak_rss),
            " ".join(each.imported) or "none",
            "met" if each.met else "missed",
        )
        for each in found
    ]
    heads = ("", "wall s", "target s", "CPU s", "peak RSS", f"of {', '.join(_HEAVY)}", "")
    print("\n".join(aligned([heads, *body])))
    if given.out is not None:
        results = {"machine": about, "runs": given.runs, "rows": [asdict(each) for each in found]}
        given.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
