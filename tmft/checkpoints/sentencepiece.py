"""Build tokenizers from spm.model (DeBERTa) and spiece.model (T5), without the sentencepiece package.

Such a file is one protobuf message: a sequence of fields, each with a key and a value. The key has the number
of the field and its wire type, which says how the value is written: a varint, 4 bytes, 8 bytes, or a length
and that many bytes, which may contain another message. The numbers and defaults of the fields that are used
here are, according to sentencepiece_model.proto:

    ModelProto      1 pieces (repeated message)   2 trainer_spec (message)   3 normalizer_spec (message)
    SentencePiece   1 piece (UTF-8)   2 score (float)   3 type (enum, default 1)
    TrainerSpec     3 model_type (enum, default 1: unigram)   40 unk_id (int, default 0)
    NormalizerSpec  2 precompiled_charsmap (bytes, default empty)
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from tmft.checkpoints.tokenizer_config import TokenizerConfig
from tmft.errors import InputError

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5  # wire types
CONTROL, USER_DEFINED = 3, 4  # types of pieces: tokens such as [CLS]; symbols that are never split
UNIGRAM = 1  # a type of models; others are BPE, word and char


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a SentencePiece file with a unigram model.

    pieces: (text, score) of each piece, in the order of their ids; the score is a log probability.
    types: the type of each piece, such as CONTROL.
    unk_id: the id of the unknown token.
    character_map: which characters of a text are replaced, and by what, for normalizers.Precompiled.
    """

    pieces: list[tuple[str, float]]
    types: list[int]
    unk_id: int
    character_map: bytes

    @property
    def symbols(self) -> list[AddedToken]:
        """The control and user-defined pieces, which a tokenizer never splits."""
        return [
            AddedToken(piece, normalized=False, special=kind == CONTROL)
            for (piece, _), kind in zip(self.pieces, self.types, strict=True)
            if kind in (CONTROL, USER_DEFINED)
        ]


def read_spm(path: Path) -> SentencePieceModel:
    """Return the SentencePiece model in a file.

    Raises ValueError, IndexError or KeyError if the file is damaged or cut short, and InputError if it is not
    a unigram model.
    """
    pieces: list[tuple[str, float]] = []
    types: list[int] = []
    specs: dict[tuple[int, int], Any] = {}
    for key, value in parse_protobuf(path.read_bytes()):
        if key == (1, LENGTH):
            piece = dict(parse_protobuf(value))
            (score,) = struct.unpack("<f", piece.get((2, FOUR_BYTES), bytes(4)))
            pieces.append((piece[1, LENGTH].decode(), score))
            types.append(piece.get((3, VARINT), 1))
        else:
            specs[key] = value
    trainer = dict(parse_protobuf(specs[2, LENGTH]))
    normalizer = dict(parse_protobuf(specs[3, LENGTH]))  # the last field: absent in a truncated file

    if trainer.get((3, VARINT), UNIGRAM) != UNIGRAM:
        raise InputError(
            f"{path} is not a unigram model, which alone is supported: open the checkpoint once in "
            "transformers and save it, which writes tokenizer.json"
        )
    return SentencePieceModel(pieces, types, trainer.get((40, VARINT), 0), normalizer.get((2, LENGTH), b""))


def parse_protobuf(data: bytes) -> Iterator[tuple[tuple[int, int], Any]]:
    """Yield ((number, wire type), value) for each field of a protobuf message, in their order.

    The value is an int if the wire type is VARINT, else bytes. Raises ValueError or IndexError if the data is
    not a protobuf message.
    """
    position = 0

    def varint() -> int:
        """Read an int: seven bits per byte, the lowest first; the top bit says that another byte follows."""
        nonlocal position
        number = shift = 0
        while True:
            byte = data[position]
            position += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while position < len(data):
        key = varint()
        number, wire_type = key >> 3, key & 7
        if wire_type == VARINT:
            yield (number, wire_type), varint()
            continue
        if wire_type == LENGTH:
            size = varint()
        elif wire_type in (EIGHT_BYTES, FOUR_BYTES):
            size = 8 if wire_type == EIGHT_BYTES else 4
        else:
            raise ValueError(f"no field at byte {position}")
        if position + size > len(data):
            raise ValueError(f"{size} bytes expected at byte {position}, {len(data) - position} left")
        yield (number, wire_type), data[position : position + size]
        position += size


def build_unigram_tokenizer(
    pieces: list[tuple[str, float]], unk_id: int | None, character_map: bytes, prefix_space: bool
) -> tokenizers.Tokenizer:
    """Return the tokenizer of a T5, an XLM-RoBERTa or a CamemBERT, without special tokens.

    It replaces characters, splits text at spaces, then each word into the most probable pieces.
    pieces: (text, score) of each piece, in the order of their ids. unk_id: the id of the unknown token; None
    if there is none. character_map: see SentencePieceModel; b"" changes nothing. prefix_space: whether a ▁ is
    put before each word.
    """
    backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=unk_id, byte_fallback=False))
    if character_map:
        backend.normalizer = normalizers.Precompiled(character_map)
    scheme = "always" if prefix_space else "never"
    metaspace = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    return backend


def t5_tokenizer_from_spm(folder: Path, config: TokenizerConfig) -> tokenizers.Tokenizer:
    """Return T5's tokenizer, built from a spiece.model.

    The key extra_ids of tokenizer_config.json is the number of sentinels <extra_id_N>, 100 by default. The id
    of a piece is its number in the file. The sentinels, which are not in the file, get the next ids, in
    descending order: <extra_id_99> first.
    """
    sentinels = [f"<extra_id_{n}>" for n in reversed(range(config.content.get("extra_ids", 100)))]
    model = read_spm(folder / "spiece.model")
    pieces = model.pieces + [(sentinel, 0.0) for sentinel in sentinels]
    prefix_space = config.flag("add_prefix_space", True)
    backend = build_unigram_tokenizer(pieces, model.unk_id, model.character_map, prefix_space)
    backend.add_tokens(model.symbols)
    backend.add_special_tokens([AddedToken(sentinel, special=True) for sentinel in sentinels])
    return backend


def deberta_tokenizer_from_spm(folder: Path, config: TokenizerConfig) -> tokenizers.Tokenizer:
    """Return DeBERTa's tokenizer, built from an spm.model; it splits text into the most probable pieces.

    The id of a piece is its number in the file; [MASK], which is not in the file, gets the next id.
    """
    model = read_spm(folder / "spm.model")
    backend = tokenizers.Tokenizer(models.Unigram(model.pieces, unk_id=model.unk_id, byte_fallback=False))
    normalizer: list[normalizers.Normalizer] = [
        normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "),
        normalizers.NFC(),
        normalizers.Strip(left=False, right=True),
    ]
    pre_tokenizer: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    ]
    if config.flag("do_lower_case", False):
        normalizer.insert(0, normalizers.Lowercase())
    if config.flag("split_by_punct", False):
        pre_tokenizer.insert(0, pre_tokenizers.Punctuation("isolated"))
    backend.normalizer = normalizers.Sequence(normalizer)
    backend.pre_tokenizer = pre_tokenizers.Sequence(pre_tokenizer)
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    backend.add_tokens(model.symbols)
    backend.add_special_tokens([AddedToken(config.special_tokens.get("mask_token", "[MASK]"), special=True)])
    return backend
