"""Tiny mixtures of experts and multimodal models, under the names and with the configs that transformers writes.

`ARCHITECTURES` maps a kind to a function from the number of text layers to an `Architecture`; `random_weights`
fills it. All are 16 wide, with four heads over two key-value heads and a vocabulary of 64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Shapes = dict[str, tuple[int, ...]]

WIDTH, HEADS, KV_HEADS, HEAD, INTER, VOCAB = 16, 4, 2, 4, 24, 64
EXPERTS, EXPERT_INTER, SHARED_INTER = 3, 8, 12
# Depth of the vision towers: more layers than the language models here usually have.
TOWER_LAYERS: Final = 4

_TEXT: Final[Mapping[str, Any]] = {
    "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": INTER, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "max_position_embeddings": 64, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_MARKS: Final[Mapping[str, Any]] = {
    "image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model's tensors by name and shape, and its config.json. `text` is what stands before `layers.N`."""

    shapes: Mapping[str, tuple[int, ...]] = field(hash=False)
    config: Mapping[str, Any] = field(hash=False)
    text: str = "model."


def random_weights(architecture: Architecture, seed: int) -> dict[str, NDArray[np.float32]]:
    """Float32 values for every tensor: norms around 1, all others of the size of an initialisation."""
    weights = {}
    for name, shape in architecture.shapes.items():
        key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little")
        values = np.random.default_rng(key).standard_normal(shape)
        norm = "norm" in name and name.endswith("weight")
        weights[name] = np.asarray(1 + 0.1 * values if norm else values / WIDTH**0.5, np.float32)
    return weights


def _decoder(layers: int, mlp: Callable[[int], Shapes], root: str, head: str | None, **extra: bool) -> Shapes:
    """A decoder; `extra` are `qk_norm`, `qkv_bias`, `o_bias`, `sinks` and `sandwich` (norms after each block)."""
    shapes: Shapes = {f"{root}embed_tokens.weight": (VOCAB, WIDTH)}
    sizes = {"q": HEADS * HEAD, "k": KV_HEADS * HEAD, "v": KV_HEADS * HEAD}
    for layer in range(layers):
        here = f"{root}layers.{layer}."
        shapes[f"{here}input_layernorm.weight"] = (WIDTH,)
        for part, rows in sizes.items():
            shapes[f"{here}self_attn.{part}_proj.weight"] = (rows, WIDTH)
            if extra.get("qkv_bias"):
                shapes[f"{here}self_attn.{part}_proj.bias"] = (rows,)
        shapes[f"{here}self_attn.o_proj.weight"] = (WIDTH, HEADS * HEAD)
        if extra.get("o_bias"):
            shapes[f"{here}self_attn.o_proj.bias"] = (WIDTH,)
        if extra.get("sinks"):
            shapes[f"{here}self_attn.sinks"] = (HEADS,)
        if extra.get("qk_norm"):
            shapes |= {f"{here}self_attn.{part}_norm.weight": (HEAD,) for part in ("q", "k")}
        shapes[f"{here}post_attention_layernorm.weight"] = (WIDTH,)
        if extra.get("sandwich"):
            shapes |= {f"{here}{when}_feedforward_layernorm.weight": (WIDTH,) for when in ("pre", "post")}
        shapes |= {f"{here}{name}": shape for name, shape in mlp(layer).items()}
    shapes[f"{root}norm.weight"] = (WIDTH,)
    if head is not None:
        shapes[head] = (VOCAB, WIDTH)
    return shapes


