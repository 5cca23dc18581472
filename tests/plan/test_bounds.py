"""Bounds: the formula written naively, rounding against a float64 reference, and no number without its mark."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mergepipe.core.dtypes import decode, dtype, encode
from mergepipe.operators.registry import operator as find_operator
from mergepipe.plan.bounds import EXACT, TensorEvidence, bound_of, no_bound
from mergepipe.plan.logical import ExpertTensor, TensorMerge
from mergepipe.testing.operators import Example, combine, resolve, spec_of

Floats = NDArray[np.floating[Any]]


def merge_of(elements: int, experts: int, code: str = "F32", out: str | None = None) -> TensorMerge:
    """A 1-d tensor of so many elements and experts."""
    parts = tuple(ExpertTensor(n + 1, "w", code, elements, {}) for n in range(experts))
    return TensorMerge("w", (elements,), code, out or code, "w", parts, {})


def evidence_of(
    method: str, example: Example, norms: Any, read: Any, base_norms: Any, code: str = "F32", out: str | None = None,
    block: int = 10,
) -> TensorEvidence:  # fmt: skip
    """Evidence with norms made by hand, for blocks of `block` elements."""
    norms = np.array(norms, np.float64)
    tensor = merge_of(block * norms.shape[1], norms.shape[0], code, out)
    operator = find_operator(method)
    coefficients = operator.resolve(spec_of(operator, example, tensor.elements), [()] * norms.shape[0])
    return TensorEvidence(
        tensor, coefficients, norms, np.array(read, np.bool_), np.array(base_norms, np.float64),
        np.full(norms.shape[1], block, np.int64),
    )  # fmt: skip


TASK = Example({"lambda": 0.5}, ({"weight": 2.0}, {"weight": -1.0}, {"weight": 0.25}))
NORMS = [[3.0, 1.0, 0.0], [4.0, 0.5, 0.0], [8.0, 2.0, 1.0]]
READ = [[True, False, False], [False, True, False], [True, False, True]]


def test_additive_bounds_are_the_formula() -> None:
    """`(Σ_b (Σ_omitted |λwᵢ|‖δᵢ,b‖)²)^½`, over all tensors, barely rounded upward."""
    parts = [evidence_of("task_arithmetic", TASK, NORMS, READ, [10.0, 20.0, 30.0])] * 2
    gains = [1.0, 0.5, 0.125]
    total = 0.0
    for block in range(3):
        omitted = sum(gains[i] * NORMS[i][block] for i in range(3) if not READ[i][block])
        total += 2 * omitted**2
    bound = bound_of(find_operator("task_arithmetic"), parts)
    assert bound.kind == "certified"
    assert bound.l2 is not None
    assert math.sqrt(total) <= bound.l2 <= math.sqrt(total) * (1 + 1e-8)


def test_relative_figures_are_against_update_and_weights() -> None:
    """The update's lower bound is, block by block, its largest term less all others."""
    part = evidence_of("task_arithmetic", TASK, NORMS, READ, [10.0, 20.0, 30.0])
    bound = bound_of(find_operator("task_arithmetic"), [part])
    assert bound.l2 is not None
    assert bound.relative_to_weights == pytest.approx(bound.l2 / math.sqrt(100 + 400 + 900), rel=1e-6)
    # Terms: [3, 1, 0], [2, .25, 0], [1, .25, .125]; largest less the rest: 0, .5, .125.
    assert bound.relative_to_update == pytest.approx(bound.l2 / math.hypot(0.0, 0.5, 0.125), rel=1e-6)
    assert bound.reason is None


def test_without_a_lower_bound_of_the_update_the_figure_is_null_with_its_reason() -> None:
    """Terms that may cancel, or a method whose terms are only bounded: no relative figure."""
    cancelling = evidence_of("task_arithmetic", TASK, [[1.0], [2.0], [0.0]], [[True], [False], [False]], [1.0])
    elected = evidence_of("ties", Example({}, ({"weight": 1.0},)), [[1.0]], [[False]], [1.0])
    for method, part in (("task_arithmetic", cancelling), ("ties", elected)):
        bound = bound_of(find_operator(method), [part])
        assert bound.kind == "certified"
        assert bound.relative_to_update is None
        assert bound.reason is not None
        assert "relative_to_update" in bound.reason


def test_weights_that_are_all_zero_have_no_relative_figure() -> None:
    """Nothing is divided by zero."""
    part = evidence_of("task_arithmetic", TASK, NORMS, READ, [0.0, 0.0, 0.0])
    assert bound_of(find_operator("task_arithmetic"), [part]).relative_to_weights is None


