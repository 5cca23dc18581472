"""The merge as a few lines of whole-tensor numpy: what execution must equal bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.dtypes import decode, dtype, encode
from mergepipe.plan.access import AccessPlan, read_set
from mergepipe.testing.checkpoints import read_tensors
from tests.operators import reference

Floats = NDArray[np.floating[Any]]


def merged(plan: AccessPlan) -> dict[str, bytes]:
    """Every output tensor's bytes; deltas of blocks that the plan does not read are zeros."""
    files = [read_tensors(Path(each.url)) for each in plan.logical.inputs]
    out = {}
    for number, tensor in enumerate(plan.logical.tensors):
        code, raw, _ = files[0][tensor.base]
        if not tensor.experts and tensor.dtype == tensor.out_dtype:
            out[tensor.name] = raw
            continue
        kind = np.dtype(np.float64 if tensor.wide else np.float32)
        base = values(code, raw, kind)
        deltas = []
        blocks = -(-tensor.elements // plan.tensors[number].block)
        for place, part in enumerate(tensor.experts):
            code, raw, _ = files[part.input][part.name]
            delta = np.zeros_like(base)
            delta[: part.elements] = values(code, raw, kind)[: part.elements] - base[: part.elements]
            seen = np.repeat(read_set(plan.tensors[number], place, blocks), plan.tensors[number].block)
            deltas.append(np.where(seen[: base.size], delta, kind.type(0)))
        result = _result(plan, number, base, deltas) if tensor.experts else base
        target = dtype(tensor.out_dtype)
        with np.errstate(over="ignore"):
            out[tensor.name] = encode(result, target, np.empty(result.size * target.itemsize, np.uint8)).tobytes()
    return out


def values(code: str, raw: bytes, kind: Any) -> Floats:
    """Stored bytes as floats."""
    stored = np.frombuffer(raw, np.uint8)
    return decode(stored, dtype(code), np.empty(stored.size // dtype(code).itemsize, kind))


def _result(plan: AccessPlan, number: int, base: Floats, deltas: list[Floats]) -> Floats:
    tensor = plan.logical.tensors[number]
    parameters = dict(tensor.parameters)
    weights = [float(part.parameters["weight"]) for part in tensor.experts]
    normalize = bool(parameters["normalize"])
    if plan.logical.operator == "linear":
        own = float((tensor.reference or {"weight": 0.0})["weight"])
        return reference.linear(base, deltas, weights, own, normalize)
    if plan.logical.operator == "task_arithmetic":
        return reference.task_arithmetic(base, deltas, weights, normalize, float(parameters["lambda"]))
    raise ValueError(f"no naive {plan.logical.operator}")


def published(folder: Path) -> dict[str, bytes]:
    """The bytes of every tensor written."""
    return {name: raw for name, (_, raw, _) in read_tensors(folder).items()}
