"""Layer mixes: pool the mean of several hidden states instead of the last one.

"1+12" is the mean of hidden states 1 and 12 ("first-last average"). "word" is the word embedding of a token,
which does not depend on its position or context; "word+12" is the mean of the word embedding and hidden state
12. A mix is stored as a tuple of the numbers of its hidden states, in which WORD_EMBEDDINGS stands for word.
Means over layers and over tokens are both linear, so their order does not matter.
Source: Stankevičius and Lukoševičius 2024, arXiv:2408.08073, section 3.1, where `word` is layer -1.

Letters: B rows of a batch, T tokens in a row, D hidden_size.
"""

from torch import Tensor

from tmft.encoder import BaseEncoder, EncoderConfig
from tmft.errors import InputError
from tmft.packing import PackedBatch

WORD_EMBEDDINGS = -1  # stands for "word" in a tuple of layers


def parse_layer_mix(text: str | int | None) -> tuple[int, ...] | None:
    """Return the layers that a number or a text such as "1+12" names, as a tuple.

    9 and "9" give (9,), "1+12" gives (1, 12), "word+12" gives (-1, 12). None, which stands for the last
    layer, gives None.
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
    """Return the text for a tuple of layers, the inverse of parse_layer_mix: (-1, 12) gives "word+12"."""
    return "+".join("word" if layer == WORD_EMBEDDINGS else str(layer) for layer in layers)


def layer_mix_width(layers: tuple[int, ...] | None, config: EncoderConfig) -> int:
    """Return the number of dimensions of a mix of layers. layers: None means the last layer."""
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
    """Raise InputError if the encoder lacks a layer of the mix, or if the parts differ in dimensions.

    layers: None, which means the last layer, is always valid.
    """
    if layers is not None:
        layer_mix_width(layers, encoder.config)
        encoder.config.resolve_num_layers(max(0, *layers))


def mean_hidden_state(encoder: BaseEncoder, layers: tuple[int, ...], batch: PackedBatch) -> Tensor:
    """Return the mean of several hidden states of a packed batch, (B, T, D).

    layers: the numbers of the hidden states, with WORD_EMBEDDINGS for the word embeddings. The layers above
    the highest of them are not computed. Raises InputError if the encoder lacks one of them.
    """
    states = [encoder.embeddings.word(batch.input_ids)] if WORD_EMBEDDINGS in layers else []
    if layers != (WORD_EMBEDDINGS,):
        for layer, hidden in enumerate(encoder.iter_hidden_states(*batch.inputs)):
            if layer in layers:
                states.append(hidden)
            if layer == max(layers):
                break
    if len(states) < len(layers):
        has = f"the encoder has {len(encoder.layers)} layers"
        raise InputError(f"layers {format_layer_mix(layers)}: {has}: set others, or None for the last one")
    return sum(states) / len(states)
