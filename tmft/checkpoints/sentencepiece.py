"""spm.model of a DeBERTa, spiece.model of a T5: read without sentencepiece, and what cuts text as they say.

The file is one protobuf message: a row of fields, each a key and a value. The key holds the number of the
field and how its value is written: a varint, 4 bytes, 8 bytes, or a length and that many bytes, which may be
a message in turn. Numbers and defaults are those of sentencepiece_model.proto:

    ModelProto      1 pieces (repeated message)   2 trainer_spec (message)   3 normalizer_spec (message)
    SentencePiece   1 piece (UTF-8)   2 score (float)   3 type (enum: 1 unless said)
    TrainerSpec     3 model_type (enum: 1, unigram, unless said)   40 unk_id (int: 0 unless said)
    NormalizerSpec  2 precompiled_charsmap (bytes: none unless said)
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from tmft.errors import InputError

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5  # how a value is written
CONTROL, USER_DEFINED = 3, 4  # types of pieces that text is never cut into: [CLS] and the like; whole symbols
MOST_SENTINELS = 10_000
LONGEST = (
    10_000  # letters of a piece: tokenizers takes its pieces apart letter within letter, until it crashes
)
MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "char"}


@dataclass(frozen=True)
class SentencePieceModel:
    """Piece number i has id i, the text pieces[i][0] and the score (log probability) pieces[i][1].

    character_map: which characters of a text are replaced, and by what; see check_character_map.
    """

    pieces: list[tuple[str, float]]
    types: list[int]
    unk_id: int
    character_map: bytes


def read_spm(path: Path) -> SentencePieceModel:
    """Raises InputError if the file is damaged, cut short, or of another kind than unigram."""
    pieces, types, specs = [], [], {}
    try:
        for key, value in message(path.read_bytes()):
            if key == (1, LENGTH):
                piece = dict(message(value))
                (score,) = struct.unpack("<f", piece.get((2, FOUR_BYTES), bytes(4)))
                if not math.isfinite(score):
                    raise ValueError(f"the score of piece {len(pieces)} is {score}")
                text = piece[1, LENGTH].decode()
                if len(text) > LONGEST:
                    raise ValueError(f"piece {len(pieces)} has {len(text)} letters")
                pieces.append((text, score))
                types.append(piece.get((3, VARINT), 1))
            else:
                specs[key] = value
        trainer = dict(message(specs[2, LENGTH]))
        normalizer = dict(message(specs[3, LENGTH]))  # the last of the three: is the file whole?
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
    return SentencePieceModel(pieces, types, unk_id, normalizer.get((2, LENGTH), b""))


def check_character_map(data: bytes, path: Path) -> bytes:
    """The map itself, b"" for none; InputError if a look-up could lead out of it, where tokenizers panics.

    data: the size of a trie in bytes, the trie, then the replacements in UTF-8, a zero byte after each. The
    trie is a double array of N units of 32 bits. Bits 0 to 7 are the byte that leads to a unit, bit 8 says
    that a replacement follows, bits 10 to 30 are an offset, in units of 256 if bit 9 is set: from unit n the
    byte c leads to unit n ^ offset ^ c, and 0 to that of the replacement, which is bit 31 and its place.
    Source: github.com/s-yata/darts-clone.
    """
    if not data:
        return data
    size = 4 + int.from_bytes(data[:4], "little")
    try:
        replacements = data[size:]
        replacements.decode()
        units = np.frombuffer(data[4:size], dtype="<u4")  # (N,)
        bases = np.arange(len(units)) ^ ((units >> 10) << (units >> 6 & 8))  # where byte 0 leads
        passed = units < 1 << 31
        passed[0] = True  # where every look-up begins
        places = units[bases[passed & (units >> 8 & 1 == 1)]] & 0x7FFFFFFF
        first = np.frombuffer(replacements + b"\0", dtype=np.uint8)[places]  # a place may be the very end
        inside = len(data) >= size and (bases[passed] | 255).max() < len(units)
        whole = inside and (first & 0xC0 != 0x80).all()  # such a byte is not the first of a letter
    except (ValueError, IndexError):
        whole = False
    if not whole:
        raise InputError(f"{path} has a damaged character map: download it again")
    return data


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


# ------------------------------------------------------------ what cuts text into the pieces


def unigram(path: Path, settings: dict, mask: str) -> tokenizers.Tokenizer:
    """DeBERTa's tokenizer around the pieces of an spm.model: the most probable way to cut text into pieces.

    Pieces keep their numbers; [MASK], which is not one of them, gets the next.
    """
    model = read_spm(path)
    backend = tokenizers.Tokenizer(models.Unigram(model.pieces, unk_id=model.unk_id, byte_fallback=False))
    cleaning = [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC()]
    cleaning += [normalizers.Strip(left=False, right=True)]
    splitting = [pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    if settings.get("do_lower_case"):
        cleaning.insert(0, normalizers.Lowercase())
    if settings.get("split_by_punct"):
        splitting.insert(0, pre_tokenizers.Punctuation("isolated"))
    backend.normalizer = normalizers.Sequence(cleaning)
    backend.pre_tokenizer = pre_tokenizers.Sequence(splitting)
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    add_symbols(backend, model)
    backend.add_special_tokens([AddedToken(mask, special=True)])
    return backend


def add_symbols(backend: tokenizers.Tokenizer, model: SentencePieceModel) -> None:
    """The pieces that are found in a text before it is cut."""
    backend.add_tokens(
        [
            AddedToken(piece, normalized=False, special=kind == CONTROL)
            for (piece, _), kind in zip(model.pieces, model.types, strict=True)
            if kind in (CONTROL, USER_DEFINED)
        ]
    )


def t5_from_spm(path: Path, settings: dict) -> tokenizers.Tokenizer:
    """T5's tokenizer of a spiece.model.

    Pieces keep their numbers; the sentinels, which are none of them, get the next: <extra_id_99> comes first.
    """
    model, count = read_spm(path), settings.get("extra_ids", 100)
    if not (isinstance(count, int) and 0 <= count <= MOST_SENTINELS):
        where = f"{path.parent / 'tokenizer_config.json'} has extra_ids {count!r}"
        raise InputError(f"{where}: expected how many <extra_id_N> there are, 0 to {MOST_SENTINELS}")
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(count))]
    pieces = model.pieces + [(sentinel, 0.0) for sentinel in sentinels]
    backend = t5_unigram(pieces, model.unk_id, check_character_map(model.character_map, path))
    add_symbols(backend, model)
    backend.add_special_tokens([AddedToken(sentinel, special=True) for sentinel in sentinels])
    return backend


def t5_unigram(
    pieces: list[tuple[str, float]], unk_id: int | None, character_map: bytes
) -> tokenizers.Tokenizer:
    """What replaces characters, then cuts at spaces, then each word, with a ▁ before it, into pieces."""
    backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=unk_id, byte_fallback=False))
    if character_map:
        backend.normalizer = normalizers.Precompiled(character_map)
    words = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), words])
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return backend
