"""An access plan in words, and its bound as result objects hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from mergepipe.plan.access import AccessPlan
from mergepipe.plan.explain import explain_plan
from mergepipe.report.text import bound_line


def explain(access: AccessPlan) -> Iterator[str]:
    """A plan as text: what is read from whom and where, and its bound."""
    yield from explain_plan(access)
    yield f"bound {bound_line(bound_object(access))}"


def bound_object(access: AccessPlan) -> Mapping[str, Any]:
    """A plan's bound as result objects hold it."""
    return asdict(access.bound)