def _gated(here: str, inter: int, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Shapes:
    gate, up, down = names
    return {
        f"{here}{gate}.weight": (inter, WIDTH),
        f"{here}{up}.weight": (inter, WIDTH),
        f"{here}{down}.weight": (WIDTH, inter),
    }


def _dense(_layer: int) -> Shapes:
    return _gated("mlp.", INTER)


def _mixtral_experts(_layer: int) -> Shapes:
    shapes: Shapes = {"block_sparse_moe.gate.weight": (EXPERTS, WIDTH)}
    for number in range(EXPERTS):
        shapes |= _gated(f"block_sparse_moe.experts.{number}.", INTER, ("w1", "w3", "w2"))
    return shapes


def _fused_experts(_layer: int) -> Shapes:
    return {
        "mlp.gate.weight": (EXPERTS, WIDTH),
        "mlp.experts.gate_up_proj": (EXPERTS, 2 * INTER, WIDTH),
        "mlp.experts.down_proj": (EXPERTS, WIDTH, INTER),
    }


def _qwen_experts(_layer: int) -> Shapes:
    shapes: Shapes = {"mlp.gate.weight": (EXPERTS, WIDTH)}
    for number in range(EXPERTS):
        shapes |= _gated(f"mlp.experts.{number}.", EXPERT_INTER)
    return shapes


def _shared_experts(layer: int) -> Shapes:
    shared = _gated("mlp.shared_expert.", SHARED_INTER)
    return _qwen_experts(layer) | shared | {"mlp.shared_expert_gate.weight": (1, WIDTH)}


def _gpt_oss_experts(_layer: int) -> Shapes:
    return {
        "mlp.router.weight": (EXPERTS, WIDTH),
        "mlp.router.bias": (EXPERTS,),
        "mlp.experts.gate_up_proj": (EXPERTS, WIDTH, 2 * INTER),
        "mlp.experts.gate_up_proj_bias": (EXPERTS, 2 * INTER),
        "mlp.experts.down_proj": (EXPERTS, INTER, WIDTH),
        "mlp.experts.down_proj_bias": (EXPERTS, WIDTH),
    }


def _tower(here: str, between: Shapes) -> Shapes:
    """A CLIP or SigLIP tower below `here`; `between` are the tensors of its embedding and head."""
    shapes: Shapes = dict(between)
    for layer in range(TOWER_LAYERS):
        block = f"{here}encoder.layers.{layer}."
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= {f"{block}self_attn.{part}.weight": (WIDTH, WIDTH), f"{block}self_attn.{part}.bias": (WIDTH,)}
        for norm in ("layer_norm1", "layer_norm2"):
            shapes |= {f"{block}{norm}.weight": (WIDTH,), f"{block}{norm}.bias": (WIDTH,)}
        shapes |= {f"{block}mlp.fc1.weight": (INTER, WIDTH), f"{block}mlp.fc1.bias": (INTER,)}
        shapes |= {f"{block}mlp.fc2.weight": (WIDTH, INTER), f"{block}mlp.fc2.bias": (WIDTH,)}
    return shapes


def _linear(name: str, rows: int, columns: int) -> Shapes:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _norm(name: str) -> Shapes:
    return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}


def _config(architecture: str, kind: str, layers: int, **more: Any) -> dict[str, Any]:
    named = {"architectures": [architecture], "model_type": kind, "tie_word_embeddings": False, "dtype": "bfloat16"}
    return {**named, **_TEXT, "num_hidden_layers": layers, **more}


def _composite(architecture: str, kind: str, text: Mapping[str, Any], vision: Mapping[str, Any], **more: Any) -> Any:
    named = {"architectures": [architecture], "model_type": kind, "tie_word_embeddings": False, "dtype": "bfloat16"}
    return {**named, "text_config": {**_TEXT, **text}, "vision_config": dict(vision), **more}


def mixtral(layers: int = 3) -> Architecture:
    """Experts one by one, `w1`, `w2` and `w3`."""
    config = _config("MixtralForCausalLM", "mixtral", layers, num_local_experts=EXPERTS, num_experts_per_tok=2)
    return Architecture(_decoder(layers, _mixtral_experts, "model.", "lm_head.weight"), config)


