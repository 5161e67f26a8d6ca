"""Which hidden states represent a token: the last one, or the mean of several.

1+12 is the mean of hidden states 1 and 12 ("first-last average"). `word` is the static word embedding of a
token, which knows neither its position nor its context; word+12 is its mean with hidden state 12. Means over
layers and over tokens are both linear, so their order does not matter.
Source: Stankevičius and Lukoševičius 2024, arXiv:2408.08073, section 3.1, where `word` is layer -1.

Letters in this file: B rows, T tokens in a row, D hidden_size.
"""

from torch import Tensor

from tmft.errors import InputError
from tmft.models.base import BaseEncoder, EncoderConfig
from tmft.packing import PackedBatch

WORD_EMBEDDINGS = -1  # what `word` is in a tuple of layers


def parse_layer_mix(text: str | int | None) -> tuple[int, ...] | None:
    """Parse a layer or a mix of layers.

    9 or '9' -> (9,); '1+12' -> (1, 12); 'word+12' -> (-1, 12); None, for the last layer, -> None.
    Raises InputError for anything else, and for a layer that is named twice.
    """
    if text is None:
        return None
    names = str(text).split("+")
    if not all(name == "word" or name.isdecimal() and len(name) < 5 for name in names):
        raise InputError(f"layer {text}: write a number, word, or several as in 1+12 or word+12", "layer")
    layers = [WORD_EMBEDDINGS if name == "word" else int(name) for name in names]
    if len(set(layers)) < len(layers):
        raise InputError(f"layer {text} names a layer twice: name each layer once", "layer")
    return tuple(layers)


def format_layer_mix(layers: tuple[int, ...]) -> str:
    """The inverse of parse_layer_mix: (-1, 12) -> 'word+12'."""
    return "+".join("word" if layer == WORD_EMBEDDINGS else str(layer) for layer in layers)


def layer_mix_width(layers: tuple[int, ...] | None, config: EncoderConfig) -> int:
    """The dimensions of a mix of layers; None is the last layer.

    Raises InputError if the parts differ: the word embeddings of a small ELECTRA are narrower than its
    layers.
    """
    if layers == (WORD_EMBEDDINGS,):
        return config.embedding_size
    if layers and WORD_EMBEDDINGS in layers and config.embedding_size != config.hidden_size:
        raise InputError(
            f"layer {format_layer_mix(layers)}: word embeddings have {config.embedding_size} dimensions, "
            f"hidden states {config.hidden_size}: choose word alone, or 0 instead of word",
            "layer",
        )
    return config.hidden_size


def check_layer_mix(layers: tuple[int, ...] | None, encoder: BaseEncoder) -> None:
    """Raise InputError if the encoder lacks a layer of the mix, or if the parts differ in dimensions."""
    if layers is not None:
        encoder.config.resolve_num_layers(max(0, *layers))
        layer_mix_width(layers, encoder.config)


def mean_hidden_state(encoder: BaseEncoder, layers: tuple[int, ...], batch: PackedBatch) -> Tensor:
    """The mean of these hidden states, (B, T, D); layers above the highest are not computed."""
    states = [encoder.embeddings.word(batch.input_ids)] if WORD_EMBEDDINGS in layers else []
    if layers != (WORD_EMBEDDINGS,):
        for layer, hidden in enumerate(encoder.iter_hidden_states(*batch.inputs)):
            if layer in layers:
                states.append(hidden)
            if layer == max(layers):
                break
    return sum(states) / len(states)
