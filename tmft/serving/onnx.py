"""A model as one ONNX graph, and ONNX Runtime to run it. onnx, onnxscript and onnxruntime are imported only
here, when they are needed.

The graph takes input_ids and attention_mask, (B, T) int64, B and T of any size, and gives last_hidden_state,
(B, T, D), and sentence_embedding, with all that follows the pooling in it. sentence-transformers, which pools
itself, takes the first.
"""

import importlib
import logging
import warnings
from collections.abc import Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tmft.checkpoints.save import weight_bytes
from tmft.checkpoints.st_folder import read_sentence_folder
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.embedding.prompts import Prompt
from tmft.embedding.saved import save
from tmft.errors import InputError
from tmft.packing import PackedBatch
from tmft.sentence_encoder import SentenceEncoder

FILE = "onnx/model.onnx"
INPUTS, OUTPUTS = ["input_ids", "attention_mask"], ["last_hidden_state", "sentence_embedding"]
LARGEST = 2**31 - 2**24  # bytes of one file of the format


class Graph(nn.Module):
    """A sentence encoder on padded batches, a sentence per row, as other software has them."""

    def __init__(self, model: SentenceEncoder):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T), (B, T) of 1 and 0 -> (B, T, D), (B, D)"""
        B, T = input_ids.shape
        number = torch.arange(1, B + 1, device=input_ids.device)[:, None]
        places = torch.arange(T, device=input_ids.device).expand(B, T)
        rows = PackedBatch(input_ids, attention_mask * number, places, B)
        hidden = self.model.hidden_states_of(rows)
        return hidden.float(), self.model.pool(hidden, rows)


def check_onnx(model: SentenceEncoder) -> SentenceEncoder:
    """Raises InputError if a model cannot become a graph, or the packages are not there."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        package(name)
    if model.tokenizer.bare:
        raise InputError("a static model is a table of words: there is nothing for onnx to compute", "as")
    if model.token_weights is not None and (model.token_weights.lead or model.token_weights.tail):
        raise InputError("onnx: tokens sentence counts from the end of each sentence, take another", "tokens")
    return model


def package(name: str):
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(f"onnx needs {name}: pip install onnx onnxscript onnxruntime") from None


@contextmanager
def quiet():
    """Without the exporter's remarks on operators of packages that are not there."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def write_onnx(model: SentenceEncoder, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """The folder of a model with onnx/model.onnx in place of the encoder's weights."""
    save(model, folder)
    (folder / "model.safetensors").unlink()
    graph = Graph(deepcopy(model).cpu().eval())
    graph.model.encoder.to(dtype)
    ids = torch.tensor([model.tokenize(["a"])[0]] * 2).repeat(1, 3)[:, :5]  # the sizes of an example, B = 2
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    batch, tokens = torch.export.Dim("batch", min=1, max=2**15), torch.export.Dim("tokens", min=2)
    shapes = {name: {0: batch, 1: tokens} for name in INPUTS}
    (folder / FILE).parent.mkdir()

    names = {"input_names": INPUTS, "output_names": OUTPUTS, "dynamic_shapes": shapes}
    told = {"dynamo": True, "verbose": False, "external_data": weight_bytes(graph) > LARGEST}
    with quiet(), torch.no_grad():
        torch.onnx.export(graph, (ids, mask), str(folder / FILE), **names, **told)


class OnnxEncoder:
    """What onnx/model.onnx computes, by ONNX Runtime: sentences in, embeddings out."""

    def __init__(self, folder: Path):
        said = read_sentence_folder(folder)
        runtime = package("onnxruntime")
        self.tokenizer = load_tokenizer(folder, said.lower_case, said.max_length)
        self.prompt, self.max_length = Prompt(said.prompt, self.tokenizer), said.max_length
        settings = runtime.SessionOptions()
        settings.log_severity_level = 3
        self.session = runtime.InferenceSession(str(folder / FILE), settings, ["CPUExecutionProvider"])

    def encode(self, sentences: Sequence[str], batch_size: int = 32) -> np.ndarray:
        """(N, D) float32. Sentences of a batch are of like length, and padded to the longest."""
        ids = self.prompt(list(sentences), self.max_length)[0]
        order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
        embeddings: list = [None] * len(ids)
        for first in range(0, len(ids), batch_size):
            batch = order[first : first + batch_size]
            tokens, mask = (np.zeros((len(batch), len(ids[batch[-1]])), dtype=np.int64) for _ in INPUTS)
            tokens += self.tokenizer.pad_id
            for row, n in enumerate(batch):
                tokens[row, : len(ids[n])], mask[row, : len(ids[n])] = ids[n], 1
            [vectors] = self.session.run(OUTPUTS[1:], dict(zip(INPUTS, (tokens, mask), strict=True)))
            for n, vector in zip(batch, vectors, strict=True):
                embeddings[n] = vector
        return np.stack(embeddings)