def mixtral_fused(layers: int = 3) -> Architecture:
    """The same model with a layer's experts in two tensors, as transformers 5 holds them in memory."""
    return Architecture(_decoder(layers, _fused_experts, "model.", "lm_head.weight"), mixtral(layers).config)


def qwen2_moe(layers: int = 3) -> Architecture:
    """Experts one by one beside a shared one with its gate; attention with biases."""
    config = _config(
        "Qwen2MoeForCausalLM", "qwen2_moe", layers, num_experts=EXPERTS, num_experts_per_tok=2,
        moe_intermediate_size=EXPERT_INTER, shared_expert_intermediate_size=SHARED_INTER, decoder_sparse_step=1,
        mlp_only_layers=[], layer_types=["full_attention"] * layers,
    )  # fmt: skip
    return Architecture(_decoder(layers, _shared_experts, "model.", "lm_head.weight", qkv_bias=True), config)


def qwen3_moe(layers: int = 3) -> Architecture:
    """Experts one by one, but for the first layer, which is dense."""

    def mlp(layer: int) -> Shapes:
        return _dense(layer) if layer == 0 else _qwen_experts(layer)

    config = _config(
        "Qwen3MoeForCausalLM", "qwen3_moe", layers, head_dim=HEAD, num_experts=EXPERTS, num_experts_per_tok=2,
        moe_intermediate_size=EXPERT_INTER, decoder_sparse_step=1, mlp_only_layers=[0],
    )  # fmt: skip
    return Architecture(_decoder(layers, mlp, "model.", "lm_head.weight", qk_norm=True), config)


def gpt_oss(layers: int = 3) -> Architecture:
    """Experts fused, input dimension first, with biases; attention sinks; sliding and full layers in turn."""
    types = [("sliding_attention", "full_attention")[layer % 2] for layer in range(layers)]
    config = _config(
        "GptOssForCausalLM", "gpt_oss", layers, head_dim=HEAD, num_local_experts=EXPERTS, num_experts_per_tok=2,
        layer_types=types, sliding_window=8, attention_bias=True,
        rope_parameters={"rope_theta": 150000.0, "rope_type": "default"},
    )  # fmt: skip
    shapes = _decoder(
        layers, _gpt_oss_experts, "model.", "lm_head.weight", qkv_bias=True, o_bias=True, sinks=True
    )  # fmt: skip
    return Architecture(shapes, config)


def llava(layers: int = 3) -> Architecture:
    """A CLIP tower, a projector, and a Llama under `language_model.`, head included."""
    between = {
        "vision_tower.vision_model.embeddings.class_embedding": (WIDTH,),
        "vision_tower.vision_model.embeddings.patch_embedding.weight": (WIDTH, 3, 8, 8),
        "vision_tower.vision_model.embeddings.position_embedding.weight": (5, WIDTH),
        **_norm("vision_tower.vision_model.pre_layrnorm"),
        **_norm("vision_tower.vision_model.post_layernorm"),
    }
    shapes = {
        **_tower("vision_tower.vision_model.", between),
        **_linear("multi_modal_projector.linear_1", WIDTH, WIDTH),
        **_linear("multi_modal_projector.linear_2", WIDTH, WIDTH),
        **_decoder(layers, _dense, "language_model.model.", "language_model.lm_head.weight"),
    }
    vision = {
        "model_type": "clip_vision_model", "hidden_size": WIDTH, "num_attention_heads": HEADS,
        "num_hidden_layers": TOWER_LAYERS, "intermediate_size": INTER, "image_size": 16, "patch_size": 8,
    }  # fmt: skip
    text = {"model_type": "llama", "num_hidden_layers": layers}
    config = _composite("LlavaForConditionalGeneration", "llava", text, vision, image_token_index=63)
    return Architecture(shapes, config, "language_model.model.")


