"""Rows go by token: merges of models that number their tokens differently, held against a naive merge."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from mergepipe import api
from mergepipe.errors import BudgetInfeasible, IncompatibleModels, ManifestMismatch, RecipeError, UsageError
from mergepipe.manifest.encode import MANIFEST_NAME
from mergepipe.testing.checkpoints import read_floats, read_tensors
from tests.laws.test_replay_identity import files_of
from tests.laws.vocabularies import EMBEDDINGS, Tongues, naive_rows, tokens_of
from tests.operators import reference
from tests.operators.reference import Floats

EXPERTS = ("expert1", "expert2", "expert3")
WEIGHTS = (0.5, -0.3, 0.4)
ALL = ("base", *EXPERTS)


@pytest.fixture(scope="module")
def tongues(tmp_path_factory: pytest.TempPathFactory) -> Tongues:
    """Untied, all bf16."""
    return Tongues.make(tmp_path_factory.mktemp("tongues"))


def merged(method: str, parts: Sequence[Floats], weights: Sequence[float], density: float, name: str) -> Floats:
    """The naive merge of assembled tensors."""
    base, *others = (part.ravel() for part in parts)
    deltas = [other - base for other in others]
    if method == "linear":
        return reference.linear(base, deltas, weights[1:], weights[0], True)
    if method == "task_arithmetic":
        return reference.task_arithmetic(base, deltas, weights, False, 1.0)
    if method == "ties":
        return reference.elected(base, [reference.trimmed(d, density) for d in deltas], weights, True, 1.0)
    sparse = []
    for position, delta in enumerate(deltas):
        mask = reference.dare_mask(delta.size, density, 0, position, name)
        factor = reference.l1_factor(delta, mask)
        sparse.append(reference.dropped(delta, density, factor, 0, position, name))
    return reference.elected(base, sparse, weights, False, 1.0)


def require_merged(
    own: Tongues, out: Path, method: str, experts: Sequence[str], weights: Sequence[float],
    choices: Mapping[str, Any] | None = None, density: float = 1.0, multiple: bool = False, exact: bool = True,
) -> None:  # fmt: skip
    """Every tensor of OUT is the naive merge of rows by token, bit for bit."""
    ids, found = tokens_of(out), read_floats(out)
    members = ["base", *experts]
    for name, values in found.items():
        inputs = [own.floats(member)[name] for member in members]
        if name in EMBEDDINGS:
            given = {
                token: (force, None if source is None else _row(own, source, name))
                for token, (force, source) in (choices or {}).items()
            }
            pairs = [(own.ids[member], part) for member, part in zip(members, inputs, strict=True)]
            inputs = naive_rows(ids, values.shape[0], pairs, given, multiple)
        expected = merged(method, inputs, weights, density, name).reshape(values.shape)
        if exact:
            assert np.array_equal(values, expected), name
        else:
            assert np.allclose(values, expected, rtol=1e-5, atol=1e-7), name


def _row(own: Tongues, source: tuple[str, int] | str, name: str) -> Floats:
    if isinstance(source, str):
        return np.zeros(16, np.float32)
    model, row = source
    values: Floats = own.floats(model)[name][int(row)]
    return values


METHODS = ["linear", "task_arithmetic", "ties", "dare_ties"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("source", ["union", "base", "@expert2", "@expert3"])
def test_rows_go_by_token(tongues: Tongues, method: str, source: str) -> None:
    """Whatever the tokenizer's source, every row is the merge of its token's rows; a lacking model gets the rule's."""
    density = 0.6 if method in ("ties", "dare_ties") else 1.0
    parameters: dict[str, Any] = {"normalize": method != "dare_ties"} if method != "task_arithmetic" else {}
    weights: tuple[float, ...] = WEIGHTS
    if method == "linear":
        parameters, weights = {"weight": 0.7}, (0.7, *WEIGHTS)
    if density < 1:
        parameters["density"] = density
    recipe = tongues.recipe(
        method, EXPERTS, WEIGHTS, tokenizer_source=source, parameters=parameters, out_dtype="float32"
    )
    out = tongues.merge(recipe)
    exact = method != "dare_ties"  # a rescale factor is a quotient of sums, which the reference adds otherwise
    require_merged(tongues, out, method, EXPERTS, weights, density=density, exact=exact)


