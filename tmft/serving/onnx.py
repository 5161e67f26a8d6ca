"""Export a model as one ONNX graph, and run it with ONNX Runtime.

The graph takes input_ids and attention_mask, (B, T) int64 with any B and T. It returns last_hidden_state,
(B, T, D), and sentence_embedding, (B, D), which is the result of pooling and all modules that follow it.
sentence-transformers uses only last_hidden_state and pools it itself. The packages onnx, onnxscript and
onnxruntime are imported only when they are needed.

Letters in this file: N sentences, B sentences in a batch, T tokens, D dimensions of an embedding.
"""

import importlib
import logging
import warnings
from collections.abc import Sequence
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
from io import StringIO
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn

from tmft.checkpoints.save import weight_bytes
from tmft.checkpoints.st_folder import read_st_folder
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.embedding.prompts import Prompt, choose_prompt
from tmft.errors import InputError
from tmft.packing import PackedBatch
from tmft.sentence_encoder import SentenceEncoder

ONNX_FILE = "onnx/model.onnx"
INPUTS, OUTPUTS = ["input_ids", "attention_mask"], ["last_hidden_state", "sentence_embedding"]
# Weights of more bytes are stored in a file next to the graph, since an ONNX file may have at most 2 GiB.
MAX_FILE_SIZE = 2**31 - 2**24


class OnnxModel(nn.Module):
    """A SentenceEncoder that takes padded batches, with one sentence per row, instead of packed ones."""

    def __init__(self, model: SentenceEncoder):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last hidden state, (B, T, D), and the sentence embeddings, (B, D), both float32.

        input_ids: (B, T); attention_mask: (B, T), 1 at tokens and 0 at padding; both int64.
        """
        B, T = input_ids.shape
        sentence_ids = attention_mask * torch.arange(1, B + 1, device=input_ids.device)[:, None]
        position_ids = torch.arange(T, device=input_ids.device).expand(B, T)
        batch = PackedBatch(input_ids, sentence_ids, position_ids, B)
        hidden = self.model.hidden_states_of(batch)
        return hidden.float(), self.model.pool(hidden, batch)


def check_onnx(model: SentenceEncoder) -> SentenceEncoder:
    """Return the model unchanged. Raises InputError if ONNX cannot express it, or if a package is missing."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        require_package(name)
    if not model.tokenizer.add_special_tokens:
        raise InputError(
            "format onnx: a static model only looks up word vectors: choose sentence-transformers", "format"
        )
    if model.token_weights is not None and (
        model.token_weights.prefix_length or model.token_weights.suffix_length
    ):
        problem = "token_weights no-prompt count from the end of each sentence, which the graph cannot do"
        raise InputError(f"format onnx: {problem}: choose other token weights", "format", "token_weights")
    return model


def require_package(name: str) -> ModuleType:
    """Import and return the package `name`.

    Raises InputError, with the way to install it, if it is missing.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(
            f"format onnx needs {name}: pip install onnx onnxscript onnxruntime", "format"
        ) from None


@contextmanager
def suppress_exporter_warnings():
    """Suppress what torch.onnx writes in a with block: warnings about packages that are not installed, and
    for some models the whole graph on stderr. An exception still leaves the block."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def write_onnx(model: SentenceEncoder, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write a model into a folder as save_pretrained does, but with onnx/model.onnx for model.safetensors.

    dtype: type of the weights of the encoder.
    """
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    graph = OnnxModel(deepcopy(model).cpu().eval())
    graph.model.encoder.to(dtype)
    ids = torch.tensor([model.tokenize(["a"])[0]] * 2).repeat(1, 3)[:, :5]  # an example for tracing, (2, 5)
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    batch, tokens = torch.export.Dim("batch", min=1, max=2**15), torch.export.Dim("tokens", min=2)
    shapes = {name: {0: batch, 1: tokens} for name in INPUTS}
    (folder / ONNX_FILE).parent.mkdir()

    names = {"input_names": INPUTS, "output_names": OUTPUTS, "dynamic_shapes": shapes}
    options = {"dynamo": True, "verbose": False, "external_data": weight_bytes(graph) > MAX_FILE_SIZE}
    with suppress_exporter_warnings(), torch.no_grad():
        torch.onnx.export(graph, (ids, mask), str(folder / ONNX_FILE), **names, **options)


class OnnxEncoder:
    """A model that runs in ONNX Runtime on the CPU. folder: a folder that `write_onnx` has written."""

    def __init__(self, folder: Path):
        config = read_st_folder(folder)
        runtime = require_package("onnxruntime")
        self.tokenizer = load_tokenizer(folder, config.lower_case, config.max_length)
        self.prompts, self.default_prompt_name = config.prompts, config.default_prompt_name
        self.max_length = config.max_length
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # errors only
        self.session = runtime.InferenceSession(str(folder / ONNX_FILE), options, ["CPUExecutionProvider"])

    def encode(
        self,
        sentences: Sequence[str],
        batch_size: int = 32,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> np.ndarray:
        """Return the embeddings of N sentences, (N, D) float32.

        batch_size: number of sentences per batch; sentences of similar length share a batch, to save padding.
        prompt_name, prompt: as in `SentenceEncoder.encode`.
        """
        text = choose_prompt(self.prompts, self.default_prompt_name, prompt_name, prompt)
        ids = Prompt(text, self.tokenizer)(list(sentences), self.max_length)[0]
        order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
        embeddings: list = [None] * len(ids)
        for first in range(0, len(ids), batch_size):
            batch = order[first : first + batch_size]
            tokens, mask = (np.zeros((len(batch), len(ids[batch[-1]])), dtype=np.int64) for _ in INPUTS)
            tokens += self.tokenizer.pad_id
            for row, n in enumerate(batch):
                tokens[row, : len(ids[n])], mask[row, : len(ids[n])] = ids[n], 1
            [batch_embeddings] = self.session.run(OUTPUTS[1:], dict(zip(INPUTS, (tokens, mask), strict=True)))
            for n, embedding in zip(batch, batch_embeddings, strict=True):
                embeddings[n] = embedding
        return np.stack(embeddings)
