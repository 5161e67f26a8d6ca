"""What embeddings depend on: a record of the model, kept beside its embeddings, and a digest of their text.

Two models with equal records give equal embeddings, up to the last digits, in which devices differ.
"""

import hashlib
from dataclasses import asdict
from typing import Any

import torch

from tmft.device import PRECISIONS
from tmft.io.files import digest
from tmft.io.formatting import to_json
from tmft.sentence_encoder import SentenceEncoder


def model_record(model: SentenceEncoder, prompt: str | None = None) -> dict[str, Any]:
    """Return everything in a model that its embeddings depend on, as {name: value}, to be written as JSON.

    prompt: the prompt that the embeddings are made with; None is the default prompt of the model.
    Weights, configuration, tokenizer and token weights are given by a digest. The folder or hub id of the
    model is not part of it: a copy is the same model, and the same folder may get other weights.
    """
    encoder, tokenizer, weights = model.encoder, model.tokenizer, model.token_weights
    digests = {name: digest_tensor(tensor) for name, tensor in model.state_dict().items()}
    # of layers in 8 bits (tmft/export/quantization.py), whose weights are in a form of the library's own
    int8_digests = {
        name: module.weight_digest
        for name, module in model.named_modules()
        if hasattr(module, "weight_digest")
    }
    digests |= int8_digests
    precisions = {dtype: name for name, dtype in PRECISIONS.items()}
    tokenizer_settings = [tokenizer.special_tokens, tokenizer.add_special_tokens, tokenizer.pad_id]
    token_weights = None
    if weights is not None:
        token_weights = [digest_tensor(weights.table), weights.prefix_length, weights.suffix_length]
    return {
        "weights": digest("".join(f"{name} {value}\n" for name, value in digests.items())),
        "config": digest(to_json([type(encoder).__name__, asdict(encoder.config)])),
        "num_layers": len(encoder.layers),
        "layers": list(model.layers) if model.layers else None,
        "pooling": model.pooling,
        "token_weights": token_weights,
        "modules": [[type(module).__name__, module.config] for module in model.head_modules],
        "dimensions": model.dimensions,
        "prompt": model.prompt if prompt is None else prompt,
        "max_length": model.max_length,
        "precision": "int8" if int8_digests else precisions.get(model.dtype, str(model.dtype)),
        "tokenizer": digest(tokenizer.backend.to_str() + to_json(tokenizer_settings)),
        **({"reproducible": True} if model.reproducible else {}),
    }


def names_that_differ(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the names of the entries in which two records, before and now, differ."""
    return [name for name in {**now, **before} if name not in before or before[name] != now.get(name)]


def digest_tensor(tensor: torch.Tensor) -> str:
    """Return the digest of a tensor: its dtype, shape and values."""
    values = tensor.detach().cpu().contiguous()
    result = hashlib.sha256(f"{values.dtype} {list(values.shape)}\n".encode())
    result.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return result.hexdigest()


def line_bytes(line: str) -> bytes:
    """Return the bytes of a line, with a line feed at its end, that are hashed for the digest of a text.

    After a line feed inside a text, which a cell of a table may have, comes a zero byte, which no text has. A
    text has the same digest with or without compression, byte order mark, and "\\r" at the ends of lines.
    """
    return line.replace("\n", "\n\0").encode(errors="surrogatepass") + b"\n"
