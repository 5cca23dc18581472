"""mergekit's dialect."""

from dataclasses import dataclass
from textwrap import dedent

import pytest

from mergepipe.errors import RecipeError
from mergepipe.operators.contract import AccessClass, Parameter
from mergepipe.recipe import mergekit
from mergepipe.recipe.model import (
    Filtered,
    FilteredValue,
    Gradient,
    InputModel,
    ModelRef,
    OutputSlice,
    Recipe,
    SliceSource,
    TokenizerSpec,
    TokenSource,
)
from mergepipe.recipe.parse import parse_recipe

TWO = """\
merge_method: ties
base_model: base
models:
  - model: one
    parameters:
      weight: 0.5
  - model: two
    parameters:
      weight: 0.5
"""

SINGLE_TOKENS = """\
tokenizer:
  tokens:
    a: {source: {kind: model_token, model: m, token: yes}}
    b: {source: {kind: model_token, model: {model: m}, token_id: 7}}
    c: {force: false}
"""


@dataclass(frozen=True)
class Blend:
    """A method with a required parameter of the whole merge, as slerp's `t`."""

    name: str = "blend"
    version: str = "blend@1"
    access: AccessClass = AccessClass.RESOLVED
    needs_base: bool = False
    parameters: tuple[Parameter, ...] = (Parameter("t", float),)


def parse(text: str) -> Recipe:
    """The recipe that an indented text states."""
    return parse_recipe(dedent(text), "r.yml")


def refusal(text: str) -> str:
    """The message with which a recipe is refused."""
    with pytest.raises(RecipeError) as caught:
        parse(text)
    return str(caught.value)


def weight_of(text: str) -> object:
    """The weight that a recipe with this text as its value holds."""
    return (
        parse(f"merge_method: linear\nmodels: [{{model: a, parameters: {{weight: {text}}}}}]")
        .models[0]
        .parameters["weight"]
    )


# ---------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("0.5", 0.5),
        ("1", 1.0),
        ("1e-5", 1e-5),
        ("'0.25'", 0.25),
        ("-0.3", -0.3),
        ("[0, 0.5, 1e0]", Gradient((0.0, 0.5, 1.0))),
        ("[{filter: mlp, value: 0.1}, {value: 0.2}]", Filtered((FilteredValue("mlp", 0.1), FilteredValue(None, 0.2)))),
        ("[{filter: '*', value: [1, 2]}]", Filtered((FilteredValue(None, Gradient((1.0, 2.0))),))),
        ("{filter: no, value: 0.1}", Filtered((FilteredValue("no", 0.1),))),
        ("{filter: null, value: 0.1}", Filtered((FilteredValue(None, 0.1),))),
    ],
)
def test_every_form_of_a_parameter(text: str, setting: object) -> None:
    """Scalars, gradients, filtered lists and a lone filtered value are kept unresolved, their numbers as numbers."""
    assert weight_of(text) == setting


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("heavy", "must be a number, found 'heavy'"),
        ("", "must be a number, found nothing"),
        (".nan", "must be a finite number"),
        ("[0.1, .inf]", r"weight[1]: must be a finite number"),
        ("[]", "must be a value or a list of values, found an empty list"),
        ("[1, {value: 2}]", r"weight[0]: a list holds either plain values"),
        ("[[1, 2]]", r"weight[0]: must be a number, found a list"),
        ("[{filter: mlp}]", "weight[0]: needs a `value:`"),
        ("[{fliter: mlp, value: 1}]", 'unknown key; did you mean "filter"'),
        ("[{filter: mlp, value: [{value: 1}]}]", "must be a number, found a mapping"),
    ],
)
def test_a_wrong_value_is_refused_where_it_stands(text: str, says: str) -> None:
    """Kinds, empty lists, mixed lists and non-finite numbers are errors at their own place."""
    with pytest.raises(RecipeError) as caught:
        weight_of(text)
    assert says in str(caught.value)
    assert str(caught.value).startswith("r.yml:2: models[0].parameters.weight")