@pytest.mark.parametrize("method", ["task_arithmetic", "ties"])
def test_what_is_read_whole_errs_nothing(method: str) -> None:
    """All nonzero deltas read: zero, rounding included, whatever else is unread."""
    example = Example({}, ({"weight": 1.0}, {"weight": 2.0}))
    part = evidence_of(method, example, [[3.0, 0.0], [0.0, 1.0]], [[True, False], [False, True]], [5.0, 5.0])
    bound = bound_of(find_operator(method), [part])
    assert (bound.kind, bound.l2, bound.rounding_l2) == ("certified", 0.0, 0.0)


def test_no_tensor_at_all_errs_nothing() -> None:
    """An empty merge, and the bound of a plan that reads everything."""
    bound = bound_of(find_operator("linear"), [])
    assert (bound.kind, bound.l2, bound.rounding_l2) == ("certified", 0.0, 0.0)
    assert (EXACT.kind, EXACT.l2, EXACT.rounding_l2, EXACT.reason) == ("certified", 0.0, 0.0, None)


def test_a_method_without_a_bound_says_which_tensor_and_why() -> None:
    """Mixed signs under `normalize`: kind none, all numbers null; other tensors do not hide it."""
    fine = evidence_of(
        "ties", Example({}, ({"weight": 1.0}, {"weight": 1.0})), [[1.0], [1.0]], [[True], [False]], [1.0]
    )
    mixed = Example({}, ({"weight": 1.0}, {"weight": -1.0}))
    unbounded = evidence_of("ties", mixed, [[1.0], [1.0]], [[True], [False]], [1.0])
    bound = bound_of(find_operator("ties"), [fine, unbounded])
    assert bound.kind == "none"
    assert (bound.l2, bound.rounding_l2, bound.relative_to_update, bound.relative_to_weights) == (None,) * 4
    assert bound.reason is not None
    assert bound.reason.startswith("w: weights of both signs")


def test_mixed_signs_do_not_matter_where_nothing_is_omitted() -> None:
    """A tensor that is read whole needs no bound."""
    mixed = Example({}, ({"weight": 1.0}, {"weight": -1.0}))
    part = evidence_of("ties", mixed, [[1.0], [1.0]], [[True], [True]], [1.0])
    assert bound_of(find_operator("ties"), [part]).l2 == 0.0


def test_norms_beyond_float64_have_no_bound() -> None:
    """An infinite figure is none, and says so: no plan holds infinity."""
    for norms, base in (([[1e200]], [1.0]), ([[np.inf]], [1.0]), ([[1.0]], [1e200])):
        part = evidence_of("task_arithmetic", Example({}, ({"weight": 1.0},)), norms, [[False]], base, "F64")
        bound = bound_of(find_operator("task_arithmetic"), [part])
        assert bound.kind == "none"
        assert bound.reason == "the squares of the norms are beyond what float64 holds"


def test_a_stated_absence_has_its_reason() -> None:
    """`no_bound` is a kind of its own, without numbers."""
    bound = no_bound("because")
    assert (bound.kind, bound.l2, bound.rounding_l2, bound.reason) == ("none", None, None, "because")


def test_a_copied_block_rounds_in_one_run_only() -> None:
    """Where nothing is read and the dtype stays, only the full-read merge rounds; else both do."""
    example = Example({}, ({"weight": 1.0}, {"weight": 1.0}))
    operator = find_operator("task_arithmetic")
    norms = [[1.0], [1.0]]
    copied = bound_of(operator, [evidence_of("task_arithmetic", example, norms, [[False], [False]], [9.0])])
    partly = bound_of(operator, [evidence_of("task_arithmetic", example, norms, [[True], [False]], [9.0])])
    retyped = bound_of(
        operator, [evidence_of("task_arithmetic", example, norms, [[False], [False]], [9.0], "F32", "BF16")]
    )
    assert copied.rounding_l2 is not None
    assert partly.rounding_l2 is not None
    assert partly.rounding_l2 == pytest.approx(2 * copied.rounding_l2)
    assert retyped.rounding_l2 is not None
    assert retyped.rounding_l2 > 1000 * partly.rounding_l2


# --- against measured merges ------------------------------------------------------------------------

CASES = [
    ("task_arithmetic", {}, True), ("task_arithmetic", {"normalize": True}, True), ("linear", {}, True),
    ("linear", {"normalize": False}, True), ("ties", {}, False), ("ties", {"normalize": False}, False),
]  # fmt: skip


