"""SentenceEncoder: a truncated encoder, its tokenizer and a pooling; text in, one embedding per sentence out.

Letters in this file: S or N sentences, B rows, T tokens in a row, D dimensions, l the number of kept layers.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tmft.checkpoints.hub import find
from tmft.checkpoints.load import load_encoder_with_report
from tmft.checkpoints.st_folder import read_sentence_folder
from tmft.checkpoints.tokenizers import Tokenizer, check_ids, length_limit, load_tokenizer
from tmft.device import progress_bar
from tmft.embedding import saved
from tmft.embedding.layer_mix import check_mix, mixed_state, parse_mix, width_of
from tmft.embedding.modules import load_modules
from tmft.embedding.pooling_components import parts_of, pooling_functions
from tmft.embedding.prompts import Prompt
from tmft.embedding.token_weights import check_tokens, token_weights
from tmft.encode_options import AsCalledElsewhere, Wanted, side_by_side, strings
from tmft.models.bert import BaseEncoder
from tmft.packing import PACKED_LENGTH, PackedBatch, pack
from tmft.pooling import parse_pooling
from tmft.speed.length_buckets import length_bucketed_batches
from tmft.speed.prepacked_weights import fast_encoding

log = logging.getLogger("tmft")  # prints one plain line on stderr, unless the caller's program says otherwise


class SentenceEncoder(AsCalledElsewhere, saved.Described, nn.Module):
    """Sentences -> embeddings: the pooled hidden state l of an encoder with l layers.

    pooling: a row of POOLINGS, or several as in max+mean. max_length: tokens of a sentence that are read,
    special ones included. modules: what follows the pooling. prompt: what is put before each sentence, or a
    text with [X] in its place. layers: their mean is taken, None: the last one. source: where it came from;
    report: which weights were kept and left. Its attribute `tokens` says what they weigh in the mean.
    """

    def __init__(
        self,
        encoder: BaseEncoder,
        tokenizer: Tokenizer,
        pooling: str = "mean",
        max_length: int | None = None,
        modules: Sequence[nn.Module] = (),
        prompt: str = "",
        source: str = "",
        report: str = "",
        layers: tuple[int, ...] | None = None,
    ):
        super().__init__()
        pooling_functions(pooling, encoder), check_mix(layers, encoder)  # which refuse what is none
        check_ids(tokenizer, encoder.config.vocab_size, source)
        config = encoder.config
        most = config.max_position_embeddings
        max_length = length_limit(tokenizer, max_length, most, config.default_max_length or most)
        self.encoder, self.tokenizer, self.head_modules = encoder, tokenizer, nn.Sequential(*modules)
        self.pooling, self.max_length, self.prompt = pooling, max_length, prompt
        self.source, self.load_report, self.layers, self.token_weights = source, report, layers, None

    @classmethod
    def from_pretrained(
        cls,
        where: str | os.PathLike,
        layer: int | str | None = None,
        pooling: str | None = None,
        max_length: int | None = None,
        init: str = "pretrained",
    ) -> "SentenceEncoder":
        """The first `layer` layers (None: all) of a checkpoint, a hub id with optional @revision or a folder.

        layer: or a mix such as 1+12 or word+12, see embedding/layer_mix.py. pooling: None is what the folder
        says, with token weights before it and modules after it, else the mean; a name is that pooling alone.
        max_length: None is what the folder says, else the tokenizer's limit.
        init="random" reads no weights: the same shape with random ones, from torch's global generator.
        Float32, on the CPU, in evaluation mode. Raises InputError for anything wrong with the checkpoint.
        """
        layer, folder = parse_mix(layer), find(where, weights=init == "pretrained")
        make = saved.make_random if init == "random" else load_encoder_with_report
        said = read_sentence_folder(folder, modules=pooling is None)
        pooling = pooling or said.pooling or "mean"
        encoder, report = make(folder, layer and max(0, *layer), parts_of(pooling))
        tokenizer = load_tokenizer(folder, said.lower_case, said.max_length)
        modules = load_modules(said.modules)
        model = cls(encoder, tokenizer, pooling, max_length, modules, said.prompt, str(where), str(report))
        saved.restore(model, said, layer)
        return model.eval()

    @property
    def device(self) -> torch.device:
        return self.encoder.embeddings.word.weight.device

    @property
    def dimensions(self) -> int:
        """D, of an embedding."""
        hidden_size = width_of(self.layers, self.encoder.config)
        pooled = hidden_size * sum(row.width for row in parse_pooling(self.pooling))
        return next((m.out_features for m in reversed(self.head_modules) if hasattr(m, "out_features")), pooled)

    def forward(self, rows: PackedBatch) -> Tensor:
        """Rows of S sentences -> their embeddings, (S, D) float32."""
        return self.pool(self.hidden_states_of(rows), rows)

    def hidden_states_of(self, rows: PackedBatch) -> Tensor:
        """(B, T, hidden_size): hidden state l, or the mean of several."""
        if self.layers is None:
            return self.encoder(*rows.inputs)
        return mixed_state(self.encoder, self.layers, rows)

    def pool(self, hidden: Tensor, rows: PackedBatch) -> Tensor:
        """(B, T, hidden_size) -> (S, D), in float32 also under autocast."""
        weights = None if self.token_weights is None else self.token_weights(rows)  # (B, T)
        pooled = [
            pool(hidden, rows, weights).float() for pool in pooling_functions(self.pooling, self.encoder)
        ]
        with torch.autocast(hidden.device.type, enabled=False):
            return self.head_modules(torch.cat(pooled, dim=1) if len(pooled) > 1 else pooled[0])

    def tokenize(self, sentences: Sequence[str]) -> list[list[int]]:
        """Sentences -> lists of token ids, at most max_length each; says in one line how many were cut."""
        token_ids, cut = Prompt(self.prompt, self.tokenizer)(strings(sentences), self.max_length)
        if cut:
            count, limit = len(token_ids), self.max_length
            log.warning("%d of %d sentences are longer than %d tokens and were cut", cut, count, limit)
        return token_ids

    def set_token_weights(self, name: str, texts: Sequence[str] | None = None) -> None:
        """Let tokens weigh as a row of TOKENS says; texts: sentences to learn it from, if it is learnt."""
        check_tokens(name, self.pooling)
        prompt, ids = Prompt(self.prompt, self.tokenizer), texts and self.tokenize(texts)
        weights = token_weights(name, prompt, self.encoder.config.vocab_size, ids)
        self.token_weights = weights and weights.to(self.device)

    def encode(self, sentences: str | Sequence[str], progress: bool = False, **asked) -> np.ndarray:
        """Sentences -> numpy (N, D) float32, row i for sentence i; one string -> (D,). progress: a bar, on a
        terminal; asked: normalize, tensor and others, see asked.py."""
        wanted, several = Wanted.of(progress, asked), [sentences] if isinstance(sentences, str) else sentences
        vectors = self.embed_token_ids(self.tokenize(several), show_progress_bar=wanted.progress)
        return wanted.form(vectors, several is not sentences)

    def embed_token_ids(self, token_ids: list[list[int]], all_layers: bool = False, show_progress_bar: bool = False) -> Tensor:
        """Token ids of N sentences -> (N, D) float32 on the CPU; all_layers: (l + 1, N, D), in one pass."""
        return self.map_batches(token_ids, self.forward_all_layers if all_layers else self, show_progress_bar)

    def forward_all_layers(self, rows: PackedBatch) -> Tensor:
        """Rows of S sentences -> (l + 1, S, D), each hidden state pooled."""
        return torch.stack([self.pool(h, rows) for h in self.encoder.iter_hidden_states(*rows.inputs)])

    @torch.inference_mode()
    def map_batches(
        self, token_ids: list[list[int]], of_rows: Callable[[PackedBatch], Tensor], show_progress_bar: bool = False
    ) -> Tensor:
        """What of_rows, from rows of S sentences to (..., S, D), makes of N: (..., N, D) on the CPU.

        Dropout is off; the result is in the given order. Sentences of the same tokens are computed once. That
        saves work, and they stay equal to the bit: the last digit may depend on the place in the rows.
        """
        if not token_ids:
            return self.map_batches([[self.tokenizer.pad_id]], of_rows, False)[..., :0, :]
        distinct, parts, place = list(dict.fromkeys(map(tuple, token_ids))), [], {}
        was_training = self.training
        self.eval()
        bar = progress_bar(len(distinct), "sentences", show_progress_bar, desc="encode")
        with bar, fast_encoding(self.encoder, distinct):
            for batch, rows in self.packed_batches(distinct):
                parts.append(of_rows(rows).cpu())
                place |= {distinct[s]: len(place) + n for n, s in enumerate(batch)}
                bar.update(len(batch))
        self.train(was_training)
        return torch.cat(parts, dim=-2)[..., [place[tuple(ids)] for ids in token_ids], :]

    def packed_batches(self, token_ids: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], PackedBatch]]:
        """Sentences as batches of rows, on the device of the model, with the numbers of those in each."""
        tokens_per_batch = 2048 if self.device.type == "cpu" else 16384
        for batch, width in length_bucketed_batches(
            list(map(len, token_ids)), tokens_per_batch, PACKED_LENGTH
        ):
            yield batch, pack([token_ids[s] for s in batch], width, self.tokenizer.pad_id).to(self.device)

    def embed_columns(self, texts: Sequence[list[str]], show_progress_bar: bool = False) -> tuple[Tensor, ...]:
        """Embeddings of the k texts of N examples, k of (N, D); texts: k lists of N sentences."""
        sentences = [sentence for column in side_by_side(texts) for sentence in column]
        return self.embed_token_ids(self.tokenize(sentences), show_progress_bar=show_progress_bar).chunk(len(texts))

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Write a folder that tmft, sentence-transformers and transformers open with the same embeddings.

        Its model card, README.md, says what another library cannot do with it, if there is such a thing.
        Files are replaced one by one, each whole. Raises InputError if one cannot be written.
        """
        saved.save(self, Path(folder))
