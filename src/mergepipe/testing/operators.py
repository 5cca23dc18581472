"""The contract every merge method keeps, as a test class to inherit, and the harness it runs methods with.

class TestMine(OperatorContract):
    operator = MINE
    recipes = (Example({"lambda": 0.5}, ({"weight": 1.0}, {"weight": -0.25})),)
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.arrays import Array, Namespace, Scratch
from mergepipe.core.random import keep_mask, ranked_keep_mask
from mergepipe.operators.contract import (
    AccessClass,
    Delta,
    Grain,
    Norms,
    Number,
    Operator,
    Parameter,
    TensorSpec,
    TermSpec,
    Tile,
    Values,
)
from mergepipe.stats.contract import (
    BandL1Need,
    Fact,
    GramNeed,
    GroupFact,
    GroupNeed,
    ImportanceNeed,
    MaskedL1Need,
    Need,
    OverlapNeed,
    RankedMaskL1Need,
    RankNeed,
    TrimmedL1Need,
    TrimNeed,
    VarianceMaskNeed,
    VectorGramNeed,
)

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Example:
    """Parameters of one merge; what is left out has its default. `reference` is the base's own, if it is an input."""

    merge: Mapping[str, Number | str] = field(default_factory=dict)
    terms: tuple[Mapping[str, Number | str], ...] = ()
    reference: Mapping[str, Number | str] | None = None


def spec_of(
    operator: Operator, example: Example, elements: int, seed: int = 0, wide: bool = False, shape: tuple[int, ...] = ()
) -> TensorSpec:
    """The tensor spec of an example, completed with the operator's defaults; `shape` () is one dimension."""
    of_merge = [parameter for parameter in operator.parameters if not parameter.per_model]
    of_model = [parameter for parameter in operator.parameters if parameter.per_model]
    return TensorSpec(
        name="layer.weight",
        elements=elements,
        row=shape[-1] if len(shape) > 1 else 1,
        seed=seed,
        parameters=_complete(of_merge, example.merge),
        terms=tuple(TermSpec(n, _complete(of_model, term)) for n, term in enumerate(example.terms)),
        reference=None if example.reference is None else _complete(of_model, example.reference),
        wide=wide,
        shape=shape or (elements,),
    )


def fact_of(need: Need, delta: Floats) -> Fact:
    """The fact that answers `need` for a whole delta, computed the plain way."""
    sizes = np.abs(delta.astype(np.float64))
    order = np.argsort(-sizes, kind="stable")
    if isinstance(need, TrimNeed | RankNeed):
        count = need.count if isinstance(need, RankNeed) else max(1, int(need.density * delta.size))
        last = order[count - 1]
        return {"threshold": float(sizes[last]), "cut": int(last)}
    if isinstance(need, TrimmedL1Need):
        return {"l1": math.fsum(sizes), "kept_l1": math.fsum(sizes[order[: max(1, int(need.density * delta.size))]])}
    if isinstance(need, BandL1Need):
        band = order[need.skipped : need.skipped + need.kept]
        return {"l1": math.fsum(sizes), "kept_l1": math.fsum(sizes[band])}
    if isinstance(need, MaskedL1Need):
        kept = keep_mask(need.key, 0, delta.size, need.density)
        return {"l1": math.fsum(sizes), "masked_l1": math.fsum(sizes[kept])}
    if isinstance(need, RankedMaskL1Need):
        kept = ranked_keep_mask(need.key, 0, np.abs(delta), need.row, need.density, need.epsilon)
        return {"l1": math.fsum(sizes), "masked_l1": math.fsum(sizes[kept])}
    raise TypeError(f"no plain computation for {need!r}")