@pytest.mark.parametrize("source", ["union", "base", "@expert3"])
def test_tied_heads(tmp_path: Path, source: str) -> None:
    """Without a head of its own the embedding alone goes by token."""
    own = Tongues.make(tmp_path, tied=True)
    out = own.merge(own.recipe("task_arithmetic", EXPERTS, WEIGHTS, tokenizer_source=source, out_dtype="float32"))
    assert "lm_head.weight" not in read_floats(out)
    require_merged(own, out, "task_arithmetic", EXPERTS, WEIGHTS)


def test_inputs_of_other_dtypes(tmp_path: Path) -> None:
    """Rows that a model takes from one stored otherwise keep their values; the output keeps the base's dtype."""
    own = Tongues.make(tmp_path, codes=("BF16", "F16", "F32", "BF16"))
    recipe = own.recipe("task_arithmetic", EXPERTS, WEIGHTS, tokenizer_source="union", out_dtype="float32")
    require_merged(own, own.merge(recipe), "task_arithmetic", EXPERTS, WEIGHTS)
    out = own.merge(own.recipe("task_arithmetic", EXPERTS, WEIGHTS, tokenizer_source="union"))
    assert {code for code, _, _ in read_tensors(out).values()} == {"BF16"}


def test_sources_of_single_tokens(tongues: Tongues) -> None:
    """A token's rows come from where the recipe says: another model, another token, an id, nowhere; forced or not."""
    end = tongues.ids["expert3"]["<pad>"]
    tokens = {
        "<|im_start|>": {"source": "@expert2"},
        "<|im_end|>": {"source": {"kind": "model_token", "model": "@expert3", "token": "<pad>"}, "force": True},
        "<pad>": {"source": {"kind": "zero"}},
        "<s>": {"source": "@expert3", "force": True},
        "<|new|>": {"source": {"kind": "model_token", "model": "@expert1", "token_id": 5}},
        "</s>": {},
    }
    recipe = tongues.recipe(
        "task_arithmetic", EXPERTS, WEIGHTS, tokenizer={"source": "union", "tokens": tokens}, out_dtype="float32"
    )
    out = tongues.merge(recipe)
    choices = {
        "<|im_start|>": (False, ("expert2", tongues.ids["expert2"]["<|im_start|>"])),
        "<|im_end|>": (True, ("expert3", end)),
        "<pad>": (False, "zero"),
        "<s>": (True, ("expert3", tongues.ids["expert3"]["<s>"])),
        "<|new|>": (False, ("expert1", 5)),
    }
    require_merged(tongues, out, "task_arithmetic", EXPERTS, WEIGHTS, choices)
    assert "<|new|>" in tokens_of(out)


@pytest.mark.parametrize("multiple", [16, 7, 1])
def test_padding_to_a_multiple(tongues: Tongues, multiple: int) -> None:
    """Rows come in a multiple, those beyond the tokens are means; config.json says how many there are."""
    recipe = tongues.recipe(
        "task_arithmetic", EXPERTS, WEIGHTS, tokenizer={"source": "union", "pad_to_multiple_of": multiple},
        out_dtype="float32",
    )  # fmt: skip
    out = tongues.merge(recipe)
    rows = read_floats(out)["lm_head.weight"].shape[0]
    tokens = len(tokens_of(out))
    assert tokens <= rows < tokens + multiple
    assert rows % multiple == 0
    assert json.loads((out / "config.json").read_text())["vocab_size"] == rows
    require_merged(tongues, out, "task_arithmetic", EXPERTS, WEIGHTS, multiple=True, exact=False)


def test_padded_rows_are_not_cut(tongues: Tongues) -> None:
    """The base's rows beyond its tokens stay, as rows of their own number (mergekit#425: 152064 became 151665)."""
    out = tongues.merge(tongues.recipe("linear", ("expert2",), (1.0,), tokenizer_source="base", out_dtype="float32"))
    assert read_floats(out)["model.embed_tokens.weight"].shape == (86, 16)
    assert json.loads((out / "config.json").read_text())["vocab_size"] == 86
    assert len(tokens_of(out)) == 80


