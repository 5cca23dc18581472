"""Temporaries are lent, and every array knows its library."""

from __future__ import annotations

import numpy as np
import pytest

from mergepipe.core.arrays import Scratch, namespace


def test_a_name_is_the_same_memory_every_time() -> None:
    """Asking again, for more or less, gives the same array cut to size."""
    scratch = Scratch(100, np.dtype(np.float32))
    first = scratch.floats("sum", 10)
    first[...] = 7
    again = scratch.floats("sum", 100)
    assert np.shares_memory(first, again)
    assert (again[:10] == 7).all()


def test_names_do_not_share_memory() -> None:
    """Neither do floats and flags of one name."""
    scratch = Scratch(16, np.dtype(np.float64))
    arrays = [scratch.floats("a", 16), scratch.floats("b", 16), scratch.flags("a", 16)]
    assert [array.dtype for array in arrays] == [np.float64, np.float64, np.bool_]
    assert not any(np.shares_memory(arrays[i], arrays[j]) for i in range(3) for j in range(i))


def test_numpy_arrays_belong_to_numpy() -> None:
    """So do subclasses."""
    assert namespace(np.zeros(2)) is np
    assert namespace(np.zeros(2).view(np.recarray)) is np


def test_torch_tensors_belong_to_torch() -> None:
    """And its scratch arrays are tensors of the dtype asked for."""
    torch = pytest.importorskip("torch")
    assert namespace(torch.zeros(2)) is torch
    scratch = Scratch(8, np.dtype(np.float32), torch)
    assert scratch.floats("a", 3).dtype == torch.float32
    assert scratch.flags("a", 3).dtype == torch.bool
