"""Access plans as files: canonical JSON with a digest, read back as typed values."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from mergepipe.core.digest import canonical_json
from mergepipe.errors import FormatError
from mergepipe.plan.access import AccessPlan

FORMAT = "mergepipe-plan"
SCHEMA = 1


def encode_plan(plan: AccessPlan, recipe: str) -> bytes:
    """The plan with its digest and the recipe's text."""
    document = {
        "format": FORMAT, "schema": SCHEMA, "digest": plan.digest, "recipe": recipe,
        "plan": msgspec.to_builtins(plan),
    }  # fmt: skip
    return canonical_json(document) + b"\n"


def decode_plan(data: bytes, where: str) -> tuple[AccessPlan, str]:
    """A plan and its recipe's text. Raises `FormatError` if it is none, or not the one it was digested as."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FormatError(f'{where}: not a plan: "format" should be "{FORMAT}"')
    if document.get("schema") != SCHEMA:
        raise FormatError(f"{where}: plan schema {document.get('schema')} is not {SCHEMA}; make the plan again")
    plan = plan_from(document.get("plan"), where)
    if plan.digest != document.get("digest"):
        raise FormatError(
            f"{where}: the plan's digest is {plan.digest}, the file says {document.get('digest')}: "
            "it was edited or damaged; make the plan again"
        )
    return plan, str(document.get("recipe", ""))


def plan_from(plain: Any, where: str) -> AccessPlan:
    """Plain JSON values → `AccessPlan`. Raises `FormatError` naming the field that does not fit."""
    try:
        return msgspec.convert(plain, AccessPlan)
    except msgspec.ValidationError as error:
        raise FormatError(f"{where}: not a plan: {error}") from None
