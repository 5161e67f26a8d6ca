"""SentenceEncoder: a truncated encoder, its tokenizer and a pooling; text in, one embedding per sentence out.

Letters in this file: S or N sentences, B rows, T tokens in a row, D dimensions, l the number of kept layers.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tmft.checkpoint import read_config, read_encoder
from tmft.device import progress_bar
from tmft.encoder import HiddenStates
from tmft.errors import InputError
from tmft.extraction.modules import load_modules, modules_as_files
from tmft.families.table import random_encoder
from tmft.files import sentence_folder
from tmft.files.card import sentence_card
from tmft.files.folder import write_file
from tmft.files.hub import find
from tmft.files.save import save_encoder, what_differs
from tmft.files.tokenizer import Tokenizer, check_ids, load_tokenizer
from tmft.pooling import poolings_of
from tmft.rows import ROW_WIDTH, Rows, pack
from tmft.speed.batches import batches_to_embed
from tmft.speed.matmul import fast_matmul

log = logging.getLogger("tmft")  # prints one plain line on stderr, unless the caller's program says otherwise


class SentenceEncoder(nn.Module):
    """Sentences -> embeddings: the pooled hidden state l of an encoder with l layers.

    pooling: a row of POOLINGS, or several as in max+mean. max_length: tokens of a sentence that are read,
    special ones included. modules: what follows the pooling. prompt: what is put before each sentence.
    source: where it came from; report: which weights were kept and left.
    """

    def __init__(
        self,
        encoder: HiddenStates,
        tokenizer: Tokenizer,
        pooling: str = "mean",
        max_length: int | None = None,
        modules: Sequence[nn.Module] = (),
        prompt: str = "",
        source: str = "",
        report: str = "",
    ):
        super().__init__()
        poolings_of(pooling)  # which refuses what is none
        most = encoder.config.max_position_embeddings
        if max_length is None:
            max_length = min(most, tokenizer.max_length or most)
        if not 3 <= max_length <= most:
            bounds = f"3 to {most}, the size of the position table"
            raise InputError(f"max_length {max_length}: choose {bounds}", "max_length")
        check_ids(tokenizer, encoder.config.vocab_size, source)
        self.encoder, self.tokenizer, self.after = encoder, tokenizer, nn.Sequential(*modules)
        self.pooling, self.max_length, self.prompt = pooling, max_length, prompt
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

        pooling: None is what the folder says, with the modules after it, else the mean; a name is that
        pooling and nothing after it. max_length: None is what the folder says, else the tokenizer's limit.
        init="random" reads no weights: the same shape with random ones, from torch's global generator.
        Float32, on the CPU, in evaluation mode. Raises InputError for anything wrong with the checkpoint.
        """
        folder = find(where, weights=init == "pretrained")
        if init == "random":
            encoder = random_encoder(read_config(folder), layer)
            count = sum(weight.numel() for weight in encoder.parameters())
            report = (
                f"random weights: the embeddings, layers up to {len(encoder.layers)}, {count:,} parameters"
            )
        else:
            encoder, report = read_encoder(folder, layer)
        said = sentence_folder.read_sentence_folder(folder, modules=pooling is None)
        tokenizer = load_tokenizer(folder, said.lower_case, said.max_length)
        pooling, modules = pooling or said.pooling or "mean", load_modules(said.modules)
        model = cls(encoder, tokenizer, pooling, max_length, modules, said.prompt, str(where), str(report))
        return model.eval()

    @property
    def device(self) -> torch.device:
        return self.encoder.embeddings.word.weight.device

    @property
    def dimensions(self) -> int:
        """D, of an embedding."""
        pooled = self.encoder.config.hidden_size * sum(row.width for row in poolings_of(self.pooling))
        return next((m.out_features for m in reversed(self.after) if hasattr(m, "out_features")), pooled)

    def forward(self, rows: Rows) -> Tensor:
        """Rows of S sentences -> their embeddings, (S, D) float32."""
        return self.pool(self.encoder(*rows.inputs), rows)

    def pool(self, hidden: Tensor, rows: Rows) -> Tensor:
        """(B, T, hidden_size) -> (S, D), in float32 also under autocast."""
        with torch.autocast(hidden.device.type, enabled=False):
            pooled = [row.pool(hidden.float(), rows, None) for row in poolings_of(self.pooling)]
            return self.after(torch.cat(pooled, dim=1) if len(pooled) > 1 else pooled[0])

    def tokenize(self, sentences: Sequence[str]) -> list[list[int]]:
        """Sentences -> lists of token ids, at most max_length each; says in one line how many were cut."""
        if isinstance(sentences, str):
            raise TypeError("a list of sentences is expected, not one string: write encode([sentence])")
        token_ids, cut = self.tokenizer([self.prompt + text for text in sentences], self.max_length)
        if cut:
            count, limit = len(token_ids), self.max_length
            log.warning("%d of %d sentences are longer than %d tokens and were cut", cut, count, limit)
        return token_ids

    def encode(self, sentences: Sequence[str], progress: bool = False) -> np.ndarray:
        """Sentences -> numpy (N, D) float32, row i for sentence i. progress: a bar, on a terminal."""
        return self.embed(self.tokenize(sentences), progress=progress).numpy()

    @torch.inference_mode()
    @fast_matmul()
    def embed(self, token_ids: list[list[int]], every_layer: bool = False, progress: bool = False) -> Tensor:
        """Token ids of N sentences -> (N, D) float32 on the CPU; every_layer: (l + 1, N, D), in one pass.

        Dropout is off; the result is in the given order. Sentences of the same tokens are computed once. That
        saves work, and they stay equal to the bit: the last digit may depend on the place in the rows.
        """
        number = {ids: n for n, ids in enumerate(dict.fromkeys(map(tuple, token_ids)))}
        distinct, encoder = list(number), self.encoder
        layers = len(encoder.layers) + 1 if every_layer else 1
        embeddings = torch.empty(layers, len(distinct), self.dimensions)
        was_training = self.training
        self.eval()
        tokens_per_batch = 2048 if self.device.type == "cpu" else 65536
        with progress_bar(len(distinct), "sentences", progress, desc="encode") as bar:
            for batch, width in batches_to_embed(list(map(len, distinct)), tokens_per_batch, ROW_WIDTH):
                rows = pack([distinct[s] for s in batch], width, self.tokenizer.pad_id).to(self.device)
                states = encoder.each_hidden_state(*rows.inputs) if every_layer else [encoder(*rows.inputs)]
                for layer, hidden in enumerate(states):
                    embeddings[layer, batch] = self.pool(hidden, rows).cpu()
                bar.update(len(batch))
        self.train(was_training)
        embeddings = embeddings[:, [number[tuple(ids)] for ids in token_ids]]
        return embeddings if every_layer else embeddings[0]

    def embed_texts(self, texts: Sequence[list[str]], progress: bool = False) -> tuple[Tensor, ...]:
        """Embeddings of the k texts of N examples, k of (N, D); texts: k lists of N sentences."""
        token_ids = self.tokenize([sentence for column in texts for sentence in column])
        return self.embed(token_ids, progress=progress).chunk(len(texts))

    def save(self, folder: str | os.PathLike) -> None:
        """Write a folder that tmft, sentence-transformers and transformers open with the same embeddings.

        Its model card, README.md, says what another library cannot do with it, if there is such a thing.
        Files are replaced one by one, each whole. Raises InputError if one cannot be written.
        """
        folder, modules = Path(folder), modules_as_files(self.after)
        said = sentence_folder.SentenceFolder(self.pooling, self.max_length, False, self.prompt, modules)
        save_encoder(self.encoder, folder)
        for name, content in self.tokenizer.files(self.max_length).items():
            write_file(folder / name, content)
        sentence_folder.write_sentence_folder(folder, said, self.encoder.config.hidden_size)
        write_file(folder / "README.md", self.card())

    def card(self, results: str = "") -> str:
        """README.md of a saved model; results: Markdown that says how it was trained and what it scores."""
        about = (self.source, len(self.encoder.layers), self.dimensions, self.pooling, self.max_length)
        return sentence_card(*about, differs=self.what_differs, results=results)

    @property
    def what_differs(self) -> str:
        """What other libraries do otherwise with the saved folder, in words; '' for nothing."""
        return f"{sentence_folder.unknown_pooling(self.pooling)} {what_differs(self.encoder)}".strip()
