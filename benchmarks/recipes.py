"""The recipes of a benchmark: each method with parameters people use, for a base and its first K experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.families import Family

_DENSE: Final = {"density": 0.5}


@dataclass(frozen=True, slots=True)
class Template:
    """How one method's recipe is written.

    Every expert gets an equal `weight` if `weighted`, and the parameters of `model`; `merge` are those of the merge.
    `base_listed`: the recipe has no `base_model`, the base is the first of its models. `most` experts at most.
    """

    weighted: bool = True
    model: Mapping[str, float] = field(default_factory=dict)
    merge: Mapping[str, float] = field(default_factory=dict)
    base_listed: bool = False
    least: int = 1
    most: int | None = None


TEMPLATES: Final[Mapping[str, Template]] = {
    "linear": Template(base_listed=True),
    "task_arithmetic": Template(),
    "ties": Template(model=_DENSE),
    "dare_linear": Template(model=_DENSE),
    "dare_ties": Template(model=_DENSE),
    "breadcrumbs": Template(model={**_DENSE, "gamma": 0.01}),
    "breadcrumbs_ties": Template(model={**_DENSE, "gamma": 0.01}),
    "della_linear": Template(model={**_DENSE, "epsilon": 0.1}),
    "della": Template(model={**_DENSE, "epsilon": 0.1}),
    "sce": Template(weighted=False, merge={"select_topk": 0.5}),
    "ram": Template(weighted=False),
    "ramplus_tl": Template(weighted=False),
    "arcee_fusion": Template(weighted=False, most=1),
    "nearswap": Template(weighted=False, merge={"t": 0.001}, most=1),
    "slerp": Template(weighted=False, merge={"t": 0.4}, most=1),
    "nuslerp": Template(least=2, most=2),
    "multislerp": Template(),
    "karcher": Template(weighted=False, base_listed=True),
    "model_stock": Template(weighted=False, least=2),
}


def experts_of(method: str, experts: int) -> int:
    """How many of `experts` experts a method's recipe takes. `ValueError` for too few, or an unknown method."""
    if method not in TEMPLATES:
        raise ValueError(f"no recipe for method {method!r}; there is one for {', '.join(sorted(TEMPLATES))}")
    template = TEMPLATES[method]
    taken = experts if template.most is None else min(experts, template.most)
    if taken < template.least:
        raise ValueError(f"{method} merges {template.least} experts or more, not {experts}")
    return taken


def recipe_text(method: str, family: Family, experts: int | None = None) -> str:
    """The YAML of one method's recipe with the family's first experts (None: all); weights add up to 1."""
    taken = family.experts[: experts_of(method, len(family.experts) if experts is None else experts)]
    template = TEMPLATES[method]
    models = (family.base, *taken) if template.base_listed else taken
    lines = [f"merge_method: {method}"]
    if not template.base_listed:
        lines.append(f"base_model: {family.base}")
    if template.merge:
        lines.append(f"parameters: {_flow(template.merge)}")
    lines.append("models:")
    each = {"weight": 1 / len(models), **template.model} if template.weighted else template.model
    for model in models:
        lines.append(f"  - model: {model}")
        if each:
            lines.append(f"    parameters: {_flow(each)}")
    lines.append("dtype: bfloat16")
    return "\n".join(lines) + "\n"


def _flow(values: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{name}: {value!r}" for name, value in values.items()) + "}"
