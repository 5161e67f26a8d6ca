"""Encode with an exported graph that another engine runs: batches of token ids in, embeddings out.

Letters in this file: N sentences, B sentences in a batch, T tokens, D dimensions of an embedding.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tmft.checkpoints.model_folder import ModelFolder
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.embedding.prompts import Prompt, choose_prompt
from tmft.errors import InputError
from tmft.tokenizer import check_sentences

INPUTS, OUTPUTS = ["input_ids", "attention_mask"], ["last_hidden_state", "sentence_embedding"]
Batch = dict[str, np.ndarray]  # the inputs of a graph: name -> (B, T) int64


class GraphTokenizer:
    """The tokenizer of an exported folder, with its prompts: sentences -> batches for the graph."""

    def __init__(self, folder: Path):
        model_folder = ModelFolder(folder)
        config = model_folder.settings()
        self.tokenizer = load_tokenizer(model_folder, config.lower_case, config.max_length)
        self.prompts, self.default_prompt_name = config.prompts, config.default_prompt_name
        if config.max_length is None:
            raise InputError(
                f"{folder} states no max_seq_length (sentence_bert_config.json): export it again"
            )
        self.max_length = config.max_length

    def token_ids(
        self, sentences: Sequence[str], prompt_name: str | None = None, prompt: str | None = None
    ) -> list[list[int]]:
        """Return the token ids of each of the sentences."""
        text = choose_prompt(self.prompts, self.default_prompt_name, prompt_name, prompt)
        return Prompt(text, self.tokenizer)(check_sentences(sentences), self.max_length)[0]

    def padded_batch(self, token_ids: Sequence[list[int]]) -> Batch:
        """Return the inputs of a graph for B sentences: input_ids and attention_mask, (B, T) int64."""
        width = max(map(len, token_ids))
        ids, mask = (np.zeros((len(token_ids), width), dtype=np.int64) for _ in INPUTS)
        ids += self.tokenizer.pad_id
        for row, sentence in enumerate(token_ids):
            ids[row, : len(sentence)], mask[row, : len(sentence)] = sentence, 1
        return dict(zip(INPUTS, (ids, mask), strict=True))


class GraphEncoder:
    """A model whose graph another engine runs on the CPU; a subclass for each engine defines `run`."""

    def __init__(self, folder: Path):
        self.tokenizer = GraphTokenizer(folder)

    def run(self, batch: Batch) -> np.ndarray:
        """Return the embeddings of a batch, (B, D) float32."""
        raise NotImplementedError

    def encode(
        self,
        sentences: Sequence[str],
        batch_size: int = 32,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> np.ndarray:
        """Return the embeddings of N sentences, (N, D) float32.

        batch_size: number of sentences per batch; sentences of similar length share a batch, to save padding.
        """
        ids = self.tokenizer.token_ids(sentences, prompt_name, prompt)
        order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
        embeddings: list[Any] = [None] * len(ids)
        for first in range(0, len(ids), batch_size):
            indices = order[first : first + batch_size]
            batch = self.tokenizer.padded_batch([ids[n] for n in indices])
            for n, embedding in zip(indices, self.run(batch), strict=True):
                embeddings[n] = embedding
        return np.stack(embeddings)


def find_graph(folder: Path, pattern: str) -> Path:
    """Return the path of the only graph of an exported folder. pattern: such as "onnx/*.onnx"."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise InputError(f"{folder}: expected one file {pattern}, found {names}: export the model again")
    return found[0]
