"""Alignment of a base and its experts by name and shape: headers and configs in, findings out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mergepipe.checkpoint.model import Checkpoint, TensorInfo
from mergepipe.checkpoint.names import (
    NameMatch,
    expert_layout,
    is_derived_buffer,
    match_names,
    parse_role,
    part_beside,
    text_part,
)
from mergepipe.errors import IncompatibleModels

_LISTED = 8
_TIED = "tie_word_embeddings"


class Severity(str, Enum):
    """An error stops the merge; a warning or a note does not."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the family report says, about one model."""

    severity: Severity
    model: str
    message: str

    def __str__(self) -> str:
        return f"{self.severity.value}: {self.model}: {self.message}"


class VocabularyRule(str, Enum):
    """What to do when vocabulary rows differ."""

    STOP = "stop"
    COMMON = "common"


class MissingRule(str, Enum):
    """What to do when an expert lacks a tensor of the base."""

    STOP = "stop"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class FamilyRules:
    """The user's choices where models differ: stop (default), or the stated rule."""

    vocabulary: VocabularyRule = VocabularyRule.STOP
    missing: MissingRule = MissingRule.STOP


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """The expert tensor merged into a base tensor, and how many leading elements it covers."""

    tensor: TensorInfo
    elements: int


@dataclass(frozen=True, slots=True)
class AlignedTensor:
    """A base tensor with each expert's part, None where an expert has none. `copied`: no merge."""

    base: TensorInfo
    parts: tuple[ExpertPart | None, ...]
    copied: bool


@dataclass(frozen=True, slots=True)
class Family:
    """A base, its experts in recipe order, their alignment and the findings."""

    base: Checkpoint
    experts: tuple[Checkpoint, ...]
    tensors: tuple[AlignedTensor, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)


def align(base: Checkpoint, experts: Sequence[Checkpoint], rules: FamilyRules) -> Family:
    """Align by name and shape. Never raises for what models contain: it is in `findings`.

    The output has the base's tensors: what only an expert has is reported and not written, what an
    expert lacks stops the run, or is merged without it. A part beside the language model (a vision
    tower, say) that an expert lacks whole is merged without it in any case, and that is reported.
    """
    findings = [Finding(Severity.NOTE, model.ref, note) for model in (base, *experts) for note in model.notes]
    findings += _base_findings(base)
    columns: list[dict[str, ExpertPart | None]] = []
    for expert in experts:
        column, about = _align_expert(base, expert, rules)
        columns.append(column)
        findings += _config_findings(base, expert) + about
    tensors = []
    for name, tensor in base.tensors.items():
        copied = not tensor.storage.is_float or is_derived_buffer(name)
        parts = tuple(None if copied else column.get(name) for column in columns)
        tensors.append(AlignedTensor(tensor, parts, copied))
    buffers = [tensor.base.name for tensor in tensors if tensor.copied]
    if buffers:
        findings.append(Finding(Severity.NOTE, base.ref, f"copied from the base, never merged: {listed(buffers)}"))
    return Family(base, tuple(experts), tuple(tensors), tuple(findings))


def require_aligned(family: Family) -> None:
    """Raise `IncompatibleModels` with every error among the findings."""
    if family.errors:
        raise IncompatibleModels("; ".join(f"{finding.model}: {finding.message}" for finding in family.errors))


def _align_expert(
    base: Checkpoint, expert: Checkpoint, rules: FamilyRules
) -> tuple[dict[str, ExpertPart | None], list[Finding]]:
    try:
        match = match_names(base, expert)
    except IncompatibleModels as error:
        return {}, [Finding(Severity.ERROR, expert.ref, str(error))]
    findings: list[Finding] = []
    if match.rule:
        findings.append(Finding(Severity.NOTE, expert.ref, f"names reconciled: {match.rule}"))
    column: dict[str, ExpertPart | None] = {}
    missing: list[str] = []
    retyped: Counter[str] = Counter()
    for name, tensor in base.tensors.items():
        if not tensor.storage.is_float or is_derived_buffer(name):
            continue
        found = expert.tensors.get(match.mapping.get(name, ""))
        if found is None:
            found = _tied_head(base, expert, match, name)
            if found is None:
                missing.append(name)
                continue
            findings.append(
                Finding(
                    Severity.NOTE, expert.ref, f"{name} is tied there: its embedding {found.name} is merged into it"
                )
            )
        part, finding = expert_part(base, expert, tensor, found, rules)
        column[name] = part
        if finding:
            findings.append(finding)
        if found.dtype != tensor.dtype:
            retyped[f"{found.dtype} (base {tensor.dtype})"] += 1
    findings += [
        Finding(Severity.NOTE, expert.ref, f"{count} tensors are stored as {kind}; read exactly as stored")
        for kind, count in sorted(retyped.items())
    ]
    layout = _layout_finding(expert, missing, match.extra)
    if layout is not None:
        return column, [*findings, layout]
    findings += missing_findings(base, expert, missing, rules)
    findings += _extra_findings(base, expert, match)
    return column, findings