def test_parameters_are_kept_by_level() -> None:
    """What each level says stays with that level."""
    recipe = parse(
        """\
        merge_method: ties
        base_model: base
        parameters: {density: 0.5, normalize: yes}
        slices:
          - sources:
              - {model: base, layer_range: [0, 4]}
              - {model: one, layer_range: [4, 8], parameters: {weight: 0.5}}
            parameters: {lambda: 2}
          - sources:
              - {model: one@v1, layer_range: [8, 9]}
            base_model: other
            parameters: {weight: [1, 2]}
        """
    )
    assert recipe.models == ()
    assert recipe.parameters == {"density": 0.5, "normalize": True}
    assert recipe.slices == (
        OutputSlice(
            (
                SliceSource(ModelRef("base"), (0, 4)),
                SliceSource(ModelRef("one"), (4, 8), {"weight": 0.5}),
            ),
            None,
            {"lambda": 2.0},
        ),
        OutputSlice((SliceSource(ModelRef("one", "v1"), (8, 9)),), ModelRef("other"), {"weight": Gradient((1.0, 2.0))}),
    )


def test_a_value_of_a_model_may_be_given_for_all() -> None:
    """A parameter of single models is, at the top level, what all have that say nothing."""
    recipe = parse("{merge_method: ties, base_model: b, models: [{model: a}], parameters: {weight: 1}}")
    assert recipe.parameters == {"weight": 1.0}
    assert recipe.models == (InputModel(ModelRef("a")),)


def test_a_required_parameter_must_be_given_for_every_model_but_the_base() -> None:
    """A missing weight names the model and the line; the base has no delta to weigh."""
    assert refusal(TWO + "  - model: three\n").startswith(
        'r.yml:10: models[2].model: ties needs "weight" for model three: '
    )
    assert len(parse(TWO + "  - model: base\n").models) == 3
    assert 'linear needs "weight" for model base' in refusal(
        "{merge_method: linear, base_model: base, models: [{model: base}, {model: a, parameters: {weight: 1}}]}"
    )


def test_a_required_parameter_must_be_given_for_every_source() -> None:
    """Slices are held to the same."""
    text = "{merge_method: ties, base_model: b, slices: [{sources: [{model: a, layer_range: [0, 1]}]}]}"
    assert 'slices[0].sources[0].model: ties needs "weight" for model a' in refusal(text)


def test_a_required_parameter_of_the_merge_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may stand at the top, or in every slice."""
    monkeypatch.setattr(mergekit, "operator", lambda name, variant: Blend())
    assert parse("{merge_method: blend, models: [{model: a}], parameters: {t: 0.5}}").parameters == {"t": 0.5}
    assert 'models: blend needs "t"' in refusal("{merge_method: blend, models: [{model: a}]}")
    sources = "sources: [{model: a, layer_range: [0, 1]}]"
    assert parse(f"{{merge_method: blend, slices: [{{{sources}, parameters: {{t: 0.5}}}}]}}").slices
    assert 'slices[0]: blend needs "t"' in refusal(f"{{merge_method: blend, slices: [{{{sources}}}]}}")


def test_a_misspelt_parameter_gets_the_nearest_name() -> None:
    """An unknown parameter is an error with its line, the nearest name and the method's own."""
    message = refusal(TWO.replace("weight: 0.5", "wieght: 0.5", 1))
    assert message.startswith('r.yml:6: models[0].parameters.wieght: unknown parameter of ties; did you mean "weight"?')
    assert "ties takes: " in message


def test_a_parameter_of_another_method_is_refused() -> None:
    """What only another method would read is an error, not silence."""
    assert "unknown parameter of ties" in refusal(TWO + "parameters: {select_topk: 0.1}")


def test_the_familys_shared_names_are_accepted_and_said_to_be_idle() -> None:
    """A recipe moved from one method to another keeps its parameters; notes say which do nothing."""
    recipe = parse(
        "{merge_method: linear, models: [{model: a, parameters: {weight: 1, density: 0.5}}], "
        "parameters: {rescale: true, int8_mask: true}}"
    )
    assert recipe.notes == (
        'parameter "density" has no effect on linear',
        'parameter "int8_mask" has no effect on linear',
        'parameter "rescale" has no effect on linear',
    )
    assert "must be a number" in refusal(
        "{merge_method: linear, models: [{model: a, parameters: {weight: 1, density: x}}]}"
    )


