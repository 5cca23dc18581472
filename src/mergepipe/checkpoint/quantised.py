"""Quantised checkpoints, told by config or by tensor names, and refused by name.

Merging codes as if they were values would give a model that loads and is wrong; so whatever marks packed
codes or their scales stops the run. Plain 8-bit floats without scales are values, and pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mergepipe.checkpoint.model import Checkpoint, TensorInfo
from mergepipe.errors import UnsupportedInput

# Last name component → scheme. These names mean quantisation whatever else is there.
_MARKS: Final[Mapping[str, str]] = {
    "weight_scale": "scaled (FP8 or INT8)", "weight_scale_inv": "block-scaled FP8", "weight_scale_2": "NVFP4",
    "scale_weight": "scaled FP8", "scale_input": "scaled FP8", "scaled_fp8": "scaled FP8",
    "input_scale": "scaled (FP8 or INT8)", "weight_zero_point": "compressed-tensors",
    "weight_global_scale": "compressed-tensors", "input_global_scale": "compressed-tensors",
    "weight_packed": "compressed-tensors", "weight_shape": "compressed-tensors",
    "qweight": "GPTQ or AWQ", "qzeros": "GPTQ or AWQ", "g_idx": "GPTQ",
    "absmax": "bitsandbytes", "nested_absmax": "bitsandbytes", "quant_map": "bitsandbytes",
    "nested_quant_map": "bitsandbytes", "SCB": "bitsandbytes", "weight_format": "bitsandbytes",
    "W_q": "HQQ",
}  # fmt: skip

# Names that mean a scale only beside codes: (name of the scale, name of the codes) in one module.
_PAIRS: Final = (("scales", "qweight"), ("scales", "weight"), ("scale", "weight"), ("_scale", "_data"))


def refuse_quantised(checkpoint: Checkpoint) -> None:
    """Raise `UnsupportedInput` if the checkpoint is quantised, naming the scheme and where it was seen."""
    for path, settings in _quantisation_settings(checkpoint.config, ""):
        _refuse(checkpoint, f"config.json has {path} ({_method(settings)})")
    for name, tensor in checkpoint.tensors.items():
        scheme = _scheme(name, tensor, checkpoint.tensors)
        if scheme:
            _refuse(checkpoint, f"tensor {name!r} ({tensor.dtype} {list(tensor.shape)}) marks {scheme} weights")


def _refuse(checkpoint: Checkpoint, reason: str) -> None:
    raise UnsupportedInput(
        f"{checkpoint.ref}: {reason}; quantised models cannot be merged yet: "
        "use the original weights, or dequantise the model (to BF16, say) and save it first"
    )


def _quantisation_settings(config: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key, value in config.items():
        if not isinstance(value, Mapping) or not value:
            continue
        if key in ("quantization_config", "compression_config") or (key == "quantization" and "bits" in value):
            yield f"{path}{key}", value
        else:
            yield from _quantisation_settings(value, f"{path}{key}.")


def _method(settings: Mapping[str, Any]) -> str:
    for key in ("quant_method", "quant_algo", "quant_type", "format"):
        if isinstance(settings.get(key), str):
            return f"{key}: {settings[key]}"
    if settings.get("load_in_4bit") or settings.get("load_in_8bit"):
        return "bitsandbytes"
    return f"bits: {settings['bits']}" if "bits" in settings else "no method named"


def _scheme(name: str, tensor: TensorInfo, tensors: Mapping[str, TensorInfo]) -> str | None:
    """The scheme whose mark this tensor is, or None."""
    module, _, last = name.rpartition(".")
    if last in _MARKS:
        return _MARKS[last]
    if ".quant_state." in f".{name}":
        return "bitsandbytes"
    for scale, codes in _PAIRS:
        partner = tensors.get(f"{module}.{codes}" if module else codes)
        if last == scale and partner is not None and _holds_codes(partner):
            return f"scaled {partner.dtype}"
    if last.endswith("_scales"):
        packed = tensors.get(name.removesuffix("_scales") + "_blocks")
        if packed is not None and _holds_codes(packed):
            return "MXFP4"
    if last == "weight" and _is_integer(tensor) and len(tensor.shape) >= 2:
        return f"packed {tensor.dtype}"
    return None


def _is_integer(tensor: TensorInfo) -> bool:
    return tensor.dtype[0] in "IU"


def _holds_codes(tensor: TensorInfo) -> bool:
    """Integers and 8-bit floats may be codes of a scaled format; wider floats are values."""
    return _is_integer(tensor) or tensor.dtype.startswith("F8")
