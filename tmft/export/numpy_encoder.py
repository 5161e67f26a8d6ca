"""Encode sentences with numpy and tokenizers alone: the forward pass of BERT, ELECTRA and MPNet on one page.

This file is a part of each folder that is exported in the compact format, where its name is encode.py:

    python encode.py "A man plays the guitar." "Someone makes music."      prints their similarities
    python encode.py "A man plays the guitar."                             prints its embedding

    from encode import Encoder
    embeddings = Encoder("FOLDER").encode(["A man plays the guitar.", "Someone makes music."])

It needs the packages numpy and tokenizers. The folder is an ordinary model folder of sentence-transformers
(config.json, tokenizer.json, modules.json, ...), except that its weights are stored in 4 or 8 bits. In each
model.safetensors a matrix NAME of R rows and C columns is two tensors (version 1 of the layout):

    NAME.int4    (R, C / 2) uint8: two numbers from -8 to 7 in each byte, each with 8 added; that of the even
                 column is in the lower four bits. Or NAME.int8, (R, C) int8.
    NAME.scales  (R, groups) float16: a weight is its number times the scale of its group. int4 has groups of
                 32 columns (the last one may be narrower), int8 one group for each row.

All other tensors are float16. A folder that was saved with --dtype float16, where all are, is read as well.

Letters in this file: S sentences, T tokens of the longest of them, D hidden size, H heads, A = D / H.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

LAYOUT_VERSION = "1"
GROUP_SIZE = 32
BATCH_SIZE = 32  # sentences that are computed together; they are sorted by length first
DTYPES = {"U8": np.uint8, "I8": np.int8, "F16": np.float16}


class Encoder:
    """A sentence encoder in a folder. Raises ValueError, in one line, if the folder is damaged."""

    def __init__(self, folder: str | Path = "."):
        folder = Path(folder)
        try:
            self.read(folder)
            check(np.isfinite(self.encode(["a"])).all(), "the embeddings are not finite")
        except BaseException as error:  # whatever a damaged file leads to, also a panic in tokenizers
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise  # an interrupt
            reason = f"{error!r}" if isinstance(error, KeyError) else " ".join(str(error).split())
            raise ValueError(f"{folder}: {reason}") from None

    def read(self, folder: Path) -> None:
        """Read all files of the folder, and check that they say nothing that this page does not compute."""
        check(not (folder / "tmft.json").exists(), "tmft.json has settings that only tmft computes")
        side = read_json(folder, "tokenizer_config.json").get("truncation_side", "right")
        check(side == "right", "tokenizer_config.json truncates texts on the left")
        config = read_json(folder, "config.json")
        model_type = config["model_type"]
        check(model_type in ("bert", "electra", "mpnet"), f"model_type is {model_type!r}")
        check(config.get("is_decoder", False) is False, "is_decoder is not false: the model is causal")
        position_type = config.get("position_embedding_type", "absolute")
        check(position_type == "absolute", f"position_embedding_type is {position_type!r}")
        self.num_layers, self.num_heads = config["num_hidden_layers"], config["num_attention_heads"]
        check(config["hidden_act"] in HIDDEN_ACTIVATIONS, f"hidden_act is {config['hidden_act']!r}")
        self.epsilon, self.activation = config["layer_norm_eps"], HIDDEN_ACTIVATIONS[config["hidden_act"]]
        self.weights = read_weights(folder, "model.safetensors")
        if model_type == "mpnet":
            self.weights = rename_mpnet_weights(self.weights)
        stored_layers = {name.split(".")[2] for name in self.weights if name.startswith("encoder.layer.")}
        check(len(stored_layers) == self.num_layers, f"config.json has {self.num_layers} layers")

        modules = read_json(folder, "modules.json")
        kinds = [module["type"].removeprefix("sentence_transformers.models.") for module in modules]
        begins_well = kinds[:2] == ["Transformer", "Pooling"] and modules[0]["path"] == ""
        check(begins_well, f"modules.json begins with {kinds[:2]}, not with a Transformer and a Pooling")
        settings = read_json(folder, f"{modules[1]['path']}/config.json")
        settings.pop("word_embedding_dimension", None)
        modes = [name for name, value in settings.items() if value and name != "include_prompt"]
        is_known = modes in (["pooling_mode_cls_token"], ["pooling_mode_mean_tokens"])
        check(is_known, f"the Pooling has {', '.join(modes)}")
        check(settings.get("include_prompt", True), "the Pooling leaves prompts out")
        self.pools_first_token = modes == ["pooling_mode_cls_token"]
        self.modules: list[Callable[[np.ndarray], np.ndarray]] = []  # what follows the pooling: functions
        for kind, path in zip(kinds[2:], [module["path"] for module in modules[2:]], strict=True):
            if kind == "Dense":
                weights = read_weights(folder, f"{path}/model.safetensors")
                activation = read_json(folder, f"{path}/config.json")["activation_function"]
                self.modules.append(dense(weights, DENSE_ACTIVATIONS[activation]))
            elif kind == "Normalize":
                self.modules.append(lambda x: x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12))
            else:
                raise ValueError(f"modules.json has the module {kind}, expected Dense or Normalize")

        settings = read_json(folder, "config_sentence_transformers.json")
        self.truncate_dim = settings.get("truncate_dim")
        self.prompts, self.default_prompt_name = settings["prompts"], settings["default_prompt_name"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        limits = read_json(folder, "sentence_bert_config.json")
        check(limits.get("do_lower_case", False) is False, "sentence_bert_config.json has do_lower_case")
        self.tokenizer.enable_truncation(limits["max_seq_length"])
        self.tokenizer.no_padding()

    def encode(self, sentences: Sequence[str], prompt_name: str | None = None) -> np.ndarray:
        """Return the embeddings of N sentences, (N, dimensions) float32.

        sentences: a list of strings. prompt_name: one of the model's prompts, which is put before each of
        them; None is the default prompt, if the model has one.
        """
        if not isinstance(sentences, list | tuple) or not all(isinstance(text, str) for text in sentences):
            raise ValueError("sentences: give a list of strings")
        name = prompt_name or self.default_prompt_name
        if name is not None and name not in self.prompts:
            raise ValueError(f"prompt_name {name!r}: choose one of {', '.join(self.prompts)}")
        prompt = self.prompts[name] if name else ""
        token_ids = [
            x.ids for x in self.tokenizer.encode_batch([prompt + sentence for sentence in sentences])
        ]
        order = sorted(range(len(token_ids)), key=lambda n: len(token_ids[n]))
        batches = [order[start : start + BATCH_SIZE] for start in range(0, len(order), BATCH_SIZE)]
        embeddings = [self.embed([token_ids[n] for n in batch]) for batch in batches]
        if not embeddings:
            return self.encode(["a"])[:0]
        return np.concatenate(embeddings)[np.argsort(order)]

    def embed(self, token_ids: list[list[int]]) -> np.ndarray:
        """Return the embeddings of the S sentences of a batch, (S, dimensions). token_ids: S lists."""
        T = max(map(len, token_ids))
        ids = np.array([row + [0] * (T - len(row)) for row in token_ids])  # (S, T)
        mask = np.array(
            [[1.0] * len(row) + [0.0] * (T - len(row)) for row in token_ids], np.float32
        )  # (S, T)
        hidden = self.hidden_states(ids, mask)  # (S, T, D)
        if self.pools_first_token:
            embeddings = hidden[:, 0]
        else:
            embeddings = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        for module in self.modules:
            embeddings = module(embeddings)
        return embeddings[:, : self.truncate_dim]

    def hidden_states(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the output of the last layer, (S, T, D). ids, mask: (S, T); the mask is 0 at padding."""
        words, positions, types = (
            self.weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        )
        hidden = self.norm(words[ids] + positions[: ids.shape[1]] + types[0], "embeddings.LayerNorm")
        if "embeddings_project.weight" in self.weights:  # an ELECTRA whose embeddings are narrower than D
            hidden = self.linear(hidden, "embeddings_project")
        score_bias = (mask[:, None, None, :] - 1) * 1e9  # (S, 1, 1, T): nobody attends to padding
        if RELATIVE_BIAS in self.weights:  # of an MPNet
            score_bias = score_bias + relative_bias(self.weights[RELATIVE_BIAS], ids.shape[1])  # (S, H, T, T)
        for n in range(self.num_layers):
            layer = f"encoder.layer.{n}"
            attended = self.attention(hidden, score_bias, f"{layer}.attention")
            hidden = self.norm(hidden + attended, f"{layer}.attention.output.LayerNorm")
            inner = self.activation(self.linear(hidden, f"{layer}.intermediate.dense"))
            outputs = self.linear(inner, f"{layer}.output.dense")
            hidden = self.norm(hidden + outputs, f"{layer}.output.LayerNorm")
        return hidden

    def attention(self, hidden: np.ndarray, score_bias: np.ndarray, name: str) -> np.ndarray:
        """Return the output of multi-head self-attention, (S, T, D): softmax(Q K^T / sqrt(A)) V."""
        S, T, D = hidden.shape
        q, k, v = (
            self.linear(hidden, f"{name}.self.{part}").reshape(S, T, self.num_heads, -1).transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )  # (S, H, T, A)
        scores = q @ k.transpose(0, 1, 3, 2) / np.float32(q.shape[-1]) ** 0.5 + score_bias  # (S, H, T, T)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        context = scores / scores.sum(-1, keepdims=True) @ v  # (S, H, T, A)
        heads_side_by_side = context.transpose(0, 2, 1, 3).reshape(S, T, D)
        return self.linear(heads_side_by_side, f"{name}.output.dense")

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        """Return x W^T + b. x: (..., inputs)."""
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        """Return LayerNorm(x): mean 0 and variance 1, then a learned scale and shift."""
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.epsilon))
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