def _layout_finding(expert: Checkpoint, missing: Sequence[str], extra: Sequence[str]) -> Finding | None:
    """The error for experts of a layer that are fused into one tensor in one model, and one by one in the other."""
    mine = {layout: name for name in reversed(missing) if (layout := expert_layout(name)) is not None}
    theirs = {layout: name for name in reversed(extra) if (layout := expert_layout(name)) is not None}
    for layout, name in mine.items():
        other = next((each for each in theirs if each != layout), None)
        if other is not None:
            message = (
                f"the experts of a layer are stored {other} ({theirs[other]}), the base's {layout} ({name}); "
                "save one of the two models in the other's layout"
            )
            return Finding(Severity.ERROR, expert.ref, message)
    return None


def _tied_head(base: Checkpoint, expert: Checkpoint, match: NameMatch, name: str) -> TensorInfo | None:
    """The expert's embedding where the base has a head of its own and the expert ties them."""
    if _flag(expert.config, _TIED) is False:
        return None
    if parse_role(name, base.tensors[name].shape, base.config).component != "lm_head":
        return None
    for base_name, expert_name in match.mapping.items():
        if parse_role(base_name, base.tensors[base_name].shape, base.config).component == "embed":
            return expert.tensors.get(expert_name)
    return None


def expert_part(
    base: Checkpoint, expert: Checkpoint, tensor: TensorInfo, found: TensorInfo, rules: FamilyRules
) -> tuple[ExpertPart | None, Finding | None]:
    """How `found` of an expert merges into `tensor` of the base, if at all, and what is to be said of it."""
    if not found.storage.is_float:
        message = f"{found.name} is {found.dtype}, the base's is {tensor.dtype}: a packed or converted tensor"
        return None, Finding(Severity.ERROR, expert.ref, message)
    if found.shape == tensor.shape:
        return ExpertPart(found, tensor.elements), None
    role = parse_role(tensor.name, tensor.shape, base.config).component
    rows_only = found.shape[1:] == tensor.shape[1:] and len(found.shape) == len(tensor.shape) >= 1
    if role not in ("embed", "lm_head") or not rows_only:
        message = f"{found.name} has shape {list(found.shape)}, the base's {tensor.name} has {list(tensor.shape)}"
        return None, Finding(Severity.ERROR, expert.ref, message)
    both = f"{found.name} has {found.shape[0]} vocabulary rows, the base has {tensor.shape[0]}"
    if rules.vocabulary is VocabularyRule.STOP:
        message = f"{both}; --vocab common merges the common rows and keeps the base's rest"
        return None, Finding(Severity.ERROR, expert.ref, message)
    common = min(found.shape[0], tensor.shape[0])
    row = tensor.elements // max(1, tensor.shape[0])
    message = f"{both}: the first {common} are merged, the base's rest is kept"
    return ExpertPart(found, common * row), Finding(Severity.WARNING, expert.ref, message)


def missing_findings(base: Checkpoint, expert: Checkpoint, missing: Sequence[str], rules: FamilyRules) -> list[Finding]:
    """What is to be said of the base's tensors that an expert lacks."""
    held = {part_beside(name) for name in expert.tensors} | {""}
    beside = [name for name in missing if part_beside(name) not in held]
    rest = [name for name in missing if part_beside(name) in held]
    findings = []
    if beside:
        parts = ", ".join(sorted({part_beside(name) for name in beside}))
        message = f"has nothing of the base's {parts}: {len(beside)} tensors are merged without it, {listed(beside)}"
        findings.append(Finding(Severity.WARNING, expert.ref, message))
    if rest:
        what = f"{len(rest)} of the base's {len(base.tensors)} tensors are missing: {listed(rest)}"
        if rules.missing is MissingRule.SKIP:
            findings.append(Finding(Severity.WARNING, expert.ref, f"{what}; those are merged without it"))
        else:
            message = f"{what}; --missing skip merges those without it"
            findings.append(Finding(Severity.ERROR, expert.ref, message))
    return findings


