"""The stacks of layers a model has, which of them is the language model's, and what its config says of each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mergepipe.checkpoint.model import Checkpoint
from mergepipe.checkpoint.names import layer_place, parse_role, part_beside, text_part
from mergepipe.errors import IncompatibleModels

# How configs of different architectures call the number of layers.
_LAYER_COUNTS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
# Lists of layer numbers, where other lists and texts as long as the stack have one entry for each layer.
_LAYER_NUMBERS: Final = ("mlp_only_layers", "moe_layers", "cross_attention_layers", "attn_layer_indices")
_PER_LAYER_WORDS: Final = ("layer", "block", "hybrid", "types")
_FIRST_DENSE: Final = "first_k_dense_replace"


@dataclass(frozen=True, slots=True)
class Stacks:
    """The stacks of one model, by the names before their layers' numbers.

    `depths` is how many layers each has, `text` the language model's own (None where a model has none, or several
    of equal right), `depth` how many layers of it the config counts: further ones only predict further tokens.
    """

    depths: Mapping[str, int] = field(hash=False)
    text: str | None
    depth: int

    def layer(self, name: str) -> int | None:
        """A tensor's layer in the language model; None outside of it, in a tower's layers too."""
        found = layer_place(name)
        return found[1] if found is not None and found[0] == self.text else None

    def place(self, name: str) -> float:
        """Where a tensor's layer lies in its own stack, for gradients: first 0, last 1; 0 outside every stack."""
        found = layer_place(name)
        if found is None:
            return 0.0
        stack, layer = found
        return layer_position(layer, self.depth if stack == self.text else self.depths[stack])

    def follows(self, name: str, shape: Sequence[int], config: Mapping[str, Any]) -> bool:
        """Whether a tensor outside the layers works on their result: final norm, head, further tokens' prediction."""
        role = parse_role(name, shape, config)
        if role.part == "mtp" or role.component == "lm_head":
            return True
        # A norm of the embedding (Bloom has one) stands before the layers.
        before = role.part or role.layer is not None or "word_embeddings" in name
        root = "" if self.text is None else self.text.rpartition(".")[0]
        return role.component == "norm" and not before and name.startswith(root)


def layer_position(layer: int, layers: int) -> float:
    """As mergekit places a layer: the only one of a stack or slice at the end. Layers beyond the last count as it."""
    return min(layer / (layers - 1), 1.0) if layers > 1 else 1.0


def stacks_of(model: Checkpoint) -> Stacks:
    """Find the stacks of a model by its tensors' names; its config decides which of several is the language model's."""
    depths: dict[str, int] = {}
    for name in model.tensors:
        found = layer_place(name)
        if found is not None:
            depths[found[0]] = max(depths.get(found[0], 0), found[1] + 1)
    own = [stack for stack in depths if not part_beside(f"{stack}.0")]
    stated = stated_layers(model.config)
    if len(own) > 1:
        own = [stack for stack in own if depths[stack] == stated]
    if len(own) != 1:
        return Stacks(depths, None, 0)
    depth = depths[own[0]]
    return Stacks(depths, own[0], min(depth, stated) if stated else depth)


def require_text_stack(model: Checkpoint, stacks: Stacks) -> None:
    """Raise `IncompatibleModels` if `layer_range` has no one meaning for a model."""
    if stacks.text is None:
        named = ", ".join(f"{stack} ({depth})" for stack, depth in stacks.depths.items()) or "none"
        raise IncompatibleModels(
            f"{model.ref}: slices need one stack of layers that is the language model's; found {named}. "
            "Merge whole models with `models:` instead"
        )


def stated_layers(config: Mapping[str, Any]) -> int | None:
    """How many layers a config says the language model has."""
    part = text_part(config)
    found = next((part[key] for key in _LAYER_COUNTS if isinstance(part.get(key), int)), None)
    return found if isinstance(found, int) and found > 0 else None


def restacked_config(
    donor: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], origins: Sequence[tuple[int, int]]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What the donor's config must say once layer n is layer `origins[n][1]` of model `origins[n][0]`.

    `configs` are the models'. Returns the keys to be replaced (in the part that has them), and the keys of
    which no value can say it: the number of first dense layers, where dense ones follow sparse ones. Per layer
    are lists and texts that are named for layers and have one entry for each; lists of layer numbers are
    renumbered.
    """
    part = text_part(donor)
    own = [(text_part(configs[number]), stated_layers(configs[number]), layer) for number, layer in origins]
    changed: dict[str, Any] = {key: len(origins) for key in _LAYER_COUNTS if isinstance(part.get(key), int)}
    unsaid: list[str] = []
    for key, value in part.items():
        if key in _LAYER_NUMBERS and isinstance(value, list):
            changed[key] = [n for n, (config, _, layer) in enumerate(own) if layer in (config.get(key) or [])]
        elif _is_per_layer(key, value, stated_layers(donor)):
            entries = [_entry(key, config.get(key), depth, layer) for config, depth, layer in own]
            if any(entry is None for entry in entries):
                unsaid.append(key)
            elif isinstance(value, str):
                changed[key] = "".join(map(str, entries))
            else:
                changed[key] = entries
        elif key == _FIRST_DENSE and isinstance(value, int):
            dense = [layer < _first_dense(config) for config, _, layer in own]
            if dense != sorted(dense, reverse=True):
                unsaid.append(key)
            changed[key] = dense.index(False) if False in dense else len(dense)
    return changed, tuple(unsaid)


def _is_per_layer(key: str, value: Any, layers: int | None) -> bool:
    named = any(word in key for word in _PER_LAYER_WORDS)
    return named and isinstance(value, list | str) and layers is not None and len(value) == layers


def _entry(key: str, value: Any, layers: int | None, layer: int) -> Any:
    return value[layer] if _is_per_layer(key, value, layers) and layer < len(value) else None


def _first_dense(config: Mapping[str, Any]) -> int:
    found = config.get(_FIRST_DENSE)
    return found if isinstance(found, int) else 0