def test_a_parameter_of_the_merge_does_not_belong_to_a_model() -> None:
    """Mergekit would not look at it there; here it is an error that says where it goes."""
    message = refusal(TWO.replace("weight: 0.5", "weight: 0.5\n      normalize: false", 1))
    assert message.startswith("r.yml:7: models[0].parameters.normalize: belongs to the whole merge")
    assert parse(TWO.replace("weight: 0.5", "weight: 0.5\n      int8_mask: true", 1)).method == "ties"


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("paramters: {lambda: 1}", 'r.yml:10: paramters: unknown key; did you mean "parameters"?'),
        ("dtpye: bfloat16", 'r.yml:10: dtpye: unknown key; did you mean "dtype"?'),
        ("outdtype: bfloat16", 'r.yml:10: outdtype: unknown key; did you mean "out_dtype"?'),
        ("lambda: 1", "r.yml:10: lambda: is a parameter: move it under `parameters:`"),
        ("parameters: {dtype: bfloat16}", "r.yml:10: parameters.dtype: is a key of its own"),
        ("modules: {text: {}}", "r.yml:10: modules: merging by module"),
        ("merge_method: linear", "r.yml:10: merge_method: the key is given twice, in lines 1 and 10"),
        ("parameters: [1]", "r.yml:10: parameters: must be a mapping"),
        ("dtype: bf16", 'r.yml:10: dtype: unknown dtype "bf16"; did you mean "bfloat16"?'),
        ("out_dtype: fp16", 'did you mean "float16"?'),
        ("dtype: int64", "unknown dtype"),
        ("seed: -1", "r.yml:10: seed: must be between 0"),
        ("seed: 1.5", "r.yml:10: seed: must be a whole number"),
        ("variant: papr", 'r.yml:10: variant: ties has no variant "papr"'),
        ("variant: [paper]", "r.yml:10: variant: must be the name of a variant, found a list"),
    ],
)
def test_a_wrong_key_or_value_at_the_top(text: str, says: str) -> None:
    """Misspelt, misplaced, repeated and unsupported keys are errors with line and way out."""
    assert says in refusal(TWO + text + "\n")


def test_a_parameter_beside_parameters_is_told_to_move() -> None:
    """The classic slip of indentation, which mergekit answers with a missing weight, is named."""
    message = refusal(
        """\
        merge_method: linear
        models:
          - model: one
            parameters:
            weight: 0.5
        """
    )
    assert message.startswith("r.yml:5: models[0].weight: is a parameter: move it under `parameters:`")


def test_the_slip_is_named_in_slices_and_sources() -> None:
    """The same below slices."""
    source = "{model: a, layer_range: [0, 1], weight: 1}"
    assert "sources[0].weight: is a parameter" in refusal(
        f"{{merge_method: linear, slices: [{{sources: [{source}]}}]}}"
    )
    assert "slices[0].weight: is a parameter" in refusal("{merge_method: linear, slices: [{sources: [], weight: 1}]}")


def test_null_is_as_good_as_absent() -> None:
    """A key without a value says nothing, as in mergekit."""
    recipe = parse(TWO + "slices:\nparameters:\ndtype: null\ntokenizer: ~\nseed:\nvariant:\nmodules:\n")
    assert recipe == parse_recipe(TWO, "r.yml").__class__(
        method="ties", models=recipe.models, base=ModelRef("base"), text=recipe.text
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{models: [{model: a}]}", "names no method: add `merge_method:` with one of "),
        ("{merge_methd: ties}", 'unknown key; did you mean "merge_method"'),
        ("{merge_method: tise, models: [{model: a}]}", 'unknown method "tise"; did you mean "ties"'),
        ("{merge_method: }", "merge_method: must be the name of a method, found nothing"),
        ("{merge_method: linear}", "names no inputs"),
        (
            "{merge_method: linear, models: []}",
            "models: must be a list of `- model: PATH` entries, found an empty list",
        ),
        ("{merge_method: linear, models: {model: a}}", "models: must be a list"),
        ("{merge_method: linear, models: [a]}", "models[0]: must be an entry `- model: a`"),
        ("{merge_method: linear, models: [{parameters: {weight: 1}}]}", "models[0]: needs a `model:`"),
        ("{merge_method: linear, models: [{model: }]}", "models[0].model: must be a model"),
        ("{merge_method: linear, models: [{model: a}], slices: [{sources: []}]}", "cannot both be given"),
        ("{merge_method: linear, slices: []}", "slices: must be a list of `- sources:` entries, found an empty list"),
        ("{merge_method: linear, slices: [{}]}", "slices[0]: needs `sources:`"),
        ("{merge_method: linear, slices: [{sources: []}]}", "slices[0].sources: must be a list"),
        ("{merge_method: linear, slices: [{sources: [{model: a}]}]}", "sources[0]: needs a `layer_range:`"),
        ("{merge_method: ties, models: [{model: a, parameters: {weight: 1}}]}", "merge_method: ties needs base_model"),
        ("[1, 2]", "r.yml:1: must be a mapping"),
        ("ties", "r.yml:1: must be a mapping"),
    ],
)
def test_an_incomplete_recipe_is_refused(text: str, says: str) -> None:
    """Missing, empty and contradictory parts are errors that say what is needed."""
    assert says in refusal(text)


