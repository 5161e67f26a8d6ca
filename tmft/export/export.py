"""Export a model for other software, in one of the formats of FORMATS.

In every format but compact sentence-transformers can load the result. The folder is written under a
temporary name and renamed when it is complete.
"""

import shutil
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from tmft.checkpoints.compact import LAYOUT_KEY, LAYOUT_VERSION, pack_weights
from tmft.checkpoints.model_card import PLACEHOLDER_PATH, ModelCardData, sentence_model_card
from tmft.checkpoints.save import save_tensors
from tmft.checkpoints.weights import DTYPES
from tmft.errors import InputError, check_choice
from tmft.export import numpy_encoder
from tmft.export.onnx import ONNX_FILE, embed_with_onnx, require_onnx_support, write_onnx
from tmft.io.atomic import check_output_folder, replacing_files, write_file
from tmft.models.families import FAMILIES, convert_to_bert, empty_encoder
from tmft.sentence_encoder import SentenceEncoder, check_finite_embeddings
from tmft.tokenizer import check_sentences

# The lowest cosine between an embedding of a model and that of its export: rounding alone leaves higher ones.
LOWEST_COSINES = {"float32": 0.999, "float16": 0.99, "bfloat16": 0.95, "int8": 0.8, "int4": 0.5}
CHECKED_SENTENCES = ("A man plays the guitar.", "Two dogs sleep in the park, not in two houses!", "music")


@dataclass(frozen=True)
class ExportFormat:
    """An export format: three functions, and the dtypes that it supports.

    prepare: converts a model to one that the format can express; raises InputError if that is not possible.
    write: writes the converted model into a folder, with weights of this dtype.
    embed: returns the embeddings of N sentences by such a folder, (N, D) float32.
    dtypes: entries of DTYPES, "int4" or "int8"; the first one is the default.
    """

    prepare: Callable[[SentenceEncoder], SentenceEncoder]
    write: Callable[[SentenceEncoder, Path, str], None]
    embed: Callable[[Path, Sequence[str]], np.ndarray]
    dtypes: tuple[str, ...] = tuple(DTYPES)


def to_bert(model: SentenceEncoder, format: str = "bert") -> SentenceEncoder:
    """Return a BERT with the weights and embeddings of an ELECTRA, a RoBERTa or a DistilBERT.

    It is meant for servers that support BERT only. format: the one that needs a BERT, for messages. Raises
    InputError for other architectures, and for an ELECTRA whose embedding size differs from its hidden size:
    BERT lacks the linear map between the two.
    """
    encoder, model_type = model.encoder, model.encoder.config.model_type
    if reason := FAMILIES[model_type].bert_incompatible:
        problem = f"format {format}: {model_type} cannot be stored as BERT ({reason})"
        raise InputError(f"{problem}: choose sentence-transformers or onnx", "format")
    config, weights = convert_to_bert(encoder)
    if config.embedding_size != config.hidden_size:
        widths = f"{config.embedding_size} to {config.hidden_size}"
        problem = f"format {format}: BERT has no linear map from {widths} after the embeddings"
        raise InputError(f"{problem}: choose sentence-transformers or onnx", "format")
    bert = empty_encoder(config, len(encoder.layers))
    bert.load_state_dict(weights, assign=True)
    return deepcopy(model, {id(encoder): bert}).eval()  # a copy that has the BERT as its encoder


# ---------------------------------------------------------------------------------------- the compact format

# Its weights have 4 or 8 bits: tmft/checkpoints/compact.py describes the files. tmft/export/numpy_encoder.py,
# which is copied to the folder as encode.py, computes the embeddings without torch.
ENCODER_FILE = "encode.py"


def prepare_compact(model: SentenceEncoder) -> SentenceEncoder:
    """Return a model of a family that encode.py of the compact format computes: the same one, or a BERT."""
    if FAMILIES[model.encoder.config.model_type].has_numpy_encoder:
        return model
    return to_bert(model, "compact")


def write_compact(model: SentenceEncoder, folder: Path, dtype: str) -> None:
    """Write a model folder with weights in "int4" or "int8", and encode.py."""
    model.save_pretrained(folder, "float32")
    for path in folder.rglob("model.safetensors"):
        packed = pack_weights(load_file(path), dtype)
        write_file(path, partial(save_tensors, packed, metadata={LAYOUT_KEY: LAYOUT_VERSION}))
    shutil.copyfile(numpy_encoder.__file__, folder / ENCODER_FILE)


def embed_with_tmft(folder: Path, sentences: Sequence[str]) -> np.ndarray:
    """Return the embeddings of sentences by a folder that tmft opens."""
    return np.asarray(SentenceEncoder.from_pretrained(folder).encode(sentences))


def embed_with_numpy(folder: Path, sentences: Sequence[str]) -> np.ndarray:
    """Return the embeddings of sentences by the encode.py of a compact folder.

    Raises InputError for a model that encode.py cannot compute, and unless tmft computes the same from the
    same rounded weights.
    """
    try:
        embeddings = numpy_encoder.Encoder(folder).encode(sentences)
    except ValueError as error:
        reason = str(error).removeprefix(f"{folder}: ")
        problem = f"format compact: {ENCODER_FILE} cannot compute this model ({reason})"
        raise InputError(f"{problem}: choose `format` onnx", "format") from None
    check_cosines(embeddings, embed_with_tmft(folder, sentences), "float32", ENCODER_FILE)
    return embeddings


# ------------------------------------------------------------------------------------------- all formats

FORMATS = {
    "sentence-transformers": ExportFormat(
        lambda model: model, SentenceEncoder.save_pretrained, embed_with_tmft
    ),
    "bert": ExportFormat(to_bert, SentenceEncoder.save_pretrained, embed_with_tmft),
    "onnx": ExportFormat(require_onnx_support, write_onnx, embed_with_onnx, ("float32", "float16")),
    "compact": ExportFormat(prepare_compact, write_compact, embed_with_numpy, ("int4", "int8")),
}


def export(
    model: SentenceEncoder,
    folder: str | PathLike[str],
    format: str = "sentence-transformers",
    dtype: str | None = None,
    card_data: ModelCardData | None = None,
    sentences: Sequence[str] = CHECKED_SENTENCES,
) -> np.ndarray:
    """Write a model, with a model card, into a new folder.

    format: name of an entry of FORMATS. dtype: the type of the weights, one that the format has; None: its
    first one, float32 or, of compact, int4. card_data: training details and scores for the model card.
    sentences: N sentences, which the exported model embeds. Returns their embeddings, (N, D) float32.
    Raises InputError if the folder exists, if the format or the dtype does not fit the model, if a package is
    missing, or if an embedding is not finite or differs from that of the model by more than rounding. Then
    the folder is not written.
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
    source = f"format {format}, dtype {dtype}"
    expected = np.asarray(model.encode(sentences))
    converted = export_format.prepare(model)
    if converted is not model:
        check_cosines(np.asarray(converted.encode(sentences)), expected, "float32", source)
    with replacing_files(folder) as new:
        export_format.write(converted, new, dtype)
        graphs = [name for name in (ONNX_FILE, ENCODER_FILE) if (new / name).exists()]
        card = sentence_model_card(converted, card_data, PLACEHOLDER_PATH, *graphs)
        write_file(new / "README.md", card)
        embeddings = export_format.embed(new, sentences)
        check_finite_embeddings(embeddings, sentences, source)
        check_cosines(embeddings, expected, dtype, source)
    return embeddings


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