def test_layers_of_several_models(tongues: Tongues) -> None:
    """In slices the embedding is made from the first slice's models, the head from the last's."""
    slices = [
        {"sources": [{"model": "@base", "layer_range": [0, 1]}, {"model": "@expert2", "layer_range": [0, 1]}]},
        {"sources": [{"model": "@base", "layer_range": [1, 2]}, {"model": "@expert3", "layer_range": [1, 2]}]},
    ]
    recipe = tongues.recipe(
        "task_arithmetic", (), (), slices=slices, tokenizer_source="union", parameters={"weight": 0.5},
        out_dtype="float32",
    )  # fmt: skip
    document = json.loads(recipe.read_text())
    del document["models"]
    recipe.write_text(json.dumps(document))
    out = tongues.merge(recipe)
    found, ids = read_floats(out), tokens_of(out)
    for name, expert in zip(EMBEDDINGS, ("expert2", "expert3"), strict=True):
        pairs = [(tongues.ids[member], tongues.floats(member)[name]) for member in ("base", expert)]
        parts = naive_rows(ids, found[name].shape[0], pairs, {})
        expected = merged("task_arithmetic", parts, (0.5,), 1.0, name)
        assert np.array_equal(found[name], expected.reshape(found[name].shape)), name


# ------------------------------------------------------------------------------ bytes and budgets


def test_equal_vocabularies_stay_on_the_plain_path(tongues: Tongues) -> None:
    """The same tokens with the same ids need no rows moved: the plan and its bytes are those without a tokenizer."""
    plain, named = (
        tongues.merge(tongues.recipe("ties", ("expert1",), (0.5,), **more), "30%")
        for more in ({}, {"tokenizer_source": "union"})
    )
    assert all(tensor.assembly is None for tensor in api.recorded_plan(named).logical.tensors)
    assert api.recorded_plan(plain).digest == api.recorded_plan(named).digest
    assert read_tensors(plain) == read_tensors(named)


@pytest.mark.parametrize("method", ["task_arithmetic", "ties", "dare_linear"])
def test_budgets_hold_what_rows_require(tongues: Tongues, method: str) -> None:
    """Rows by token are read whole, each once, and are part of the budget; the rest is chosen as ever."""
    parameters = {} if method == "task_arithmetic" else {"density": 0.5}
    recipe = tongues.recipe(method, EXPERTS, WEIGHTS, tokenizer_source="union", parameters=parameters)
    full = tongues.merge(recipe)
    result = api.load_manifest(full).result["expert_bytes"]
    ids = tokens_of(full)
    required = 0
    for name in EMBEDDINGS:
        for expert in EXPERTS:
            rows = tongues.floats(expert)[name].shape[0]
            own = tongues.ids[expert]
            named = sum(token in own for token in ids)
            nameless = set(range(max(86, len(ids)))) - set(ids.values()) - set(own.values())
            required += (named + sum(row < rows for row in nameless)) * 16 * 2
    payload = sum(
        len(raw)
        for expert in EXPERTS
        for name, (_, raw, _) in read_tensors(tongues.folder / expert).items()
        if name not in EMBEDDINGS
    )
    assert result["full"] == result["read"] == required + payload
    for budget in (required, required + 2000):
        out = tongues.merge(recipe, str(budget))
        spent = api.load_manifest(out).result["expert_bytes"]
        assert required <= spent["read"] == spent["planned"] <= budget
        for name in EMBEDDINGS:
            assert read_tensors(out)[name] == read_tensors(full)[name]
    with pytest.raises(BudgetInfeasible) as refused:
        tongues.merge(recipe, str(required - 1))
    assert (refused.value.needed, refused.value.budget) == (required, required - 1)


def test_output_does_not_depend_on_limits(tmp_path: Path) -> None:
    """Threads and memory change no byte of a merge by token, nor of its manifest's identity."""
    own = Tongues.make(tmp_path, codes=("BF16", "F32", "F64", "BF16"))
    tokenizer = {"source": "union", "pad_to_multiple_of": 64}
    recipe = own.recipe("ties", EXPERTS, WEIGHTS, parameters={"density": 0.4}, tokenizer=tokenizer)
    first, *others = (
        own.merge(recipe, limits=limits)
        for limits in (api.Limits(), api.Limits(memory=24 << 20, readers=1, workers=1), api.Limits(64 << 20, 3, 3))
    )
    for other in others:
        assert files_of(other) == files_of(first)
        assert api.load_manifest(other).identity == api.load_manifest(first).identity


