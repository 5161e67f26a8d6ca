"""Export a model in the compact format: weights in 4 or 8 bits, and an encoder that needs no torch.

tmft/checkpoints/compact.py describes the files, and tmft/export/numpy_encoder.py, which is copied to the
folder as encode.py, computes the embeddings.
"""

import shutil
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tmft.checkpoints.compact import LAYOUT_KEY, LAYOUT_VERSION, pack_weights
from tmft.checkpoints.st_folder import prompt_templates
from tmft.embedding.modules import Dense, Normalize
from tmft.errors import InputError
from tmft.export import numpy_encoder
from tmft.io.atomic import write_file
from tmft.sentence_encoder import SentenceEncoder

ENCODER_FILE = "encode.py"


def require_compact_support(model: SentenceEncoder) -> SentenceEncoder:
    """Return the model unchanged. Raises InputError if numpy_encoder.py cannot compute it."""
    config = model.encoder.config
    activations = [module.activation for module in model.head_modules if isinstance(module, Dense)]
    dense_activations = {f"{type(one).__module__}.{type(one).__name__}" for one in activations}
    problems = {
        f"pools by {model.pooling}": model.pooling not in ("mean", "cls"),
        "mixes several layers": model.layers is not None,
        "weights tokens": model.token_weights is not None,
        "is causal": config.predicts_next_token,
        "leaves prompts out of the pooling": not model.include_prompt,
        "truncates texts on the left": model.tokenizer.truncation_side != "right",
        f"has the activation {config.hidden_act}": config.hidden_act not in numpy_encoder.HIDDEN_ACTIVATIONS,
        "has a Dense with an activation that is not Tanh": not dense_activations
        <= numpy_encoder.DENSE_ACTIVATIONS.keys(),
        "has other modules than Dense and Normalize": not all(
            isinstance(m, Dense | Normalize) for m in model.head_modules
        ),
        "has weights beyond 65504, the largest number of float16": not all(
            weight.half().isfinite().all() for weight in model.state_dict().values()
        ),
        "has prompts that are no prefixes": bool(prompt_templates(model)),
    }
    if found := [problem for problem, is_there in problems.items() if is_there]:
        problem = f"format compact: the model {found[0]}, which {ENCODER_FILE} cannot compute"
        raise InputError(f"{problem}: choose `format` onnx", "format")
    return model


def write_compact(model: SentenceEncoder, folder: Path, dtype: torch.dtype) -> None:
    """Write a model folder with float32 weights, which `quantize_compact` converts, and the encoder."""
    model.save_pretrained(folder, dtype)
    shutil.copyfile(numpy_encoder.__file__, folder / ENCODER_FILE)


def quantize_compact(folder: Path, dtype: str) -> None:
    """Convert the weights in a model folder to "int4" or "int8"."""
    for path in folder.rglob("model.safetensors"):
        weights = load_file(path)
        packed = pack_weights(weights, dtype)
        write_file(path, partial(save_file, packed, metadata={LAYOUT_KEY: LAYOUT_VERSION}))