def gemma3(layers: int = 3) -> Architecture:
    """A SigLIP tower, a projector, a tied Gemma under `language_model.` whose config lists its layers' types."""
    between = {
        "vision_tower.vision_model.embeddings.patch_embedding.weight": (WIDTH, 3, 8, 8),
        "vision_tower.vision_model.embeddings.patch_embedding.bias": (WIDTH,),
        "vision_tower.vision_model.embeddings.position_embedding.weight": (4, WIDTH),
        **_norm("vision_tower.vision_model.post_layernorm"),
    }
    shapes = {
        **_tower("vision_tower.vision_model.", between),
        "multi_modal_projector.mm_input_projection_weight": (WIDTH, WIDTH),
        "multi_modal_projector.mm_soft_emb_norm.weight": (WIDTH,),
        **_decoder(layers, _dense, "language_model.model.", None, qk_norm=True, sandwich=True),
    }
    vision = {
        "model_type": "siglip_vision_model", "hidden_size": WIDTH, "num_attention_heads": HEADS,
        "num_hidden_layers": TOWER_LAYERS, "intermediate_size": INTER, "image_size": 16, "patch_size": 8,
        "vision_use_head": False,
    }  # fmt: skip
    text = {
        "model_type": "gemma3_text", "num_hidden_layers": layers, "head_dim": HEAD, "query_pre_attn_scalar": 4,
        "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 8,
        "layer_types": [("sliding_attention", "full_attention")[layer % 2] for layer in range(layers)],
    }  # fmt: skip
    config = _composite(
        "Gemma3ForConditionalGeneration", "gemma3", text, vision, image_token_index=63, mm_tokens_per_image=4
    )
    return Architecture(shapes, {**config, "tie_word_embeddings": True}, "language_model.model.")


def qwen2_5_vl(layers: int = 3) -> Architecture:
    """A tower under `visual.` beside a Qwen2 under the names of a plain one."""
    shapes: Shapes = {"visual.patch_embed.proj.weight": (WIDTH, 3, 2, 4, 4)}
    for layer in range(TOWER_LAYERS):
        here = f"visual.blocks.{layer}."
        shapes |= {f"{here}norm1.weight": (WIDTH,), f"{here}norm2.weight": (WIDTH,)}
        shapes |= _linear(f"{here}attn.qkv", 3 * WIDTH, WIDTH) | _linear(f"{here}attn.proj", WIDTH, WIDTH)
        shapes |= _linear(f"{here}mlp.gate_proj", INTER, WIDTH) | _linear(f"{here}mlp.up_proj", INTER, WIDTH)
        shapes |= _linear(f"{here}mlp.down_proj", WIDTH, INTER)
    shapes |= {"visual.merger.ln_q.weight": (WIDTH,)}
    shapes |= _linear("visual.merger.mlp.0", 4 * WIDTH, 4 * WIDTH) | _linear("visual.merger.mlp.2", WIDTH, 4 * WIDTH)
    shapes |= _decoder(layers, _dense, "model.", "lm_head.weight", qkv_bias=True)
    vision = {
        "model_type": "qwen2_5_vl_vision", "depth": TOWER_LAYERS, "hidden_size": WIDTH, "num_heads": HEADS,
        "intermediate_size": INTER, "out_hidden_size": WIDTH, "patch_size": 4, "fullatt_block_indexes": [1],
    }  # fmt: skip
    text = {
        "model_type": "qwen2_5_vl_text", "num_hidden_layers": layers, "layer_types": ["full_attention"] * layers,
        "rope_parameters": {"rope_theta": 1e6, "rope_type": "default", "mrope_section": [1, 1, 0]},
    }  # fmt: skip
    config = _composite("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", text, vision, **_MARKS)
    return Architecture(shapes, config)