def group_fact_of(need: GroupNeed, spec: TensorSpec, base: Floats, deltas: Sequence[Floats]) -> GroupFact:
    """The fact that answers `need` for a whole tensor, computed the plain way."""
    if isinstance(need, GramNeed):
        return {"gram": _gram([base, *deltas])}
    if isinstance(need, VectorGramNeed):
        along = [np.moveaxis(each.reshape(spec.shape), need.axis, -1) for each in (base, *deltas)]
        vectors = zip(*(each.reshape(-1, each.shape[-1]) for each in along), strict=True)
        return {"gram": [entry for rows in vectors for entry in _gram(rows)]}
    if isinstance(need, VarianceMaskNeed):
        return _variance_mask(need.topk, deltas)
    if isinstance(need, OverlapNeed):
        active = np.stack([np.abs(delta) > need.epsilon for delta in deltas])
        count = active.sum(axis=0)
        shared, unique = (active & (count > 1)).sum(axis=1), (active & (count == 1)).sum(axis=1)
        return {"shared": shared.tolist(), "unique": unique.tolist()}
    if isinstance(need, ImportanceNeed):
        return _importance(need.row, base, deltas[0])
    raise TypeError(f"no plain computation for {need!r}")


def resolve(operator: Operator, spec: TensorSpec, deltas: Sequence[Floats], base: Floats | None = None) -> Any:
    """The operator's coefficients for these deltas; `base` may be left out where no need concerns it."""
    wanted = operator.needs(spec)
    assert len(wanted) == len(spec.terms), "needs() must have one entry for each term"
    facts = [[fact_of(need, delta) for need in needs] for needs, delta in zip(wanted, deltas, strict=True)]
    origin = np.zeros(spec.elements) if base is None else base
    group = [group_fact_of(need, spec, origin, deltas) for need in operator.group_needs(spec)]
    return operator.resolve(spec, facts, group)


def combine(
    operator: Operator,
    coefficients: Any,
    base: Floats,
    deltas: Sequence[Floats],
    read: Sequence[bool],
    cuts: Sequence[int] = (),
    xp: Namespace = np,
) -> Floats:
    """The merged tensor, computed in the tiles that `cuts` (ascending positions) make; `read[i]`: expert i is read."""
    edges = [0, *cuts, base.size]
    scratch = Scratch(max((stop - start for start, stop in _pairs(edges)), default=0), base.dtype, xp)
    merged = np.empty_like(base)
    for start, stop in _pairs(edges):
        writers = [_writer(delta[start:stop], xp) if seen else None for delta, seen in zip(deltas, read, strict=True)]
        out = xp.asarray(np.full(stop - start, np.nan, base.dtype))
        tile = Tile(start, stop - start, xp.asarray(base[start:stop].copy()), writers, scratch, xp)
        operator.combine(tile, coefficients, out)
        merged[start:stop] = np.asarray(out)
    return merged


def bits(values: Floats) -> NDArray[np.unsignedinteger[Any]]:
    """The bit patterns, so that `-0.0` and `0.0` differ."""
    whole = np.uint64 if values.dtype.itemsize == 8 else np.uint32
    patterns: NDArray[np.unsignedinteger[Any]] = np.ascontiguousarray(values).view(whole)
    return patterns


class CountingScratch(Scratch):
    """Scratch that remembers which arrays were asked for."""

    def __init__(self, capacity: int, compute: np.dtype[Any], xp: Namespace = np) -> None:
        super().__init__(capacity, compute, xp)
        self.float_names: set[str] = set()
        self.flag_names: set[str] = set()

    def floats(self, name: str, count: int) -> Array:
        self.float_names.add(name)
        return super().floats(name, count)

    def flags(self, name: str, count: int) -> Array:
        self.flag_names.add(name)
        return super().flags(name, count)

    @property
    def arrays(self) -> float:
        """What was asked for, in float arrays of a tile's size."""
        return len(self.float_names) + len(self.flag_names) / 4


