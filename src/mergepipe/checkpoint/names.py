"""What a tensor's name says: its layer and component, and which expert's name is the same tensor."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mergepipe.checkpoint.model import Checkpoint
from mergepipe.errors import IncompatibleModels


@dataclass(frozen=True, slots=True)
class Role:
    """What one tensor is in its model.

    `layer` is None outside the layer stack. `component` is one of `embed`, `lm_head`, `norm`, `attn.q`, `attn.k`,
    `attn.v`, `attn.o`, `attn.qkv`, `mlp.gate`, `mlp.up`, `mlp.gate_up`, `mlp.down`, `moe.router`,
    `moe.expert.N.gate` (`up`, `gate_up`, `down`; N is `*` where all experts share a tensor), `buffer`, `other`.
    `row_multiple` is how many rows belong together: an attention head's rows, else 1.
    """

    layer: int | None
    component: str
    row_multiple: int = 1


@dataclass(frozen=True, slots=True)
class PrefixRule:
    """A base name that starts with `strip` is, in the expert, that name with `add` in its place."""

    strip: str
    add: str

    def __call__(self, name: str) -> str:
        return self.add + name[len(self.strip) :] if name.startswith(self.strip) else name

    def __str__(self) -> str:
        if not self.strip:
            return f"the expert's names have {self.add!r} before the base's"
        if not self.add:
            return f"the expert's names lack the base's {self.strip!r}"
        return f"the expert's names have {self.add!r} where the base's have {self.strip!r}"


@dataclass(frozen=True, slots=True)
class NameMatch:
    """`mapping` is base name → expert name; `missing` are base names, `extra` expert names, without a partner.

    `rule` says in words how prefixes were reconciled; None if the names agree as they are.
    """

    mapping: Mapping[str, str]
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    rule: str | None


_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d+)(?:\.|$)")
_EXPERT: Final = re.compile(r"(?:^|\.)experts\.(?:(\d+)\.)?(?=[^.]+$)")
_ATTENTION: Final = re.compile(r"(?:^|\.)(?:\w*attn|\w*attention|mixer)(?:\.|$)", re.IGNORECASE)
_ENDINGS: Final = re.compile(r"\.(?:weight|bias)$|_(?:weight|bias)$")

# Module name → component, where the name alone decides.
_MODULES: Final[Mapping[str, str]] = {
    "embed_tokens": "embed", "wte": "embed", "word_embeddings": "embed", "tok_embeddings": "embed", "embed_in": "embed",
    "lm_head": "lm_head", "embed_out": "lm_head",
    "q_proj": "attn.q", "wq": "attn.q", "k_proj": "attn.k", "wk": "attn.k", "v_proj": "attn.v", "wv": "attn.v",
    "wo": "attn.o", "qkv_proj": "attn.qkv", "c_attn": "attn.qkv", "query_key_value": "attn.qkv", "Wqkv": "attn.qkv",
    "gate_proj": "mlp.gate", "w1": "mlp.gate", "up_proj": "mlp.up", "w3": "mlp.up", "down_proj": "mlp.down",
    "w2": "mlp.down", "gate_up_proj": "mlp.gate_up", "fc1": "mlp.up", "fc2": "mlp.down", "c_fc": "mlp.up",
    "dense_h_to_4h": "mlp.up", "dense_4h_to_h": "mlp.down",
    "router": "moe.router", "shared_expert_gate": "moe.router",
}  # fmt: skip

# The same inside an attention module, for names that elsewhere mean something else.
_IN_ATTENTION: Final[Mapping[str, str]] = {
    "q": "attn.q", "query": "attn.q", "k": "attn.k", "key": "attn.k", "v": "attn.v", "value": "attn.v",
    "o_proj": "attn.o", "out_proj": "attn.o", "c_proj": "attn.o", "dense": "attn.o", "o": "attn.o", "qkv": "attn.qkv",
}  # fmt: skip
_BY_HEAD: Final = frozenset(["attn.q", "attn.k", "attn.v", "attn.qkv"])

_BUFFERS: Final = re.compile(
    r"(?:^|\.)(?:"
    r"(?:original_)?inv_freq|(?:cos|sin)_cached|position_ids|token_type_ids|masked_bias"
    r"|h\.\d+\.attn\.bias|h\.\d+\.attn\.attention\.bias|layers\.\d+\.attention\.bias"
    r")$"
)

_UNCHANGED: Final = PrefixRule("", "")
_PREFIX_RULES: Final = tuple(
    PrefixRule(strip, add)
    for one, other in [
        ("", "model."),
        ("", "base_model.model."),
        ("", "language_model."),
        ("model.", "language_model.model."),
        ("model.", "model.language_model."),
    ]
    for strip, add in [(one, other), (other, one)]
)


def parse_role(name: str, shape: Sequence[int], config: Mapping[str, Any]) -> Role:
    """The role of tensor `name`; heads are looked up in `config` (parsed config.json, its text part included)."""
    found = _LAYER.search(name)
    layer = int(found[1]) if found else None
    component = _component(name, layer)
    if component in _BY_HEAD and shape:
        head = _head_dim(_part_of_config(name, config))
        if head and shape[0] and shape[0] % head == 0:
            return Role(layer, component, head)
    return Role(layer, component)


def with_layer(name: str, layer: int) -> str:
    """The same tensor of another layer: `"model.layers.3.mlp.up_proj.weight"` → `"model.layers.7.mlp.…"`."""
    found = _LAYER.search(name)
    return name if found is None else f"{name[: found.start(1)]}{layer}{name[found.end(1) :]}"


def is_derived_buffer(name: str) -> bool:
    """Whether the tensor is one that a model computes itself (rotary frequencies, causal masks, position ids)."""
    return _BUFFERS.search(name) is not None


def prefix_between(base_names: Iterable[str], expert_names: Iterable[str]) -> PrefixRule | None:
    """The one prefix rule under which the most base names are in the expert; None if more are so without any.

    Raises `IncompatibleModels` if two rules do equally well with different results, or none finds a name.
    """
    base, expert = list(base_names), set(expert_names)
    plain = len(_pairs(base, expert, _UNCHANGED))
    matched = {rule: _pairs(base, expert, rule) for rule in _PREFIX_RULES}
    most = max(map(len, matched.values()))
    if plain >= most:
        if plain == 0 and base:
            raise IncompatibleModels(
                f"no tensor name is in both models: the base has {_sample(base)}, "
                f"the expert {_sample(sorted(expert))}; they are not of one family"
            )
        return None
    best = [rule for rule in _PREFIX_RULES if len(matched[rule]) == most]
    if any(matched[rule] != matched[best[0]] for rule in best):
        raise IncompatibleModels(
            f"tensor names can be matched in several ways, {most} each: "
            f"{'; or '.join(str(rule) for rule in best)}. Rename the expert's tensors as the base's"
        )
    return best[0]


def match_names(base: Checkpoint, expert: Checkpoint) -> NameMatch:
    """Pair the tensors of `base` with those of `expert`, in the base's order; by names only.

    Raises `IncompatibleModels`, naming both models, if no or no single prefix rule pairs them.
    """
    try:
        rule = prefix_between(base.tensors, expert.tensors)
    except IncompatibleModels as error:
        raise IncompatibleModels(f"{expert.ref} against {base.ref}: {error}") from error
    mapping = _pairs(base.tensors, expert.tensors, rule or _UNCHANGED)
    used = set(mapping.values())
    missing = tuple(name for name in base.tensors if name not in mapping)
    extra = tuple(name for name in expert.tensors if name not in used)
    return NameMatch(mapping, missing, extra, str(rule) if rule else None)


def _pairs(base: Iterable[str], expert: Container[str], rule: PrefixRule) -> dict[str, str]:
    """Base name → expert name where the rule leads to one; no expert name twice, the first base name has it."""
    pairs: dict[str, str] = {}
    used: set[str] = set()
    for name in base:
        there = rule(name)
        if there in expert and there not in used:
            pairs[name] = there
            used.add(there)
    return pairs


def _component(name: str, layer: int | None) -> str:
    if is_derived_buffer(name):
        return "buffer"
    path = _ENDINGS.sub("", name)
    parent, _, module = path.rpartition(".")
    if "norm" in module.lower() or module.startswith("ln_") or module in ("ln1", "ln2"):
        return "norm"
    if layer is None and path == "output":  # the head's name in Meta's and Mistral's own files
        return "lm_head"
    expert = _EXPERT.search(path)
    component = _MODULES.get(module)
    if expert and component and component.startswith("mlp."):
        return f"moe.expert.{expert[1] or '*'}.{component.removeprefix('mlp.')}"
    if component:
        return component
    if module == "gate" and layer is not None:  # Mixtral, Qwen and DeepSeek name the router so
        return "moe.router"
    in_layer = parent.rpartition(f".{layer}.")[2] if layer is not None else parent
    if _ATTENTION.search(in_layer):
        return _IN_ATTENTION.get(module, "other")
    return "mlp.down" if module == "c_proj" else "other"


def _part_of_config(name: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a composite config that describes the module of tensor `name`."""
    lowered = name.lower()
    if "vision" in lowered or "visual" in lowered:
        wanted: tuple[str, ...] = ("vision_config",)
    elif "audio" in lowered:
        wanted = ("audio_config",)
    else:
        wanted = ("text_config", "llm_config", "language_config")
    for key in wanted:
        part = config.get(key)
        if isinstance(part, Mapping):
            return part
    return config


def _head_dim(config: Mapping[str, Any]) -> int | None:
    explicit = _positive(config, "head_dim")
    if explicit:
        return explicit
    hidden = _positive(config, "hidden_size", "n_embd", "d_model")
    heads = _positive(config, "num_attention_heads", "n_head", "n_heads", "num_heads")
    return hidden // heads if hidden and heads and hidden % heads == 0 else None


def _positive(config: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = config.get(key)
        if type(value) is int and value > 0:
            return value
    return None


def _sample(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") if names else "none"