def qwen3_vl(layers: int = 3) -> Architecture:
    """A tower under `model.visual.`, a Qwen3 under `model.language_model.`, the head outside of both."""
    shapes: Shapes = {
        "model.visual.patch_embed.proj.weight": (WIDTH, 3, 2, 4, 4),
        "model.visual.patch_embed.proj.bias": (WIDTH,),
        "model.visual.pos_embed.weight": (16, WIDTH),
    }
    for layer in range(TOWER_LAYERS):
        here = f"model.visual.blocks.{layer}."
        shapes |= _norm(f"{here}norm1") | _norm(f"{here}norm2")
        shapes |= _linear(f"{here}attn.qkv", 3 * WIDTH, WIDTH) | _linear(f"{here}attn.proj", WIDTH, WIDTH)
        shapes |= _linear(f"{here}mlp.linear_fc1", INTER, WIDTH) | _linear(f"{here}mlp.linear_fc2", WIDTH, INTER)
    for number in range(2):
        here = f"model.visual.deepstack_merger_list.{number}."
        shapes |= {f"{here}norm.weight": (4 * WIDTH,), f"{here}norm.bias": (4 * WIDTH,)}
        shapes |= _linear(f"{here}linear_fc1", 4 * WIDTH, 4 * WIDTH) | _linear(f"{here}linear_fc2", WIDTH, 4 * WIDTH)
    shapes |= _norm("model.visual.merger.norm")
    shapes |= _linear("model.visual.merger.linear_fc1", 4 * WIDTH, 4 * WIDTH)
    shapes |= _linear("model.visual.merger.linear_fc2", WIDTH, 4 * WIDTH)
    shapes |= _decoder(layers, _dense, "model.language_model.", "lm_head.weight", qk_norm=True)
    vision = {
        "model_type": "qwen3_vl_vision", "depth": TOWER_LAYERS, "hidden_size": WIDTH, "num_heads": HEADS,
        "intermediate_size": INTER, "out_hidden_size": WIDTH, "patch_size": 4, "deepstack_visual_indexes": [0, 1],
        "num_position_embeddings": 16,
    }  # fmt: skip
    text = {
        "model_type": "qwen3_vl_text", "num_hidden_layers": layers, "head_dim": HEAD,
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "default", "mrope_section": [1, 1, 0]},
    }  # fmt: skip
    config = _composite("Qwen3VLForConditionalGeneration", "qwen3_vl", text, vision, **_MARKS)
    return Architecture(shapes, config, "model.language_model.")


def plain_text_of(kind: str, layers: int = 3) -> Architecture:
    """The text-only model of a multimodal kind: its language model under its usual names."""
    whole = ARCHITECTURES[kind](layers)
    plain = {"llava": ("LlamaForCausalLM", "llama"), "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
             "qwen2_5_vl": ("Qwen2ForCausalLM", "qwen2"), "qwen3_vl": ("Qwen3ForCausalLM", "qwen3")}  # fmt: skip
    shapes = {
        "model." + name.removeprefix(whole.text) if name.startswith(whole.text) else "lm_head.weight": shape
        for name, shape in whole.shapes.items()
        if name.startswith(whole.text) or name.endswith("lm_head.weight")
    }
    text = {key: value for key, value in whole.config["text_config"].items() if key != "rope_parameters"}
    architecture, model_type = plain[kind]
    tied = whole.config["tie_word_embeddings"]
    named = {"architectures": [architecture], "model_type": model_type, "tie_word_embeddings": tied}
    return Architecture(shapes, {**text, **named, "dtype": "bfloat16"})


MIXTURES: Final[Mapping[str, Callable[[int], Architecture]]] = {
    "mixtral": mixtral, "mixtral_fused": mixtral_fused, "qwen2_moe": qwen2_moe, "qwen3_moe": qwen3_moe,
    "gpt_oss": gpt_oss,
}  # fmt: skip
MULTIMODAL: Final[Mapping[str, Callable[[int], Architecture]]] = {
    "llava": llava, "gemma3": gemma3, "qwen2_5_vl": qwen2_5_vl, "qwen3_vl": qwen3_vl,
}  # fmt: skip
ARCHITECTURES: Final[Mapping[str, Callable[[int], Architecture]]] = {**MIXTURES, **MULTIMODAL}
