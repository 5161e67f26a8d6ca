"""A sentence encoder and its folder: how the folder says that tokens become an embedding, read and written.

`model` is a SentenceEncoder, tmft/sentence_encoder.py.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import nn

from tmft.checkpoints import save as files
from tmft.checkpoints.load import read_config
from tmft.checkpoints.model_card import HERE, Opens, Told, sentence_card
from tmft.checkpoints.st_folder import SentenceFolder, check_static, write_sentence_folder
from tmft.embedding.layer_mix import check_mix, name_of, parse_mix, width_of
from tmft.embedding.modules import Dense, Normalize, modules_as_files
from tmft.embedding.token_weights import TokenWeights
from tmft.errors import InputError
from tmft.io.atomic import write_file
from tmft.models.bert import BaseEncoder
from tmft.models.registry import FAMILIES, check_fits, random_encoder

log = logging.getLogger("tmft")


def make_random(folder: Path, layer: int | None = None, parts: Iterable[str] = ()) -> tuple[BaseEncoder, str]:
    """The shape of a checkpoint with random weights, from torch's global generator; none are read."""
    config = read_config(folder, parts)
    check_fits(config, layer)
    encoder = random_encoder(config, layer)
    count = sum(weight.numel() for weight in encoder.parameters())
    return (
        encoder,
        f"random weights: the embeddings, layers up to {len(encoder.layers)}, {count:,} parameters",
    )


def restore(model: nn.Module, said: SentenceFolder, layers: tuple[int, ...] | None) -> None:
    """Give a model the mix of layers and the token weights of its folder; layers: those asked for instead.

    Says in one line if a Dense now follows another layer than the one that it was trained on.
    """
    kept, all_of_them = len(model.encoder.layers), model.encoder.config.num_hidden_layers
    if kept < all_of_them and any(module.kind == "Dense" for module in said.modules):
        what = "the Dense after the pooling was trained on layer %d, here it gets layer %d: tune it"
        log.warning(f"{what}, or name a pooling to leave it out", all_of_them, kept)
    alone = layers == (len(model.encoder.layers),)
    model.layers = parse_mix(said.layer) if layers is None else None if alone else layers
    check_mix(model.layers, model.encoder)
    if said.tokens:
        model.set_token_weights(said.tokens)
    elif said.weights is not None:
        table = torch.ones(model.encoder.config.vocab_size)
        table[: len(said.weights)] = said.weights[: len(table)]
        model.token_weights = TokenWeights(table)


def prepare(
    model: nn.Module,
    tokens: str | None,
    texts: Sequence[str],
    projection: int | None,
    keep: Sequence[int] | None = None,
) -> None:
    """Give a model that is to be tuned token weights, learnt on the texts, and a projection, and leave it
    only the layers of these numbers, from 0, where that is asked for. Raises InputError if the checkpoint has
    something else in the place of one, or cannot do without its first layer.
    """
    if keep:
        layers = model.encoder.layers
        if 0 not in keep and FAMILIES[model.encoder.config.model_type].shared_in_first_layer:
            raise InputError("keep: in layer 0 are the distances of all layers, it has to stay", "keep")
        model.encoder.layers = nn.ModuleList(layers[n] for n in keep)
    if tokens:
        model.set_token_weights(tokens, texts)
    if projection:
        project(model, projection)


def project(model: nn.Module, width: int) -> None:
    """Let a linear map to `width` dimensions, without bias, and Normalize follow the pooling.

    Where they do so already nothing changes. The map starts as a truncated normal of deviation D^-1/2.
    Source: Ni et al. 2021, section 3.1.
    """
    kinds = [type(module).__name__ for module in model.head_modules]
    if kinds[:1] == ["Dense"]:
        if model.dimensions != width or kinds[1:] != ["Normalize"]:
            is_there = f"{' and '.join(kinds)} to {model.dimensions} dimensions"
            raise InputError(f"projection {width}: {model.source} has {is_there} already", "projection")
        return
    dense = Dense(model.dimensions, width, bias=False)
    nn.init.trunc_normal_(dense.weight, std=dense.in_features**-0.5)
    model.head_modules = nn.Sequential(dense, Normalize()).to(model.device)


def keep_dimensions(model: nn.Module, count: int) -> None:
    """Leave of each embedding its first numbers, by a Dense that other libraries know."""
    if not 0 < count <= model.dimensions:
        raise InputError(f"dimensions {count}: choose 1 to {model.dimensions}", "dimensions")
    dense = Dense(model.dimensions, count, bias=False)
    dense.weight.data = torch.eye(count, model.dimensions)
    normalized = [Normalize() for module in model.head_modules[-1:] if isinstance(module, Normalize)]
    model.head_modules.extend(nn.ModuleList([dense, *normalized]).to(model.device))


def to_folder_config(model: nn.Module) -> SentenceFolder:
    """The way back."""
    of_places = model.token_weights is not None and (model.token_weights.lead or model.token_weights.tail)
    return SentenceFolder(
        pooling=model.pooling,
        max_length=model.max_length,
        prompt=model.prompt,
        layer=model.layers and name_of(model.layers),
        tokens="sentence" if of_places else None,
        weights=None if model.token_weights is None or of_places else model.token_weights.table.cpu(),
        modules=modules_as_files(model.head_modules),
    )


def save(model: nn.Module, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """All files of a model; each is replaced whole, one after the other. dtype: of the weights in them."""
    said = to_folder_config(model)  # first: what cannot be saved is refused before anything is written
    if model.tokenizer.bare:
        check_static(said)
    files.save_encoder(model.encoder, folder, dtype=dtype)
    for name, content in model.tokenizer.files(model.max_length).items():
        write_file(folder / name, content)
    write_sentence_folder(folder, said, width_of(model.layers, model.encoder.config), model.tokenizer, dtype)
    write_file(folder / "README.md", model.model_card())


class Described:
    """What a sentence encoder says of its folder."""

    def model_card(self, told: Told | None = None, name: str = HERE, onnx: bool = False) -> str:
        """README.md of a saved model; told: what a run knows; name: what opens it; onnx: it is a graph."""
        encoder = self.encoder
        state = name_of(self.layers) if self.layers else str(len(encoder.layers))
        about = (len(encoder.layers), state, self.dimensions, self.pooling, self.max_length)
        said, pooler = to_folder_config(self), files.has_pooler(encoder)
        opens = Opens(files.class_of(encoder), said.plain_mean, pooler, self.compatibility_note, onnx)
        return sentence_card(self.source, *about, opens, told or Told(), name)

    @property
    def compatibility_note(self) -> str:
        """What other libraries do otherwise with the saved folder, in words; '' for nothing."""
        return f"{to_folder_config(self).differs} {files.what_differs(self.encoder)}".strip()
