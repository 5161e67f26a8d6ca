"""What embeddings depend on: a record of the model, kept beside its embeddings, and a digest of their text.

Two models with equal records give equal embeddings, up to the last digits, in which devices differ.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from tmft.device import PRECISIONS
from tmft.io.files import digest
from tmft.io.formatting import to_json
from tmft.sentence_encoder import SentenceEncoder


def model_record(model: SentenceEncoder, prompt: str | None = None) -> dict[str, object]:
    """Return everything in a model that its embeddings depend on, as {name: value}, to be written as JSON.

    prompt: the prompt that the embeddings are made with; None is the default prompt of the model.
    Weights, configuration, tokenizer and token weights are given by a digest. The folder or hub id of the
    model is not part of it: a copy is the same model, and the same folder may get other weights.
    """
    precision = name_precision(model)
    encoder, tokenizer, weights = model.encoder, model.tokenizer, model.token_weights
    tokenizer_settings = [tokenizer.special_tokens, tokenizer.add_special_tokens, tokenizer.pad_id]
    modules = [[type(module).__name__, module.config] for module in model.head_modules]
    token_weights = None
    if weights is not None:
        token_weights = [digest_tensor(weights.table), weights.prefix_length, weights.suffix_length]
    return {
        "weights": digest_weights(model),
        "config": digest(to_json([type(encoder).__name__, asdict(encoder.config)])),
        "num_layers": len(encoder.layers),
        "layers": list(model.layers) if model.layers else None,
        "pooling": model.pooling,
        "token_weights": token_weights,
        "modules": modules,
        "dimensions": model.dimensions,
        "prompt": model.prompt if prompt is None else prompt,
        "max_length": model.max_length,
        "precision": precision,
        "tokenizer": digest(tokenizer.backend.to_str() + to_json(tokenizer_settings)),
        **({"reproducible": True} if model.reproducible else {}),
    }


def name_precision(model: SentenceEncoder) -> str:
    """Return the precision in which a model encodes: "int8", or the name of its dtype in PRECISIONS."""
    if any(hasattr(module, "weight_digest") for module in model.modules()):  # of quantization.py
        return "int8"
    names = {dtype: name for name, dtype in PRECISIONS.items()}
    return names.get(model.dtype, str(model.dtype))


def names_that_differ(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the names of the entries in which two records, before and now, differ."""
    return [name for name in {**now, **before} if name not in before or before[name] != now.get(name)]


def digest_weights(model: nn.Module) -> str:
    """Return the digest of all parameters and buffers of a model, with their names.

    Layers in 8 bits, whose weights are in a form of the library's own, have a digest of their own.
    """
    digests = {name: digest_tensor(tensor) for name, tensor in model.state_dict().items()}
    of_modules = {name: getattr(module, "weight_digest", None) for name, module in model.named_modules()}
    digests |= {name: value for name, value in of_modules.items() if value is not None}
    return digest("".join(f"{name} {value}\n" for name, value in digests.items()))


def digest_tensor(tensor: torch.Tensor) -> str:
    """Return the digest of a tensor: its dtype, shape and values."""
    values = tensor.detach().cpu().contiguous()
    result = hashlib.sha256(f"{values.dtype} {list(values.shape)}\n".encode())
    result.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return result.hexdigest()


class LineDigest:
    """The SHA-256 of the lines that it has passed on, each with a line feed at its end.

    After a line feed inside a text, which a cell of a table may have, comes a zero byte, which no text has. A
    text has the same digest with or without compression, byte order mark, and "\\r" at the ends of lines.
    """

    def __init__(self) -> None:
        self._hash, self.num_lines = hashlib.sha256(), 0

    def __call__(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines, and add each of them to the digest."""
        for line in lines:
            self.update(line)
            yield line

    def update(self, line: str) -> None:
        """Add a line to the digest."""
        self._hash.update(line.replace("\n", "\n\0").encode(errors="surrogatepass"))
        self._hash.update(b"\n")
        self.num_lines += 1

    @property
    def hexdigest(self) -> str:
        """Return the digest of the lines so far, in hexadecimal digits."""
        return self._hash.hexdigest()

    @property
    def digest(self) -> bytes:
        """Return the digest of the lines so far."""
        return self._hash.digest()
