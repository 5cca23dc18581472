"""Merge LLM checkpoints that share one weight coordinate system, under a budget of bytes read.

`mergepipe.api` has one function per verb. The names in `__all__` are there at once; what lies behind
them is imported when one is first used, so that `import mergepipe` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mergepipe.errors import MergePipeError

if TYPE_CHECKING:
    from mergepipe.api import merge, replay, verify

    __version__: str

# `index` and `plan` are rooms of the package and so cannot be verbs here too; `mergepipe.api` has them all.
__all__ = ["MergePipeError", "__version__", "merge", "replay", "verify"]

_VERBS = frozenset({"merge", "replay", "verify"})


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in _VERBS:
        return getattr(import_module("mergepipe.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    """The version in the installed package's metadata; `"0+unknown"` in a source tree that was never installed."""
    metadata = import_module("importlib.metadata")
    try:
        return str(metadata.version("mergepipe"))
    except metadata.PackageNotFoundError:
        return "0+unknown"
