"""The walls: what each room may import, and what no room does."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mergepipe

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = PROJECT / "src" / "mergepipe"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Where a module may be imported by name while running, and why.
DYNAMIC_IMPORTS = {
    "__init__.py": "the package's verbs and its version are loaded when first used",
    "operators/registry.py": "a built-in merge method is found by its module being there",
    "cli/commands.py": "a command is loaded when it is run, so that help and typing errors come at once",
    "stats/loops.py": "compiled loops need numba, which may not be installed",
    "stats/runs.py": "compiled runs need numba, which may not be installed",
    "sidecar/tokenizer.py": "the tokenizers library is loaded only where a vocabulary is read",
    "cli/demo.py": "only this command needs torch, which may not be installed",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    """All functions and methods, at any depth."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def inner_imports(source: str) -> list[int]:
    """Lines of the import statements inside functions."""
    return sorted(
        {
            node.lineno
            for function in functions(ast.parse(source))
            for node in ast.walk(function)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
    )


def dynamic_imports(source: str) -> list[int]:
    """Lines of the calls of `import_module` and `__import__`, however they were imported."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in {"import_module", "__import__"}:
                lines.append(node.lineno)
    return lines


def forwarded_keywords(source: str) -> list[int]:
    """Lines of the calls that hand on, with `**`, keywords which their function itself took with `**`."""
    lines = set()
    for function in functions(ast.parse(source)):
        taken = function.args.kwarg
        if taken is None:
            continue
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and any(
                keyword.arg is None and isinstance(keyword.value, ast.Name) and keyword.value.id == taken.arg
                for keyword in call.keywords
            ):
                lines.add(call.lineno)
    return sorted(lines)


def places(path: Path, lines: list[int]) -> list[str]:
    """`file:line`, relative to the project, for an assertion that says where."""
    return [f"{path.relative_to(PROJECT)}:{line}" for line in lines]


def modules_after(*arguments: str) -> set[str]:
    """Names of the modules that a fresh interpreter run with `arguments` has imported."""
    # -X importtime writes one line for each module, `import time: self | cumulative | name`, to stderr.
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (line for line in done.stderr.splitlines() if line.startswith("import time:"))
    return {line.rsplit("|", 1)[1].strip() for line in lines}


def test_there_is_something_to_check() -> None:
    """The package's sources are where this file looks for them."""
    assert PACKAGE / "errors.py" in SOURCES
    assert Path(mergepipe.__file__ or "").parent == PACKAGE


def test_rooms_import_what_their_floor_allows() -> None:
    """Every contract of the import linter holds: floors, the table of rooms, third-party libraries."""
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-logo", "--no-cache"], capture_output=True, text=True, check=False, cwd=PROJECT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_imports_inside_functions() -> None:
    """Modules import at their top only: a cycle cannot be papered over."""
    assert [place for path in SOURCES for place in places(path, inner_imports(path.read_text()))] == []


def test_dynamic_imports_only_where_said() -> None:
    """Importing by name happens only where this file gives the reason."""
    found = {path for path in SOURCES if dynamic_imports(path.read_text())}
    assert {path.relative_to(PACKAGE).as_posix() for path in found} <= DYNAMIC_IMPORTS.keys()


def test_no_keywords_handed_on() -> None:
    """No function passes on keywords it does not know: options are named at every wall they cross."""
    assert [place for path in SOURCES for place in places(path, forwarded_keywords(path.read_text()))] == []


def test_no_module_without_a_subject() -> None:
    """No module is called utils, helpers, common or misc: each has a subject that names it."""
    vague = {"utils", "util", "helpers", "common", "misc"}
    parts = {part for path in SOURCES for part in path.relative_to(PACKAGE).with_suffix("").parts}
    assert {part for part in parts if part.strip("_") in vague} == set()


@pytest.mark.parametrize(
    "arguments",
    [("-c", "import mergepipe"), ("-c", "import mergepipe.api"), ("-m", "mergepipe", "--help")],
    ids=["package", "api", "help"],
)
def test_runs_without_torch(arguments: tuple[str, ...]) -> None:
    """The package, its api and the command's help import neither torch nor transformers."""
    imported = modules_after(*arguments)
    assert "mergepipe" in imported
    assert {"torch", "transformers"} & imported == set()


def test_importing_the_package_is_light() -> None:
    """`import mergepipe` alone imports no array library and no room."""
    imported = modules_after("-c", "import mergepipe")
    assert {name for name in imported if name.startswith("mergepipe.")} == {"mergepipe.errors"}
    assert {"numpy", "typer", "rich", "yaml"} & imported == set()


@pytest.mark.parametrize("name", mergepipe.__all__)
def test_public_names_exist(name: str) -> None:
    """Every public name of the package can be used."""
    assert getattr(mergepipe, name) is not None


def test_unknown_names_are_refused() -> None:
    """A name the package does not have is an AttributeError, as of any module."""
    with pytest.raises(AttributeError, match="no attribute 'merg'"):
        _ = mergepipe.merg


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import a\nif x:\n    import b\n", []),
        ("def f():\n    import a\n", [2]),
        ("class C:\n    def f(self):\n        if x:\n            from a import b\n", [4]),
        ("async def f():\n    def g():\n        import a\n", [3]),
    ],
)
def test_inner_imports_are_seen(source: str, lines: list[int]) -> None:
    """Imports are found in methods, nested functions and branches, and only there."""
    assert inner_imports(source) == lines


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def f(**options):\n    return g(**options)\n", [2]),
        ("def f(**options):\n    return dict(options)\n", []),
        ("def f(values):\n    return g(**values)\n", []),
        ("class C:\n    def f(self, **kw):\n        def h():\n            return g(1, **kw)\n        return h\n", [4]),
    ],
)
def test_handed_on_keywords_are_seen(source: str, lines: list[int]) -> None:
    """Handing on is found wherever the function's own keywords go; unpacking other mappings is not that."""
    assert forwarded_keywords(source) == lines


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import importlib\nimportlib.import_module('a')\n", [2]),
        ("from importlib import import_module\nx = [import_module('a')]\n", [2]),
        ("__import__('a')\n", [1]),
        ("import importlib\nimportlib.reload(a)\n", []),
    ],
)
def test_dynamic_imports_are_seen(source: str, lines: list[int]) -> None:
    """Imports by name are found in each of their spellings."""
    assert dynamic_imports(source) == lines
