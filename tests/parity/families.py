"""The tiny models that both programs merge. Every family is a Llama; all deltas are heavy-tailed (`fine_tune`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mergepipe.testing.architectures import ARCHITECTURES, plain_text_of, random_weights
from mergepipe.testing.architectures import VOCAB as KIND_VOCAB
from mergepipe.testing.checkpoints import fine_tune, llama_config, tiny_llama, typed, write_checkpoint

Tensors = dict[str, NDArray[Any]]

EXPERTS = 4
VOCAB = 96
HIDDEN, HEADS, KV_HEADS, INTER = 64, 4, 2, 96

# Names of words that every tokenizer here has, in this order, from id 0 on.
SPECIAL = ("<unk>", "<s>", "</s>")


def write_models(folder: Path, family: str) -> Path:
    """Write every model of a family as `folder/base`, `folder/expert1`, …; returns `folder`."""
    FAMILIES[family](folder)
    return folder


def words(count: int, own: str = "w") -> list[str]:
    """A vocabulary of `count` tokens."""
    return [*SPECIAL, *(f"{own}{number}" for number in range(count - len(SPECIAL)))]


def write_tokenizer(folder: Path, vocabulary: Sequence[str], added: Sequence[str] = (), template: str = "") -> None:
    """A word-level tokenizer.json and its tokenizer_config.json; `added` tokens follow the vocabulary."""
    ids = {token: number for number, token in enumerate([*vocabulary, *added])}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": ids[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True,
            }
            for token in [*SPECIAL, *added]
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel", "vocab": {token: ids[token] for token in vocabulary}, "unk_token": "<unk>",
        },
    }  # fmt: skip
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64,
        "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>",
    }  # fmt: skip
    if template:
        config["chat_template"] = template
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def llama(seed: int, layers: int = 2, tied: bool = False, vocab: int = VOCAB) -> Tensors:
    """Weights of this suite's shape: 64 wide, four heads over two key-value heads."""
    return tiny_llama(seed, layers, HIDDEN, HEADS, KV_HEADS, INTER, vocab, tied)


def write_model(
    folder: Path, tensors: Mapping[str, NDArray[Any]], code: str, vocabulary: Sequence[str] = (), shards: int = 1,
    added: Sequence[str] = (), template: str = "",
) -> None:  # fmt: skip
    """One model directory; layers, vocabulary and tying in its config follow from the tensors."""
    layers = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))
    rows = tensors["model.embed_tokens.weight"].shape[0]
    tied = "lm_head.weight" not in tensors
    write_checkpoint(
        folder,
        typed(tensors, code),
        llama_config(layers, HIDDEN, HEADS, KV_HEADS, INTER, rows, tied, code),
        shards,
    )
    write_tokenizer(folder, vocabulary or words(rows), added, template)


def plain(
    code: str = "BF16", layers: int = 2, scale: float = 0.02, untouched: float = 0.2, tied: bool = False
) -> Callable[[Path], None]:
    """A base and four fine-tunes of it in one dtype; experts 1 and 3 are sharded."""

    def write(folder: Path) -> None:
        base = llama(1, layers, tied)
        write_model(folder / "base", base, code)
        for number in range(1, EXPERTS + 1):
            tuned = fine_tune(base, number, scale, untouched)
            write_model(folder / f"expert{number}", tuned, code, shards=1 + number % 2 * 2)

    return write


def mixed(base_code: str, *codes: str) -> Callable[[Path], None]:
    """Experts stored in different dtypes."""

    def write(folder: Path) -> None:
        base = llama(1)
        write_model(folder / "base", base, base_code)
        for number, code in enumerate(codes, start=1):
            write_model(folder / f"expert{number}", fine_tune(base, number), code)

    return write


def vocabularies(folder: Path) -> None:
    """Expert 1 has the base's tokenizer, 2 has two added tokens, 3 an order of its own, fewer words and one more."""
    base = llama(1)
    vocabulary = words(VOCAB)
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    write_model(folder / "base", base, "BF16", vocabulary)
    write_model(folder / "expert1", fine_tune(base, 1), "BF16", vocabulary, template=template)

    wider = fine_tune(base, 2)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        extra = np.random.default_rng(len(name)).standard_normal((2, HIDDEN)) / 8
        wider[name] = np.concatenate([wider[name], extra.astype(np.float32)])
    write_model(folder / "expert2", wider, "BF16", vocabulary, added=("<|chat|>", "<|end|>"), template=template)

    shuffled = fine_tune(base, 3)
    kept = [0, 1, 2, *range(VOCAB - 1, 12, -1)]
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        extra = np.random.default_rng(len(name) + 1).standard_normal((1, HIDDEN)) / 8
        shuffled[name] = np.concatenate([shuffled[name][kept], extra.astype(np.float32)])
    own = [*(vocabulary[number] for number in kept), "own"]
    write_model(folder / "expert3", shuffled, "BF16", own)


