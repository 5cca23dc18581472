"""What is compared with mergekit: recipes by method, and recipes of the language's other features.

A recipe is mergekit's YAML as a mapping, in which "@base", "@expert1", … stand for the models of the case's
family. Add a variant of a method as a row of `METHODS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

Recipe = Mapping[str, Any]

OUT_DTYPES: Final = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Case:
    """One recipe for both programs.

    `recipe` is for both; `peer_recipe` is an equivalent for mergekit where it stops at the same words.
    `rounding` is the `dtype` mergekit gets (it rounds its inputs to it). `masks` names the use of randomness
    by which our masks are keyed, "" where nothing is random. `keeps` compares, beside values, how many
    elements are changed: for a trim of a single expert, how many are kept. `also` are files besides the
    weights to be compared ("config", "tokenizer").
    """

    name: str
    method: str
    recipe: Recipe = field(hash=False)
    family: str = "bf16"
    peer_recipe: Recipe | None = field(default=None, hash=False)
    rounding: str = "float32"
    masks: str = ""
    keeps: bool = False
    also: tuple[str, ...] = ()
    documents: tuple[Recipe, ...] = field(default=(), hash=False)

    def __str__(self) -> str:
        return self.name


def models(*parameters: Recipe, of: Iterable[str] = ()) -> list[dict[str, Any]]:
    """A `models:` list of expert 1, 2, … (or the models named by `of`), each with its parameters."""
    names = list(of) or [f"@expert{number}" for number in range(1, len(parameters) + 1)]
    return [
        {"model": name, "parameters": dict(own)} if own else {"model": name}
        for name, own in zip(names, parameters, strict=True)
    ]


def weights(*values: Any) -> list[dict[str, Any]]:
    """A `models:` list with these weights."""
    return models(*({"weight": value} for value in values))


def sparse(*pairs: tuple[Any, Any], **more: Any) -> list[dict[str, Any]]:
    """A `models:` list with (weight, density) pairs."""
    return models(*({"weight": weight, "density": density, **more} for weight, density in pairs))


def with_base(entries: list[dict[str, Any]], **parameters: Any) -> Recipe:
    """A recipe that names the base."""
    recipe: dict[str, Any] = {"base_model": "@base", "models": entries}
    return recipe | ({"parameters": parameters} if parameters else {})


def without_base(entries: list[dict[str, Any]], **parameters: Any) -> Recipe:
    """A recipe that names none."""
    recipe: dict[str, Any] = {"models": entries}
    return recipe | ({"parameters": parameters} if parameters else {})


GRADIENT: Final = [0.1, 0.9, 0.4]
BY_NAME: Final = [{"filter": "self_attn", "value": 0.9}, {"filter": "mlp", "value": [0.2, 0.6]}, {"value": 0.4}]


def _cases(method: str, rows: Mapping[str, Recipe | Case]) -> list[Case]:
    cases = []
    for label, row in rows.items():
        case = row if isinstance(row, Case) else Case("", method, row)
        cases.append(
            replace(
                case, name=f"{method}-{label}", method=method, recipe={"merge_method": method, **case.recipe},
                peer_recipe=None if case.peer_recipe is None else {"merge_method": method, **case.peer_recipe},
            )
        )  # fmt: skip
    return cases


def _in(family: str, recipe: Recipe, **more: Any) -> Case:
    return Case("", "", recipe, family, **more)


def _task_vectors(normalize: bool) -> dict[str, Recipe | Case]:
    """The variants that every method of `θ₀ + λ Σ wᵢxᵢ` shares; `normalize` is what is not its default."""
    return {
        "one": with_base(weights(0.7)),
        "three": with_base(weights(0.4, 0.3, 0.3)),
        "four": with_base(weights(0.4, 0.3, 0.6, 0.2)),
        "lambda": with_base(weights(0.4, 0.5), **{"lambda": 0.6}),
        "other-normalize": with_base(weights(0.4, 0.5, 0.8), normalize=normalize),
        "negative": with_base(weights(0.6, -0.4, 0.9), normalize=False),
        "negative-normalized": with_base(weights(0.9, -0.4, 0.8), normalize=True),
        "int8-mask": with_base(weights(0.4, 0.5, 0.2), int8_mask=True),
        "zero-weight": with_base(weights(0.4, 0.0, 0.2)),
        "global": with_base(models({}, {"weight": 0.25}, {}), weight=0.5),
        "base-listed": with_base(
            models({}, {"weight": 0.5}, {"weight": 0.3}, of=("@base", "@expert1", "@expert2"))
        ),
        "gradient": _in("layers", with_base(weights(GRADIENT, 0.5, [0.8, 0.0]), **{"lambda": [0.5, 1.0]})),
        "filters": with_base(weights(BY_NAME, 0.3)),
        "lone-filter": with_base(weights({"filter": "mlp", "value": 0.9}, 0.3), weight=0.5),
        "mixed-dtypes": _in("mixed", with_base(weights(0.4, 0.3, 0.5))),
        "float64": _in("wide", with_base(weights(0.4, 0.3, 0.5)), rounding="float64"),
        "tied": _in("tied", with_base(weights(0.4, 0.7))),
        # 0.1.5 refuses a model named twice; its weight counts once for each entry here.
        "same-twice": _in(
            "bf16",
            with_base(
                models({"weight": 0.2}, {"weight": 0.4}, {"weight": 0.3}, of=("@expert1", "@expert2", "@expert1"))
            ),
            peer_recipe=with_base(weights(0.5, 0.4)),
        ),
    }  # fmt: skip


def _sparse(masks: str = "", trims: bool = False, **extra: Any) -> dict[str, Recipe | Case]:
    """The variants of `density` (float32 models keep equal magnitudes rare, bfloat16 ones make them common)."""
    rows: dict[str, Recipe] = {
        "density": with_base(sparse((0.5, 0.5), (0.5, 0.5))),
        "densities": with_base(sparse((0.4, 0.2), (0.7, 0.9), (0.3, 1.0))),
        "density-global": with_base(weights(0.4, 0.7, 0.3), density=0.3),
        "density-filters": with_base(sparse((0.4, BY_NAME), (0.7, 0.6))),
        "density-low": with_base(sparse((0.6, 0.001), (0.4, 0.01))),
        "density-zero": with_base(sparse((0.6, 0.0), (0.4, 0.5))),
        "density-negative": with_base(sparse((0.6, 0.5), (-0.4, 0.7), (0.8, 0.3)), normalize=False),
        "density-other-rescale": with_base(sparse((0.6, 0.5), (0.4, 0.7)), **extra),
        "density-lambda": with_base(sparse((0.6, 0.5), (0.4, 0.7)), **{"lambda": 1.3}, normalize=True),
        "density-int8-mask": with_base(sparse((0.6, 0.5), (0.4, 0.7)), int8_mask=True),
    }
    cases: dict[str, Recipe | Case] = {name: _in("f32", row, masks=masks) for name, row in rows.items()}
    cases |= {f"{name}-bf16": _in("bf16", rows[name], masks=masks) for name in ("density", "densities")}
    cases["density-gradient"] = _in("layers", with_base(sparse((0.4, GRADIENT), (0.7, 0.6))), masks=masks)
    cases["density-one"] = _in("bf16", with_base(sparse((1.0, 0.4))), masks=masks, keeps=trims or bool(masks))
    return cases


def _drop(rows: Mapping[str, Recipe | Case], *names: str) -> dict[str, Recipe | Case]:
    """Without some rows."""
    return {name: row for name, row in rows.items() if name not in names}


def _epsilon(rows: Mapping[str, Recipe | Case]) -> dict[str, Recipe | Case]:
    """DELLA's own: every density needs `0 < density ± epsilon < 1`, so those at the ends get a narrow one.

    Of bfloat16 models most rows have equal magnitudes, whose order is not defined, and with it what is kept: float32
    models only.
    """
    narrow = {"densities": 0.05, "density-low": 0.0005, "density-filters": 0.05, "density-gradient": 0.05}
    adapted = _drop(rows, "density-bf16", "densities-bf16")
    for name in ("density-gradient", "density-one"):
        row = rows[name]
        assert isinstance(row, Case)
        adapted[name] = replace(row, family="f32-layers" if row.family == "layers" else "f32")
    for name, epsilon in narrow.items():
        row = adapted[name]
        assert isinstance(row, Case)
        parameters = {**row.recipe.get("parameters", {}), "epsilon": epsilon}
        adapted[name] = replace(row, recipe={**row.recipe, "parameters": parameters})
    return adapted


_BASE_FREE: Final[dict[str, Recipe | Case]] = {
    "two": without_base(weights(0.6, 0.4)),
    "three": without_base(weights(0.5, 0.3, 0.7)),
    "four": without_base(weights(0.1, 0.2, 0.3, 0.4)),
}

_SLERP_T: Final[dict[str, Recipe | Case]] = {
    "half": with_base(models({}), t=0.5),
    "third": with_base(models({}), t=0.3),
    "start": with_base(models({}), t=0.0),
    "end": with_base(models({}), t=1.0),
    "beyond": with_base(models({}), t=1.4),
    "both-listed": with_base(models({}, {}, of=("@base", "@expert1")), t=0.4),
    "base-second": with_base(models({}, {}, of=("@expert2", "@base")), t=0.4),
    "base-is-an-expert": {"base_model": "@expert1", "models": models({}, {}), "parameters": {"t": 0.25}},
    "far": _in("far", with_base(models({}), t=0.4)),
    "gradient": _in("layers", with_base(models({}), t=[0.0, 0.5, 1.0])),
    "filters": with_base(models({}), t=BY_NAME),
    "mixed-dtypes": _in("mixed", with_base(models({}), t=0.4)),
}

_DELLA: Final = {
    "epsilon": _in("f32", with_base(sparse((0.6, 0.5), (0.4, 0.7), epsilon=0.2)), masks="della"),
    "epsilons": _in(
        "f32",
        with_base(
            models({"weight": 0.6, "density": 0.5, "epsilon": 0.4}, {"weight": 0.4, "density": 0.9, "epsilon": 0.05})
        ),
        masks="della",
    ),
    "epsilon-zero": _in("f32", with_base(sparse((0.6, 0.5), (0.4, 0.7)), epsilon=0.0), masks="della"),
    "epsilon-gradient": _in(
        "f32-layers", with_base(sparse((0.6, 0.5), (0.4, 0.6)), epsilon=[0.05, 0.3]), masks="della"
    ),
}  # fmt: skip

_BREADCRUMBS: Final = {
    "gamma": _in("f32", with_base(sparse((0.6, 0.5), (0.4, 0.7)), gamma=0.1)),
    "gammas": _in(
        "f32",
        with_base(
            models({"weight": 0.6, "density": 0.5, "gamma": 0.3}, {"weight": 0.4, "density": 0.9, "gamma": 0.02})
        ),
    ),
    "gamma-zero": _in("f32", with_base(sparse((0.6, 0.5), (0.4, 0.7)), gamma=0.0)),
    "gamma-beyond": _in("f32", with_base(sparse((0.6, 0.9), (0.4, 0.7)), gamma=0.4)),
    "gamma-gradient": _in("layers", with_base(sparse((0.6, 0.5), (0.4, 0.6)), gamma=[0.0, 0.2])),
}

_ONE_OTHER: Final = {
    "mixed-dtypes": _in("mixed", with_base(models({}))),
    "float64": _in("wide", with_base(models({})), rounding="float64"),
    "tied": _in("tied", with_base(models({}))),
}

METHODS: Final[Mapping[str, list[Case]]] = {
    "linear": _cases("linear", _BASE_FREE | {
        "unnormalized": without_base(weights(0.5, 0.3, 0.4), normalize=False),
        "negative": without_base(weights(0.9, -0.3, 0.8)),
        "negative-unnormalized": without_base(weights(0.9, -0.3, 0.8), normalize=False),
        "zero-weight": without_base(weights(0.0, 0.3, 0.8)),
        "global": without_base(models({}, {"weight": 0.25}, {}), weight=0.5),
        "base-listed": with_base(
            models({"weight": 0.7}, {"weight": 0.5}, {"weight": 0.3}, of=("@expert1", "@base", "@expert2"))
        ),
        "base-unlisted": with_base(models({"weight": 0.7}, {}), weight=0.5),
        "base-unlisted-unnormalized": with_base(models({"weight": 0.7}, {}), weight=0.5, normalize=False),
        "gradient": _in("layers", without_base(weights(GRADIENT, 0.5, [0.8, 0.0]))),
        "filters": without_base(weights(BY_NAME, 0.3)),
        "lone-filter": without_base(weights({"filter": "mlp", "value": 0.9}, 0.3), weight=0.5),
        "mixed-dtypes": _in("mixed", without_base(weights(0.4, 0.3, 0.5))),
        "float64": _in("wide", without_base(weights(0.4, 0.3, 0.5)), rounding="float64"),
        "tied": _in("tied", without_base(weights(0.4, 0.7))),
        "same-twice": _in(
            "bf16",
            without_base(
                models({"weight": 0.2}, {"weight": 0.4}, {"weight": 0.3}, of=("@expert1", "@expert2", "@expert1"))
            ),
            peer_recipe=without_base(weights(0.5, 0.4)),
        ),
    }),
    "task_arithmetic": _cases("task_arithmetic", _task_vectors(True) | {
        "density-unused": with_base(sparse((0.5, 0.3), (0.4, 0.2))),
    }),
    "ties": _cases("ties", _task_vectors(False) | _sparse(trims=True, rescale=True)),
    "dare_linear": _cases("dare_linear", _task_vectors(True) | _sparse("dare", rescale=False)),
    "dare_ties": _cases("dare_ties", _task_vectors(True) | _sparse("dare", rescale=False)),
    "della": _cases("della", _task_vectors(False) | _epsilon(_sparse("della", rescale=False)) | _DELLA),
    "della_linear": _cases(
        "della_linear", _task_vectors(True) | _epsilon(_sparse("della", rescale=False)) | _DELLA
    ),
    "breadcrumbs": _cases(
        "breadcrumbs", _task_vectors(True) | _sparse(trims=True, rescale=True) | _BREADCRUMBS
    ),
    "breadcrumbs_ties": _cases(
        "breadcrumbs_ties", _task_vectors(True) | _sparse(trims=True, rescale=True) | _BREADCRUMBS
    ),
    "slerp": _cases("slerp", _SLERP_T),
    "nuslerp": _cases("nuslerp", {
        "two": without_base(weights(0.6, 0.4)),
        "unequal": without_base(weights(0.3, 1.7)),
        "cancelling": without_base(weights(0.5, -0.5)),
        "negative": without_base(weights(0.9, -0.2)),
        "base": with_base(weights(0.6, 0.4)),
        "base-listed": with_base(
            models({"weight": 0.3}, {}, {"weight": 0.9}, of=("@expert1", "@base", "@expert2"))
        ),
        "columns": without_base(weights(0.6, 0.4), nuslerp_flatten=False),
        "columns-base": with_base(weights(0.6, 0.4), nuslerp_flatten=False),
        "rows": without_base(weights(0.6, 0.4), nuslerp_flatten=False, nuslerp_row_wise=True),
        "rows-base": with_base(weights(0.6, 0.4), nuslerp_flatten=False, nuslerp_row_wise=True),
        "rows-flattened": with_base(weights(0.6, 0.4), nuslerp_row_wise=True),
        "far": _in("far", without_base(weights(0.6, 0.4))),
        "far-base": _in("far", with_base(weights(0.6, 0.4))),
        "far-rows": _in("far", without_base(weights(0.6, 0.4), nuslerp_flatten=False, nuslerp_row_wise=True)),
        "gradient": _in("layers", with_base(weights(GRADIENT, 0.5))),
        "filters": without_base(weights(BY_NAME, 0.3)),
        "mixed-dtypes": _in("mixed", with_base(weights(0.6, 0.4))),
        "float64": _in("wide", without_base(weights(0.6, 0.4)), rounding="float64"),
        "tied": _in("tied", with_base(weights(0.6, 0.4))),
    }),
    # mergekit stops where several experts equal the base (deviations.py), hence families in which none does.
    "multislerp": _cases("multislerp", _BASE_FREE | {
        "base": _in("touched", with_base(weights(0.6, 0.4))),
        "base-three": _in("touched", with_base(weights(0.6, 0.4, 0.2))),
        "base-four": _in("touched", with_base(weights(0.6, 0.4, 0.2, 0.3))),
        "unnormalized": without_base(weights(0.6, 0.7, 0.2), normalize_weights=False),
        "unnormalized-base": _in("touched", with_base(weights(0.6, 0.7, 0.2), normalize_weights=False)),
        "negative": _in("touched", with_base(weights(0.9, -0.3, 0.8))),
        "eps": _in("touched", with_base(weights(0.6, 0.4), eps=1e-3)),
        "far": _in("far", without_base(weights(0.6, 0.4, 0.2))),
        "far-base": _in("far", with_base(weights(0.6, 0.4, 0.2))),
        "one": with_base(weights(0.6)),
        "two-equal-the-base": _in("equal", with_base(weights(0.6, 0.4))),
        "filters": without_base(weights(BY_NAME, 0.3)),
        "gradient": _in("layers", without_base(weights(GRADIENT, 0.5, 0.7))),
        "mixed-dtypes": _in("mixed", without_base(weights(0.6, 0.4, 0.5))),
        "tied": _in("tied", without_base(weights(0.6, 0.4))),
    }),
    "karcher": _cases("karcher", {
        "two": without_base(models({}, {})),
        "three": without_base(models({}, {}, {})),
        "four": without_base(models({}, {}, {}, {})),
        "base": with_base(models({}, {})),
        "iterations": _in("far", without_base(models({}, {}, {}), max_iter=2)),
        "tol": _in("far", without_base(models({}, {}, {}), tol=1e-3)),
        "far": _in("far", without_base(models({}, {}, {}))),
        "far-base": _in("far", with_base(models({}, {}, {}))),
        "mixed-dtypes": _in("mixed", without_base(models({}, {}, {}))),
        "float64": _in("wide", without_base(models({}, {}, {})), rounding="float64"),
        "tied": _in("tied", without_base(models({}, {}))),
    }),
    "sce": _cases("sce", _ONE_OTHER | {
        "two": with_base(models({}, {})),
        "three": with_base(models({}, {}, {})),
        "four": with_base(models({}, {}, {}, {})),
        "topk": _in("f32", with_base(models({}, {}, {}), select_topk=0.3)),
        "topk-two": _in("f32", with_base(models({}, {}), select_topk=0.7)),
        "topk-zero": with_base(models({}, {}), select_topk=0.0),
        "int8-mask": _in("f32", with_base(models({}, {}, {}), select_topk=0.3, int8_mask=True)),
        "far": _in("far", with_base(models({}, {}, {}), select_topk=0.5)),
        # Of bfloat16 models positions vary equally often, and which are selected moves the weights.
        "gradient": _in("f32-layers", with_base(models({}, {}), select_topk=[0.2, 1.0])),
        "filters": _in("f32", with_base(models({}, {}), select_topk=BY_NAME)),
    }),
    "model_stock": _cases("model_stock", {
        "two": with_base(models({}, {})),
        "three": with_base(models({}, {}, {})),
        "four": with_base(models({}, {}, {}, {})),
        "base-listed": with_base(models({}, {}, {}, of=("@expert1", "@base", "@expert2"))),
        "filter-wise": with_base(models({}, {}), filter_wise=True),
        "filter-wise-three": with_base(models({}, {}, {}), filter_wise=True),
        "filter-wise-by-name": with_base(
            models({}, {}, {}), filter_wise=[{"filter": "mlp", "value": True}, {"value": False}]
        ),
        "far": _in("far", with_base(models({}, {}, {}))),
        "opposed": _in("opposed", with_base(models({}, {}))),
        "far-filter-wise": _in("far", with_base(models({}, {}, {}), filter_wise=True)),
        "mixed-dtypes": _in("mixed", with_base(models({}, {}, {}))),
        "float64": _in("wide", with_base(models({}, {}, {})), rounding="float64"),
        "tied": _in("tied", with_base(models({}, {}))),
    }),
    "nearswap": _cases("nearswap", {
        "small": with_base(models({}), t=0.0005),
        "large": with_base(models({}), t=0.02),
        "zero": with_base(models({}), t=0.0),
        "both-listed": with_base(models({}, {}, of=("@base", "@expert2")), t=0.001),
        "far": _in("far", with_base(models({}), t=0.05)),
        "gradient": _in("layers", with_base(models({}), t=[0.0, 0.01])),
        "filters": with_base(models({}), t=[{"filter": "mlp", "value": 0.01}, {"value": 0.001}]),
        "mixed-dtypes": _in("mixed", with_base(models({}), t=0.001)),
        "float64": _in("wide", with_base(models({}), t=0.001), rounding="float64"),
        "tied": _in("tied", with_base(models({}), t=0.001)),
    }),
    "arcee_fusion": _cases("arcee_fusion", _ONE_OTHER | {
        "default": with_base(models({})),
        "both-listed": with_base(models({}, {}, of=("@base", "@expert2"))),
        "float32": _in("f32", with_base(models({}))),
        "far": _in("far", with_base(models({}))),
    }),
    "ram": _cases("ram", _ONE_OTHER | {
        "two": with_base(models({}, {})),
        "three": with_base(models({}, {}, {})),
        "four": with_base(models({}, {}, {}, {})),
        "epsilon": with_base(models({}, {}, {}), epsilon=0.001),
        "epsilon-zero": with_base(models({}, {}, {}), epsilon=0.0),
        "gradient": _in("layers", with_base(models({}, {}), epsilon=[0.0, 0.005])),
        "far": _in("far", with_base(models({}, {}, {}), epsilon=0.02)),
    }),
    "ramplus_tl": _cases("ramplus_tl", _ONE_OTHER | {
        "two": with_base(models({}, {})),
        "three": with_base(models({}, {}, {})),
        "four": with_base(models({}, {}, {}, {}), epsilon=0.001),
        "r": with_base(models({}, {}, {}), r=0.5, epsilon=0.001),
        "alpha": with_base(models({}, {}, {}), r=0.5, alpha=2.0, epsilon=0.001),
        "epsilon": with_base(models({}, {}, {}), epsilon=0.001),
        "far": _in("far", with_base(models({}, {}, {}), epsilon=0.02)),
    }),
    "passthrough": _cases("passthrough", {
        "copy": without_base(models({})),
        "scale": without_base(models({"scale": 0.5})),
        "scale-global": without_base(models({}), scale=1.5),
        "scale-zero": without_base(models({"scale": [{"filter": "o_proj", "value": 0.0}, {"value": 1.0}]})),
        "gradient": _in("layers", without_base(models({"scale": [0.5, 1.5]}))),
        "sharded": _in("layers", without_base(models({}, of=("@expert3",)))),
        "float32": _in("f32", without_base(models({"scale": 0.3}))),
        "tied": _in("tied", without_base(models({}))),
    }),
}  # fmt: skip


# ------------------------------------------------------------------- what is not a method


def _source(model: str, first: int, last: int, **parameters: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"model": model, "layer_range": [first, last]}
    return found | ({"parameters": parameters} if parameters else {})


def _slices(*slices: Any, **more: Any) -> Recipe:
    """A recipe of slices; each is a list of sources, or a whole slice."""
    return {"slices": [each if isinstance(each, dict) else {"sources": each} for each in slices], **more}


def _features(group: str, rows: Mapping[str, tuple[str, Recipe]], **more: Any) -> list[Case]:
    return [
        Case(f"{group}-{label}", recipe["merge_method"], recipe, family, **more)
        for label, (family, recipe) in rows.items()
    ]


SLICES: Final = _features("slices", {
    "whole": ("bf16", _slices(
        [_source("@expert1", 0, 2, weight=0.6), _source("@expert2", 0, 2, weight=0.4)], merge_method="linear",
    )),
    "frankenmerge": ("layers", _slices(
        [_source("@expert1", 0, 3)], [_source("@expert2", 1, 4)], merge_method="passthrough",
    )),
    "repeated-layers": ("layers", _slices(
        [_source("@base", 0, 2)], [_source("@base", 1, 3)], [_source("@base", 1, 4)], merge_method="passthrough",
    )),
    "fewer-layers": ("layers", _slices(
        [_source("@expert1", 0, 1)], [_source("@expert1", 3, 4)], merge_method="passthrough",
    )),
    "scaled": ("layers", _slices(
        [_source("@expert1", 0, 2, scale=[{"filter": "o_proj", "value": 0.0}, {"value": 1.0}])],
        [_source("@expert1", 0, 4)], merge_method="passthrough",
    )),
    "shifted": ("layers", _slices(
        [_source("@expert1", 0, 2, weight=0.5), _source("@expert2", 2, 4, weight=0.5)],
        [_source("@expert2", 0, 2, weight=0.25), _source("@expert3", 0, 2, weight=0.75)], merge_method="linear",
    )),
    "gradient-in-slice": ("layers", _slices(
        [_source("@expert1", 0, 3, weight=[0.0, 1.0]), _source("@expert2", 0, 3, weight=0.5)],
        [_source("@expert1", 3, 4, weight=[0.2, 0.8]), _source("@expert2", 3, 4, weight=0.5)], merge_method="linear",
    )),
    "slice-parameters": ("layers", _slices(
        {"sources": [_source("@base", 0, 2), _source("@expert1", 0, 2)], "parameters": {"t": 0.3}},
        {"sources": [_source("@base", 2, 4), _source("@expert1", 2, 4)]},
        merge_method="slerp", base_model="@base", parameters={"t": [0.4, 0.8]},
    )),
    "slice-base": ("layers", _slices(
        {"sources": [_source("@expert2", 0, 2), _source("@expert1", 0, 2)], "base_model": "@expert2"},
        {"sources": [_source("@base", 2, 4), _source("@expert1", 2, 4)]},
        merge_method="task_arithmetic", base_model="@base", parameters={"weight": 0.5},
    )),
    "ties": ("layers", _slices(
        [_source("@base", 0, 4), _source("@expert1", 0, 4, weight=0.5), _source("@expert2", 0, 4, weight=0.7)],
        merge_method="ties", base_model="@base",
    )),
}, also=("config",))  # fmt: skip


def _tokenizer(method: str, entries: list[dict[str, Any]], **more: Any) -> Recipe:
    return {"merge_method": method, "models": entries, **more}


_THREE: Final = ("@expert1", "@expert2", "@expert3")


def _united(**more: Any) -> Recipe:
    return _tokenizer("linear", models(*({"weight": w} for w in (0.5, 0.3, 0.4)), of=_THREE), **more)


TOKENIZERS: Final = _features("tokenizer", {
    "union": ("vocabularies", _united(base_model="@base", parameters={"weight": 0.2}, tokenizer_source="union")),
    "union-task-vectors": ("vocabularies", _tokenizer(
        "task_arithmetic", models(*({"weight": w} for w in (0.5, 0.3, 0.4)), of=_THREE), base_model="@base",
        tokenizer_source="union",
    )),
    "union-slerp": ("vocabularies", _tokenizer(
        "slerp", models({}, of=("@expert2",)), base_model="@base", parameters={"t": 0.4}, tokenizer_source="union",
    )),
    "union-ties": ("vocabularies", _tokenizer(
        "ties", models(*({"weight": w} for w in (0.5, 0.3, 0.4)), of=_THREE), base_model="@base",
        tokenizer={"source": "union"},
    )),
    "base": ("vocabularies", _united(base_model="@base", parameters={"weight": 0.2}, tokenizer_source="base")),
    "of-a-model": ("vocabularies", _united(
        base_model="@base", parameters={"weight": 0.2}, tokenizer_source="@expert2"
    )),
    "of-an-own-order": ("vocabularies", _united(
        base_model="@base", parameters={"weight": 0.2}, tokenizer={"source": "@expert3"}
    )),
    "padded": ("vocabularies", _united(
        base_model="@base", parameters={"weight": 0.2}, tokenizer={"source": "union", "pad_to_multiple_of": 16}
    )),
    "token-from-a-model": ("vocabularies", _united(
        base_model="@base", parameters={"weight": 0.2},
        tokenizer={"source": "union", "tokens": {"<|chat|>": {"source": "@expert2"}, "w3": {"source": "@expert1"}}},
    )),
    "token-forced": ("vocabularies", _united(
        base_model="@base", parameters={"weight": 0.2},
        tokenizer={"source": "union", "tokens": {"w3": {"source": "@expert1", "force": True}}},
    )),
    "token-zero": ("vocabularies", _united(
        base_model="@base", parameters={"weight": 0.2},
        tokenizer={"source": "union", "tokens": {"own": {"source": {"kind": "zero"}}}},
    )),
    "token-as-another": ("vocabularies", _united(
        base_model="@base", parameters={"weight": 0.2},
        tokenizer={"source": "union", "tokens": {
            "<|end|>": {"source": {"kind": "model_token", "model": "@expert1", "token": "</s>"}, "force": True},
            "<|chat|>": {"source": {"kind": "model_token", "model": "@expert3", "token_id": 5}},
        }},
    )),
    "new-token": ("vocabularies", _united(
        base_model="@base", parameters={"weight": 0.2},
        tokenizer={"source": "union", "tokens": {"<|new|>": {"source": {"kind": "zero"}}}},
    )),
}, also=("config", "tokenizer"))  # fmt: skip

CHAT: Final = _features("chat", {
    "auto": ("vocabularies", _tokenizer(
        "linear", models({"weight": 1.0}, of=("@expert1",)), chat_template="auto",
    )),
    "given": ("vocabularies", _tokenizer(
        "linear", models({"weight": 1.0}, of=("@expert1",)), chat_template="{% for m in messages %}{{ m }}{% endfor %}",
    )),
} | {
    f"named-{name}": ("vocabularies", _tokenizer(
        "linear", models({"weight": 1.0}, of=("@expert1",)), chat_template=name,
    ))
    for name in ("alpaca", "chatml", "mistral")  # the others: test_deviations
}, also=("tokenizer",))  # fmt: skip

MULTI: Final = [
    Case(
        "multi-two-stages", "linear", {},
        documents=(
            {"name": "first", "merge_method": "task_arithmetic", **with_base(weights(0.5, 0.4))},
            {"merge_method": "linear", **without_base(
                models({"weight": 0.6}, {"weight": 0.4}, of=("first", "@expert3"))
            )},
        ),
    ),
    Case(
        "multi-named-base", "slerp", {},
        documents=(
            {"merge_method": "slerp", "base_model": "one", "models": models({}, of=("two",)), "parameters": {"t": 0.3}},
            {"name": "one", "merge_method": "linear", **without_base(weights(0.5, 0.4))},
            {"name": "two", "merge_method": "task_arithmetic", **with_base(weights(0.5, -0.4))},
        ),
    ),
]  # fmt: skip

# Where mergekit 0.1.5 keeps the names and all tensors of a kind; what it does to the others is in test_deviations.py.
_PER_METHOD: Final[Mapping[str, Recipe]] = {
    "linear": without_base(weights(0.5, 0.3, 0.7)),
    "task_arithmetic": with_base(weights([0.1, 0.9], 0.5)),
    "ties": with_base(sparse((0.5, 0.4), (0.7, 0.6), (0.3, 0.8))),
    "dare_linear": with_base(sparse((0.6, 0.5), (0.4, 0.7))),
    "dare_ties": with_base(sparse((0.6, 0.5), (0.4, 0.7))),
    "breadcrumbs": with_base(sparse((0.6, 0.5), (0.4, 0.7)), gamma=0.1),
    "breadcrumbs_ties": with_base(sparse((0.6, 0.5), (0.4, 0.7)), gamma=0.1),
    "slerp": with_base(models({}), t=[0.2, 0.8]),
    "nuslerp": with_base(weights(0.6, 0.4)),
    "multislerp": without_base(weights(0.5, 0.3, 0.7)),
    "karcher": without_base(models({}, {}, {})),
    "sce": with_base(models({}, {}, {}), select_topk=0.5),
    "model_stock": with_base(models({}, {}, {})),
    "nearswap": with_base(models({}), t=0.002),
    "arcee_fusion": with_base(models({})),
    "ram": with_base(models({}, {}, {})),
    "ramplus_tl": with_base(models({}, {}, {}), epsilon=0.001),
    "passthrough": without_base(models({"scale": [0.5, 1.5]})),
}
_BY_VECTORS: Final[Mapping[str, tuple[str, Recipe]]] = {
    "filter-wise": ("model_stock", with_base(models({}, {}, {}), filter_wise=True)),
    "columns": ("nuslerp", without_base(weights(0.6, 0.4), nuslerp_flatten=False)),
    "rows": ("nuslerp", without_base(weights(0.6, 0.4), nuslerp_flatten=False, nuslerp_row_wise=True)),
}
# Of towers some methods are enough; a projector's place in a gradient is in test_deviations.py.
_OF_TOWERS: Final[Mapping[str, Mapping[str, Recipe]]] = {
    "gemma3": {name: _PER_METHOD[name] for name in ("task_arithmetic", "ties", "dare_linear", "slerp", "model_stock")},
    "qwen2_5_vl": {
        "task_arithmetic": with_base(weights(0.4, 0.5)),
        "ties": _PER_METHOD["ties"],
        "slerp": with_base(models({}), t=0.4),
        "passthrough": without_base(models({"scale": [{"filter": "visual", "value": 0.5}, {"value": 1.0}]})),
    },
}
ARCHITECTURES: Final = [
    Case(f"{kind}-{label}", method, {"merge_method": method, **recipe}, kind, masks=masks)
    for kind, rows in {"mixtral_fused": _PER_METHOD, "gpt_oss": _PER_METHOD, **_OF_TOWERS}.items()
    for label, method, recipe, masks in (
        *((method, method, recipe, "dare" if method.startswith("dare") else "") for method, recipe in rows.items()),
        *((label, *row, "") for label, row in _BY_VECTORS.items() if rows is _PER_METHOD),
    )
]

FEATURES: Final = [*SLICES, *TOKENIZERS, *CHAT, *MULTI]