@st.composite
def situations(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes of base, deltas and weights over many orders of magnitude, what is read, and the dtypes."""
    experts = draw(st.integers(1, 4))
    powers = st.integers(-148, 30)
    return {
        "seed": draw(st.integers(0, 2**20)),
        "base": draw(st.one_of(st.none(), st.integers(-20, 3), powers)),
        "deltas": [draw(st.one_of(st.integers(-24, 0), powers)) for _ in range(experts)],
        "weights": [draw(st.sampled_from([1.0, 0.3, 0.7, 2.5, 1e-5])) for _ in range(experts)],
        "lambda": draw(st.sampled_from([1.0, 0.8, 1e5])),
        "read": [[draw(st.booleans()) for _ in range(4)] for _ in range(experts)],
        "stored": draw(st.sampled_from(["F32", "BF16"])),
        "out": draw(st.sampled_from(["F32", "BF16", "F64"])),
    }


def stored_values(values: Floats, code: str) -> Floats:
    """What a checkpoint of this dtype holds, as float32."""
    kind = dtype(code)
    raw = encode(np.asarray(values, np.float32), kind, np.empty(values.size * kind.itemsize, np.uint8))
    return decode(raw, kind, np.empty(values.size, np.float32))


def as_stored(values: Floats, code: str) -> NDArray[np.float64]:
    """Merged values as published, in float64."""
    kind = dtype(code)
    raw = encode(values, kind, np.empty(values.size * kind.itemsize, np.uint8))
    out: NDArray[np.float64] = np.empty(values.size, np.float64)
    decode(raw, kind, out)
    return out


@pytest.mark.parametrize(("method", "merge", "additive"), CASES)
@settings(max_examples=60)
@given(situation=situations())
def test_measured_differences_are_within_the_bound(
    method: str, merge: dict[str, Any], additive: bool, situation: dict[str, Any]
) -> None:
    """Stored tensors of the partial and the full run differ by at most `l2 + rounding_l2`, at every magnitude.

    For additive methods `l2` alone bounds the difference of the two merges in float64.
    """
    block, blocks = 12, 4
    generator = np.random.default_rng(situation["seed"])
    count = block * blocks

    def noise(power: int | None) -> Floats:
        return np.zeros(count) if power is None else np.ldexp(generator.standard_normal(count), power)

    base = stored_values(noise(situation["base"]), situation["stored"])
    experts = [stored_values(base + noise(power), situation["stored"]) for power in situation["deltas"]]
    deltas = [(each - base).astype(np.float32) for each in experts]
    operator = find_operator(method)
    terms = tuple({"weight": weight} for weight in situation["weights"])
    merged = merge if method == "linear" else {**merge, "lambda": situation["lambda"]}
    example = Example(merged, terms, {"weight": 1.0} if method == "linear" else None)
    coefficients = resolve(operator, spec_of(operator, example, count), deltas)
    read = np.array(situation["read"], np.bool_)
    full, partial = np.empty(count, np.float32), np.empty(count, np.float32)
    exact = 0.0
    for number in range(blocks):
        span = slice(number * block, (number + 1) * block)
        parts = [delta[span] for delta in deltas]
        everything = [True] * len(deltas)
        full[span] = combine(operator, coefficients, base[span], parts, everything)
        seen = read[:, number].tolist()
        copied = not any(seen) and operator.copies_unread(coefficients)
        partial[span] = base[span] if copied else combine(operator, coefficients, base[span], parts, seen)
        wide = [part.astype(np.float64) for part in parts]
        # In float64, for additive methods: what the partial run leaves out is the update of the unread terms.
        left_out = combine(operator, coefficients, np.zeros(block), wide, [not each for each in seen])
        exact += float(np.sum(left_out**2))

    def norms(values: Floats) -> NDArray[np.float64]:
        squares: NDArray[np.float64] = np.sqrt(np.sum(values.astype(np.float64).reshape(blocks, block) ** 2, axis=1))
        return squares

    tensor = merge_of(count, len(deltas), situation["stored"], situation["out"])
    evidence = TensorEvidence(
        tensor, coefficients, np.stack([norms(delta) for delta in deltas]), read, norms(base),
        np.full(blocks, block, np.int64),
    )  # fmt: skip
    bound = bound_of(operator, [evidence])
    assert bound.kind == "certified"
    assert bound.l2 is not None
    assert bound.rounding_l2 is not None
    apart = as_stored(full, situation["out"]) - as_stored(partial, situation["out"])
    assert float(np.sqrt(np.sum(apart**2))) <= bound.l2 + bound.rounding_l2
    if additive:
        assert math.sqrt(exact) <= bound.l2 * (1 + 1e-12)
    if bound.relative_to_update is not None and bound.l2 > 0 and operator.base_gain(coefficients) == 1.0:
        wide = [delta.astype(np.float64) for delta in deltas]
        update = combine(operator, coefficients, np.zeros(count), wide, [True] * len(deltas))
        assert float(np.sqrt(np.sum(update**2))) * (1 + 1e-12) >= bound.l2 / bound.relative_to_update
