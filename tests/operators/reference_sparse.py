"""How breadcrumbs and della sparsify, and the rescaled ties, as plain numpy from the formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.operators import reference

Floats = NDArray[np.floating[Any]]


def by_magnitude(delta: Floats) -> list[int]:
    """Positions, the largest magnitude first, the earlier of two equal ones first."""
    return sorted(range(delta.size), key=lambda n: (-abs(float(delta[n])), n))


def trimmed_mask(delta: Floats, density: float) -> NDArray[np.bool_]:
    """The `max(1, int(p n))` largest."""
    mask = np.zeros(delta.size, np.bool_)
    mask[by_magnitude(delta)[: max(1, int(density * delta.size))]] = True
    return mask


def breadcrumbs_mask(delta: Floats, density: float, gamma: float) -> NDArray[np.bool_]:
    """`int(p n)` entries: without the `int(γ n)` largest, or fewer of them where too little would be left."""
    size = delta.size
    kept, top = int(density * size), int(gamma * size)
    smallest = max(0, size - kept - top)
    ascending = by_magnitude(delta)[::-1]
    mask = np.zeros(size, np.bool_)
    mask[ascending[smallest : smallest + kept]] = True
    return mask


def della_mask(
    delta: Floats, row: int, density: float, epsilon: float, seed: int, position: int, tensor: str
) -> NDArray[np.bool_]:
    """Keep probabilities from `p − ε` for a row's smallest entry to `p + ε` for its largest."""
    draws = reference.uniform(delta.size, seed, "della", position, tensor)
    mask = np.zeros(delta.size, np.bool_)
    for start in range(0, delta.size, row):
        ascending = sorted(range(start, start + row), key=lambda n: (abs(float(delta[n])), n))
        for rank, place in enumerate(ascending):
            probability = density - epsilon + 2 * epsilon * (rank / (row - 1)) if row > 1 else density
            mask[place] = draws[place] < round(probability * 65536)
    return mask
