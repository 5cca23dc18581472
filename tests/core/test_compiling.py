"""Without numba, or with one that cannot work here, the array loops do everything."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mergepipe.core.compiling import compiled_module

HIDDEN = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "numba":
            raise {error}
sys.meta_path.insert(0, Hidden())
"""
FIND = """
from mergepipe.core.dtypes import dtype
from mergepipe.operators.additive import Mixture
from mergepipe.operators.formula import Formula
from mergepipe.operators.kernel import kernel_for
from mergepipe.stats.loops import quickest_loops
kernel = kernel_for(Formula(Mixture(()), ()), dtype("BF16"), [], dtype("BF16"))
print(type(quickest_loops()).__name__, type(kernel).__name__)
"""


def found(program: str, **environment: str) -> tuple[str, str]:
    """What a new process takes, and what it warns of."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return done.stdout.strip(), done.stderr


def test_compiled_modules_are_found() -> None:
    """Numba is among the tools of development."""
    assert compiled_module("mergepipe.stats.compiled") is not None
    assert found(FIND) == ("CompiledLoops _StripKernel", "")


def test_an_installation_without_the_extra_is_silent() -> None:
    """Nothing is wrong with it."""
    error = """ModuleNotFoundError("No module named 'numba'", name="numba")"""
    assert found(HIDDEN.format(error=error) + FIND) == ("NumpyLoops NoneType", "")


def test_told_not_to_compile() -> None:
    """In pure Python these loops would take hours."""
    assert found(FIND, NUMBA_DISABLE_JIT="1") == ("NumpyLoops NoneType", "")


@pytest.mark.parametrize(
    ("program", "environment", "reason"),
    [
        (HIDDEN.format(error='ImportError("Numba needs NumPy 1.99 or less")'), {}, "Numba needs NumPy 1.99 or less"),
        ("", {"NUMBA_CACHE_LOCATOR_CLASSES": "ZipCacheLocator"}, "set NUMBA_CACHE_DIR to a folder that can be written"),
    ],
)
def test_what_cannot_work_is_said_once(program: str, environment: dict[str, str], reason: str) -> None:
    """A numpy that numba does not know; no folder to keep machine code in, as in a read-only container."""
    taken, warned = found(program + FIND, **environment)
    assert taken == "NumpyLoops NoneType"
    assert "going on without numba, slower" in warned
    assert reason in warned
    assert warned.count("RuntimeWarning") <= 2  # one for each of the two modules


def test_another_librarys_absence_is_an_error() -> None:
    """Only numba may be missing."""
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        compiled_module("no_such_module")
