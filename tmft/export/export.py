"""Export a model for other software, in one of the formats of FORMATS.

In every format but compact sentence-transformers can load the result. The folder is written under a
temporary name and renamed when it is complete.
"""

import shutil
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from tmft.checkpoints.compact import LAYOUT_KEY, LAYOUT_VERSION, pack_weights
from tmft.checkpoints.model_card import PLACEHOLDER_PATH, ModelCardData, sentence_model_card
from tmft.checkpoints.save import save_tensors
from tmft.checkpoints.st_folder import prompt_templates
from tmft.checkpoints.weights import DTYPES
from tmft.embedding.modules import Dense, Normalize
from tmft.errors import InputError, check_choice
from tmft.export import numpy_encoder
from tmft.export.onnx import open_onnx, require_onnx_support, write_onnx
from tmft.io.atomic import check_output_folder, replacing_files, write_file
from tmft.models.families import FAMILIES, convert_to_bert, empty_encoder
from tmft.sentence_encoder import SentenceEncoder, check_finite_embeddings
from tmft.tokenizer import check_sentences

# poolings that are weighted sums over the tokens, with weights that sum to 1
AVERAGING_POOLINGS = ("mean", "weightedmean", "cls", "lasttoken")
QUANTIZED_DTYPES = ("int4", "int8", "uint8")  # 4 bits: -8 to 7; 8 bits: -127 to 127, or 0 to 255
# The lowest cosine between an embedding of a model and that of its export: rounding alone leaves higher ones.
LOWEST_COSINES = {"float32": 0.999, "float16": 0.99, "bfloat16": 0.95, "int8": 0.8, "uint8": 0.8, "int4": 0.5}
CHECKED_SENTENCES = ("A man plays the guitar.", "Two dogs sleep in the park, not in two houses!", "music")


@dataclass(frozen=True)
class ExportFormat:
    """An export format: three functions, and the dtypes that it supports.

    prepare: converts a model to one that the format can express; raises InputError if that is not possible.
    write: writes the converted model into a folder, with weights of this dtype.
    open: loads such a folder and returns its encode function: N sentences -> (N, D) float32.
    dtypes: entries of DTYPES or of QUANTIZED_DTYPES; the first one is the default.
    """

    prepare: Callable[[SentenceEncoder], SentenceEncoder]
    write: Callable[[SentenceEncoder, Path, str], None]
    open: Callable[[Path], Callable[[Sequence[str]], np.ndarray]]
    dtypes: tuple[str, ...] = tuple(DTYPES)


def to_bert(model: SentenceEncoder, format: str = "bert") -> SentenceEncoder:
    """Return a BERT with the weights and embeddings of an ELECTRA, a RoBERTa or a DistilBERT.

    It is meant for servers that support BERT only. format: the one that needs a BERT, for messages.
    If the embedding size of an ELECTRA differs from its hidden size, it has a linear map W x + b after the
    embeddings, which BERT lacks. In a model of 0 layers this map can follow the pooling instead, because the
    mean of W x + b is W mean(x) + b. With layers, or with a pooling that is no mean, InputError is raised; so
    it is for other architectures that cannot be stored as BERT.
    """
    encoder, model_type = model.encoder, model.encoder.config.model_type
    if reason := FAMILIES[model_type].bert_incompatible:
        problem = f"format {format}: {model_type} cannot be stored as BERT ({reason})"
        raise InputError(f"{problem}: choose sentence-transformers or onnx", "format")
    config, weights = convert_to_bert(encoder)
    projection: list[nn.Module] = []
    widths = config.embedding_size, config.hidden_size
    if widths[0] != widths[1]:
        if encoder.layers or model.layers is not None or model.pooling not in AVERAGING_POOLINGS:
            problem = f"format {format}: BERT has no linear map from {widths[0]} to {widths[1]} after the"
            problem += " embeddings"
            poolings = ", ".join(AVERAGING_POOLINGS)
            remedy = f"choose sentence-transformers or onnx, or `layer` 0 with one of the poolings {poolings}"
            raise InputError(f"{problem}: {remedy}", "format", "layer")
        dense = Dense(*widths)
        dense.load_state_dict(encoder.embeddings.get_submodule("project").state_dict())
        projection = [dense]
        weights = {name: weight for name, weight in weights.items() if ".project." not in name}
        config = replace(config, hidden_size=widths[0], num_attention_heads=1)
    bert = empty_encoder(config, len(encoder.layers))
    bert.load_state_dict(weights, assign=True)
    converted = deepcopy(model, {id(encoder): bert})  # a copy that has the BERT as its encoder
    converted.head_modules = nn.Sequential(*projection, *converted.head_modules)
    return converted.eval()


# ---------------------------------------------------------------------------------------- the compact format

# Its weights have 4 or 8 bits: tmft/checkpoints/compact.py describes the files. tmft/export/numpy_encoder.py,
# which is copied to the folder as encode.py, computes the embeddings without torch.
ENCODER_FILE = "encode.py"


def prepare_compact(model: SentenceEncoder) -> SentenceEncoder:
    """Return a model that encode.py of the compact format computes: the same one, or a BERT."""
    if not FAMILIES[model.encoder.config.model_type].has_numpy_encoder:
        model = to_bert(model, "compact")
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
        "has prompts that are no prefixes": bool(prompt_templates(model)),
    }
    if found := [problem for problem, is_there in problems.items() if is_there]:
        problem = f"format compact: the model {found[0]}, which {ENCODER_FILE} cannot compute"
        raise InputError(f"{problem}: choose `format` onnx", "format")
    return model


