"""Where we differ from mergekit 0.1.5 on purpose: what it does, what we do instead. docs/parity.md lists them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mergepipe.errors import IncompatibleModels, NonFiniteError, RecipeError
from mergepipe.testing.checkpoints import read_floats, read_tensors
from tests.parity.batch import Place, Probe
from tests.parity.cases import Recipe, models, sparse, weights
from tests.parity.compare import Floats
from tests.parity.peer import Outcome

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

Theirs = Callable[[str], Outcome]
FLOAT32: Recipe = {"dtype": "float32", "out_dtype": "float32"}


def probe(name: str, family: str, **recipes: Recipe) -> pytest.MarkDecorator:
    """The parameter of a test that needs mergekit's runs of these recipes."""
    return pytest.mark.parametrize("probe", [Probe(name, family, recipes)], ids=[name])


def task(method: str, entries: list[dict[str, Any]], **parameters: Any) -> Recipe:
    """A float32 recipe on the base."""
    return {"merge_method": method, "base_model": "@base", "models": entries, "parameters": parameters, **FLOAT32}


def free(method: str, entries: list[dict[str, Any]], **parameters: Any) -> Recipe:
    """A float32 recipe without a base."""
    return {"merge_method": method, "models": entries, "parameters": parameters, **FLOAT32}


def ours(place: Place, probe: Probe, label: str, folder: Path) -> Path:
    """Our merge of one of a probe's recipes."""
    folder.mkdir(exist_ok=True)
    return place.ours_of(probe.recipes[label], probe.family, folder)


def good(outcome: Outcome) -> dict[str, Floats]:
    """The tensors mergekit wrote."""
    assert outcome.error is None
    return read_floats(outcome.out)


def nonfinite(tensors: Mapping[str, Floats]) -> int:
    """How many elements are NaN or infinite."""
    return sum(int(np.count_nonzero(~np.isfinite(values))) for values in tensors.values())


def l1(tensors: Iterable[Floats]) -> float:
    """Σ|x| over all tensors."""
    return float(sum(np.abs(values.astype(np.float64)).sum() for values in tensors))


# --------------------------------------------------------------------- config and recipe


ROTATED = [("@expert1", "@expert2", "@expert3", "@expert4")[n:] + ("@expert1", "@expert2", "@expert3", "@expert4")[:n]
           for n in range(4)]  # fmt: skip


@probe("donor", "donors", **{f"first{order[0][-1]}": free("linear", models(*[{"weight": 0.25}] * 4, of=order))
                             for order in ROTATED})  # fmt: skip
