"""Read the spm.model of a DeBERTa without the sentencepiece package: pieces, their scores, the unknown piece.

The file is one protobuf message: a row of fields, each a key and a value. The key holds the number of the
field and how its value is written: a varint, 4 bytes, 8 bytes, or a length and that many bytes, which may be
a message in turn. Numbers and defaults are those of sentencepiece_model.proto:

    ModelProto      1 pieces (repeated message)   2 trainer_spec (message)   3 normalizer_spec (message)
    SentencePiece   1 piece (UTF-8)   2 score (float)   3 type (enum: 1 unless said)
    TrainerSpec     3 model_type (enum: 1, unigram, unless said)   40 unk_id (int: 0 unless said)
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tmft.errors import InputError

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5  # how a value is written
CONTROL, USER_DEFINED = 3, 4  # types of pieces that text is never cut into: [CLS] and the like; whole symbols
MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "char"}


@dataclass(frozen=True)
class SentencePieceModel:
    """Piece number i has id i, the text pieces[i][0] and the score (log probability) pieces[i][1]."""

    pieces: list[tuple[str, float]]
    types: list[int]
    unk_id: int


def read_spm(path: Path) -> SentencePieceModel:
    """Raises InputError if the file is damaged, cut short, or of another kind than unigram."""
    pieces, types, specs = [], [], {}
    try:
        for key, value in message(path.read_bytes()):
            if key == (1, LENGTH):
                piece = dict(message(value))
                (score,) = struct.unpack("<f", piece.get((2, FOUR_BYTES), bytes(4)))
                pieces.append((piece[1, LENGTH].decode(), score))
                types.append(piece.get((3, VARINT), 1))
            else:
                specs[key] = value
        trainer = dict(message(specs[2, LENGTH]))
        specs[3, LENGTH]  # written last of the three: without it the file was cut short
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is damaged or cut short ({error}): download it again") from None
    except KeyError as error:
        number, _ = error.args[0]
        raise InputError(f"{path} is damaged or cut short (no field {number}): download it again") from None

    model_type = MODEL_TYPES.get(trainer.get((3, VARINT), 1), "unknown")
    if model_type != "unigram":
        raise InputError(f"{path} is a {model_type} model: only unigram models are supported")
    unk_id = trainer.get((40, VARINT), 0)
    if unk_id >= len(pieces):
        raise InputError(
            f"{path} has {len(pieces)} pieces and the unknown one is {unk_id}: download it again"
        )
    return SentencePieceModel(pieces, types, unk_id)


def message(data: bytes) -> Iterator[tuple[tuple[int, int], int | bytes]]:
    """Yield ((number of the field, how it is written), value) in file order: an int for a varint, else bytes.

    Raises ValueError where the data is no such row of fields.
    """
    at = 0

    def varint() -> int:
        """Seven bits per byte, the lowest first; the top bit says that another byte follows."""
        nonlocal at
        number = shift = 0
        while True:
            if at == len(data) or shift > 63:
                raise ValueError(f"no number at byte {at}")
            byte = data[at]
            at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while at < len(data):
        key = varint()
        number, written = key >> 3, key & 7
        if written == VARINT:
            yield (number, written), varint()
            continue
        if written == LENGTH:
            size = varint()
        elif written in (EIGHT_BYTES, FOUR_BYTES):
            size = 8 if written == EIGHT_BYTES else 4
        else:
            raise ValueError(f"no field at byte {at}")
        if at + size > len(data):
            raise ValueError(f"{size} bytes expected at byte {at}, {len(data) - at} left")
        yield (number, written), data[at : at + size]
        at += size