class OperatorContract:
    """What holds for every operator.

    A subclass names the operator and a few recipes (of two to four terms: every subset of them is read);
    `namespaces` are the array libraries to try. Tiles are cut anywhere for element grain, between rows of
    `shape` for row grain.
    """

    operator: ClassVar[Operator]
    recipes: ClassVar[tuple[Example, ...]]
    namespaces: ClassVar[tuple[Namespace, ...]] = (np,)
    elements: ClassVar[int] = 1_037
    shape: ClassVar[tuple[int, ...]] = (17, 61)

    def test_declares_itself(self) -> None:
        """Names, variants and parameters are well-formed, so that recipes and registries can rely on them."""
        operator = self.operator
        method, _, variant = operator.version.partition("@")
        assert method == operator.name
        assert variant
        assert operator.doc
        assert isinstance(operator.access, AccessClass)
        names = [parameter.name for parameter in operator.parameters]
        assert len(names) == len(set(names))
        for parameter in operator.parameters:
            assert parameter.doc
            assert parameter.default is None or isinstance(parameter.default, parameter.kind)

    def test_coefficients_are_plain_values(self) -> None:
        """Coefficients compare, survive pickling, and hold numbers only: a plan can carry what makes them."""
        for case in self._cases():
            coefficients = case.coefficients
            assert pickle.loads(pickle.dumps(coefficients)) == coefficients
            assert _is_plain(coefficients)

    def test_pure(self) -> None:
        """The same tile gives the same bits again, the base is left alone, each read delta is asked for once."""
        for case in self._cases():
            base = case.base.copy()
            base.flags.writeable = False
            calls = [0] * len(case.deltas)
            writers = [_counted(calls, n, delta) for n, delta in enumerate(case.deltas)]
            first, second = np.empty_like(base), np.ones_like(base)
            scratch = Scratch(base.size, base.dtype)
            for out in (first, second):
                self.operator.combine(Tile(0, base.size, base, writers, scratch), case.coefficients, out)
            assert np.array_equal(bits(first), bits(second))
            assert max(calls) <= 2

    def test_tiles_do_not_show(self) -> None:
        """However the tensor is cut into tiles, the bits are the same."""
        for case in self._cases():
            whole = self._merged(case, case.all_read)
            for cuts in ((1,), (16, 17, 64), (5, 500, 501, 1_000), tuple(range(97, self.elements, 97))):
                inside = self._between_tiles(cuts)
                parts = combine(self.operator, case.coefficients, case.base, case.deltas, case.all_read, inside)
                assert np.array_equal(bits(whole), bits(parts))

    def test_array_libraries_agree(self) -> None:
        """Every array library gives numpy's bits."""
        cuts = self._between_tiles([300])
        for case in self._cases():
            for read in case.reads():
                expected = self._merged(case, read)
                for xp in self.namespaces:
                    found = combine(self.operator, case.coefficients, case.base, case.deltas, read, cuts, xp)
                    assert np.array_equal(bits(expected), bits(found))

    def test_unread_is_zero(self) -> None:
        """An unread delta gives the bits of a delta that is read and zero, of either sign."""
        for case in self._cases():
            for read in case.reads():
                for zero in (0.0, -0.0):
                    deltas = [
                        delta if seen else np.full_like(delta, zero)
                        for delta, seen in zip(case.deltas, read, strict=True)
                    ]
                    zeroed = combine(self.operator, case.coefficients, case.base, deltas, case.all_read)
                    assert np.array_equal(bits(self._merged(case, read)), bits(zeroed))

    def test_nothing_read_copies(self) -> None:
        """Where `copies_unread` says so, computing with no expert read gives the base's very bits."""
        for case in self._cases():
            merged = self._merged(case, [False] * len(case.deltas))
            same = np.array_equal(bits(merged), bits(case.base))
            assert same or not self.operator.copies_unread(case.coefficients)
            if self.operator.copies_unread(case.coefficients):
                assert self.operator.base_gain(case.coefficients) == 1.0

    def test_scratch_is_declared(self) -> None:
        """No more temporaries are taken than `scratch_arrays` says, or the memory limit would be a wish."""
        for case in self._cases():
            scratch = CountingScratch(case.base.size, case.base.dtype)
            writers = [_writer(delta, np) for delta in case.deltas]
            tile = Tile(0, case.base.size, case.base.copy(), writers, scratch)
            self.operator.combine(tile, case.coefficients, np.empty_like(case.base))
            assert scratch.arrays <= self.operator.scratch_arrays(len(case.deltas))

    def test_bound_holds(self) -> None:
        """The difference between a full and a partial read is within the bound, plus rounding of the two sums."""
        for case in self._cases():
            full = self._merged(case, case.all_read).astype(np.float64)
            norms = _block_norms(case.deltas, self._edges)
            sizes = np.diff(self._edges)
            most = self.operator.bound(case.coefficients, norms, np.zeros(norms.shape, np.bool_), sizes)
            for read in case.reads():
                reads = np.repeat(np.asarray(read, np.bool_)[:, None], norms.shape[1], axis=1)
                bound = self.operator.bound(case.coefficients, norms, reads, sizes)
                if isinstance(bound, str):
                    assert bound
                    continue
                # A method without a bound still has one where nothing is missing: 0, and no rounding either.
                update = np.zeros_like(bound) if isinstance(most, str) else most
                error = _block_norms([full - self._merged(case, read)], self._edges)[0]
                rounding = (
                    2.0**-24
                    * (4 * len(case.deltas) + 16)
                    * (self.operator.base_gain(case.coefficients) * _block_norms([case.base], self._edges)[0] + update)
                )
                assert (error <= bound + rounding).all()

    def test_bound_is_zero_where_nothing_is_missing(self) -> None:
        """Blocks all of whose nonzero deltas are read have bound 0; shapes and signs are as declared."""
        for case in self._cases():
            norms = _block_norms(case.deltas, self._edges)
            norms[:, 0] = 0.0
            reads = np.ones(norms.shape, np.bool_)
            reads[:, 0] = False
            bound = self.operator.bound(case.coefficients, norms, reads, np.diff(self._edges))
            assert not isinstance(bound, str)
            assert bound.shape == (norms.shape[1],)
            assert not bound.any()
            gains = self.operator.gains(case.coefficients)
            assert len(gains) == len(case.deltas)
            assert all(np.isfinite(gain) and gain >= 0.0 for gain in gains)

    def test_exact_gains(self) -> None:
        """Where gains are called exact, reading one expert alone moves the weights by just `gain · ‖δ‖`."""
        for case in self._cases(wide=True):
            if not self.operator.exact_gains(case.coefficients):
                continue
            gains = self.operator.gains(case.coefficients)
            nothing = self._merged(case, [False] * len(case.deltas))
            for n, (gain, delta) in enumerate(zip(gains, case.deltas, strict=True)):
                alone = self._merged(case, [n == other for other in range(len(gains))])
                moved = float(np.linalg.norm(alone - nothing))
                scale = gain * float(np.linalg.norm(delta))
                slack = 1e-14 * self.operator.base_gain(case.coefficients) * float(np.linalg.norm(case.base))
                assert abs(moved - scale) <= 1e-12 * scale + slack

    def test_float64(self) -> None:
        """Float64 tiles are computed in float64: far closer to nothing than float32 could come."""
        for case in self._cases(wide=True):
            merged = self._merged(case, case.all_read)
            assert merged.dtype == np.float64
            assert np.isfinite(merged).all()
            assert not np.array_equal(merged, merged.astype(np.float32).astype(np.float64))

    def _between_tiles(self, cuts: Sequence[int]) -> list[int]:
        """Where tiles of this operator may end, near `cuts`."""
        row = self.shape[-1] if self.operator.grain is Grain.ROW else 1
        return sorted({cut - cut % row for cut in cuts if row <= cut < self.elements})

    @property
    def _edges(self) -> list[int]:
        return [0, self.elements // 3, self.elements // 2, self.elements]

    def _cases(self, wide: bool = False) -> Iterator[_Case]:
        assert self.recipes, "give the contract at least one recipe"
        for number, example in enumerate(self.recipes):
            generator = np.random.default_rng(number)
            spec = spec_of(self.operator, example, self.elements, seed=number, wide=wide, shape=self.shape)
            base, deltas = tensors(generator, self.elements, len(spec.terms), np.float64 if wide else np.float32)
            yield _Case(base, deltas, resolve(self.operator, spec, deltas, base))

    def _merged(self, case: _Case, read: Sequence[bool]) -> Floats:
        return combine(self.operator, case.coefficients, case.base, case.deltas, read)


def tensors(
    generator: np.random.Generator, elements: int, terms: int, kind: type[np.floating[Any]]
) -> tuple[Floats, list[Floats]]:
    """A base and deltas with what is awkward in them: both zeros, equal magnitudes, equal and opposite entries."""
    base = generator.standard_normal(elements).astype(kind)
    base[::7] = -0.0
    base[3::11] = 0.0
    deltas: list[Floats] = []
    for number in range(terms):
        delta = (generator.standard_t(3, elements) * 0.02 * (number + 1)).astype(kind)
        ties = generator.random(elements) < 0.4
        delta[ties] = np.round(delta[ties] * 32) / 32
        delta[generator.random(elements) < 0.2] = 0.0
        delta[generator.random(elements) < 0.05] = -0.0
        if deltas:
            against = generator.random(elements) < 0.1
            delta[against] = -deltas[-1][against]
        deltas.append(delta)
    return base, deltas


@dataclass(frozen=True, slots=True)
class _Case:
    base: Floats
    deltas: Sequence[Floats]
    coefficients: Any

    @property
    def all_read(self) -> list[bool]:
        return [True] * len(self.deltas)

    def reads(self) -> Iterator[list[bool]]:
        """Every subset of the experts."""
        for subset in range(2 ** len(self.deltas)):
            yield [bool(subset >> n & 1) for n in range(len(self.deltas))]


def _complete(parameters: Sequence[Parameter], given: Mapping[str, Number | str]) -> Values:
    unknown = given.keys() - {parameter.name for parameter in parameters}
    assert not unknown, f"not parameters of this operator: {unknown}"
    values: dict[str, Number | str] = {}
    for parameter in parameters:
        value = given.get(parameter.name, parameter.default)
        assert value is not None, f"{parameter.name} has no default: the example must give it"
        values[parameter.name] = value
    return values


def _pairs(edges: Sequence[int]) -> list[tuple[int, int]]:
    return [(start, stop) for start, stop in pairwise(edges) if stop > start]


def _writer(delta: Floats, xp: Namespace) -> Delta:
    def write(out: Array) -> None:
        out[...] = xp.asarray(delta.copy())

    return write


def _counted(calls: list[int], number: int, delta: Floats) -> Delta:
    def write(out: Array) -> None:
        calls[number] += 1
        out[...] = delta

    return write


def _block_norms(rows: Sequence[Floats], edges: Sequence[int]) -> Norms:
    squares = [[np.sum(row[a:b].astype(np.float64) ** 2) for a, b in _pairs(edges)] for row in rows]
    norms: Norms = np.sqrt(np.asarray(squares, np.float64).reshape(len(rows), len(_pairs(edges))))
    return norms


def _variance_mask(topk: float, deltas: Sequence[Floats]) -> GroupFact:
    mean = deltas[0]
    for delta in deltas[1:]:
        mean = mean + delta
    mean = mean / len(deltas)
    variance = (deltas[0] - mean) ** 2
    for delta in deltas[1:]:
        variance = variance + (delta - mean) ** 2
    variance = variance / len(deltas)
    size = mean.size
    kept = size if topk >= 1.0 else int(topk * np.count_nonzero(variance))
    chosen = np.argsort(-variance, kind="stable")[:kept]
    if topk >= 1.0:
        threshold, cut = 0.0, size - 1
    else:
        threshold, cut = (float(variance[chosen[-1]]), int(chosen[-1])) if kept else (0.0, -1)
    squares = [math.fsum(delta.astype(np.float64)[chosen] ** 2) / size for delta in deltas]
    return {"threshold": threshold, "cut": cut, "kept": kept, "mean_squares": squares}


def _importance(row: int, base: Floats, delta: Floats) -> GroupFact:
    before = _softmax(base.astype(np.float64).reshape(-1, row)) + 1e-8
    after = _softmax((base.astype(np.float64) + delta).reshape(-1, row)) + 1e-8
    divergence = (after * np.log(after / before)).sum(axis=1)
    importance = np.sort(np.abs(delta) * np.repeat(divergence.astype(delta.dtype), row))
    low, median, high = (float(importance[int(share * (delta.size - 1))]) for share in (0.25, 0.5, 0.75))
    return {"threshold": median + 1.5 * (high - low), "divergence": divergence.tolist()}


def _softmax(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    raised = np.exp(rows - rows.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = raised / raised.sum(axis=1, keepdims=True)
    return shares


def _gram(rows: Sequence[Floats]) -> list[float]:
    wide = [row.astype(np.float64) for row in rows]
    return [math.fsum(left * right) for left in wide for right in wide]


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    if is_dataclass(value) and not isinstance(value, type):
        return all(_is_plain(getattr(value, each.name)) for each in fields(value))
    return value is None or isinstance(value, bool | int | float | str | bytes)
