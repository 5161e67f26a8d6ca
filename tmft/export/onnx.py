"""Export a model as one ONNX graph, and run it with ONNX Runtime.

The graph takes input_ids and attention_mask, (B, T) int64 with any B and T. It returns last_hidden_state,
(B, T, D), and sentence_embedding, (B, D), which is the result of pooling and all modules that follow it.
sentence-transformers uses only last_hidden_state and pools it itself. The packages onnx, onnxscript and
onnxruntime are imported only when they are needed.

Letters in this file: N sentences, B sentences in a batch, T tokens, D dimensions of an embedding.
"""

import importlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
from io import StringIO
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn

from tmft.checkpoints.model_folder import ModelFolder
from tmft.checkpoints.save import weight_bytes
from tmft.checkpoints.st_folder import read_settings
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.embedding.prompts import Prompt, choose_prompt
from tmft.errors import InputError
from tmft.packing import PackedBatch
from tmft.sentence_encoder import SentenceEncoder

INPUTS, OUTPUTS = ["input_ids", "attention_mask"], ["last_hidden_state", "sentence_embedding"]
ONNX_FILE = "onnx/model.onnx"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")  # what is needed in addition to the packages of tmft
# Weights of more bytes are stored in a file next to the graph, since an ONNX file may have at most 2 GiB.
MAX_FILE_SIZE = 2**31 - 2**24
BATCH_SIZE = 32  # sentences that are encoded together


class OnnxModel(nn.Module):
    """A SentenceEncoder that takes padded batches, with one sentence per row, instead of packed ones."""

    def __init__(self, model: SentenceEncoder):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last hidden state, (B, T, D), and the sentence embeddings, (B, D), both float32.

        input_ids: (B, T); attention_mask: (B, T), 1 at tokens and 0 at padding; both int64.
        """
        B, _ = input_ids.shape  # len() would fix the number of rows of the graph
        sentence_ids = attention_mask * torch.arange(1, B + 1, device=input_ids.device)[:, None]
        position_ids = (attention_mask.cumsum(1) - 1).clamp(min=0)  # padding may be on the left
        batch = PackedBatch(input_ids, sentence_ids, position_ids, B)
        hidden = self.model.hidden_states_of(batch)
        return hidden.float(), self.model.pool(hidden, batch)


def require_onnx_support(model: SentenceEncoder) -> SentenceEncoder:
    """Return the model unchanged. Raises InputError if a graph cannot express it, or a package is missing."""
    for package in PACKAGES:
        require_package(package)
    weights = model.token_weights
    problems = {
        "a static model only looks up word vectors, which needs no graph": not (
            model.tokenizer.add_special_tokens
        ),
        "token_weights no-prompt count from the end of each sentence, which the graph cannot do": (
            weights is not None and (weights.prefix_length or weights.suffix_length)
        ),
        "this model leaves prompts out of the pooling, and a graph does not know how long a prompt is": not (
            model.include_prompt
        ),
    }
    for problem, is_there in problems.items():
        if is_there:
            raise InputError(f"{problem}: choose `format` sentence-transformers", "format", "token_weights")
    return model


def require_package(package_name: str) -> ModuleType:
    """Import and return a package. Raises an InputError that names PACKAGES if it is missing."""
    try:
        return importlib.import_module(package_name)
    except ImportError:
        needed = f"format onnx needs {package_name}: pip install {' '.join(PACKAGES)}"
        raise InputError(needed, "format") from None


@contextmanager
def suppress_exporter_messages() -> Iterator[None]:
    """Suppress what torch.onnx writes in a with block: that packages are not installed, and whole graphs."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)


def write_onnx(model: SentenceEncoder, folder: Path, dtype: str) -> None:
    """Write a model into a folder as save_pretrained does, but with a graph for model.safetensors."""
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    graph = OnnxModel(deepcopy(model).cpu().eval())
    graph.model.encoder.to(getattr(torch, dtype))
    ids = torch.tensor([model.tokenize(["a"])[0]] * 2).repeat(1, 3)[:, :5]  # an example for tracing, (2, 5)
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    batch, tokens = torch.export.Dim("batch", min=1, max=2**15), torch.export.Dim("tokens", min=2)
    (folder / ONNX_FILE).parent.mkdir()
    with suppress_exporter_messages(), torch.no_grad():
        graph(ids, mask)  # raises InputError for what the model refuses, such as a T5 in float16
        torch.onnx.export(
            graph,
            (ids, mask),
            str(folder / ONNX_FILE),
            input_names=INPUTS,
            output_names=OUTPUTS,
            dynamic_shapes={name: {0: batch, 1: tokens} for name in INPUTS},
            dynamo=True,
            verbose=False,
            external_data=weight_bytes(graph) > MAX_FILE_SIZE,
        )


def embed_with_onnx(folder: Path, sentences: Sequence[str]) -> np.ndarray:
    """Return the embeddings of N sentences by the graph in a folder, (N, D) float32, on the CPU.

    The sentences get the default prompt of the model.
    """
    model_folder = ModelFolder(folder)
    config = read_settings(model_folder)
    max_length = config.max_length
    assert max_length is not None  # write_onnx has stated it
    tokenizer = load_tokenizer(model_folder, config.lower_case, max_length)
    prompt = Prompt(choose_prompt(config.prompts, config.default_prompt_name), tokenizer)
    token_ids = prompt([*sentences], max_length)[0]
    runtime = require_package("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    session = runtime.InferenceSession(str(folder / ONNX_FILE), options, ["CPUExecutionProvider"])
    batches = (token_ids[start : start + BATCH_SIZE] for start in range(0, len(token_ids), BATCH_SIZE))
    inputs = (padded_batch(batch, tokenizer.pad_id) for batch in batches)
    return np.concatenate([session.run(OUTPUTS[1:], one)[0] for one in inputs])


def padded_batch(token_ids: Sequence[list[int]], pad_id: int) -> dict[str, np.ndarray]:
    """Return the inputs of the graph for B sentences: input_ids and attention_mask, (B, T) int64."""
    ids = np.full((len(token_ids), max(map(len, token_ids))), pad_id)
    mask = np.zeros_like(ids)
    for row, sentence in enumerate(token_ids):
        ids[row, : len(sentence)], mask[row, : len(sentence)] = sentence, 1
    return dict(zip(INPUTS, (ids, mask), strict=True))
