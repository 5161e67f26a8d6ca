"""Export a BERT as one GGUF file, which llama.cpp, ollama and LM Studio read.

The file has the encoder, the pooling and the vocabulary; llama.cpp has a WordPiece of its own, for text in
lower case. The package gguf writes the file, and llama-cpp-python opens it.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from safetensors.torch import load_file

from tmft.embedding.modules import Normalize
from tmft.errors import InputError
from tmft.export.onnx import require_package
from tmft.sentence_encoder import SentenceEncoder

GGUF_FILE = "model.gguf"
# fmt: off
# Module of a BERT checkpoint -> name in GGUF; {n} is the number of a layer.
GGUF_NAMES = {
    "embeddings.word_embeddings":                   "token_embd",
    "embeddings.position_embeddings":               "position_embd",
    "embeddings.token_type_embeddings":             "token_types",
    "embeddings.LayerNorm":                         "token_embd_norm",
    "encoder.layer.{n}.attention.self.query":       "blk.{n}.attn_q",
    "encoder.layer.{n}.attention.self.key":         "blk.{n}.attn_k",
    "encoder.layer.{n}.attention.self.value":       "blk.{n}.attn_v",
    "encoder.layer.{n}.attention.output.dense":     "blk.{n}.attn_output",
    "encoder.layer.{n}.attention.output.LayerNorm": "blk.{n}.attn_output_norm",
    "encoder.layer.{n}.intermediate.dense":         "blk.{n}.ffn_up",
    "encoder.layer.{n}.output.dense":               "blk.{n}.ffn_down",
    "encoder.layer.{n}.output.LayerNorm":           "blk.{n}.layer_output_norm",
}
# fmt: on
# What llama.cpp does with a text, in the words of tokenizer.json; there strip_accents may be null, too.
NORMALIZER = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True}
SPECIAL_TOKENS = {"[CLS]": "bos", "[SEP]": "sep", "[UNK]": "unk", "[PAD]": "pad", "[MASK]": "mask"}


def require_gguf_support(model: SentenceEncoder) -> SentenceEncoder:
    """Return the model unchanged, a BERT. Raises InputError if llama.cpp would compute something else."""
    config = model.encoder.config
    problems = {
        "has no layer": not model.encoder.layers,
        f"pools by {model.pooling}": model.pooling not in ("mean", "cls"),
        "mixes several layers": model.layers is not None,
        "weights tokens": model.token_weights is not None,
        "is causal": config.predicts_next_token,
        "leaves prompts out of the pooling": not model.include_prompt,
        "has a default prompt": model.default_prompt_name is not None,
        "keeps the first dimensions alone": model.truncate_dim is not None,
        f"has the activation {config.hidden_act}": config.hidden_act != "gelu",
        "has a Dense": not all(isinstance(module, Normalize) for module in model.head_modules),
    }
    if found := [problem for problem, is_there in problems.items() if is_there]:
        problem = f"format gguf: the model {found[0]}, which the file cannot express"
        raise InputError(f"{problem}: choose `format` onnx", "format")
    return model


def write_gguf(model: SentenceEncoder, folder: Path, dtype: torch.dtype) -> None:
    """Write model.gguf: the settings, the vocabulary, and the weights; matrices have the dtype."""
    gguf = require_package("gguf", "gguf")
    with TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        weights = load_file(Path(scratch, "model.safetensors"))
        tokens = wordpieces(json.loads(Path(scratch, "tokenizer.json").read_text("utf-8")))
    config = model.encoder.config
    tokens += [f"[unused-{number}]" for number in range(len(tokens), config.vocab_size)]
    writer = gguf.GGUFWriter(folder / GGUF_FILE, "bert")
    writer.add_name(Path(model.source).name or "model")
    writer.add_context_length(config.max_position_embeddings)  # a lower max_length cannot be expressed
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(len(model.encoder.layers))
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN if model.pooling == "mean" else gguf.PoolingType.CLS)
    writer.add_tokenizer_model("bert")
    writer.add_token_type_count(config.type_vocab_size)
    marked = [token if re.fullmatch(r"\[.+\]", token) else f"\u2581{token}" for token in tokens]
    writer.add_token_list([token.replace("\u2581##", "", 1) for token in marked])  # only words are marked
    writer.add_token_types([3 if token in SPECIAL_TOKENS else 1 for token in tokens])  # control, normal
    for token, name in SPECIAL_TOKENS.items():
        getattr(writer, f"add_{name}_token_id")(tokens.index(token))
    for name, weight in weights.items():
        module, _, part = name.rpartition(".")
        number = "".join(re.findall(r"\.(\d+)\.", module))
        renamed = GGUF_NAMES[re.sub(r"\.\d+\.", ".{n}.", module)].replace("{n}", number)
        is_rounded = weight.ndim == 2 and not renamed.startswith(("position_", "token_types"))
        writer.add_tensor(f"{renamed}.{part}", weight.to(dtype if is_rounded else torch.float32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def wordpieces(tokenizer: dict) -> list[str]:
    """Return the tokens of a tokenizer.json. Raises InputError unless llama.cpp finds the same in a text."""
    normalizer, pieces = tokenizer["normalizer"] or {}, tokenizer["model"]
    vocabulary = pieces["vocab"] if pieces["type"] == "WordPiece" else {}
    is_known = NORMALIZER.items() <= normalizer.items() and normalizer.get("strip_accents") is not False
    if not (is_known and SPECIAL_TOKENS.keys() <= vocabulary.keys()):
        problem = "format gguf: the tokenizer is no WordPiece of BERT for text in lower case"
        raise InputError(f"{problem}: choose `format` onnx", "format")
    token_of = {number: token for token, number in vocabulary.items()}
    return [token_of.get(number, f"[unused-{number}]") for number in range(max(token_of) + 1)]


def open_gguf(folder: Path) -> Callable[[Sequence[str]], np.ndarray]:
    """Return the encode function of llama.cpp for a folder: embeddings of unit length."""
    path, llama_cpp = str(folder / GGUF_FILE), require_package("llama_cpp", "gguf")
    model = llama_cpp.Llama(path, embedding=True, n_ctx=0, verbose=False)  # as many tokens as the file says
    return lambda sentences: np.array([model.embed(text, normalize=True) for text in sentences], np.float32)
