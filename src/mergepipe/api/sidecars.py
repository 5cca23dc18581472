"""Everything of the output that is not a tensor, written into the staging folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from mergepipe.api.explanation import bound_object
from mergepipe.api.planned import Planned
from mergepipe.core.dtypes import dtype
from mergepipe.manifest.model import FileRecord, Receipt
from mergepipe.plan.cost import output_bytes
from mergepipe.publish.disk import writing
from mergepipe.publish.record import file_record
from mergepipe.publish.staging import Staging
from mergepipe.report.text import bound_line
from mergepipe.sidecar.card import CardFields, model_card
from mergepipe.sidecar.config import config_text, output_config
from mergepipe.sidecar.files import copy_sidecars
from mergepipe.sidecar.tokenizer_files import tokenizer_texts
from mergepipe.sidecar.weights_index import NAME as WEIGHTS_INDEX
from mergepipe.sidecar.weights_index import weights_index
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store


def write_sidecars(
    planned: Planned, plan_digest: str, staging: Staging, receipts: Sequence[Receipt]
) -> tuple[FileRecord, ...]:
    """Everything of the output that is not a tensor, from the base; returns what was written."""
    base = planned.checkpoints[0]
    logical = planned.plan.logical
    number = logical.tokenizer.input
    donor = logical.tokenizer.url if number is None else planned.checkpoints[number].url
    with (
        closing(open_store(base.url, Meter(), Purpose.SIDECAR, "base")) as store,
        closing(open_store(donor, Meter(), Purpose.SIDECAR, "tokenizer")) as tokenizer,
    ):
        own = {} if logical.tokenizer.plain else tokenizer_texts(logical.tokenizer, tokenizer, store)
        copied = copy_sidecars(store, base, staging.path, own.keys())
    written = dict.fromkeys(copied)
    floats = {t.out_dtype for t in logical.tensors if dtype(t.dtype).is_float and not t.copied}
    texts: dict[str, bytes] = {name: text for name, text in own.items() if text is not None}
    if base.config:
        config = output_config(base.config, floats.pop() if len(floats) == 1 else None, logical.config)
        texts["config.json"] = config_text(config).encode()
    if len(receipts) > 1:
        weight_map = {logical.tensors[n].name: file.name for file in logical.files for n in file.tensors}
        texts[WEIGHTS_INDEX] = weights_index(weight_map, output_bytes(logical))
    texts["README.md"] = model_card(_card(planned, plan_digest)).encode()
    with writing(staging.path, staging.advice):
        for name, data in texts.items():
            (staging.path / name).parent.mkdir(parents=True, exist_ok=True)
            (staging.path / name).write_bytes(data)
            written[name] = None
        return tuple(file_record(staging.path, name) for name in sorted(written))


def _card(planned: Planned, plan_digest: str) -> CardFields:
    logical, access = planned.plan.logical, planned.plan
    share = f"{100 * access.planned_bytes / access.full_bytes:.2f} %" if access.full_bytes else "nothing to read"
    return CardFields(
        title="Merged model",
        method=logical.method,
        base_ref=logical.inputs[0].ref,
        expert_refs=tuple(each.ref for each in logical.inputs[1:]),
        recipe=planned.recipe,
        read_lines=(
            f"budget: {access.budget.text} of the experts' {access.full_bytes:,} bytes, policy {access.policy}",
            f"planned: {access.planned_bytes:,} expert bytes ({share})",
        ),
        bound_line=bound_line(bound_object(access)),
        plan_digest=plan_digest,
    )
