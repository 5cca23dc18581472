"""Model families of real shapes with synthetic values: a base and K experts, bfloat16, as Hugging Face directories.

    python -m benchmarks.families qwen3-0.6b DIR --experts 8 [--seed 0]

writes `DIR/base`, `DIR/expert1`, … An expert's values depend on the shape, the seed and its number only, so a family
can be widened later. What is there already and complete is kept. Memory stays below about 200 MB for every shape.

Base weights are normal, with a scale per tensor. A delta is a Student t variable with 4 degrees of freedom, times a
log-normal scale per (expert, tensor), times a factor per band of rows: some bands are untouched, some almost, the
others log-normal. Some tensors are not touched at all. Values come out of tables of 65,536 quantiles, looked up with
the raw bits of SFC64: this is fast, and the same on every version of numpy.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.safetensors import header_bytes
from mergepipe.core.dtypes import dtype, encode
from mergepipe.core.units import format_bytes, parse_bytes

Floats = NDArray[np.float32]
Stored = NDArray[np.uint16]  # bfloat16, as its bits

_GENERATOR: Final = 1  # raised whenever the values of a family change
_MARKER: Final = ".family.json"  # hidden: merges do not take it along from the base
_SLAB: Final = 1 << 22  # elements generated at once by one thread
_THREADS: Final = 2
_LANES: Final = 1 << 16
_BFLOAT16: Final = dtype("BF16")


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama- or Qwen3-style decoder with tied embeddings. `qk_norm` makes it a Qwen3."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    qk_norm: bool

    def tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of each tensor, in the order of the files: by name."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocabulary, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        for layer in range(self.layers):
            parts: dict[str, tuple[int, ...]] = {
                "input_layernorm": (self.hidden,),
                "post_attention_layernorm": (self.hidden,),
                "self_attn.q_proj": (queries, self.hidden),
                "self_attn.k_proj": (keys, self.hidden),
                "self_attn.v_proj": (keys, self.hidden),
                "self_attn.o_proj": (self.hidden, queries),
                "mlp.gate_proj": (self.intermediate, self.hidden),
                "mlp.up_proj": (self.intermediate, self.hidden),
                "mlp.down_proj": (self.hidden, self.intermediate),
            }
            if self.qk_norm:
                parts |= {"self_attn.q_norm": (self.head_dim,), "self_attn.k_norm": (self.head_dim,)}
            shapes |= {f"model.layers.{layer}.{part}.weight": shape for part, shape in parts.items()}
        return sorted(shapes.items())

    def config(self) -> dict[str, Any]:
        """config.json."""
        return {
            "architectures": ["Qwen3ForCausalLM" if self.qk_norm else "LlamaForCausalLM"],
            "model_type": "qwen3" if self.qk_norm else "llama",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": 32768,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "vocab_size": self.vocabulary,
        }


SHAPES: Final = {
    shape.name: shape
    for shape in (
        Shape("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, qk_norm=True),
        Shape("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, qk_norm=False),
        Shape("small", 6, 384, 6, 2, 64, 1024, 16384, qk_norm=True),
    )
}


@dataclass(frozen=True, slots=True)
class Family:
    """The directories of a base and its experts."""

    base: Path
    experts: tuple[Path, ...]

    @property
    def weights(self) -> tuple[Path, ...]:
        """All weight files, the base's first."""
        return tuple(file for model in (self.base, *self.experts) for file in weight_files(model))


def weight_files(model: Path) -> tuple[Path, ...]:
    """The safetensors files of one model, by name."""
    return tuple(sorted(model.glob("*.safetensors")))


def _quiet(text: str) -> None:
    """Not said."""
    del text


def write_family(
    folder: Path,
    shape: Shape,
    experts: int,
    seed: int = 0,
    shard_bytes: int | None = None,
    say: Callable[[str], None] = _quiet,
) -> Family:
    """Write what is missing of a family into `folder`; each model appears whole or not at all.

    Files hold at most `shard_bytes` of tensors each, or one tensor (None: one file a model). Raises
    `FileExistsError` where a model's folder holds something else, `OSError` where the space does not suffice.
    """
    files = file_layout(shape, shard_bytes)
    wanted = [_Member(shape, seed, number, files, folder) for number in range(experts + 1)]
    missing = [member for member in wanted if not member.is_there()]
    folder.mkdir(parents=True, exist_ok=True)
    needed = len(missing) * sum(file.size for file in files)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(f"{folder}: the family needs {format_bytes(needed)} more, {format_bytes(free)} are free")
    for member in wanted:
        if member in missing:
            member.write()
            say(f"wrote {member.path}")
        else:
            say(f"kept {member.path}")
    return Family(wanted[0].path, tuple(member.path for member in wanted[1:]))


