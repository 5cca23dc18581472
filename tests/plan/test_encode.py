"""Plan files: canonical, digested, and refused when they are not what they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mergepipe.errors import FormatError
from mergepipe.plan.access import AccessPlan
from mergepipe.plan.encode import decode_plan, encode_plan, plan_from
from mergepipe.plan.logical import TensorMerge
from mergepipe.testing.checkpoints import write_family
from mergepipe.testing.plans import corridor

RECIPE = "merge_method: dare_linear\n# ünïcode\n"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> AccessPlan:
    """A plan with facts, bitmaps and a bound."""
    family = write_family(tmp_path_factory.mktemp("family"), experts=2)
    models = [{"weight": 1, "density": 0.5}, {"weight": 0.1, "density": 0.25}]
    return corridor(family.base, family.experts, "dare_linear", models=models, block_bytes=64).choose("35%")


def document(plan: AccessPlan) -> dict[str, Any]:
    """The plan file as plain values."""
    found: dict[str, Any] = json.loads(encode_plan(plan, RECIPE))
    return found


def test_a_plan_file_holds_the_plan_and_its_recipe(plan: AccessPlan) -> None:
    """Equal after a round trip, byte for byte when written again."""
    data = encode_plan(plan, RECIPE)
    again, recipe = decode_plan(data, "plan.json")
    assert (again, recipe) == (plan, RECIPE)
    assert encode_plan(again, recipe) == data


def test_numbers_keep_their_kind_and_every_bit(plan: AccessPlan) -> None:
    """Facts and weights are what they were: integers whole, floats exact."""
    again, _ = decode_plan(encode_plan(plan, RECIPE), "plan.json")
    for before, after in zip(plan.tensors, again.tensors, strict=True):
        assert repr([[sorted(fact.items()) for fact in facts] for facts in before.facts]) == repr(
            [[sorted(fact.items()) for fact in facts] for facts in after.facts]
        )
    for one, other in zip(plan.logical.tensors, again.logical.tensors, strict=True):
        assert repr(_parameters(one)) == repr(_parameters(other))
    assert repr(again.bound) == repr(plan.bound)


def _parameters(tensor: TensorMerge) -> list[list[tuple[str, object]]]:
    return [sorted(each.items()) for each in (tensor.parameters, *(part.parameters for part in tensor.experts))]


def test_a_file_is_canonical_json(plan: AccessPlan) -> None:
    """Sorted keys, one line, the digest beside the plan it is of."""
    data = encode_plan(plan, RECIPE)
    assert data.count(b"\n") == 1
    assert data.endswith(b"}\n")
    plain = json.loads(data)
    assert list(plain) == sorted(plain)
    assert (plain["format"], plain["schema"], plain["digest"]) == ("mergepipe-plan", 1, plan.digest)


def _set(path: str, value: Any) -> Any:
    """A change of one value in a document."""

    def change(plain: dict[str, Any]) -> None:
        *folders, last = path.split("/")
        part: Any = plain
        for name in folders:
            part = part[int(name) if isinstance(part, list) else name]
        part[int(last) if isinstance(part, list) else last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("plan/logical/seed", 5),
        _set("plan/budget/cap", 10**9),
        _set("plan/tensors/0/reads/0", "all"),
        _set("plan/tensors/0/expected/1", ""),
        _set("plan/tensors/1/facts/0", [{"l1": 1.0, "masked_l1": 1.0}]),
        _set("plan/bound/l2", 0.0),
        _set("plan/allow_nonfinite", True),
        _set("plan/logical/inputs/1/header_digest", "sha256:0"),
        _set("plan/logical/tensors/0/experts/0/parameters/weight", 2),
        _set("digest", "sha256:0"),
    ],
)
def test_a_tampered_plan_is_refused(plan: AccessPlan, change: Any) -> None:
    """The file's name and both digests are said."""
    plain = document(plan)
    before = json.dumps(plain)
    change(plain)
    assert json.dumps(plain) != before
    with pytest.raises(FormatError, match=r"^plan\.json: the plan's digest is sha256:.*edited or damaged"):
        decode_plan(json.dumps(plain).encode(), "plan.json")


def test_a_moved_input_may_be_given_its_new_place(plan: AccessPlan) -> None:
    """Where inputs are is not part of what a plan is."""
    plain = document(plan)
    plain["plan"]["logical"]["inputs"][0]["url"] = "/new/place"
    again, _ = decode_plan(json.dumps(plain).encode(), "plan.json")
    assert again.digest == plan.digest
    assert again.logical.inputs[0].url == "/new/place"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"{" * 20, "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a plan"),
        (b"{}", "not a plan"),
        (b'{"format": "mergepipe-manifest"}', "not a plan"),
        (b'{"format": "mergepipe-plan", "schema": 99}', "schema 99"),
        (b'{"format": "mergepipe-plan", "schema": 1}', "not a plan"),
    ],
)
def test_what_is_no_plan_is_refused(data: bytes, words: str) -> None:
    """With the file's name, and never by an exception of another kind."""
    with pytest.raises(FormatError, match=words) as caught:
        decode_plan(data, "dir/plan.json")
    assert str(caught.value).startswith("dir/plan.json: ")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (_set("logical/seed", "zero"), "seed"),
        (_set("tensors/0/block", None), "block"),
        (_set("tensors", {}), "tensors"),
        (_set("bound/kind", 3), "kind"),
    ],
)
def test_a_field_that_does_not_fit_is_named(plan: AccessPlan, change: Any, field: str) -> None:
    """Where in the plan, and what was expected."""
    plain = document(plan)["plan"]
    change(plain)
    with pytest.raises(FormatError, match=rf"^m\.json: not a plan: .*{field}"):
        plan_from(plain, "m.json")


def test_equal_plans_of_equal_inputs_in_other_places_have_equal_identity(plan: AccessPlan, tmp_path: Path) -> None:
    """Identity has no place of this machine but what the user wrote."""
    assert "url" not in json.dumps(plan.identity).replace('"url": ""', "")
