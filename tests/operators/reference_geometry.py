"""The geometric methods on whole tensors, from their formulas, in the dtype of the arrays; independent of the package.

With `longdouble` arrays they serve as exact. Where inputs leave a formula without a value, what docs/methods.md
states is written out here once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def exact(values: Floats) -> Floats:
    """The array in the widest float there is."""
    wide: Floats = values.astype(np.longdouble)
    return wide


def norm(values: Floats) -> Any:
    """‖values‖₂."""
    return np.sqrt(np.sum(values * values))


def slerp(x: Floats, y: Floats, t: float) -> Floats:
    """From x to y; linear where the cosine is beyond ±0.9995, norms up to 1e-8 not divided by."""
    x_norm, y_norm = (n if n > 1e-8 else 1 for n in (norm(x), norm(y)))
    cosine = np.clip(np.sum(x / x_norm * (y / y_norm)), -1, 1)
    return _between(x, y, x.dtype.type(t), None if abs(cosine) > 0.9995 else np.arccos(cosine))


def nuslerp(x: Floats, y: Floats, t: float) -> Floats:
    """From x to y as one vector; linear where parallel or, to float32, opposite; norms at least 1e-7."""
    x_norm, y_norm = (max(n, x.dtype.type(1e-7)) for n in (norm(x), norm(y)))
    cosine = np.clip(np.sum(x / x_norm * (y / y_norm)), -1, 1)
    straight = 1 - cosine < 1e-15 or 1 + cosine < 2.0**-25
    return _between(x, y, x.dtype.type(t), None if straight else np.arccos(cosine))


def by_vector(function: Callable[[Sequence[Floats]], Floats], tensors: Sequence[Floats], axis: int) -> Floats:
    """`function` on each vector along `axis`, put together again; flat, of tensors that have their shape."""
    along = [np.moveaxis(tensor, axis, -1) for tensor in tensors]
    result = np.empty_like(along[0])
    for place in np.ndindex(along[0].shape[:-1]):
        result[place] = function([tensor[place] for tensor in along])
    return np.moveaxis(result, -1, axis).reshape(-1)


def multislerp(points: Sequence[Floats], weights: Sequence[float], eps: float) -> Floats:
    """By the tangent space at the weighted mean direction, step by step; linear where that mean is nothing."""
    if len(points) == 1:
        return points[0]
    kind = points[0].dtype.type
    factors = [kind(weight) for weight in weights]
    lengths = [norm(point) for point in points]
    units = [
        point / (size + kind(eps)) if size else np.zeros_like(point)
        for point, size in zip(points, lengths, strict=True)
    ]
    mean = _mixed(units, factors)
    size = norm(mean)
    if size < eps or size <= 1e-7 * sum(abs(f) * norm(u) for f, u in zip(factors, units, strict=True)):
        return _mixed(points, factors)
    mean = mean / size
    tangents = [unit - np.sum(unit * mean) * mean for unit in units]
    tangent = _mixed(tangents, factors)
    angle = norm(tangent) + kind(eps)
    turned = mean * np.cos(angle) + (tangent * (np.sin(angle) / angle) if angle else 0)
    scaled: Floats = turned * sum(f * n for f, n in zip(factors, lengths, strict=True))
    return scaled


def karcher(points: Sequence[Floats], max_iter: int, tol: float) -> Floats:
    """Equal weights; points within `tol` of the origin have no direction; the mean of the points if none has one."""
    kind = points[0].dtype.type
    lengths = [norm(point) for point in points]
    units = [point / size for point, size in zip(points, lengths, strict=True) if size > tol]
    if not units:
        return _mixed(points, [kind(1) / kind(len(points))] * len(points))
    mean = sum(units[1:], units[0]) / kind(len(units))
    mean = units[0] if norm(mean) < tol else mean / norm(mean)
    for _ in range(max_iter):
        tangent = np.zeros_like(mean)
        for unit in units:
            cosine = np.clip(np.sum(unit * mean), -1, 1)
            angle = 2 * np.arcsin(np.clip(norm(unit - mean) / 2, 0, 1))
            if angle >= tol and norm(unit + mean) >= 1e-7:
                tangent = tangent + angle / np.sin(angle) * (unit - cosine * mean) / kind(len(units))
        step = norm(tangent)
        if step < tol:
            break
        mean = np.cos(step) * mean + np.sin(step) / step * tangent
        mean = mean / norm(mean)
    scaled: Floats = sum(lengths) / kind(len(points)) * mean
    return scaled


def model_stock(base: Floats, models: Sequence[Floats]) -> Floats:
    """Base and models as one vector."""
    offsets = [model - base for model in models]
    cosines = [
        np.clip(np.sum(x * y) / max(norm(x) * norm(y), base.dtype.type(1e-6)), -1, 1)
        for x, y in combinations(offsets, 2)
    ]
    cosine = sum(cosines) / base.dtype.type(len(cosines))
    denominator = 1 + (len(models) - 1) * cosine
    ratio = 0 if abs(denominator) < 1e-6 else len(models) * cosine / denominator
    average = sum(models[1:], models[0]) / base.dtype.type(len(models))
    stock: Floats = ratio * average + (1 - ratio) * base
    return stock


def _between(x: Floats, y: Floats, t: Any, angle: Any) -> Floats:
    if angle is None:
        straight: Floats = (1 - t) * x + t * y
        return straight
    turned: Floats = (np.sin((1 - t) * angle) * x + np.sin(t * angle) * y) / np.sin(angle)
    return turned


def _mixed(points: Sequence[Floats], factors: Sequence[Any]) -> Floats:
    total = np.zeros_like(points[0])
    for factor, point in zip(factors, points, strict=True):
        total = total + factor * point
    return total