@pytest.mark.parametrize("budget", [None, "95%"])
def test_replay_needs_no_tokenizers_library(
    tongues: Tongues, budget: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row maps, padding and files are in the manifest: a replay gives the same bytes without the library."""
    tokenizer = {"source": "union", "pad_to_multiple_of": 16}
    recipe = tongues.recipe("ties", EXPERTS, WEIGHTS, parameters={"density": 0.4}, tokenizer=tokenizer)
    out = tongues.merge(recipe, budget)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    again = tongues.folder / f"again-{out.name}"
    api.replay(out, again)
    assert files_of(again) == files_of(out)
    first, second = (json.loads((each / MANIFEST_NAME).read_text()) for each in (out, again))
    assert first["identity"] == second["identity"]
    monkeypatch.undo()
    with pytest.raises(UsageError, match="no-index-reads"):
        api.plan(recipe, api.PlanOptions(block_bytes=64), api.IndexOptions(tongues.folder / "none", reads=False))


@pytest.mark.parametrize("changed", ALL)
def test_a_changed_input_is_named(tmp_path: Path, changed: str) -> None:
    """Replay names the model one of whose embedding rows changed, though that row stands in for others too."""
    own = Tongues.make(tmp_path)
    out = own.merge(own.recipe("task_arithmetic", EXPERTS, WEIGHTS, tokenizer_source="union"))
    weights = tmp_path / changed / "model.safetensors"
    data = bytearray(weights.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    place = json.loads(data[8:start])["model.embed_tokens.weight"]["data_offsets"][0]
    last = max(own.ids[changed].values())
    data[start + place + last * 32] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ManifestMismatch, match=f"{changed}: its bytes changed"):
        api.replay(out, tmp_path / "again")
    assert not (tmp_path / "again").exists()


# ------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("experts", [EXPERTS, ("expert1", "expert2")], ids=["all", "added"])
def test_transformers_loads_a_union(tongues: Tongues, experts: tuple[str, ...]) -> None:
    """Model and tokenizer load; added tokens are single, text is encoded as before where only such are new."""
    transformers = pytest.importorskip("transformers")
    recipe = tongues.recipe("linear", experts, WEIGHTS, tokenizer_source="union", chat_template="auto")
    warned = [line for line in messages(recipe) if "are ordinary ones in their model" in line]
    assert len(warned) == ("expert3" in experts)
    out = tongues.merge(recipe)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out, local_files_only=True)
    before = transformers.AutoTokenizer.from_pretrained(tongues.at("base"), local_files_only=True)
    assert tokenizer.get_vocab() == tokens_of(out)
    if not warned:
        assert tokenizer.encode("the rows of the base") == before.encode("the rows of the base")
    assert tokenizer.encode("<|im_start|>") == [tokens_of(out)["<|im_start|>"]]
    assert tokenizer.eos_token == "</s>"
    text = tokenizer.apply_chat_template([{"role": "user", "content": "rows"}], tokenize=False)
    assert text == "<|im_start|>rows<|im_end|>"
    model = transformers.AutoModelForCausalLM.from_pretrained(out, local_files_only=True)
    assert model.get_input_embeddings().num_embeddings == model.config.vocab_size >= len(tokenizer)
    assert not (out / "tokenizer.model").exists()


@pytest.mark.parametrize("inside", [True, False])
def test_another_models_tokenizer(tongues: Tongues, inside: bool, tmp_path: Path) -> None:
    """Its files are the output's, and ids in config.json and generation_config.json are those of its numbering."""
    donor = tongues.folder / "expert3"
    if not inside:
        donor = tmp_path / "elsewhere"
        shutil.copytree(tongues.folder / "expert3", donor, ignore=shutil.ignore_patterns("*.safetensors"))
    recipe = tongues.recipe("linear", ("expert1", "expert3"), (0.5, 0.5), tokenizer_source=str(donor))
    out = tongues.merge(recipe)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (out / name).read_bytes() == (donor / name).read_bytes()
    ids = tongues.ids["expert3"]
    assert tokens_of(out) == ids
    config, generation = (json.loads((out / f"{n}.json").read_text()) for n in ("config", "generation_config"))
    assert (config["bos_token_id"], config["eos_token_id"]) == (ids["<s>"], ids["</s>"])
    assert (generation["bos_token_id"], generation["eos_token_id"]) == (ids["<s>"], [ids["</s>"]])
    assert config["vocab_size"] == read_floats(out)["lm_head.weight"].shape[0] == 70
    again = tmp_path / "again"
    api.replay(out, again)
    assert files_of(again) == files_of(out)


@pytest.mark.parametrize("inside", [True, False])
def test_a_lost_token_takes_no_other_with_it(tmp_path: Path, inside: bool) -> None:
    """Of a list of ids those the other tokenizer has stay; where none is left, its own model's config counts."""
    own = Tongues.make(tmp_path)
    donor = tmp_path / "expert3"
    if not inside:
        donor = tmp_path / "elsewhere"
        shutil.copytree(tmp_path / "expert3", donor, ignore=shutil.ignore_patterns("*.safetensors"))
    base, ids = own.ids["base"], own.ids["expert3"]
    gone = next(id_ for token, id_ in base.items() if token not in ids)
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    (tmp_path / "base" / "config.json").write_text(
        json.dumps(config | {"eos_token_id": [base["</s>"], gone], "bos_token_id": gone})
    )
    generation = {
        "eos_token_id": [base["</s>"], gone],
        "suppress_tokens": [gone, base["<s>"]],
        "forced_decoder_ids": [[1, base["<s>"]], [2, gone]],
        "bad_words_ids": [[gone, base["<s>"]]],
        "temperature": 0.7,
    }
    (tmp_path / "base" / "generation_config.json").write_text(json.dumps(generation))
    recipe = own.recipe("linear", ("expert1", "expert3"), (0.5, 0.5), tokenizer_source=str(donor))
    out = own.merge(recipe)
    config, generation = (json.loads((out / f"{n}.json").read_text()) for n in ("config", "generation_config"))
    assert (config["eos_token_id"], config["bos_token_id"]) == ([ids["</s>"]], ids["<s>"])
    assert generation == {
        "eos_token_id": [ids["</s>"]],
        "suppress_tokens": [ids["<s>"]],
        "forced_decoder_ids": [[1, ids["<s>"]]],
        "bad_words_ids": None,
        "temperature": 0.7,
    }
    said = messages(recipe)
    [eos] = [line for line in said if "eos_token_id" in line]
    assert f"lacks {gone} (" in eos
    assert eos.endswith(f"it becomes [{ids['</s>']}]")
    assert any("bad_words_ids" in line and line.endswith("it becomes null") for line in said)


def widen(folder: Path, count: int) -> list[str]:
    """Give a model's tokenizer more tokens than its embedding has rows; the tokens."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = [f"<|far{number}|>" for number in range(count)]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokens


@pytest.mark.parametrize("multiple", [None, 16])
@pytest.mark.parametrize(("place", "source"), [
    ("elsewhere", "elsewhere"), ("expert3", "union"), ("expert3", "@expert3"), ("base", "base"), ("base", "union"),
])  # fmt: skip
def test_every_id_has_a_row(tmp_path: Path, place: str, source: str, multiple: int | None) -> None:
    """Tokens that no model has a row for get zeros, to the highest id of the written tokenizer, and it is said."""
    own = Tongues.make(tmp_path)
    if place == "elsewhere":
        shutil.copytree(tmp_path / "expert3", tmp_path / place, ignore=shutil.ignore_patterns("*.safetensors"))
        source = str(tmp_path / place)
    far = widen(tmp_path / place, 20)
    tokenizer = {"source": source, "pad_to_multiple_of": multiple}
    recipe = own.recipe("task_arithmetic", ("expert2", "expert3"), (0.5, 0.3), tokenizer=tokenizer)
    [warned] = [line for line in messages(recipe) if "get zeros" in line]
    assert all(name in warned for name in EMBEDDINGS)
    out = own.merge(recipe)
    ids, found = tokens_of(out), read_floats(out)
    assert set(far) <= ids.keys()
    numbers = tokens_of(tmp_path / place)
    for name in EMBEDDINGS:
        rows = found[name].shape[0]
        assert rows > max(ids.values())
        assert json.loads((out / "config.json").read_text())["vocab_size"] == rows
        stored = own.floats(place)[name].shape[0] if place != "elsewhere" else 0
        zero = [ids[token] for token in far if numbers[token] >= stored]
        assert zero
        assert not found[name][zero].any()
        assert found[name][[ids[token] for token in ids if token not in far]].any(axis=1).all()


def test_ids_with_a_wide_gap_are_refused(tmp_path: Path) -> None:
    """No model of billions of zeros is made for one token's id."""
    own = Tongues.make(tmp_path)
    path = tmp_path / "base" / "tokenizer.json"
    document = json.loads(path.read_text())
    last = max(document["model"]["vocab"], key=document["model"]["vocab"].get)
    document["model"]["vocab"][last] = 2_000_000_000
    path.write_text(json.dumps(document))
    with pytest.raises(RecipeError, match="has the id 2,000,000,000, beyond 88 rows"):
        own.merge(own.recipe("linear", EXPERTS, WEIGHTS, tokenizer_source="base"))


# ------------------------------------------------------------------------------------- what is said


def messages(recipe: Path) -> list[str]:
    """What `check` says, one line a finding."""
    return [str(finding) for finding in api.check(recipe, api.FamilyRules(api.VocabularyRule.COMMON)).findings]


def test_check_compares_vocabularies(tongues: Tongues) -> None:
    """Unlike vocabularies are warned of, with numbers and names, unless the recipe has a tokenizer section."""
    found = messages(tongues.recipe("linear", EXPERTS, WEIGHTS))
    [third] = [line for line in found if "expert3: vocabulary" in line]
    assert third.startswith("warning")
    moved = sum(tongues.ids["expert3"].get(token, id_) != id_ for token, id_ in tongues.ids["base"].items())
    added = len(tongues.ids["expert3"].keys() - tongues.ids["base"].keys())
    missing = len(tongues.ids["base"].keys() - tongues.ids["expert3"].keys())
    for count, what in ((moved, "have other ids"), (added, "are not in the base's"), (missing, "are missing")):
        assert f"{count} tokens" in third
        assert what in third
    assert any(
        "expert2: vocabulary: 2 tokens are not in the base's ('<|im_start|>', '<|im_end|>')" in line for line in found
    )
    assert not any("expert1: vocabulary" in line for line in found)
    united = messages(tongues.recipe("linear", EXPERTS, WEIGHTS, tokenizer_source="union"))
    assert not any("vocabulary" in line for line in united if line.startswith("warning"))


def test_other_shapes_are_refused_without_a_tokenizer(tongues: Tongues) -> None:
    """Without a tokenizer section other numbers of rows stop the merge, as ever."""
    with pytest.raises(IncompatibleModels, match="vocabulary rows"):
        tongues.merge(tongues.recipe("linear", EXPERTS, WEIGHTS))


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        ({"source": "union", "tokens": {"<pad>": {"source": "@expert1"}}}, "expert1 has no token '<pad>'"),
        ({"source": "union", "tokens": {"<s>": {"source": "@elsewhere"}}}, "not among the models"),
        ({"tokens": {"<s>": {"source": {"kind": "model_token", "model": "@base", "token_id": 86}}}}, "86 rows"),
        ({"tokens": {"a": {"source": {"kind": "model_token", "model": "@base", "token": "?!"}}}}, "no token '\\?!'"),
    ],
)
def test_tokens_that_do_not_exist_are_refused(tongues: Tongues, tokenizer: dict[str, Any], words: str) -> None:
    """A source that has no such token is an error that names token and model, before anything is read."""
    with pytest.raises(RecipeError, match=words):
        tongues.merge(tongues.recipe("linear", EXPERTS, WEIGHTS, tokenizer=tokenizer))