# --- files --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor and the byte of its file where it starts."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def rows(self) -> int:
        return self.shape[0] if len(self.shape) > 1 else 1

    @property
    def columns(self) -> int:
        return self.shape[-1]


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """One weight file; the same in every member of a family, but for the values."""

    name: str
    header: bytes
    places: tuple[_Place, ...]

    @property
    def size(self) -> int:
        last = self.places[-1]
        return last.start + math.prod(last.shape) * _BFLOAT16.itemsize


def file_layout(shape: Shape, shard_bytes: int | None) -> tuple[WeightsFile, ...]:
    """The weight files of a model: at most `shard_bytes` of tensors each, or one tensor (None: one file)."""
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    held = 0
    for name, extents in shape.tensors():
        size = math.prod(extents) * _BFLOAT16.itemsize
        if shard_bytes is not None and shards[-1] and held + size > shard_bytes:
            shards.append([])
            held = 0
        shards[-1].append((name, extents))
        held += size
    files = []
    for number, tensors in enumerate(shards, 1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header = header_bytes([(tensor, _BFLOAT16.code, extents) for tensor, extents in tensors], {"format": "pt"})
        places = []
        position = len(header)
        for tensor, extents in tensors:
            places.append(_Place(tensor, extents, position))
            position += math.prod(extents) * _BFLOAT16.itemsize
        files.append(WeightsFile(name, header, tuple(places)))
    return tuple(files)


@dataclass(frozen=True, slots=True)
class _Member:
    """One model of a family; number 0 is the base."""

    shape: Shape
    seed: int
    number: int
    files: tuple[WeightsFile, ...]
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / (f"expert{self.number}" if self.number else "base")

    @property
    def marker(self) -> dict[str, Any]:
        return {
            "generator": _GENERATOR,
            "shape": asdict(self.shape),
            "seed": self.seed,
            "number": self.number,
            "files": {file.name: file.size for file in self.files},
        }

    def is_there(self) -> bool:
        """Whether this very model is there and whole; `FileExistsError` if another one is."""
        if not self.path.exists():
            return False
        try:
            found = json.loads((self.path / _MARKER).read_text())
        except (OSError, ValueError):
            found = None
        sizes = {file.name: file.stat().st_size for file in weight_files(self.path)}
        if found != self.marker or sizes != found["files"]:
            raise FileExistsError(
                f"{self.path}: is there, but was not made with these parameters or is damaged; "
                "choose another folder or remove it"
            )
        return True

    def write(self) -> None:
        partial = self.folder / f".{self.path.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        with ThreadPoolExecutor(_THREADS) as pool:
            for file in self.files:
                with (partial / file.name).open("wb", buffering=0) as out:
                    _write_all(out.fileno(), file.header)
                    for slab in _in_order(pool, self._slabs(file)):
                        _write_all(out.fileno(), slab.tobytes())
                    os.fsync(out.fileno())  # only clean pages can be dropped from the cache
        for name, value in self._sidecars().items():
            (partial / name).write_text(json.dumps(value, indent=2) + "\n")
        partial.rename(self.path)

    def _sidecars(self) -> dict[str, Any]:
        written: dict[str, Any] = {"config.json": self.shape.config(), _MARKER: self.marker}
        if len(self.files) > 1:
            written["model.safetensors.index.json"] = {
                "metadata": {"total_size": sum(file.size - len(file.header) for file in self.files)},
                "weight_map": {place.name: file.name for file in self.files for place in file.places},
            }
        return written

    def _slabs(self, file: WeightsFile) -> Iterator[Callable[[], Stored]]:
        """The file's values in order, as functions that may run in any thread and at any time."""
        for place in file.places:
            at_once = max(1, _SLAB // place.columns)
            slabs = [slice(row, min(row + at_once, place.rows)) for row in range(0, place.rows, at_once)]
            if self.number == 0:
                table = _base_table(self.seed, place)
                for number, rows in enumerate(slabs):
                    yield _BaseSlab(table, (rows.stop - rows.start) * place.columns, (self.seed, place.name, number))
                continue
            factors = _factors(self.seed, self.number, place)
            for number, rows in enumerate(slabs):
                yield _ExpertSlab(
                    self.folder / "base" / file.name,
                    place.start + rows.start * place.columns * _BFLOAT16.itemsize,
                    place.columns,
                    None if factors is None else factors[rows],
                    (rows.stop - rows.start) * place.columns,
                    (self.seed, self.number, place.name, number),
                )


def _in_order(pool: ThreadPoolExecutor, tasks: Iterator[Callable[[], Stored]]) -> Iterator[Stored]:
    """The tasks' results in order, with never more than a few done ahead."""
    ahead: deque[Future[Stored]] = deque()
    for task in tasks:
        ahead.append(pool.submit(task))
        if len(ahead) > _THREADS:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


# --- values -------------------------------------------------------------------------------------


def _student4(share: float) -> float:
    """The quantile of Student's t with 4 degrees of freedom, in closed form (Shaw 2006)."""
    alpha = 4 * share * (1 - share)
    root = math.sqrt(alpha)
    return math.copysign(2 * math.sqrt(math.cos(math.acos(root) / 3) / root - 1), share - 0.5)


_SHARES: Final = [(lane + 0.5) / _LANES for lane in range(_LANES)]
_NORMAL: Final[Floats] = np.array([NormalDist().inv_cdf(share) for share in _SHARES], np.float32)
_STUDENT: Final[Floats] = np.array([_student4(share) for share in _SHARES], np.float32)


def _lanes(count: int, words: Sequence[object]) -> NDArray[np.uint16]:
    """`count` uniform 16-bit integers that depend on `words` only."""
    key = hashlib.sha256("/".join(map(str, words)).encode()).digest()
    raw = np.random.SFC64(int.from_bytes(key[:16], "little")).random_raw(-(-count // 4))
    lanes: NDArray[np.uint16] = np.asarray(raw, "<u8").view("<u2")[:count]
    return lanes


def _base_sigma(seed: int, place: _Place) -> float:
    """The standard deviation of a base tensor: about 0.02, of a norm's weight 0.1."""
    middle = 0.02 if len(place.shape) > 1 else 0.1
    return middle * math.exp(0.4 * float(_NORMAL[_lanes(1, (seed, "base", place.name))[0]]))


def _base_table(seed: int, place: _Place) -> Stored:
    """The stored value of each lane; norms' weights lie around one."""
    values = _NORMAL * np.float32(_base_sigma(seed, place))
    if len(place.shape) == 1:
        values = values + np.float32(1)
    return _stored(values)


def _factors(seed: int, expert: int, place: _Place) -> Floats | None:
    """What the rows' Student variables are multiplied with; None for a tensor that is not touched."""
    touched, size = _lanes(2, (seed, expert, "tensor", place.name))
    if touched < _LANES * (0.06 if place.rows > 1 else 0.3):
        return None
    scale = 0.01 * _base_sigma(seed, place) * math.exp(float(_NORMAL[size]))
    factors = np.empty(place.rows, np.float32)
    row = 0
    while row < place.rows:
        length, kind, factor = _lanes(3, (seed, expert, "band", place.name, row))
        end = row + 1 + int(-math.log((length + 0.5) / _LANES) * place.rows / 8)
        if place.rows == 1 or kind >= 0.3 * _LANES:
            band = math.exp(1.2 * float(_NORMAL[factor]))
        elif kind >= 0.15 * _LANES:
            band = 1e-3
        else:
            band = 0.0
        factors[row:end] = scale * band
        row = end
    return factors


def _stored(values: Floats) -> Stored:
    return encode(values, _BFLOAT16, np.empty(values.size * _BFLOAT16.itemsize, np.uint8)).view(np.uint16)


@dataclass(frozen=True, slots=True)
class _BaseSlab:
    table: Stored
    count: int
    words: tuple[object, ...]

    def __call__(self) -> Stored:
        return self.table[_lanes(self.count, self.words)]


@dataclass(frozen=True, slots=True)
class _ExpertSlab:
    base: Path
    start: int
    columns: int
    factors: Floats | None
    count: int
    words: tuple[object, ...]

    def __call__(self) -> Stored:
        base: Stored = np.fromfile(self.base, np.uint16, self.count, offset=self.start)
        if self.factors is None or not self.factors.any():
            return base
        values = _STUDENT[_lanes(self.count, self.words)]
        by_rows = values.reshape(-1, self.columns)
        np.multiply(by_rows, self.factors[:, None], out=by_rows)
        np.add(values, base.view(_BFLOAT16.numpy), out=values)
        return _stored(values)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description="Write a family of models.")
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard-size", help="largest weight file, 500MB say (default: one file a model)")
    given = parser.parse_args(arguments)
    shard_bytes = None if given.shard_size is None else parse_bytes(given.shard_size, "--shard-size")
    try:
        write_family(given.folder, SHAPES[given.shape], given.experts, given.seed, shard_bytes, print)
    except OSError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
