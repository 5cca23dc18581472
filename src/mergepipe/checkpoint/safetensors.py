"""The safetensors container: reading a header strictly, laying one out.

A file is 8 bytes of little-endian header length N, N bytes of JSON (padded with spaces), then the tensors'
bytes without holes. Nothing here reads a tensor's bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mergepipe.checkpoint.model import TensorInfo
from mergepipe.checkpoint.strictjson import parse_unique_object
from mergepipe.core.dtypes import DTYPES, dtype
from mergepipe.core.extents import Extent
from mergepipe.errors import FormatError, OutputError, UnsupportedInput
from mergepipe.store.contract import ByteStore

MAX_HEADER: Final = 100_000_000
_PREFIX: Final = 8
_METADATA: Final = "__metadata__"
_ENTRY_KEYS: Final = {"dtype", "shape", "data_offsets"}
_KNOWN_UNSUPPORTED: Final = frozenset(
    ["F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "E8M0", "C64", "C128"]
)


def parse_header(store: ByteStore, key: str, source: str = "") -> tuple[tuple[TensorInfo, ...], str]:
    """The tensors of `key` in offset order, and `"sha256:…"` of its header (length prefix and JSON).

    Extents are offsets in the file. `source` names the directory in messages. Raises `FormatError` for
    whatever the format forbids, `UnsupportedInput` for a dtype that cannot be merged.
    """
    where = f"{source.rstrip('/')}/{key}" if source else key
    size = store.version(key).size
    if size < _PREFIX:
        raise FormatError(
            f"{where}: is {size} bytes, a safetensors file has at least {_PREFIX}; "
            "it is empty or truncated: fetch it again"
        )
    prefix = _read(store, key, 0, _PREFIX)
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER:
        raise FormatError(
            f"{where}: announces a header of {length:,} bytes, the format allows {MAX_HEADER:,}; "
            "it is not a safetensors file"
        )
    if _PREFIX + length > size:
        raise FormatError(
            f"{where}: file is {size:,} bytes, its header alone needs {_PREFIX + length:,}: truncated; fetch it again"
        )
    raw = _read(store, key, _PREFIX, length)
    if not raw.startswith(b"{"):
        raise FormatError(f"{where}: the header starts with {raw[:1]!r}, not with '{{'; it is not a safetensors file")
    header = parse_unique_object(raw, f"{where} (header)")
    _check_metadata(header.pop(_METADATA, {}), where)
    tensors = [_tensor(where, key, name, entry, _PREFIX + length) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.extent.start, tensor.extent.stop))
    _check_layout(where, tensors, _PREFIX + length, size)
    return tuple(tensors), "sha256:" + hashlib.sha256(prefix + raw).hexdigest()


def header_bytes(
    entries: Sequence[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Length prefix and JSON for tensors `(name, dtype code, shape)` stored one after another in this order.

    Padded with spaces so that the first tensor starts at a multiple of 8. Raises `OutputError` if the
    header would exceed what the format allows, `ValueError` for a name that is reserved or occurs twice.
    """
    header: dict[str, Any] = {} if metadata is None else {_METADATA: dict(metadata)}
    position = 0
    for name, code, shape in entries:
        if name in header or name == _METADATA:
            raise ValueError(f"two header entries named {name!r}")
        end = position + math.prod(shape) * dtype(code).itemsize
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise OutputError(
            f"the header of one shard would be {len(text):,} bytes, the format allows {MAX_HEADER:,}: "
            "lower --shard-size"
        )
    return len(text).to_bytes(_PREFIX, "little") + text


def _read(store: ByteStore, key: str, start: int, count: int) -> bytes:
    out = bytearray(count)
    store.read_into(key, start, memoryview(out))
    return bytes(out)


def _check_metadata(metadata: Any, where: str) -> None:
    if not isinstance(metadata, dict):
        raise FormatError(f"{where}: __metadata__ is a JSON {type(metadata).__name__}, an object is expected")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise FormatError(f"{where}: __metadata__[{key!r}] is not a string; the format allows only strings")
        _check_text(where, key)
        _check_text(where, value)


def _check_text(where: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"{where}: the header text {text!r} holds half a surrogate pair") from error


def _tensor(where: str, key: str, name: str, entry: Any, origin: int) -> TensorInfo:
    what = f"{where}: tensor {name!r}"
    _check_text(where, name)
    if not isinstance(entry, dict) or entry.keys() != _ENTRY_KEYS:
        found = sorted(entry) if isinstance(entry, dict) else type(entry).__name__
        raise FormatError(f"{what} is described by {found}; dtype, shape and data_offsets are expected")
    code = _dtype_code(what, entry["dtype"])
    shape = _naturals(what, "shape", entry["shape"])
    offsets = _naturals(what, "data_offsets", entry["data_offsets"])
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FormatError(f"{what} has data_offsets {list(offsets)}; two, the smaller first, are expected")
    if math.prod(extent for extent in shape if extent) >= 2**63:
        raise FormatError(f"{what} has the shape {list(shape)}, more elements than can be counted")
    needed = math.prod(shape) * dtype(code).itemsize
    if offsets[1] - offsets[0] != needed:
        raise FormatError(
            f"{what} ({code} {list(shape)}) needs {needed:,} bytes, "
            f"its data_offsets {list(offsets)} span {offsets[1] - offsets[0]:,}"
        )
    return TensorInfo(name, code, shape, Extent(key, origin + offsets[0], origin + offsets[1]))


def _dtype_code(what: str, code: Any) -> str:
    if isinstance(code, str) and code in DTYPES:
        return code
    if isinstance(code, str) and code in _KNOWN_UNSUPPORTED:
        raise UnsupportedInput(
            f"{what} has dtype {code}, which cannot be merged; "
            f"save the model in one of {', '.join(DTYPES)} first (BF16, say)"
        )
    raise FormatError(f"{what} has the unknown dtype {code!r}; one of {', '.join(DTYPES)} is expected")


def _naturals(what: str, field: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(entry) is not int or entry < 0 for entry in value):
        raise FormatError(f"{what} has {field} {value!r:.80}; a list of integers >= 0 is expected")
    return tuple(value)


def _check_layout(where: str, tensors: Sequence[TensorInfo], origin: int, size: int) -> None:
    """Each tensor starts where the one before it ends, and the last ends with the file."""
    position, before = origin, "the header"
    for tensor in tensors:
        start = tensor.extent.start
        if start < position:
            raise FormatError(f"{where}: tensor {tensor.name!r} overlaps {before} by {position - start:,} bytes")
        if start > position:
            raise FormatError(
                f"{where}: {start - position:,} bytes between {before} and tensor {tensor.name!r} "
                "belong to no tensor; the format allows no holes"
            )
        position, before = tensor.extent.stop, f"tensor {tensor.name!r}"
    if position > size:
        raise FormatError(
            f"{where}: file is {size:,} bytes, header promises {position:,}: truncated; fetch it again "
            f"(the last tensor is {tensors[-1].name!r})"
        )
    if position < size:
        raise FormatError(
            f"{where}: file is {size:,} bytes, header promises {position:,}: "
            f"{size - position:,} trailing bytes belong to no tensor"
        )
