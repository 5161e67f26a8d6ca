"""A model in the form that other software wants: a row of FORMS for each.

What is written is a folder that sentence-transformers opens, whatever the form. It is made beside its place
and moved there when it is whole. open_export opens it again, so that the two can be compared.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tmft.checkpoints.model_card import HERE, Told
from tmft.checkpoints.tokenizers import Tokenizer
from tmft.embedding.modules import Dense
from tmft.embedding.saved import save
from tmft.errors import InputError, check_choice
from tmft.io.atomic import reason, scratch_folder, write_file
from tmft.models.bert import BaseEncoder, Encoder
from tmft.models.registry import FAMILIES, empty_encoder
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.onnx import OnnxEncoder, check_onnx, write_onnx

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
LINEAR = ("mean", "weightedmean", "cls", "lasttoken")  # poolings whose weights of the tokens sum to 1


@dataclass(frozen=True)
class Form:
    """A row of FORMS. prepare: the model -> the one to be written, InputError if it cannot be said so; write:
    it, a folder, a dtype; open: the folder -> its encode; dtypes: names of those it can be written in."""

    prepare: Callable[[SentenceEncoder], SentenceEncoder]
    write: Callable[[SentenceEncoder, Path, torch.dtype], None]
    open: Callable[[Path], Callable[[Sequence[str]], np.ndarray]]
    dtypes: tuple[str, ...] = tuple(DTYPES)


def as_it_is(model: SentenceEncoder) -> SentenceEncoder:
    return model


def as_bert(model: SentenceEncoder) -> SentenceEncoder:
    """The same weights as a BERT, for servers that know no ELECTRA. Equal, as far as the two compute alike.

    ELECTRA may have embeddings narrower than its layers and a linear map between the two, where BERT has
    nothing: of a model of 0 layers that map can follow the pooling, as a mean of W x + b is W mean(x) + b.
    """
    encoder, modules = model.encoder, list(model.head_modules)
    config, family = encoder.config, FAMILIES[encoder.config.model_type]
    if family.bert_incompatible:
        what = f"a {config.model_type} is no BERT: {family.bert_incompatible}"
        raise InputError(f"{what}; choose sentence-transformers or onnx", "as")
    widths = config.embedding_size, config.hidden_size
    weights = encoder.state_dict()
    if widths[0] != widths[1]:
        if encoder.layers or model.layers is not None or model.pooling not in LINEAR:
            what = f"the map from {widths[0]} to {widths[1]} after the embeddings has no place in a BERT"
            way_out = "only of layer 0 with one of the poolings " + ", ".join(LINEAR) + " can it follow them"
            raise InputError(f"{what}: {way_out}; choose sentence-transformers or onnx", "as")
        dense = Dense(*widths)
        dense.load_state_dict(encoder.embeddings.project.state_dict())
        modules.insert(0, dense)
        weights = {name: weight for name, weight in weights.items() if ".project." not in name}
        config = replace(config, hidden_size=widths[0], num_attention_heads=1)
    bert: Encoder = empty_encoder(replace(config, model_type="bert"), len(encoder.layers))
    bert.load_state_dict(weights, assign=True)
    return around(bert, model, model.tokenizer, modules)


def around(
    encoder: BaseEncoder, model: SentenceEncoder, tokenizer: Tokenizer, modules: Sequence[nn.Module]
) -> SentenceEncoder:
    """Another encoder in the place of a model's own, with this tokenizer and what follows the pooling."""
    said = (model.pooling, model.max_length, modules, model.prompt, model.source, model.load_report, model.layers)
    made = SentenceEncoder(encoder, tokenizer, *said)
    made.token_weights = model.token_weights
    return made.eval()


def in_tmft(folder: Path) -> Callable[[Sequence[str]], np.ndarray]:
    return SentenceEncoder.from_pretrained(folder).encode


FORMS = {
    "sentence-transformers": Form(as_it_is, save, in_tmft),
    "bert": Form(as_bert, save, in_tmft),
    "onnx": Form(check_onnx, write_onnx, lambda folder: OnnxEncoder(folder).encode, ("float32", "float16")),
}


def export(
    model: SentenceEncoder,
    folder: Path,
    form: str = "sentence-transformers",
    dtype: str = "float32",
    told: Told | None = None,
    name: str | None = None,
) -> None:
    """Write a model into a new folder, in a row of FORMS and of DTYPES. told: what a run knows of it; name:
    what its card says it is opened by, None: the folder.

    Raises InputError, before anything is written, if the folder is there or the model has no such form.
    """
    check_choice("as", form, FORMS)
    row = FORMS[form]
    if dtype not in row.dtypes:
        raise InputError(f"dtype {dtype}: {form} has {', '.join(row.dtypes)}", "dtype")
    if folder.exists():
        raise InputError(f"{folder} is there already: name a new folder", "export")
    made = row.prepare(model)
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(folder.absolute().parent) as scratch:
            new = Path(scratch) / "model"
            row.write(made, new, DTYPES[dtype])
            write_file(new / "README.md", made.model_card(told, name or HERE, form == "onnx"))
            os.replace(new, folder)
    except OSError as error:
        raise InputError(f"cannot write {folder} ({reason(error)}): check space and permissions") from None


def open_export(folder: Path, form: str) -> Callable[[Sequence[str]], np.ndarray]:
    """-> encode of what export has written; of a graph by ONNX Runtime."""
    return FORMS[form].open(folder)


def size_of(folder: Path) -> int:
    """Bytes of all its files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
