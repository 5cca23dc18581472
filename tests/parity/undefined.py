"""Elements whose value a recipe does not settle: equal magnitudes at a trim's edge, sums that rounding decides.

Which they are is worked out here from the models and the parameters, by formulas of this file's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mergepipe.core.random import mask_key, uniform16
from mergepipe.plan.logical import TensorMerge
from tests.parity.batch import SEED
from tests.parity.compare import Floats, Mask, ambiguous_ranks, ambiguous_row_ranks, drawn_elections, near

_TRIMMED = frozenset({"ties", "breadcrumbs", "breadcrumbs_ties"})
_RANKED = frozenset({"della", "della_linear"})
_ELECTED = frozenset({"ties", "dare_ties", "breadcrumbs_ties", "della"})

# How far from its threshold float32 may put a value, as a share of it: sce's variance, arcee_fusion's importance.
_VARIANCE, _IMPORTANCE = 1e-4, 0.005
# A row's divergence is what is left of terms that cancel, about 1e-5 for a light fine-tune, and mergekit's float32
# is off by up to this much: in a row, and in the middle of a tensor's rows, on which the threshold depends.
_DIVERGENCE, _MEDIAN_DIVERGENCE = 2.5e-7, 2e-8


def undefined(method: str, tensor: TensorMerge, base: Floats, experts: Sequence[Floats]) -> Mask:
    """The elements of one output tensor that no two programs need agree on."""
    excluded = np.zeros(base.size, np.bool_)
    deltas = [np.asarray(expert - base) for expert in experts]
    if method == "sce" and len(experts) > 0:
        return _near_variance_threshold(tensor.parameters, deltas)
    if method == "arcee_fusion":
        return _near_importance_threshold(base, experts[0])
    for place, delta in enumerate(deltas):
        parameters = tensor.experts[place].parameters
        density = float(parameters.get("density", 1.0))
        if float(parameters.get("weight", 1.0)) == 0.0 or not 0.0 < density < 1.0:
            continue
        if method in _TRIMMED:
            excluded |= ambiguous_ranks(np.abs(delta), *_kept_ranks(method, parameters, delta.size))
        if method in _RANKED:
            excluded |= ambiguous_row_ranks(np.abs(delta))
    if method in _ELECTED:
        excluded |= drawn_elections(_votes(method, tensor, deltas))
    return excluded


def _kept_ranks(method: str, parameters: Mapping[str, Any], size: int) -> tuple[int, int]:
    """The ranks that are kept, of all magnitudes in ascending order."""
    density = float(parameters["density"])
    if method == "ties":
        return size - max(1, int(density * size)), size
    kept = int(density * size)
    bottom = max(0, size - kept - int(float(parameters["gamma"]) * size))
    return bottom, bottom + kept


def _votes(method: str, tensor: TensorMerge, deltas: Sequence[Floats]) -> list[Floats]:
    votes: list[Floats] = []
    for place, delta in enumerate(deltas):
        parameters = tensor.experts[place].parameters
        kept = _kept(method, tensor, place, delta)
        left = np.where(kept, delta.ravel().astype(np.float64), 0.0)
        factor = 1.0
        if tensor.parameters.get("rescale") and left.any():
            factor = float(np.abs(delta, dtype=np.float64).sum() / np.abs(left).sum())
        votes.append(float(parameters["weight"]) * factor * left)
    return votes


def _kept(method: str, tensor: TensorMerge, place: int, delta: Floats) -> Mask:
    parameters = tensor.experts[place].parameters
    density = float(parameters["density"])
    size = delta.size
    if density >= 1.0 or density <= 0.0:
        return np.full(size, density >= 1.0)
    if method in _TRIMMED:
        first, last = _kept_ranks(method, parameters, size)
        kept = np.zeros(size, np.bool_)
        kept[np.argsort(np.abs(delta).ravel(), kind="stable")[first:last]] = True
        return kept
    use = "della" if method in _RANKED else "dare"
    lanes = uniform16(mask_key(SEED, use, tensor.experts[place].input - 1, tensor.name), 0, size)
    if method not in _RANKED:
        return lanes < round(density * 65536)
    rows = np.abs(delta).reshape(-1, delta.shape[-1])
    ranks = np.argsort(np.argsort(rows, axis=1, kind="stable"), axis=1).ravel()
    epsilon = float(parameters["epsilon"])
    probability = density - epsilon + 2 * epsilon * ranks / max(1, rows.shape[1] - 1)
    return lanes < np.round(probability * 65536)


def _near_variance_threshold(parameters: Mapping[str, Any], deltas: Sequence[Floats]) -> Mask:
    """What sce keeps: the positions where the experts' deltas vary most."""
    topk = float(parameters["select_topk"])
    variance = np.var(np.stack([delta.ravel().astype(np.float64) for delta in deltas]), axis=0)
    kept = int(np.count_nonzero(variance) * topk)
    if topk >= 1.0 or topk <= 0.0 or kept == 0:
        return np.zeros(variance.size, np.bool_)
    return near(variance, float(np.sort(variance)[-kept]), _VARIANCE)


def _near_importance_threshold(base: Floats, expert: Floats) -> Mask:
    """What arcee_fusion takes over is what changes most, weighed by its row's divergence."""
    rows = [np.atleast_2d(each.astype(np.float64)) for each in (base, expert)]
    before, after = (np.exp(each - each.max(axis=-1, keepdims=True)) for each in rows)
    before, after = (each / each.sum(axis=-1, keepdims=True) + 1e-8 for each in (before, after))
    divergence = (after * np.log(after / before)).sum(axis=-1, keepdims=True)
    size = np.abs(rows[1] - rows[0])
    importance = (size * divergence).ravel()
    ordered = np.sort(importance)
    low, middle, high = (ordered[int(share * (ordered.size - 1))] for share in (0.25, 0.5, 0.75))
    threshold = float(middle + 1.5 * (high - low))
    off = _IMPORTANCE + _MEDIAN_DIVERGENCE / max(float(np.median(divergence)), _MEDIAN_DIVERGENCE)
    excluded = near(importance, threshold, off, _DIVERGENCE * size.ravel())
    excluded &= size.ravel() != 0
    return excluded
