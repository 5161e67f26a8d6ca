"""Which hidden states stand for a token: the last one, or the mean of several, the words' own among them.

1+12 is the mean of hidden states 1 and 12, as in "first + last"; `word` is the static vector of a token, its
row of the table of word embeddings, which knows neither position nor neighbours. Means over layers and over
tokens are both linear, so that their order does not matter.
Source: Stankevičius and Lukoševičius 2024, section 3.1, where word is layer -1.

Letters in this file: B rows, T tokens in a row, D width.
"""

from torch import Tensor

from tmft.errors import InputError
from tmft.models.bert import BaseEncoder, EncoderConfig
from tmft.packing import PackedBatch

WORD = -1


def parse_mix(text: str | int | None) -> tuple[int, ...] | None:
    """9 or '9' -> (9,); '1+12' -> (1, 12); 'word+12' -> (-1, 12); None, for the last one, -> None."""
    if text is None:
        return None
    parts = str(text).split("+")
    if not all(part == "word" or part.isdecimal() and len(part) < 5 for part in parts):
        raise InputError(f"layer {text}: write a number, word, or several as in 1+12 or word+12", "layer")
    layers = [WORD if part == "word" else int(part) for part in parts]
    if len(set(layers)) < len(layers):
        raise InputError(f"layer {text}: a layer stands there twice", "layer")
    return tuple(layers)


def name_of(layers: tuple[int, ...]) -> str:
    """The way back: (-1, 12) -> 'word+12'"""
    return "+".join("word" if layer == WORD else str(layer) for layer in layers)


def width_of(layers: tuple[int, ...] | None, config: EncoderConfig) -> int:
    """D of a mix, InputError if its parts are not equally wide: words of a small ELECTRA are narrower."""
    words, hidden = config.embedding_size, config.hidden_size
    if layers == (WORD,):
        return words
    if layers and WORD in layers and words != hidden:
        name = name_of(layers)
        raise InputError(
            f"layer {name}: words have {words} dimensions, hidden states {hidden}: choose word alone, or 0 "
            "in its place",
            "layer",
        )
    return hidden


def check_mix(layers: tuple[int, ...] | None, encoder: BaseEncoder) -> None:
    """Raises InputError if the encoder has not all layers of a mix, or not of one width."""
    if layers is not None:
        encoder.config.resolve_num_layers(max(0, *layers))
        width_of(layers, encoder.config)


def mixed_state(encoder: BaseEncoder, layers: tuple[int, ...], rows: PackedBatch) -> Tensor:
    """The mean of these hidden states, (B, T, D); no layer above the highest is run."""
    parts = [encoder.embeddings.word(rows.input_ids)] if WORD in layers else []
    if layers != (WORD,):
        for number, hidden in enumerate(encoder.iter_hidden_states(*rows.inputs)):
            if number in layers:
                parts.append(hidden)
            if number == max(layers):
                break
    return sum(parts) / len(parts)