def test_a_base_for_every_slice_is_a_base() -> None:
    """A method that needs a base takes it from the slices if each names one."""
    one = "{base_model: b, sources: [{model: a, layer_range: [0, 1], parameters: {weight: 1}}]}"
    none = one.replace("base_model: b, ", "")
    assert parse(f"{{merge_method: ties, slices: [{one}, {one}]}}").base is None
    assert "needs base_model" in refusal(f"{{merge_method: ties, slices: [{one}, {none}]}}")


def test_the_same_model_may_be_named_twice() -> None:
    """Both entries stay, in order."""
    recipe = parse(TWO.replace("two", "one"))
    assert [each.model for each in recipe.models] == [ModelRef("one"), ModelRef("one")]


def test_an_unlisted_base_under_linear_counts_as_in_mergekit() -> None:
    """With a weight for all it is one more input; without one it lends its config, and a note says which."""
    counted = parse("{merge_method: linear, base_model: b, models: [{model: a}], parameters: {weight: 1}}")
    assert [str(each.model) for each in counted.models] == ["a", "b"]
    assert "merged as one more input" in counted.notes[0]
    lent = parse("{merge_method: linear, base_model: b, models: [{model: a, parameters: {weight: 1}}]}")
    assert [str(each.model) for each in lent.models] == ["a"]
    assert "its weights do not count" in lent.notes[0]


def test_the_base_of_a_geometric_method_is_its_origin() -> None:
    """Listed or not, it is no input of nuslerp: it needs no weight, is not added, and no note calls it unused."""
    weighted = "{model: a, parameters: {weight: 1}}, {model: c, parameters: {weight: 2}}"
    listed = parse(f"{{merge_method: nuslerp, base_model: b, models: [{{model: b}}, {weighted}]}}")
    assert [str(each.model) for each in listed.models] == ["b", "a", "c"]
    unlisted = parse(
        "{merge_method: nuslerp, base_model: b, models: [{model: a}, {model: c}], parameters: {weight: 1}}"
    )
    assert [str(each.model) for each in unlisted.models] == ["a", "c"]
    assert (listed.notes, unlisted.notes) == ((), ())
    assert "nuslerp needs" in refusal(f"{{merge_method: nuslerp, models: [{{model: b}}, {weighted}]}}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[0]", "must be [first, end], found 1 values"),
        ("[4, 4]", "[4, 4] holds no layer"),
        ("[8, 4]", "[8, 4] holds no layer"),
        ("[-1, 4]", "layer_range[0]: must be between 0"),
        ("[0, 4.5]", "layer_range[1]: must be a whole number"),
        ("4", "must be [first, end], found '4'"),
        ("[0, 5]", "takes 5 layers of a, but 4 of first"),
    ],
)
def test_a_wrong_layer_range_is_refused(text: str, says: str) -> None:
    """Ranges are two whole numbers, hold a layer, and are equally long in a slice."""
    sources = f"[{{model: first, layer_range: [2, 6]}}, {{model: a, layer_range: {text}}}]"
    assert says in refusal(f"{{merge_method: linear, parameters: {{weight: 1}}, slices: [{{sources: {sources}}}]}}")


# ---------------------------------------------------------------- method, models, output