def test_the_first_model_gives_the_config(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """R2: without a base, mergekit takes config.json from a model that hashing picks; we from the first."""

    def positions(folder: Path) -> int:
        return int(json.loads((folder / "config.json").read_text())["max_position_embeddings"])

    first = {label: 100 + int(label[-1]) for label in probe.recipes}
    assert {label: positions(theirs(f"donor-{label}").out) for label in first} != first
    assert {label: positions(ours(place, probe, label, tmp_path / label)) for label in first} == first


@probe("misspelt", "bf16",
       key={**task("task_arithmetic", weights(0.5)), "dtpye": "float16"},
       parameter=task("task_arithmetic", models({"weight": 0.5, "wieght": 0.2})),
       section=task("task_arithmetic", [{"model": "@expert1", "paramters": {"weight": 0.2}}], weight=0.5))  # fmt: skip
def test_misspelt_words_are_refused(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """R15: mergekit takes no notice of a key it does not know; we refuse it and name the nearest."""
    nearest = {"key": "dtype", "parameter": "weight", "section": "parameters"}
    for label, word in nearest.items():
        assert nonfinite(good(theirs(f"misspelt-{label}"))) == 0
        with pytest.raises(RecipeError, match=word):
            ours(place, probe, label, tmp_path / label)


@probe("misplaced", "bf16", normalize=task("task_arithmetic", models({"weight": 0.5, "normalize": True})))
def test_a_parameter_of_the_merge_below_a_model_is_refused(
    probe: Probe, theirs: Theirs, place: Place, tmp_path: Path
) -> None:
    """Under mergekit nobody looks at `normalize` below a model; we say where it belongs."""
    good(theirs("misplaced-normalize"))
    with pytest.raises(RecipeError, match="top level"):
        ours(place, probe, "normalize", tmp_path)


@probe("density-range", "bf16", both=task("ties", sparse((0.5, 1.5), (0.5, -0.5))))
def test_densities_beyond_their_range_are_refused(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """A density above 1 counts as 1 in mergekit, one below 0 as 0; we refuse both."""
    good(theirs("density-range-both"))
    with pytest.raises(RecipeError, match="density"):
        ours(place, probe, "both", tmp_path)


@probe("unweighted-base", "bf16",
       base=task("linear", weights(0.5, 0.3)), free=free("linear", weights(0.5, 0.3)))  # fmt: skip
def test_an_unlisted_base_of_linear_need_not_weigh(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """At a base without weight mergekit stops; here it gives config and tokenizer, and has no part in the sum."""
    assert "weight" in (theirs("unweighted-base-base").error or "")
    mine = read_floats(ours(place, probe, "base", tmp_path))
    for name, values in good(theirs("unweighted-base-free")).items():
        np.testing.assert_allclose(mine[name], values, rtol=1e-5, atol=1e-7)


@probe("twice", "bf16", linear=free("linear", models({"weight": 1.0}, {"weight": 0.5}, of=("@expert1", "@expert1"))))
def test_a_model_named_twice(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """A model named twice is refused by 0.1.5; here its weights add (see "same-twice" in cases.py, too)."""
    assert "Duplicate" in (theirs("twice-linear").error or "")
    mine = read_floats(ours(place, probe, "linear", tmp_path))
    for name, values in read_floats(place.family("bf16") / "expert1").items():
        np.testing.assert_allclose(mine[name], values, rtol=1e-6)


# -------------------------------------------------------------------- numbers that are none


@probe("cancelling", "bf16",
       linear=free("linear", weights(0.5, -0.5)), multislerp=free("multislerp", weights(0.5, -0.5)))  # fmt: skip
def test_weights_that_cancel_are_refused(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """R9, R11: where normalised weights add up to 0, mergekit writes a model of infinities or NaN; we stop first."""
    for label in ("linear", "multislerp"):
        assert nonfinite(good(theirs(f"cancelling-{label}"))) > 70_000
        with pytest.raises(RecipeError, match="weights"):
            ours(place, probe, label, tmp_path / label)


@probe("coarse", "coarse",
       ties={**task("ties", sparse((0.5, 0.5), (0.5, 0.5)), rescale=True), "dtype": "float16", "out_dtype": "float16"},
       breadcrumbs={**task("breadcrumbs", sparse((0.5, 0.5)), rescale=True), "dtype": "float16",
                    "out_dtype": "float16"})  # fmt: skip
def test_float16_rescaling_stays_finite(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """R6: mergekit adds up L1 norms in float16, which overflow to NaN; ours are float64 sums."""
    experts = read_floats(place.family("coarse") / "expert1")
    for label in ("ties", "breadcrumbs"):
        assert nonfinite(good(theirs(f"coarse-{label}"))) > 70_000
        mine = read_floats(ours(place, probe, label, tmp_path / label))
        assert nonfinite(mine) == 0
        assert l1(mine.values()) > 0.4 * l1(experts.values())


@probe("faint", "faint", dare=task("dare_linear", sparse((1.0, 0.5))))
def test_faint_task_vectors_are_rescaled(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """What has an L1 norm below 1e-7 is not rescaled by mergekit; we rescale anything."""
    expert = l1(read_floats(place.family("faint") / "expert1").values())
    assert l1(good(theirs("faint-dare")).values()) < 0.6 * expert
    mine = l1(read_floats(ours(place, probe, "dare", tmp_path)).values())
    assert mine == pytest.approx(expert, rel=1e-5)


@probe("nan", "nonfinite", ties=task("ties", weights(1.0, 1.0, 1.0)))
def test_a_nan_stops_the_merge(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """R19: mergekit carries an expert's NaN into the merged model; we stop and name the tensor."""
    assert nonfinite(good(theirs("nan-ties"))) == 1
    with pytest.raises(NonFiniteError, match=r"expert3.*layers\.1\.mlp\.up_proj"):
        ours(place, probe, "ties", tmp_path)


@probe("equal", "equal", three=task("multislerp", weights(0.3, 0.3, 0.4)))
def test_multislerp_of_models_that_equal_the_base(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """R9: mergekit stops where three experts equal the base in a tensor; there our result is the base's tensor."""
    assert "weighted sum" in (theirs("equal-three").error or "")
    base = read_floats(place.family("equal") / "base")
    for name, values in read_floats(ours(place, probe, "three", tmp_path)).items():
        moved = name.endswith(("q_proj.weight", "o_proj.weight"))
        assert np.array_equal(values, base[name]) != moved, name


@probe("della-range", "bf16", narrow=task("della", sparse((0.5, 0.9))))
def test_della_probabilities_beyond_their_range_are_refused(
    probe: Probe, theirs: Theirs, place: Place, tmp_path: Path
) -> None:
    """R5: density ± epsilon must stay between 0 and 1; mergekit says so while merging, we before reading."""
    assert "Epsilon" in (theirs("della-range-narrow").error or "")
    with pytest.raises(RecipeError, match="epsilon"):
        ours(place, probe, "narrow", tmp_path)


@probe("della-column", "thin", column=task("della_linear", sparse((1.0, 0.5)), rescale=False))
def test_della_of_rows_of_one_element(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """R5: where a row has one element mergekit divides 0 by 0 and stops; its probability is the density here."""
    assert "p_in" in (theirs("della-column-column").error or "")
    mine = read_floats(ours(place, probe, "column", tmp_path))
    base, expert = (read_floats(place.family("thin") / name) for name in ("base", "expert1"))
    columns = [name for name in base if name.endswith("down_proj.weight")]
    kept = np.concatenate([(mine[name] != base[name]).ravel() for name in columns])
    for name in columns:
        np.testing.assert_allclose(mine[name], np.where(mine[name] != base[name], expert[name], base[name]), atol=1e-6)
    assert 0.3 < kept.mean() < 0.7


@probe("aliases", "encoder", task=task("task_arithmetic", weights(0.5)))
def test_an_encoder_with_aliased_names(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """R16: mergekit's list of a BERT's names has aliases, at which it stops; here names are what the models have."""
    assert "TypeError" in (theirs("aliases-task").error or "")
    mine = read_floats(ours(place, probe, "task", tmp_path))
    base, expert = (read_floats(place.family("encoder") / name) for name in ("base", "expert1"))
    for name, values in base.items():
        np.testing.assert_allclose(mine[name], values + 0.5 * (expert[name] - values), rtol=1e-5, atol=1e-6)


# ------------------------------------------------- mixtures of experts, multimodal models


def fused(tensors: Mapping[str, Floats]) -> dict[str, Floats]:
    """A Mixtral's tensors as transformers 5 holds them: a layer's experts in two, `w1` above `w3`."""
    whole = {name: values for name, values in tensors.items() if ".experts." not in name}
    whole = {name.replace("block_sparse_moe", "mlp"): values for name, values in whole.items()}
    for layer in range(sum(name.endswith("input_layernorm.weight") for name in tensors)):
        here = f"model.layers.{layer}.block_sparse_moe.experts"
        experts = range(sum(name.startswith(here) and name.endswith("w1.weight") for name in tensors))
        w1, w2, w3 = ([tensors[f"{here}.{n}.{part}.weight"] for n in experts] for part in ("w1", "w2", "w3"))
        whole[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = np.concatenate([w1, w3], axis=1)
        whole[f"model.layers.{layer}.mlp.experts.down_proj"] = np.stack(w2)
    return whole


@probe("one-by-one", "mixtral",
       task=task("task_arithmetic", weights(0.5, 0.4)), ties=task("ties", sparse((0.5, 0.3), (0.5, 0.3))))  # fmt: skip
def test_experts_stored_one_by_one_stay_so(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """Tensors are the base's, each trimmed by itself; mergekit fuses a layer's experts and trims over all of them."""
    mine, peer = read_floats(ours(place, probe, "task", tmp_path / "task")), good(theirs("one-by-one-task"))
    assert set(mine) == set(read_floats(place.family("mixtral") / "base"))
    assert set(fused(mine)) == set(peer)
    for name, values in fused(mine).items():
        np.testing.assert_allclose(values, peer[name], rtol=1e-5, atol=1e-6)
    mine, peer = fused(read_floats(ours(place, probe, "ties", tmp_path / "ties"))), good(theirs("one-by-one-ties"))
    for name, values in mine.items():
        assert np.allclose(values, peer[name], rtol=1e-5, atol=1e-6) != (".experts." in name), name


@probe("dense-first", "qwen3_moe", task=task("task_arithmetic", weights(0.5)))
def test_dense_layers_among_sparse_ones(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """A layer is what it has; mergekit takes every layer of a Qwen3-MoE for sparse, and stops at a dense one."""
    assert "mlp.experts.down_proj required but not present" in (theirs("dense-first-task").error or "")
    mine = read_floats(ours(place, probe, "task", tmp_path))
    base, expert = (read_floats(place.family("qwen3_moe") / name) for name in ("base", "expert1"))
    for name, values in base.items():
        np.testing.assert_allclose(mine[name], values + 0.5 * (expert[name] - values), rtol=1e-5, atol=1e-6)


@probe("stacked-mixture", "gpt_oss", franken={
    "merge_method": "passthrough", **FLOAT32,
    "slices": [
        {"sources": [{"model": "@base", "layer_range": [0, 2]}]},
        {"sources": [{"model": "@expert1", "layer_range": [1, 3]}]},
    ],
})  # fmt: skip
def test_a_stacked_mixture_counts_its_layers(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """Of an architecture it only infers, mergekit stacks layers and leaves config.json as it was; ours says four."""
    assert any(".layers.3." in name for name in good(theirs("stacked-mixture-franken")))
    configs = [
        json.loads((folder / "config.json").read_text())
        for folder in (theirs("stacked-mixture-franken").out, ours(place, probe, "franken", tmp_path))
    ]
    assert [config["num_hidden_layers"] for config in configs] == [3, 4]
    assert configs[1]["layer_types"] == [configs[0]["layer_types"][layer] for layer in (0, 1, 1, 2)]


@probe("towers", "llava", task=task("task_arithmetic", weights(0.5)))
def test_every_part_of_a_multimodal_model_is_merged(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """Of a Llava, an architecture it only infers, mergekit writes the projector and drops the rest; we merge all."""
    base, expert = (read_floats(place.family("llava") / name) for name in ("base", "expert1"))
    assert len(good(theirs("towers-task"))) == 4 < len(base)
    mine = read_floats(ours(place, probe, "task", tmp_path))
    for name, values in base.items():
        np.testing.assert_allclose(mine[name], values + 0.5 * (expert[name] - values), rtol=1e-5, atol=1e-6)


@probe("unknown-tensors", "predicting", task=task("task_arithmetic", weights(0.5)))
def test_tensors_beside_the_architecture_are_merged(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """Tensors that are not in its list of an architecture's, mergekit drops without a word; we merge them."""
    base, expert = (read_floats(place.family("predicting") / name) for name in ("base", "expert1"))
    assert set(base) - set(good(theirs("unknown-tensors-task"))) == {"mtp.layers.0.proj.weight", "value_head.weight"}
    mine = read_floats(ours(place, probe, "task", tmp_path))
    for name, values in base.items():
        np.testing.assert_allclose(mine[name], values + 0.5 * (expert[name] - values), rtol=1e-5, atol=1e-6)


@probe("cut-multimodal", "gemma3", franken={
    "merge_method": "passthrough", **FLOAT32,
    "slices": [
        {"sources": [{"model": "@base", "layer_range": [0, 2]}]},
        {"sources": [{"model": "@expert1", "layer_range": [1, 3]}]},
    ],
})  # fmt: skip
def test_slices_cut_the_language_model(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """Slices of a multimodal model cut its language model, towers stay whole; mergekit wants `modules` for that."""
    assert "multiple modules" in (theirs("cut-multimodal-franken").error or "")
    out = ours(place, probe, "franken", tmp_path)
    config = json.loads((out / "config.json").read_text())
    assert config["text_config"]["num_hidden_layers"] == len(config["text_config"]["layer_types"]) == 4
    mine, base = read_floats(out), read_floats(place.family("gemma3") / "base")
    towers = [name for name in base if not name.startswith("language_model.")]
    assert all(np.array_equal(mine[name], base[name]) for name in towers)


@probe("text-only", "gemma3-text", task=task("task_arithmetic", models({"weight": 0.5}, of=("@text",))))
def test_a_text_only_expert_of_a_multimodal_base(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """The language model both have is merged, and that is said; mergekit refuses other architectures altogether."""
    assert "different architectures" in (theirs("text-only-task").error or "")
    mine, base = (read_floats(folder) for folder in (ours(place, probe, "task", tmp_path),
                                                     place.family("gemma3-text") / "base"))  # fmt: skip
    changed = {name for name, values in base.items() if not np.array_equal(mine[name], values)}
    assert changed == {name for name in base if name.startswith("language_model.")}


@probe("projector", "qwen2_5_vl", gradient=task("task_arithmetic", weights([0.0, 1.0])))
def test_a_projector_takes_a_gradients_first_value(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """Mergekit takes this projector's matrices for a stack of one layer, which has a gradient's last value."""
    mine, peer = read_floats(ours(place, probe, "gradient", tmp_path)), good(theirs("projector-gradient"))
    base, expert = (read_floats(place.family("qwen2_5_vl") / name) for name in ("base", "expert1"))
    differ = {name for name in base if not np.allclose(mine[name], peer[name], rtol=1e-5, atol=1e-6)}
    assert differ == {name for name in base if name.startswith("visual.merger.mlp.")}
    for name in differ:
        assert np.array_equal(mine[name], base[name])
        np.testing.assert_allclose(peer[name], expert[name], rtol=1e-5, atol=1e-6)


# -------------------------------------------------------------------------- shapes and dtypes


@probe("misshapen", "misshapen", ties=task("ties", weights(1.0)))
def test_another_shape_is_refused_by_both(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """R17: 0.1.5 no longer drops an expert of another shape in silence; both stop, and name the tensor."""
    assert "mlp.up_proj" in (theirs("misshapen-ties").error or "")
    with pytest.raises(IncompatibleModels, match=r"mlp\.up_proj"):
        ours(place, probe, "ties", tmp_path)


@probe("prefixes", "prefixes",
       karcher=free("karcher", models({}, {})), task=task("task_arithmetic", weights(0.5)))  # fmt: skip
def test_other_vocabulary_sizes_are_refused_by_both(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """R12, R17: no embedding is cropped unasked; both stop."""
    for label in probe.recipes:
        assert "size mismatch" in (theirs(f"prefixes-{label}").error or "")
        with pytest.raises(IncompatibleModels, match="vocabulary rows"):
            ours(place, probe, label, tmp_path / label)


@probe("fusion-dtype", "bf16", plain={
    "merge_method": "arcee_fusion", "base_model": "@base", "models": models({}),
})  # fmt: skip
def test_arcee_fusion_keeps_the_dtype(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """R13: without a dtype mergekit's fusion of bfloat16 models is float32; ours keeps the base's dtype."""
    good(theirs("fusion-dtype-plain"))
    assert {code for code, _, _ in read_tensors(theirs("fusion-dtype-plain").out).values()} == {"F32"}
    assert {code for code, _, _ in read_tensors(ours(place, probe, "plain", tmp_path)).values()} == {"BF16"}


@probe("rounding", "bf16", plain={
    "merge_method": "task_arithmetic", "base_model": "@base", "models": weights(0.5, 0.4, 0.3),
})  # fmt: skip
def test_bfloat16_models_are_not_computed_in_bfloat16(
    probe: Probe, theirs: Theirs, place: Place, tmp_path: Path
) -> None:
    """Without a dtype mergekit rounds every step to bfloat16; ours is rounded once, and nearer to the formula."""
    folder = place.family("bf16")
    base, *experts = (read_floats(folder / name) for name in ("base", "expert1", "expert2", "expert3"))
    mine, peer = read_floats(ours(place, probe, "plain", tmp_path)), good(theirs("rounding-plain"))
    errors: dict[str, list[float]] = {"mine": [], "peer": []}
    for name, theta in base.items():
        exact = theta.astype(np.float64)
        for weight, expert in zip((0.5, 0.4, 0.3), experts, strict=True):
            exact = exact + weight * (expert[name].astype(np.float64) - theta)
        half_ulp = np.ldexp(1.0, np.frexp(exact)[1] - 9)
        # One rounding, and what float32 adds to it.
        assert (np.abs(mine[name] - exact) <= half_ulp * (1 + 1e-4) + 1e-7).all(), name
        errors["mine"].append(float(np.sum((mine[name] - exact) ** 2)))
        errors["peer"].append(float(np.sum((peer[name] - exact) ** 2)))
    assert sum(errors["mine"]) < sum(errors["peer"])


@probe("layer-types", "qwen3", franken={
    "merge_method": "passthrough", **FLOAT32,
    "slices": [
        {"sources": [{"model": "@base", "layer_range": [0, 2]}]},
        {"sources": [{"model": "@expert1", "layer_range": [1, 3]}]},
    ],
})  # fmt: skip
def test_layer_types_grow_with_the_layers(probe: Probe, theirs: Theirs, place: Place, tmp_path: Path) -> None:
    """At a config that lists a type for each layer mergekit stops; ours lists those of the layers that are there."""
    assert "layer_types" in (theirs("layer-types-franken").error or "")
    out = ours(place, probe, "franken", tmp_path)
    config = json.loads((out / "config.json").read_text())
    assert (config["num_hidden_layers"], len(config["layer_types"])) == (4, 4)
    mine = read_floats(out)
    sources = read_floats(place.family("qwen3") / "base"), read_floats(place.family("qwen3") / "expert1")
    for layer, (source, number) in enumerate(((0, 0), (0, 1), (1, 1), (1, 2))):
        name = "model.layers.{}.self_attn.k_norm.weight"
        assert np.array_equal(mine[name.format(layer)], sources[source][name.format(number)])
