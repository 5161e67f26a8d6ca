"""SentenceEncoder: a truncated encoder, its tokenizer and a pooling; text in, one embedding per sentence out.

Letters in this file: S or N sentences, B rows, T tokens in a row, D hidden_size, l the number of kept layers.
"""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from tmft.checkpoint import random_encoder, read_config, read_encoder, save_encoder, why_not_saved
from tmft.encoder import Encoder
from tmft.errors import InputError
from tmft.files.tokenizer import Tokenizer, check_ids, load_tokenizer
from tmft.files.weights import find, read_json, write_file
from tmft.rows import POOLINGS, ROW_WIDTH, Rows, pack
from tmft.speed.matmul import fast_matmul

# Names of the poolings in 1_Pooling/config.json of sentence-transformers; read and written.
POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",  # never ours, but old readers want the key
}
log = logging.getLogger("tmft")  # prints one plain line on stderr, unless the caller's program says otherwise


class SentenceEncoder(nn.Module):
    """Sentences -> embeddings: the pooled hidden state l of an encoder with l layers.

    max_length: tokens of a sentence, special tokens included, that are read; the rest is cut off.
    source: where it came from; report: which weights were kept and left, one line each.
    """

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: Tokenizer,
        pooling: str = "mean",
        max_length: int | None = None,
        source: str = "",
        report: str = "",
    ):
        super().__init__()
        if pooling not in POOLINGS:
            raise InputError(f"pooling {pooling!r}: choose one of {', '.join(POOLINGS)}")
        positions = encoder.config.max_position_embeddings
        if max_length is None:
            max_length = min(positions, tokenizer.max_length or positions)
        if not 3 <= max_length <= positions:
            raise InputError(
                f"max_length {max_length}: choose 3 to {positions}, the size of the position table"
            )
        check_ids(tokenizer, encoder.config.vocab_size, source)
        self.encoder, self.tokenizer = encoder, tokenizer
        self.pooling, self.max_length = pooling, max_length
        self.source, self.report = source, report

    @classmethod
    def load(
        cls,
        where: str | os.PathLike,
        layer: int | None = None,
        pooling: str | None = None,
        max_length: int | None = None,
        init: str = "pretrained",
    ) -> "SentenceEncoder":
        """The first `layer` layers (None: all) of a checkpoint, a hub id with optional @revision or a folder.

        pooling, max_length: those of the saved model if it is one, else "mean" and the tokenizer's limit.
        init="random" reads no weights: the same shape with random ones, from torch's global generator.
        Float32, on the CPU, in evaluation mode. Raises InputError for anything wrong with the checkpoint.
        """
        folder = find(where, weights=init == "pretrained")
        if init == "random":
            encoder = random_encoder(read_config(folder), layer)
            count = sum(weight.numel() for weight in encoder.parameters())
            report = f"random weights: the embeddings and {len(encoder.layers)} layers, {count:,} parameters"
        else:
            encoder, report = read_encoder(folder, layer)
        saved = read_sentence_files(folder)
        if saved["dropped"]:
            report = f"{report}; not applied: {', '.join(saved['dropped'])}"
        tokenizer = load_tokenizer(folder)
        if saved["max_length"]:
            tokenizer.max_length = saved["max_length"]
        pooling = pooling or saved["pooling"]
        return cls(encoder, tokenizer, pooling, max_length, str(where), str(report)).eval()

    @property
    def why_not_saved(self) -> str | None:
        """The reason why save would refuse this model, or None."""
        return why_not_saved(self.encoder)

    @property
    def device(self) -> torch.device:
        return self.encoder.embeddings.word.weight.device

    def forward(self, rows: Rows) -> Tensor:
        """Rows of S sentences -> their embeddings, (S, D) float32."""
        hidden = self.encoder(rows.input_ids, rows.sentence_ids, rows.position_ids)  # (B, T, D)
        return self.pool(hidden, rows)

    def pool(self, hidden: Tensor, rows: Rows) -> Tensor:
        """(B, T, D) -> (S, D), in float32 also under autocast."""
        with torch.autocast(hidden.device.type, enabled=False):
            return POOLINGS[self.pooling](hidden.float(), rows)

    def tokenize(self, sentences: Sequence[str]) -> list[list[int]]:
        """Sentences -> lists of token ids, at most max_length each; says in one line how many were cut."""
        if isinstance(sentences, str):
            raise TypeError("a list of sentences is expected, not one string: write encode([sentence])")
        token_ids, cut = self.tokenizer(list(sentences), self.max_length)
        if cut:
            count, limit = len(token_ids), self.max_length
            log.warning("%d of %d sentences are longer than %d tokens and were cut", cut, count, limit)
        return token_ids

    def encode(self, sentences: Sequence[str], progress: bool = False) -> np.ndarray:
        """Sentences -> numpy (N, D) float32, row i for sentence i. progress: show a bar."""
        return self.embed(self.tokenize(sentences), progress=progress).numpy()

    @torch.inference_mode()
    @fast_matmul()
    def embed(self, token_ids: list[list[int]], every_layer: bool = False, progress: bool = False) -> Tensor:
        """Token ids of N sentences -> (N, D) float32 on the CPU; every_layer: (l + 1, N, D), in one pass.

        Dropout is off; the result is in the given order. Sentences of the same tokens are computed once. That
        saves work, and they stay equal to the bit: the last digit may depend on the place in the rows.
        """
        distinct = list(dict.fromkeys(map(tuple, token_ids)))
        layers = len(self.encoder.layers) + 1 if every_layer else 1
        embeddings = torch.empty(layers, len(distinct), self.encoder.config.hidden_size)
        was_training = self.training
        self.eval()
        tokens_per_batch = 2048 if self.device.type == "cpu" else 65536
        bar = tqdm(total=len(distinct), desc="encode", unit=" sentences", disable=not progress, leave=False)
        for batch, width in batches_to_embed(list(map(len, distinct)), tokens_per_batch):
            rows = pack([distinct[s] for s in batch], width, self.tokenizer.pad_id).to(self.device)
            inputs = (rows.input_ids, rows.sentence_ids, rows.position_ids)
            states = self.encoder.each_hidden_state(*inputs) if every_layer else [self.encoder(*inputs)]
            for number, hidden in enumerate(states):
                embeddings[number, batch] = self.pool(hidden, rows).cpu()
            bar.update(len(batch))
        bar.close()
        self.train(was_training)
        number = {ids: n for n, ids in enumerate(distinct)}
        embeddings = embeddings[:, [number[tuple(ids)] for ids in token_ids]]
        return embeddings if every_layer else embeddings[0]

    def embed_pairs(
        self,
        sentence1: Sequence[str],
        sentence2: Sequence[str],
        every_layer: bool = False,
        progress: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Embeddings u and v of N pairs of sentences, (N, D) float32 each; every_layer: (l + 1, N, D)."""
        N, token_ids = len(sentence1), self.tokenize([*sentence1, *sentence2])
        embeddings = self.embed(token_ids, every_layer, progress)  # (..., 2N, D)
        return embeddings[..., :N, :], embeddings[..., N:, :]

    def similarities(
        self,
        sentence1: Sequence[str],
        sentence2: Sequence[str],
        every_layer: bool = False,
        progress: bool = False,
    ) -> np.ndarray:
        """Cosine of each pair of sentences -> (N,) float64 in [-1, 1]; every_layer: (l + 1, N)."""
        return cosines(*self.embed_pairs(sentence1, sentence2, every_layer, progress))

    def save(self, folder: str | os.PathLike) -> None:
        """Write a folder that tmft, sentence-transformers and transformers open with the same embeddings.

        It gets a short model card, README.md. Files are replaced one by one, each whole.
        Raises InputError if the folder cannot be written, or for a DeBERTa without layers.
        """
        folder = Path(folder)
        save_encoder(self.encoder, folder)  # first, because it may refuse
        for name, content in (self.tokenizer.files(self.max_length) | self.sentence_files()).items():
            write_file(folder / name, content)
        write_file(folder / "README.md", model_card(self))

    def sentence_files(self) -> dict[str, str]:
        """What sentence-transformers reads beside the encoder, in the keys that all its versions know."""
        pooling = {"word_embedding_dimension": self.encoder.config.hidden_size}
        pooling |= {key: mode == self.pooling for mode, key in POOLING_KEYS.items()}
        modules = [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ]
        versions = {"sentence_transformers": "2.0.0", "transformers": "4.6.1", "pytorch": "1.8.1"}
        contents = {
            "modules.json": modules,
            "1_Pooling/config.json": pooling,
            "sentence_bert_config.json": {"max_seq_length": self.max_length, "do_lower_case": False},
            "config_sentence_transformers.json": {
                "__version__": versions,  # the oldest that reads these files: a newer one would make it warn
                "prompts": {},
                "default_prompt_name": None,
                "similarity_fn_name": "cosine",
            },
        }
        return {name: json.dumps(content, indent=2) + "\n" for name, content in contents.items()}


def check_same_model(folder: Path, original: Path, layer: int) -> None:
    """Whether folder holds the first `layer` layers of the original checkpoint, with other values.

    Both folders need config.json and a tokenizer. Raises InputError that names the first difference.
    """
    ours, theirs = (read_config(where).to_dict() for where in (folder, original))
    if ours["num_hidden_layers"] != layer:
        raise InputError(
            f"{folder} has {ours['num_hidden_layers']} layers: layer {layer} must start from {layer}"
        )
    for key in theirs.keys() - {"num_hidden_layers"}:
        if ours.get(key) != theirs[key]:
            raise InputError(
                f"{folder} has {key} {ours.get(key)}, {original} has {theirs[key]}: "
                "they are not of one checkpoint"
            )
    vocabularies = [load_tokenizer(where).backend.get_vocab() for where in (folder, original)]
    if vocabularies[0] != vocabularies[1]:
        raise InputError(
            f"{folder} and {original} have different vocabularies: they are not of one checkpoint"
        )


def cosines(u: Tensor, v: Tensor) -> np.ndarray:
    """Cosine of each row of u with the same row of v, both (..., N, D) -> (..., N) float64.

    Rounded to 9 decimals, so that pairs of equal sentences tie: otherwise the last bit of their 1.0 would
    rank them, and move the Spearman correlation of STS12, which has 79 such pairs, by 0.002 points.
    """
    return torch.cosine_similarity(u.double(), v.double(), dim=-1).round(decimals=9).numpy()


def read_sentence_files(folder: Path) -> dict:
    """What a folder in the sentence-transformers form says beyond the encoder.

    -> {"pooling": "mean" if not said, "max_length": int or None, "dropped": modules that tmft does not run}
    """
    saved = {"pooling": "mean", "max_length": None, "dropped": []}
    if (folder / "modules.json").is_file():
        kinds = [
            str(module.get("type")).rpartition(".")[2] for module in read_json(folder / "modules.json", list)
        ]
        saved["dropped"] = [kind for kind in kinds if kind not in ("Transformer", "Pooling")]
    if (folder / "sentence_bert_config.json").is_file():
        limit = read_json(folder / "sentence_bert_config.json").get("max_seq_length")
        saved["max_length"] = limit if isinstance(limit, int) and limit > 0 else None
    if (folder / "1_Pooling/config.json").is_file():
        config = read_json(folder / "1_Pooling/config.json")
        modes = [mode for mode, key in POOLING_KEYS.items() if config.get(key)]
        saved["pooling"] = config.get("pooling_mode") or "+".join(modes) or "mean"
    return saved


def batches_to_embed(lengths: list[int], tokens_per_batch: int) -> Iterator[tuple[list[int], int]]:
    """Yield (numbers of sentences, width of their rows), about tokens_per_batch tokens each.

    Sentences longer than ROW_WIDTH, longest first, with others of like length in rows made to measure. The
    rest is dealt out like cards, so that each batch has short ones to fill the rows of the long ones: 97 % of
    the places of STSB then hold a token, and all batches have nearly one shape.
    """
    order = sorted(range(len(lengths)), key=lambda s: -lengths[s])
    start = 0
    while start < len(order) and lengths[order[start]] > ROW_WIDTH:
        longest = lengths[order[start]]
        batch = order[start : start + max(1, tokens_per_batch // longest)]
        batch = [s for s in batch if lengths[s] > ROW_WIDTH]
        yield batch, -(-longest // 8) * 8
        start += len(batch)
    rest = order[start:]
    count = -(-sum(lengths[s] for s in rest) // tokens_per_batch)
    for number in range(count):
        yield rest[number::count], ROW_WIDTH


def model_card(model: SentenceEncoder, results: str = "") -> str:
    """README.md of a saved model; results: markdown that says how it was trained and what it scores."""
    layers, dimensions = len(model.encoder.layers), model.encoder.config.hidden_size
    hub_id = "" if Path(model.source).exists() else model.source.partition("@")[0]
    base = f"base_model: {hub_id}\n" if hub_id else ""
    return f"""---
tags: [sentence-transformers, sentence-similarity, feature-extraction, tmft]
pipeline_tag: sentence-similarity
library_name: sentence-transformers
{base}---

# Sentence embeddings from the first {layers} layers of {hub_id or Path(model.source).name or "an encoder"}

Hidden state {layers}, pooling {model.pooling!r}, {dimensions} dimensions, at most {model.max_length} tokens.
Made by truncated model fine-tuning (Rep, Dukić and Šnajder, Findings of EMNLP 2024).

```python
>>> from sentence_transformers import SentenceTransformer  # or: from tmft import SentenceEncoder
>>> model = SentenceTransformer("path/to/this/folder")     #     SentenceEncoder.load("path/to/this/folder")
>>> embeddings = model.encode(["A man plays a guitar.", "Someone makes music."])
```
{results}"""