# --------------------------------------------------------------------------------------------------- MPNet

RELATIVE_BIAS = "encoder.relative_attention_bias.weight"  # (32, H)
# Distances to tokens before are put into 16 buckets, which begin at these distances; 16 more are for the
# tokens that follow.
BUCKET_STARTS = [*range(9), 12, 16, 23, 32, 46, 64, 91]
# What the names of MPNet's attention have in place of BERT's
MPNET_PARTS = {
    "attention.attn.q.": "attention.self.query.",
    "attention.attn.k.": "attention.self.key.",
    "attention.attn.v.": "attention.self.value.",
    "attention.attn.o.": "attention.output.dense.",
    "attention.LayerNorm.": "attention.output.LayerNorm.",
}


def rename_mpnet_weights(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the weights of an MPNet with the names and rows that those of a BERT have."""
    renamed = {}
    for name, weight in weights.items():
        for part, bert_part in MPNET_PARTS.items():
            name = name.replace(part, bert_part)
        renamed[name] = weight
    positions = weights["embeddings.position_embeddings.weight"]
    renamed["embeddings.position_embeddings.weight"] = positions[2:]  # two rows are for no position
    renamed["embeddings.token_type_embeddings.weight"] = np.zeros_like(positions[:1])
    return renamed


def relative_bias(table: np.ndarray, T: int) -> np.ndarray:
    """Return the biases of each head for each pair of tokens, by their distance, (H, T, T)."""
    distance = np.arange(T) - np.arange(T)[:, None]
    buckets = np.searchsorted(BUCKET_STARTS, abs(distance), side="right") - 1 + 16 * (distance > 0)
    return table[buckets].transpose(2, 0, 1)


# --------------------------------------------------------------------------------------------- activations


def erf(x: np.ndarray) -> np.ndarray:
    """Return the error function with an error of at most 1.5e-7 (Abramowitz and Stegun 7.1.26)."""
    t = 1 / (1 + np.float32(0.3275911) * np.abs(x))
    polynomial = np.float32(0)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        polynomial = (polynomial + np.float32(coefficient)) * t
    return np.sign(x) * (1 - polynomial * np.exp(-x * x))


HIDDEN_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": lambda x: x * np.float32(0.5) * (1 + erf(x * np.float32(0.5**0.5))),
    "relu": lambda x: np.maximum(x, 0),
}
DENSE_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "torch.nn.modules.activation.Tanh": np.tanh,
    "torch.nn.modules.linear.Identity": lambda x: x,
}


def dense(
    weights: dict[str, np.ndarray], activation: Callable[[np.ndarray], np.ndarray]
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function of a Dense module: activation(x W^T + b)."""
    weight, bias = weights["linear.weight"], weights.get("linear.bias", np.float32(0))
    return lambda x: activation(x @ weight.T + bias)


# --------------------------------------------------------------------------------------------- reading files


def check(is_right: object, problem: str) -> None:
    """Raise ValueError with the problem if something is not right."""
    if not is_right:
        raise ValueError(problem)


def read_json(folder: Path, name: str) -> Any:
    """Return the content of a JSON file."""
    return json.loads((folder / name).read_text(encoding="utf-8"))


def read_weights(folder: Path, file_name: str) -> dict[str, np.ndarray]:
    """Return {name: float32 array} for the weights in a compact safetensors file.

    The file is the length of a JSON text (8 bytes), this text, which says where each tensor is, and the
    tensors, one after the other. A file that names no layout is one in float16.
    """
    content = (folder / file_name).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length].decode())
    metadata, data = header.pop("__metadata__", {}), memoryview(content)[8 + length :]
    version = metadata.get("compact_layout", LAYOUT_VERSION)
    check(
        version == LAYOUT_VERSION, f"{file_name} has the layout {version}, this file reads {LAYOUT_VERSION}"
    )
    stored = {}
    for name, tensor in header.items():
        part = slice(*tensor["data_offsets"])
        stored[name] = np.frombuffer(data[part], DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
    weights = {}
    for name, tensor in stored.items():
        matrix, _, kind = name.rpartition(".")
        if kind in ("int4", "int8"):
            check(f"{matrix}.scales" in stored, f"{file_name} has no scales of {matrix}")
            weights[matrix] = unpack(tensor, stored[f"{matrix}.scales"], matrix)
        elif kind != "scales":
            weights[name] = tensor.astype(np.float32)
    for name, weight in weights.items():
        check(np.isfinite(weight).all(), f"{file_name}: {name} is not finite")
    return weights


def unpack(numbers: np.ndarray, scales: np.ndarray, name: str) -> np.ndarray:
    """Return a matrix, (R, C) float32, from its numbers and scales, see the top of this file."""
    group_size = numbers.shape[1]
    if numbers.dtype == np.uint8:  # int4: two numbers in a byte
        numbers = np.stack([numbers & 15, numbers >> 4], axis=2).reshape(len(numbers), -1).astype(np.int8) - 8
        group_size = GROUP_SIZE
    R, C = numbers.shape
    check(scales.shape == (R, -(-C // group_size)), f"{name} has no scales of the right shape")
    return numbers * np.repeat(scales.astype(np.float32), group_size, axis=1)[:, :C]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit('usage: python encode.py "one sentence" "another sentence" ...')
    try:
        embeddings = Encoder(Path(__file__).parent).encode(sys.argv[1:])
    except ValueError as error:
        print(f"encode.py: {error}", file=sys.stderr)
        sys.exit(2)
    if len(embeddings) == 1:
        print(f"[{', '.join(map(str, embeddings[0]))}]")
        sys.exit()
    embeddings = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    for sentence, similarities in zip(sys.argv[1:], embeddings @ embeddings.T, strict=True):
        print(*(f"{similarity:6.3f}" for similarity in similarities), sentence)