def write_compact(model: SentenceEncoder, folder: Path, dtype: str) -> None:
    """Write a model folder with weights in "int4" or "int8", and encode.py."""
    model.save_pretrained(folder, "float32")
    for path in folder.rglob("model.safetensors"):
        packed = pack_weights(load_file(path), dtype)
        write_file(path, partial(save_tensors, packed, metadata={LAYOUT_KEY: LAYOUT_VERSION}))
    shutil.copyfile(numpy_encoder.__file__, folder / ENCODER_FILE)


def load_tmft(folder: Path) -> Callable[[Sequence[str]], np.ndarray]:
    """Load a folder as a SentenceEncoder and return its encode function."""
    model = SentenceEncoder.from_pretrained(folder)
    return lambda sentences: np.asarray(model.encode(sentences))


def open_compact(folder: Path) -> Callable[[Sequence[str]], np.ndarray]:
    """Load the encoder of a compact folder and return its encode function.

    It raises InputError unless tmft computes the same from the same rounded weights.
    """
    try:
        encoder, encode = numpy_encoder.Encoder(folder), load_tmft(folder)
    except ValueError as error:
        raise InputError(f"format compact: {error}, or choose `format` onnx", "format") from None

    def encode_and_compare(sentences: Sequence[str]) -> np.ndarray:
        embeddings = encoder.encode(sentences)
        check_cosines(embeddings, encode(sentences), "float32", ENCODER_FILE)
        return embeddings

    return encode_and_compare


# ------------------------------------------------------------------------------------------- all formats

FORMATS = {
    "sentence-transformers": ExportFormat(lambda model: model, SentenceEncoder.save_pretrained, load_tmft),
    "bert": ExportFormat(to_bert, SentenceEncoder.save_pretrained, load_tmft),
    "onnx": ExportFormat(
        require_onnx_support, write_onnx, open_onnx, ("float32", "float16", "int8", "uint8")
    ),
    "compact": ExportFormat(prepare_compact, write_compact, open_compact, ("int4", "int8")),
}


def export(
    model: SentenceEncoder,
    folder: str | PathLike[str],
    format: str = "sentence-transformers",
    dtype: str | None = None,
    card_data: ModelCardData | None = None,
    sentences: Sequence[str] = (),
) -> np.ndarray | None:
    """Write a model, with a model card, into a new folder.

    format: name of an entry of FORMATS. dtype: the type of the weights, an entry of DTYPES or of
    QUANTIZED_DTYPES that the format has; None: its first one, float32 or, of compact, int4.
    card_data: training details and scores for the model card.
    sentences: N sentences to embed with the exported model; if there are none, it embeds CHECKED_SENTENCES.
    Returns their embeddings, (N, D) float32; None without sentences. Raises InputError if the folder exists,
    if the format or the dtype does not fit the model, if a package is missing, or if an embedding is not
    finite or differs from that of the model by more than rounding. Then the folder is not written.
    """
    check_choice("format", format, FORMATS)
    sentences = check_sentences(sentences)
    folder = Path(folder)
    export_format = FORMATS[format]
    dtype = dtype or export_format.dtypes[0]
    if dtype not in export_format.dtypes:
        raise InputError(
            f"dtype {dtype}: `format` {format} supports {', '.join(export_format.dtypes)}", "dtype", "format"
        )
    check_output_folder(folder, is_new=True)
    texts, source = sentences or CHECKED_SENTENCES, f"format {format}, dtype {dtype}"
    expected = np.asarray(model.encode(texts))
    converted = export_format.prepare(model)
    if converted is not model:
        check_cosines(np.asarray(converted.encode(texts)), expected, "float32", source)
    with replacing_files(folder) as new:
        export_format.write(converted, new, dtype)
        graphs = [
            path.relative_to(new).as_posix() for path in (*new.glob("onnx/*.onnx"), *new.glob(ENCODER_FILE))
        ]
        card = sentence_model_card(converted, card_data, PLACEHOLDER_PATH, *graphs)
        write_file(new / "README.md", card)
        embeddings = export_format.open(new)(texts)
        check_finite_embeddings(embeddings, texts, source)
        check_cosines(embeddings, expected, dtype, source)
    return embeddings if sentences else None


def check_cosines(found: np.ndarray, expected: np.ndarray, dtype: str, source: str) -> None:
    """Raise InputError if embeddings differ from those of the model by more than rounding to a dtype does.

    found, expected: (N, D). Those of the model that are nearly 0, which have no direction, are left out.
    source: what computed them, for the message.
    """
    u, v = torch.as_tensor(found), torch.as_tensor(expected)
    lengths = v.norm(dim=1)
    cosines = torch.cosine_similarity(u, v)[lengths > 1e-3 * lengths.max()]
    if len(cosines) and cosines.min() < LOWEST_COSINES[dtype]:
        problem = f"{source}: an embedding has the cosine {cosines.min():.3f} with that of the model"
        reason = f"rounding to {dtype} leaves at least {LOWEST_COSINES[dtype]}"
        raise InputError(f"{problem}, and {reason}: choose another format or dtype")


def folder_size(folder: Path) -> int:
    """Return the total size in bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