def prefixes(folder: Path) -> None:
    """Experts whose embeddings have two rows more (1) and two fewer (2) than the base's, tokenizers alike."""
    base = llama(1)
    write_model(folder / "base", base, "BF16")
    for number, rows in ((1, VOCAB + 2), (2, VOCAB - 2)):
        tuned = fine_tune(base, number)
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            tuned[name] = np.resize(tuned[name], (rows, HIDDEN))
        write_model(folder / f"expert{number}", tuned, "BF16")


def equal(folder: Path) -> None:
    """Three experts that are copies of the base, in all tensors but two of the attention's."""
    base = llama(1)
    write_model(folder / "base", base, "BF16")
    for number in range(1, 4):
        tuned = fine_tune(base, number, untouched=0.0)
        kept = {name: tuned[name] if name.endswith(("q_proj.weight", "o_proj.weight")) else base[name] for name in base}
        write_model(folder / f"expert{number}", kept, "BF16")


def opposed(folder: Path) -> None:
    """Two experts on opposite sides of the base: exactly antiparallel task vectors."""
    base = {name: np.asarray(np.round(values * 64) / 64, np.float32) for name, values in llama(1).items()}
    write_model(folder / "base", base, "F32")
    for number, sign in ((1, 1.0), (2, -1.0)):
        steps = {name: np.random.default_rng(len(name)).integers(-3, 4, values.shape) for name, values in base.items()}
        moved = {name: np.asarray(values + sign * steps[name] / 64, np.float32) for name, values in base.items()}
        write_model(folder / f"expert{number}", moved, "F32")


def donors(folder: Path) -> None:
    """Models whose config.json tells them apart: expert n allows 100 + n positions."""
    plain()(folder)
    for number in range(1, EXPERTS + 1):
        path = folder / f"expert{number}" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 100 + number}))


def coarse(folder: Path) -> None:
    """Task vectors of ±32 everywhere: their L1 norms are beyond what float16 holds."""
    base = {name: np.zeros_like(values) for name, values in llama(1).items()}
    write_model(folder / "base", base, "F16")
    for number in (1, 2):
        moved = {name: np.asarray(np.copysign(32, values), np.float32) for name, values in llama(number + 1).items()}
        write_model(folder / f"expert{number}", moved, "F16")


def faint(folder: Path) -> None:
    """Task vectors of about 1e-12 on a base of zeros: their L1 norms are below 1e-7."""
    base = {name: np.zeros_like(values) for name, values in llama(1).items()}
    write_model(folder / "base", base, "F32")
    write_model(folder / "expert1", {name: values * np.float32(1e-12) for name, values in llama(2).items()}, "F32")


def nonfinite(folder: Path) -> None:
    """An expert with a NaN."""
    base = llama(1)
    write_model(folder / "base", base, "BF16")
    for number in (1, 2):
        write_model(folder / f"expert{number}", fine_tune(base, number, untouched=0.0), "BF16")
    spoilt = fine_tune(base, 3, untouched=0.0)
    spoilt["model.layers.1.mlp.up_proj.weight"][5, 7] = np.nan
    write_model(folder / "expert3", spoilt, "BF16")


def misshapen(folder: Path) -> None:
    """An expert one of whose matrices, no embedding, is of another shape."""
    base = llama(1)
    write_model(folder / "base", base, "BF16")
    tuned = fine_tune(base, 1)
    tuned["model.layers.0.mlp.up_proj.weight"] = tuned["model.layers.0.mlp.up_proj.weight"][:-8].copy()
    write_model(folder / "expert1", tuned, "BF16")