def test_a_base_without_tokenizer_is_refused(tmp_path: Path) -> None:
    """A union needs the base's tokens; an expert without tokenizer.json is taken to have them, and it is said."""
    own = Tongues.make(tmp_path)
    (tmp_path / "expert1" / "tokenizer.json").unlink()
    recipe = own.recipe("linear", EXPERTS, WEIGHTS, tokenizer_source="union")
    assert any("expert1: has no tokenizer: its tokens are taken" in line for line in messages(recipe))
    own.merge(recipe)
    (tmp_path / "base" / "tokenizer.json").unlink()
    with pytest.raises(RecipeError, match=r"base has no tokenizer\.json"):
        own.merge(recipe)


@pytest.mark.parametrize("form", ["tokenizer.model", "vocab.json", "vocab.txt", "qwen.tiktoken", "tekken.json"])
@pytest.mark.parametrize("source", ["union", "base", "@expert2"])
def test_an_expert_whose_tokenizer_has_another_form_is_refused(tmp_path: Path, form: str, source: str) -> None:
    """Its tokens may be others than the base's, so nothing is assumed of them: an error before any work."""
    own = Tongues.make(tmp_path)
    (tmp_path / "expert1" / "tokenizer.json").rename(tmp_path / "expert1" / form)
    recipe = own.recipe("linear", EXPERTS, WEIGHTS, tokenizer_source=source)
    with pytest.raises(RecipeError, match=rf"expert1 has no tokenizer\.json, only {form}; .*AutoTokenizer"):
        own.merge(recipe)
    assert not list(tmp_path.glob("out-*"))
    (tmp_path / "base" / "tokenizer.json").rename(tmp_path / "base" / form)
    with pytest.raises(RecipeError, match=rf"base has no tokenizer\.json, only {form}"):
        own.merge(recipe)