def _extra_findings(base: Checkpoint, expert: Checkpoint, match: NameMatch) -> list[Finding]:
    extra = [name for name in match.extra if not is_derived_buffer(name)]
    heads = [n for n in extra if parse_role(n, expert.tensors[n].shape, expert.config).component == "lm_head"]
    findings = []
    for name in heads:
        extra.remove(name)
        # The default of a flag that is not written depends on the architecture; the base, which ties, has the same.
        tied = _flag(expert.config, _TIED)
        if tied is False or (tied is None and _flag(base.config, _TIED) is not None):
            message = f"{name} is a head of its own; the base ties head and embedding, so it is not in the output"
            findings.append(Finding(Severity.WARNING, expert.ref, message))
        else:
            message = f"{name} is redundant (tied to the embedding, as in the base) and is not written"
            findings.append(Finding(Severity.NOTE, expert.ref, message))
    findings += extra_findings(expert, extra)
    ignored = [name for name in match.extra if is_derived_buffer(name)]
    if ignored:
        findings.append(Finding(Severity.NOTE, expert.ref, f"derived buffers ignored: {listed(ignored)}"))
    return findings


def extra_findings(expert: Checkpoint, extra: Sequence[str]) -> list[Finding]:
    """What is to be said of an expert's tensors that the base has no place for."""
    if not extra:
        return []
    message = f"{len(extra)} tensors are not in the base and are not written: {listed(extra)}"
    return [Finding(Severity.WARNING, expert.ref, message)]


def _base_findings(base: Checkpoint) -> list[Finding]:
    rows = _flag(base.config, "vocab_size")
    findings = []
    for name, tensor in base.tensors.items():
        embedding = parse_role(name, tensor.shape, base.config).component == "embed"
        if embedding and isinstance(rows, int) and tensor.shape and tensor.shape[0] != rows:
            message = f"{name} has {tensor.shape[0]} rows, config.json says vocab_size {rows}"
            findings.append(Finding(Severity.WARNING, base.ref, message))
    return findings


def _config_findings(base: Checkpoint, expert: Checkpoint) -> list[Finding]:
    findings = []
    mine, theirs = base.config.get("architectures"), expert.config.get("architectures")
    if mine and theirs and mine != theirs:
        if _one_is_the_others_text(base.config, expert.config):
            message = f"config.json: architectures {theirs}, the base has {mine}: only the language models are merged"
            findings.append(Finding(Severity.WARNING, expert.ref, message))
        else:
            message = (
                f"config.json: architectures {theirs}, the base has {mine}: these models share no coordinate system"
            )
            findings.append(Finding(Severity.ERROR, expert.ref, message))
    for key in (
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "max_position_embeddings",
        "rms_norm_eps",
        "hidden_act",
        # Rows of the same matrix belong to other heads.
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    ):
        left, right = _flag(base.config, key), _flag(expert.config, key)
        if left != right and left is not None and right is not None:
            message = f"config.json: {key} is {right}, the base has {left}; the output keeps the base's"
            findings.append(Finding(Severity.WARNING, expert.ref, message))
    return findings


def _one_is_the_others_text(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether one config is of a multimodal model, the other of a language model such as is in it.

    The type of a multimodal model's language part has the words of the plain model's: `qwen3_vl_moe_text`
    those of `qwen3_moe`.
    """
    if _is_multimodal(one) == _is_multimodal(other):
        return False
    whole, plain = (one, other) if _is_multimodal(one) else (other, one)
    kinds = text_part(whole).get("model_type"), plain.get("model_type")
    words = [set(str(kind).split("_")) if kind else set() for kind in kinds]
    return bool(words[1]) and words[1] <= words[0] | {"text"}


def _is_multimodal(config: Mapping[str, Any]) -> bool:
    return any(isinstance(config.get(f"{part}_config"), Mapping) for part in ("vision", "audio"))


def _flag(config: Mapping[str, Any], key: str) -> Any:
    """A config value at the top or in the language model's part of a composite config."""
    return config[key] if key in config else text_part(config).get(key)


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"