def qwen3(folder: Path) -> None:
    """A Qwen3 of three layers, whose config lists the type of each layer."""
    base = llama(1, layers=3)
    for layer in range(3):
        for part in ("q_norm", "k_norm"):
            base[f"model.layers.{layer}.self_attn.{part}.weight"] = np.ones(HIDDEN // HEADS, np.float32)
    write_model(folder / "base", base, "BF16")
    write_model(folder / "expert1", fine_tune(base, 1), "BF16")
    for model in ("base", "expert1"):
        path = folder / model / "config.json"
        config = json.loads(path.read_text()) | {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "head_dim": HIDDEN // HEADS,
            "layer_types": ["full_attention"] * 3,
            "max_window_layers": 3,
        }
        path.write_text(json.dumps(config))


def of_kind(kind: str, layers: int = 3) -> Callable[[Path], None]:
    """A base and three fine-tunes of a mixture of experts or a multimodal model."""

    def write(folder: Path) -> None:
        architecture = ARCHITECTURES[kind](layers)
        base = random_weights(architecture, 1)
        models = {"base": base} | {f"expert{n}": fine_tune(base, n, untouched=0.0) for n in (1, 2, 3)}
        for name, weights in models.items():
            write_checkpoint(folder / name, typed(weights, "F32"), architecture.config)
            write_tokenizer(folder / name, words(KIND_VOCAB))

    return write


def with_text(kind: str) -> Callable[[Path], None]:
    """A multimodal base and expert, and as `text` a fine-tune of its language model alone."""

    def write(folder: Path) -> None:
        of_kind(kind)(folder)
        plain = plain_text_of(kind, 3)
        write_checkpoint(folder / "text", typed(random_weights(plain, 2), "F32"), plain.config)
        write_tokenizer(folder / "text", words(KIND_VOCAB))

    return write


def predicting(folder: Path) -> None:
    """A Llama with a prediction layer and a scorer of which transformers knows nothing."""
    base = llama(1)
    base["mtp.layers.0.proj.weight"] = llama(2)["model.layers.0.mlp.up_proj.weight"]
    base["value_head.weight"] = llama(2)["model.layers.0.self_attn.k_proj.weight"]
    write_model(folder / "base", base, "BF16")
    write_model(folder / "expert1", fine_tune(base, 1, untouched=0.0), "BF16")


def thin(folder: Path) -> None:
    """A Llama whose feed-forward part is one wide: `down_proj` has rows of one element."""
    base = tiny_llama(1, 2, HIDDEN, HEADS, KV_HEADS, 1, VOCAB)
    for name, tensors in (("base", base), ("expert1", fine_tune(base, 1, untouched=0.0))):
        write_checkpoint(
            folder / name, typed(tensors, "F32"), llama_config(2, HIDDEN, HEADS, KV_HEADS, 1, VOCAB, dtype="F32")
        )
        write_tokenizer(folder / name, words(VOCAB))


def encoder(folder: Path) -> None:
    """A BERT of one layer."""
    block, square = "encoder.layer.0.", ["attention.self.query", "attention.self.key", "attention.self.value"]
    linear = {f"{block}{name}": (HIDDEN, HIDDEN) for name in (*square, "attention.output.dense")}
    linear |= {f"{block}intermediate.dense": (INTER, HIDDEN), f"{block}output.dense": (HIDDEN, INTER)}
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCAB, HIDDEN), "embeddings.position_embeddings.weight": (32, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
    }  # fmt: skip
    for name, shape in (linear | {"pooler.dense": (HIDDEN, HIDDEN)}).items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in ("embeddings.LayerNorm", f"{block}attention.output.LayerNorm", f"{block}output.LayerNorm"):
        shapes |= {f"{name}.weight": (HIDDEN,), f"{name}.bias": (HIDDEN,)}
    config = {
        "architectures": ["BertModel"], "model_type": "bert", "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "num_hidden_layers": 1, "num_attention_heads": HEADS, "intermediate_size": INTER,
        "max_position_embeddings": 32, "type_vocab_size": 2,
    }  # fmt: skip
    random = np.random.default_rng(1)
    base = {name: np.asarray(random.standard_normal(shape) / 8, np.float32) for name, shape in shapes.items()}
    for name, tensors in (("base", base), ("expert1", fine_tune(base, 1, untouched=0.0))):
        write_checkpoint(folder / name, typed(tensors, "F32"), config)
        write_tokenizer(folder / name, words(VOCAB))


FAMILIES: Mapping[str, Callable[[Path], None]] = {
    "bf16": plain(),
    "layers": plain(layers=4),
    "f32": plain("F32"),
    "f32-layers": plain("F32", layers=4),
    "touched": plain(untouched=0.0),
    "far": plain("F32", scale=0.4, untouched=0.0),
    "tied": plain(tied=True),
    "mixed": mixed("BF16", "F16", "F32", "BF16"),
    "wide": mixed("BF16", "F64", "BF16", "F32"),
    "vocabularies": vocabularies,
    "prefixes": prefixes,
    "equal": equal,
    "opposed": opposed,
    "donors": donors,
    "coarse": coarse,
    "faint": faint,
    "nonfinite": nonfinite,
    "misshapen": misshapen,
    "qwen3": qwen3,
    "thin": thin,
    "encoder": encoder,
    "predicting": predicting,
    **{kind: of_kind(kind) for kind in ARCHITECTURES},
    "gemma3-text": with_text("gemma3"),
}