def test_the_variant_is_kept_if_the_recipe_chose_one() -> None:
    """`variant:` and the method's full name say the same; without either the recipe holds none."""
    assert parse(TWO).variant is None
    assert parse(TWO + "variant: mergekit").variant == "mergekit"
    named = parse(TWO.replace("ties", "ties@mergekit"))
    assert (named.method, named.variant) == ("ties", "mergekit")


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("org/model", ModelRef("org/model")),
        ("./a b", ModelRef("./a b")),
        ("no", ModelRef("no")),
        ("2024", ModelRef("2024")),
        ("1e10", ModelRef("1e10")),
        ("org/model@main", ModelRef("org/model", "main")),
        ("org/model+org/lora", ModelRef("org/model", None, ModelRef("org/lora"))),
        ("m@r1+l@r2", ModelRef("m", "r1", ModelRef("l", "r2"))),
        ("{model: a+b}", ModelRef("a+b")),
        ("{model: {path: a@b+c, revision: 0123}}", ModelRef("a@b+c", "0123")),
        ("{model: m@r, lora: {path: l}}", ModelRef("m", "r", ModelRef("l"))),
        ("{model: m, lora: null}", ModelRef("m")),
    ],
)
def test_every_form_of_a_model(text: str, ref: ModelRef) -> None:
    """Path, revision and adapter are told apart, and names are what was written."""
    recipe = parse(f"{{merge_method: linear, models: [{{model: {text}, parameters: {{weight: 1}}}}]}}")
    assert recipe.models[0].model == ref


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a+b+c", "more than one `+`"),
        ("a@b@c", "is not PATH[@REVISION]"),
        ("'@b'", "is not PATH[@REVISION]"),
        ("a@", "is not PATH[@REVISION]"),
        ("a+", "is not PATH[@REVISION]"),
        ("[a]", "must be a model: PATH"),
        ("{lora: a}", "needs a `model:`"),
        ("{model: {revision: a}}", "needs a `path:`"),
        ("{modle: a}", 'did you mean "model"'),
        ("{model: a, override_architecture: b}", "override_architecture: is not supported"),
    ],
)
def test_what_is_no_model_is_refused(text: str, says: str) -> None:
    """A reference that can be read in no way, or only by guessing, is an error."""
    assert says in refusal(f"{{merge_method: linear, models: [{{model: {text}}}]}}")


def test_dtypes_are_named_as_torch_names_them() -> None:
    """With and without the module's name."""
    recipe = parse(TWO + "dtype: float32\nout_dtype: torch.bfloat16\n")
    assert (recipe.dtype, recipe.out_dtype) == ("F32", "BF16")


def test_plain_keys_are_kept() -> None:
    """Seed, name and chat template are what was written."""
    recipe = parse(TWO + "seed: 42\nname: no\nchat_template: |\n  {{ bos }}\n")
    assert (recipe.seed, recipe.name, recipe.chat_template) == (42, "no", "{{ bos }}\n")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("tokenizer_source: union", TokenizerSpec("union")),
        ("tokenizer_source: base", TokenizerSpec("base")),
        ("tokenizer_source: org/m@r", TokenizerSpec(ModelRef("org/m", "r"))),
        ("tokenizer: {}", TokenizerSpec("union")),
        ("tokenizer: {source: base, pad_to_multiple_of: 64}", TokenizerSpec("base", {}, 64)),
        (
            "tokenizer: {source: one, tokens: {no: {source: two, force: on}, '<s>': {source: {kind: zero}}}}",
            TokenizerSpec(
                ModelRef("one"),
                {"no": TokenSource("model", ModelRef("two"), force=True), "<s>": TokenSource("zero")},
            ),
        ),
        (
            SINGLE_TOKENS,
            TokenizerSpec(
                "union",
                {
                    "a": TokenSource("model_token", ModelRef("m"), token="yes"),
                    "b": TokenSource("model_token", ModelRef("m"), token_id=7),
                    "c": TokenSource("default"),
                },
            ),
        ),
    ],
)
def test_every_form_of_the_tokenizer(text: str, spec: TokenizerSpec) -> None:
    """Sources, single tokens and padding are kept as stated, with mergekit's defaults."""
    found = parse(TWO + text + "\n").tokenizer
    assert found == spec
    assert found is not None
    assert found.tokens == spec.tokens


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tokenizer: union", "tokenizer_source: union"),
        ("tokenizer: {souce: base}", 'did you mean "source"'),
        ("tokenizer: {pad_to_multiple_of: 0}", "must be between 1"),
        ("tokenizer: {tokens: {a: {source: {kind: zeros}}}}", 'unknown kind "zeros"; did you mean "zero"'),
        ("tokenizer: {tokens: {a: {source: {kind: zero, model: m}}}}", "unknown key"),
        ("tokenizer: {tokens: {a: {source: {kind: model_token, model: m}}}}", "one of `token:` and `token_id:`"),
        ("tokenizer: {tokens: {a: {source: {kind: model_token, model: m, token: x, token_id: 1}}}}", "one of `token:`"),
        ("tokenizer: {tokens: {a: {source: {kind: model_token, token: x}}}}", "needs `model:`"),
        ("tokenizer: {tokens: {a: {force: true}}}", "nothing to force without a source: add `source:`"),
        ("tokenizer: {tokens: {a: {source: null, force: true}}}", "nothing to force without a source"),
        ("tokenizer: {}\ntokenizer_source: base", "cannot both be given"),
    ],
)
def test_a_wrong_tokenizer_is_refused(text: str, says: str) -> None:
    """Unknown keys and kinds, and halves of a token's source, are errors."""
    assert says in refusal(TWO + text + "\n")
