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
from mergepipe.core.random import keep_mask
from mergepipe.operators.contract import (
    AccessClass,
    Delta,
    Norms,
    Number,
    Operator,
    Parameter,
    TensorSpec,
    TermSpec,
    Tile,
    Values,
)
from mergepipe.stats.contract import Fact, MaskedL1Need, Need, TrimNeed

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Example:
    """Parameters of one merge; what is left out has its default. `reference` is the base's own, if it is an input."""

    merge: Mapping[str, Number | str] = field(default_factory=dict)
    terms: tuple[Mapping[str, Number | str], ...] = ()
    reference: Mapping[str, Number | str] | None = None


def spec_of(operator: Operator, example: Example, elements: int, seed: int = 0, wide: bool = False) -> TensorSpec:
    """The tensor spec of an example, completed with the operator's defaults."""
    of_merge = [parameter for parameter in operator.parameters if not parameter.per_model]
    of_model = [parameter for parameter in operator.parameters if parameter.per_model]
    return TensorSpec(
        name="layer.weight",
        elements=elements,
        row=1,
        seed=seed,
        parameters=_complete(of_merge, example.merge),
        terms=tuple(TermSpec(n, _complete(of_model, term)) for n, term in enumerate(example.terms)),
        reference=None if example.reference is None else _complete(of_model, example.reference),
        wide=wide,
    )


def fact_of(need: Need, delta: Floats) -> Fact:
    """The fact that answers `need` for a whole delta, computed the plain way."""
    sizes = np.abs(delta.astype(np.float64))
    if isinstance(need, TrimNeed):
        last = np.argsort(-sizes, kind="stable")[max(1, int(need.density * delta.size)) - 1]
        return {"threshold": float(sizes[last]), "cut": int(last)}
    if isinstance(need, MaskedL1Need):
        kept = keep_mask(need.key, 0, delta.size, need.density)
        return {"l1": math.fsum(sizes), "masked_l1": math.fsum(sizes[kept])}
    raise TypeError(f"no plain computation for {need!r}")


def resolve(operator: Operator, spec: TensorSpec, deltas: Sequence[Floats]) -> Any:
    """The operator's coefficients for these deltas."""
    wanted = operator.needs(spec)
    assert len(wanted) == len(spec.terms), "needs() must have one entry for each term"
    facts = [[fact_of(need, delta) for need in needs] for needs, delta in zip(wanted, deltas, strict=True)]
    return operator.resolve(spec, facts)


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
    """What holds for every operator of element grain.

    A subclass names the operator and a few recipes (of two to four terms: every subset of them is read);
    `namespaces` are the array libraries to try.
    """

    operator: ClassVar[Operator]
    recipes: ClassVar[tuple[Example, ...]]
    namespaces: ClassVar[tuple[Namespace, ...]] = (np,)
    elements: ClassVar[int] = 1_037

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
                inside = [cut for cut in cuts if cut < self.elements]
                parts = combine(self.operator, case.coefficients, case.base, case.deltas, case.all_read, inside)
                assert np.array_equal(bits(whole), bits(parts))

    def test_array_libraries_agree(self) -> None:
        """Every array library gives numpy's bits."""
        for case in self._cases():
            for read in case.reads():
                expected = self._merged(case, read)
                for xp in self.namespaces:
                    found = combine(self.operator, case.coefficients, case.base, case.deltas, read, (300,), xp)
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
            most = self.operator.bound(case.coefficients, norms, np.zeros(norms.shape, np.bool_))
            for read in case.reads():
                reads = np.repeat(np.asarray(read, np.bool_)[:, None], norms.shape[1], axis=1)
                bound = self.operator.bound(case.coefficients, norms, reads)
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
            bound = self.operator.bound(case.coefficients, norms, reads)
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

    @property
    def _edges(self) -> list[int]:
        return [0, self.elements // 3, self.elements // 2, self.elements]

    def _cases(self, wide: bool = False) -> Iterator[_Case]:
        assert self.recipes, "give the contract at least one recipe"
        for number, example in enumerate(self.recipes):
            generator = np.random.default_rng(number)
            spec = spec_of(self.operator, example, self.elements, seed=number, wide=wide)
            base, deltas = tensors(generator, self.elements, len(spec.terms), np.float64 if wide else np.float32)
            yield _Case(base, deltas, resolve(self.operator, spec, deltas))

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


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    if is_dataclass(value) and not isinstance(value, type):
        return all(_is_plain(getattr(value, each.name)) for each in fields(value))
    return value is None or isinstance(value, bool | int | float | str)
