"""checkpoint/quantised.py: no codes merged as values, no values mistaken for codes."""

from __future__ import annotations

from typing import Any

import pytest

from mergepipe.checkpoint.model import Checkpoint, TensorInfo
from mergepipe.checkpoint.quantised import refuse_quantised
from mergepipe.core.extents import Extent
from mergepipe.errors import UnsupportedInput


def checkpoint(tensors: dict[str, tuple[str, tuple[int, ...]]], config: dict[str, Any] | None = None) -> Checkpoint:
    """A checkpoint of tensors `{name: (dtype code, shape)}`."""
    infos = {n: TensorInfo(n, code, shape, Extent("m", 0, 0)) for n, (code, shape) in tensors.items()}
    return Checkpoint("models/expert", "/models/expert", infos, (), config or {})


MARKED = {
    "fp8 scale": {"l.weight": ("F8_E4M3", (4, 4)), "l.weight_scale": ("F32", ())},
    "fp8 block scale in another shard": {"l.weight_scale_inv": ("F32", (1, 1))},
    "fp8 activation scale": {"l.input_scale": ("F32", ())},
    "comfy fp8": {"l.scale_weight": ("F32", ())},
    "comfy marker": {"scaled_fp8": ("F8_E4M3", (0,))},
    "plain scale beside fp8": {"l.weight": ("F8_E4M3", (4, 4)), "l.scale": ("F32", (1, 1))},
    "gptq": {"l.qweight": ("I32", (4, 4)), "l.scales": ("F16", (1, 4))},
    "gptq zeros": {"l.qzeros": ("I32", (1, 1))},
    "gptq order": {"l.g_idx": ("I32", (4,))},
    "bnb 4 bit": {"l.weight": ("U8", (8, 1)), "l.weight.absmax": ("F32", (1,))},
    "bnb map": {"l.weight.quant_map": ("F32", (16,))},
    "bnb state": {"l.weight.quant_state.bitsandbytes__nf4": ("U8", (90,))},
    "bnb 8 bit": {"l.SCB": ("F32", (4,))},
    "bnb format": {"l.weight_format": ("U8", ())},
    "compressed-tensors": {"l.weight_packed": ("I32", (4, 1))},
    "compressed-tensors shape": {"l.weight_shape": ("I64", (2,))},
    "mxfp4": {"e.gate_up_proj_blocks": ("U8", (2, 4, 1, 16)), "e.gate_up_proj_scales": ("U8", (2, 4, 1))},
    "mlx": {"l.scales": ("F16", (4, 1)), "l.weight": ("U32", (4, 1))},
    "packed integers": {"l.weight": ("I8", (4, 4))},
}


@pytest.mark.parametrize("tensors", MARKED.values(), ids=MARKED)
def test_marks_of_packed_weights_are_refused_by_name(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """The tensor that gives it away, the model and the way out are in the message."""
    with pytest.raises(UnsupportedInput, match=r"models/expert: tensor .* marks .* dequantise") as caught:
        refuse_quantised(checkpoint({"model.norm.weight": ("BF16", (4,)), **tensors}))
    assert any(repr(name) in str(caught.value) for name in tensors)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"quantization_config \(quant_method: gptq\)"),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "text_config.quantization_config"),
        ({"quantization_config": {"load_in_4bit": True}}, "bitsandbytes"),
        ({"quantization_config": {"quant_algo": "NVFP4"}}, "quant_algo: NVFP4"),
        ({"quantization_config": {"bits": 3}}, "bits: 3"),
        ({"quantization_config": {"group": 1}}, "no method named"),
        ({"compression_config": {"format": "pack-quantized"}}, "format: pack-quantized"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "bits: 4"),
    ],
)
def test_a_config_that_says_so_is_refused(config: dict[str, Any], message: str) -> None:
    """Any quantisation setting, at any depth, with the method it names."""
    with pytest.raises(UnsupportedInput, match=message):
        refuse_quantised(checkpoint({"l.weight": ("BF16", (4, 4))}, config))


def test_values_pass() -> None:
    """Plain 8-bit floats, integer buffers and float parameters with scale-like names are no quantisation."""
    refuse_quantised(
        checkpoint(
            {
                "l.weight": ("F8_E4M3", (4, 4)),
                "l.bias": ("F8_E5M2", (4,)),
                "logit_scale": ("F32", ()),
                "block.layer_scale": ("F32", (4,)),
                "block.layer_scale_1.scale": ("F32", (4,)),
                "norm.scale": ("F32", (4,)),
                "norm.weight": ("F32", (4,)),
                "stage.scales": ("F32", (4,)),
                "stage.weight": ("BF16", (4, 4)),
                "attn.bias": ("BOOL", (1, 1, 8, 8)),
                "position_ids": ("I64", (1, 8)),
                "bn.num_batches_tracked": ("I64", ()),
                "mask.weight": ("BOOL", (4, 4)),
                "lookup.weight": ("I64", (8,)),
            },
            {"quantization_config": None, "text_config": {"quantization_config": {}}, "quantization": "none"},
        )
    )
