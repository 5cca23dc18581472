"""What a tensor's name says: its layer and component, and which expert's name is the same tensor."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mergepipe.checkpoint.model import Checkpoint
from mergepipe.errors import IncompatibleModels


@dataclass(frozen=True, slots=True)
class Role:
    """What one tensor is in its model.

    `layer` is None outside every stack of layers. `component` is one of `embed`, `lm_head`, `norm`, `attn.q`, `attn.k`,
    `attn.v`, `attn.o`, `attn.qkv`, `mlp.gate`, `mlp.up`, `mlp.gate_up`, `mlp.down`, `moe.router`,
    `moe.expert.N.gate` (`up`, `gate_up`, `down`; N is `*` where all experts share a tensor), `buffer`, `other`.
    `row_multiple` is how many rows belong together: an attention head's rows, else 1. `part` is the word by which a
    tensor beside the language model is known (`vision`, `projector`, …: see `part_beside`), "" for the language model.
    """

    layer: int | None
    component: str
    row_multiple: int = 1
    part: str = ""


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

    `rule` says in words how prefixes were reconciled, part by part; None if the names agree as they are.
    """

    mapping: Mapping[str, str]
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    rule: str | None


_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d+)(?:\.|$)")
_EXPERT: Final = re.compile(r"(?:^|\.)experts\.(?:(\d+)\.)?(?:mlp\.)?(?=[^.]+$)")
# Modules beside the language model, by the word in their name; `mtp` are the layers that predict further tokens.
_BESIDE: Final[Mapping[str, str]] = {
    "vision": "vision", "visual": "vision", "image": "vision", "img": "vision", "vit": "vision", "video": "vision",
    "audio": "audio", "speech": "audio", "talker": "talker", "token2wav": "token2wav",
    "projector": "projector", "connector": "projector", "aligner": "projector", "resampler": "projector",
    "multi_modal": "projector", "multimodal": "projector", "mm": "projector", "mtp": "mtp",
}  # fmt: skip
_BESIDE_WORD: Final = re.compile(rf"(?:^|[._])({'|'.join(sorted(_BESIDE, key=len, reverse=True))})(?=[._]|$)")
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

_TEXT_PARTS: Final = ("text_config", "llm_config", "language_config")

_UNCHANGED: Final = PrefixRule("", "")
_PREFIX_RULES: Final = tuple(
    PrefixRule(strip, add)
    for one, other in [
        ("", "model."),
        ("", "base_model.model."),
        ("", "language_model."),
        ("model.", "language_model.model."),
        ("model.", "model.language_model."),
        ("language_model.model.", "model.language_model."),
    ]
    for strip, add in [(one, other), (other, one)]
)


def parse_role(name: str, shape: Sequence[int], config: Mapping[str, Any]) -> Role:
    """The role of tensor `name`; heads are looked up in `config` (parsed config.json, its text part included)."""
    found = _LAYER.search(name)
    layer = int(found[1]) if found else None
    part = part_beside(name)
    component = _component(name, layer)
    if part and component in ("embed", "lm_head"):
        component = "other"  # its rows are not the language model's vocabulary
    if component in _BY_HEAD and shape:
        head = _head_dim(_part_of_config(name, config))
        if head and shape[0] and shape[0] % head == 0:
            return Role(layer, component, head, part)
    return Role(layer, component, part=part)


def part_beside(name: str) -> str:
    """Which part beside the language model a tensor is in; "" for the language model itself.

    One of `vision`, `audio`, `talker`, `token2wav`, `projector` (between a tower and the language model) and
    `mtp` (layers that predict further tokens).
    """
    # A module inside a layer of the language model is the language model's, whatever it is called.
    found = _LAYER.search(name)
    word = _BESIDE_WORD.search(name if found is None else name[: found.start(1)])
    return "" if word is None else _BESIDE[word[1]]


def layer_place(name: str) -> tuple[str, int] | None:
    """The stack a tensor's layer is in, and the layer's number: `("model.layers", 3)`. None outside every stack."""
    found = _LAYER.search(name)
    return None if found is None else (name[: found.start(1) - 1], int(found[1]))


def expert_layout(name: str) -> str | None:
    """How a mixture's experts are stored where the tensor is theirs: "fused" or "one by one"; None for any other."""
    found = _EXPERT.search(_ENDINGS.sub("", name))
    if found is None or layer_place(name) is None:
        return None
    return "fused" if found[1] is None else "one by one"


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a parsed config.json that describes the language model: all of it, unless it is composite."""
    key = text_key(config)
    part = config if key is None else config[key]
    assert isinstance(part, Mapping)
    return part


def text_key(config: Mapping[str, Any]) -> str | None:
    """The key of a composite config's language model; None if the config is of one."""
    return next((key for key in _TEXT_PARTS if isinstance(config.get(key), Mapping)), None)


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
        mapping, rules = pair_names(base.tensors, expert.tensors)
    except IncompatibleModels as error:
        raise IncompatibleModels(f"{expert.ref} against {base.ref}: {error}") from error
    used = set(mapping.values())
    missing = tuple(name for name in base.tensors if name not in mapping)
    extra = tuple(name for name in expert.tensors if name not in used)
    return NameMatch(mapping, missing, extra, "; ".join(map(str, rules)) or None)


def pair_names(base_names: Iterable[str], expert_names: Iterable[str]) -> tuple[dict[str, str], tuple[PrefixRule, ...]]:
    """Base name → expert name, in the base's order, and the prefix rules it took beside equal names.

    The rule that pairs most comes first. What it leaves over on both sides (a tower, a head: the parts of a
    multimodal model have prefixes of their own) is paired by equal names, then by any rule, where only one
    partner is possible. Raises `IncompatibleModels` as `prefix_between` does for the first.
    """
    base, expert = list(base_names), list(expert_names)
    first = prefix_between(base, expert)
    mapping = _pairs(base, set(expert), first or _UNCHANGED)
    used = set(mapping.values())
    mapping |= _pairs(
        [name for name in base if name not in mapping], {name for name in expert if name not in used}, _UNCHANGED
    )
    used = set(mapping.values())
    rest = {name for name in expert if name not in used}
    found = {rule: _pairs([name for name in base if name not in mapping], rest, rule) for rule in _PREFIX_RULES}
    links = {pair for pairs in found.values() for pair in pairs.items()}
    sides = Counter(side for name, there in links for side in ((0, name), (1, there)))
    rules = [] if first is None else [first]
    for rule, pairs in found.items():
        alone = {name: there for name, there in pairs.items() if sides[0, name] == sides[1, there] == 1}
        if alone:
            mapping |= alone
            rules.append(rule)
    return {name: mapping[name] for name in base if name in mapping}, tuple(dict.fromkeys(rules))


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
    # Mixtral, Qwen and DeepSeek name the router so; the second is the bias of its scores.
    if module in ("gate", "e_score_correction") and layer is not None:
        return "moe.router"
    in_layer = parent.rpartition(f".{layer}.")[2] if layer is not None else parent
    if _ATTENTION.search(in_layer):
        return _IN_ATTENTION.get(module, "other")
    return "mlp.down" if module == "c_proj" else "other"


def _part_of_config(name: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a composite config that describes the module of tensor `name`."""
    part = part_beside(name)
    if part in ("vision", "audio"):
        own = config.get(f"{part}_config")
        return own if isinstance(own, Mapping) else config
    return text_part(config)


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
