"""A family whose members were trained with different tokenizers, and its merge by token, done naively."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from mergepipe import api
from mergepipe.testing.checkpoints import (
    fine_tune,
    llama_config,
    read_floats,
    tiny_llama,
    typed,
    write_checkpoint,
)
from tests.operators.reference import Floats

HIDDEN = 16
SPECIAL = ["<unk>", "<s>", "</s>"]
PROSE = "the merge of the models reads the rows of the base and the rows of the experts in their own order"
CODE = "def merge(rows, order): return [rows[at] for at in order if at is not None] # for the rows in order"
EMBEDDINGS = ("model.embed_tokens.weight", "lm_head.weight")
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"


def byte_pair(text: str, size: int, special: Sequence[str] = SPECIAL) -> Tokenizer:
    """A byte-level BPE tokenizer trained on `text`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()))[:40]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text] * 3, trainer)
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer, **config: Any) -> None:
    """tokenizer.json, its config and special tokens as transformers reads them."""
    tokenizer.save(str(folder / "tokenizer.json"))
    marks = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    document = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64, **marks, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(document))
    (folder / "special_tokens_map.json").write_text(json.dumps(marks))


@dataclass
class Tongues:
    """A base and three experts: 1 speaks as the base, 2 has two tokens more, 3 a vocabulary of its own.

    Base and experts 1 and 2 have rows that no token names. `ids` are each model's tokens.
    """

    folder: Path
    ids: dict[str, dict[str, int]] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def make(cls, folder: Path, tied: bool = False, codes: Sequence[str] = ("BF16",) * 4) -> Tongues:
        """Write the family."""
        own = cls(folder)
        plain = byte_pair(PROSE, 80)
        chat = Tokenizer.from_str(plain.to_str())
        chat.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
        other = byte_pair(CODE, 70, ["</s>", "<s>", "<pad>", "<unk>"])
        base = tiny_llama(5, hidden=HIDDEN, vocab=86, tied=tied)
        for number, (name, tokenizer, rows, code) in enumerate(
            zip(
                ["base", "expert1", "expert2", "expert3"],
                [plain, plain, chat, other],
                [86, 86, 88, 70],
                codes,
                strict=True,
            )
        ):
            tensors = dict(base) if number == 0 else fine_tune(base, number, untouched=0.0)
            generator = np.random.default_rng(number)
            for embedding in EMBEDDINGS[: 1 if tied else 2]:
                more = generator.standard_normal((rows, HIDDEN)).astype(np.float32) / 4
                kept = min(rows, 86) if number < 3 else 0
                more[:kept] = tensors[embedding][:kept]
                tensors[embedding] = more
            config = llama_config(hidden=HIDDEN, vocab=rows, tied=tied, dtype=code)
            write_checkpoint(folder / name, typed(tensors, code), config)
            extra = {"chat_template": TEMPLATE} if number == 2 else {}
            write_tokenizer(folder / name, tokenizer, **extra)
            own.ids[name] = tokenizer.get_vocab(with_added_tokens=True)
            generation = {"bos_token_id": own.ids[name]["<s>"], "eos_token_id": [own.ids[name]["</s>"]]}
            (folder / name / "generation_config.json").write_text(json.dumps(generation))
            marks = {"bos_token_id": own.ids[name]["<s>"], "eos_token_id": own.ids[name]["</s>"]}
            (folder / name / "config.json").write_text(json.dumps(config | marks))
        return own

    def at(self, name: str) -> str:
        return str(self.folder / name)

    def recipe(self, method: str, experts: Sequence[str], weights: Sequence[float], **more: Any) -> Path:
        """A recipe on the base; `@name` in any value stands for a model."""
        document: dict[str, Any] = {
            "merge_method": method,
            "base_model": "@base",
            "models": [
                {"model": f"@{name}", "parameters": {"weight": weight}}
                for name, weight in zip(experts, weights, strict=False)
            ],
            **more,
        }
        path = self.folder / f"recipe-{next(self._numbers)}.yml"
        path.write_text(json.dumps(document).replace('"@', f'"{self.folder}/'))
        return path

    def merge(self, recipe: Path, budget: str | None = None, limits: api.Limits | None = None) -> Path:
        """Merge with blocks of 64 bytes; returns OUT."""
        out = self.folder / f"out-{next(self._numbers)}"
        options = api.PlanOptions(budget=budget, block_bytes=64)
        api.merge(recipe, out, options, self.index, limits or api.Limits())
        return out

    @property
    def index(self) -> api.IndexOptions:
        return api.IndexOptions(self.folder / "index")

    def floats(self, name: str) -> dict[str, Floats]:
        return read_floats(self.folder / name)


def tokens_of(out: Path) -> dict[str, int]:
    """What a model's tokenizer.json says, by the library itself."""
    return Tokenizer.from_file(str(out / "tokenizer.json")).get_vocab(with_added_tokens=True)


def naive_rows(
    ids: Mapping[str, int], rows: int, members: Sequence[tuple[Mapping[str, int], Floats]], choices: Mapping[str, Any],
    multiple: bool = False,
) -> list[Floats]:  # fmt: skip
    """Every member's tensor with a row for each output token, token by token; the first member is the base.

    `choices` is token → (force, row or None for the usual rule). With `multiple` rows beyond the tokens are means.
    """
    found = [np.zeros((rows, *values.shape[1:]), np.float32) for _, values in members]
    by_row = {row: token for token, row in ids.items()}
    filled = 1 + max(ids.values()) if multiple else rows
    for row in range(filled):
        token = by_row.get(row)
        own: list[Floats | None] = []
        for theirs, values in members:
            if token is None:
                there = row if row < len(values) and row not in theirs.values() else None
            else:
                there = theirs.get(token)
            own.append(values[there] if there is not None and there < len(values) else None)
        have = [each for each in own if each is not None]
        force, chosen = choices.get(token or "", (False, None))
        if chosen is None:
            if len(have) == 1:
                chosen = have[0]
            elif own[0] is not None:
                chosen = own[0]
            elif have:
                total = np.zeros_like(have[0])
                for each in have:
                    total = total + each
                chosen = total / np.float32(len(have))
            else:
                chosen = np.zeros(members[0][1].shape[1:], np.float32)
        for place, mine in enumerate(own):
            found[place][row] = chosen if mine is None or force else mine
    for place in range(len(members)):
        if filled < rows:
            found[place][filled:] = found[place][:filled].astype(np.float64).mean(axis=0)
    return found
