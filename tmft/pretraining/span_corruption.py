"""Span corruption: an encoder reads a text with holes, a decoder writes what stood in them.

    the text     [CLS] a man plays the guitar in a park [SEP]
    it reads     [CLS] a man <0> in a park [SEP]              one sentinel for each hole, however long
    it writes    <0> plays the guitar [SEP]                   what each hole was, and the end
    it is given  <start> <0> plays the guitar                 the same, one token later

The sentinels are T5's <extra_id_0>, <extra_id_1>, ... where the vocabulary has them, else all are [MASK].
Source: Raffel et al. 2020, arXiv:1910.10683, section 3.1.4 and their released code.

Letters in this file: S sentences, n tokens of them all, B rows, T tokens in a row that is read, W in one that
is written, M tokens that are written, H heads, D hidden_size, V words.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.checkpoints.save import save_encoder
from tmft.checkpoints.tokenizers import Tokenizer
from tmft.errors import InputError
from tmft.models.bert import block_diagonal_mask
from tmft.models.registry import FAMILIES
from tmft.models.t5 import Attention, T5Config, T5Encoder, by_distance
from tmft.models.t5_decoder import NAMES, UNUSED, Decoder
from tmft.packing import PackedBatch, pack_arrays
from tmft.pretraining.corpus import Sentences
from tmft.pretraining.masking import shares


@dataclass
class SpanBatch:
    """Rows that are read, rows of what is written of the same sentences, and what is to be written.

    written: its input_ids are the tokens given, each the one before. labels: (M,) int64, of the places of
    `written` that hold a token, one row after the other.
    """

    rows: PackedBatch
    written: PackedBatch
    labels: Tensor

    def to(self, device: torch.device) -> "SpanBatch":
        labels = self.labels.to(device, non_blocking=True)
        return SpanBatch(self.rows.to(device), self.written.to(device), labels)


@dataclass(frozen=True)
class SpanMasking:
    """Which tokens are cut out, in spans, and what stands in their place. Special tokens never are."""

    sentinels: np.ndarray  # ids
    pad_id: int
    before: int  # special tokens at the begin of a sentence; the last one closes what is written, too
    share: float = 0.15  # of the tokens is cut out
    length: float = 3.0  # of a span, on average

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "SpanMasking":
        vocabulary, before = tokenizer.backend.get_vocab(), tokenizer.special_ends[0]
        known = [vocabulary[f"<extra_id_{n}>"] for n in range(100) if f"<extra_id_{n}>" in vocabulary]
        return cls(np.array(known or [vocabulary[tokenizer.special["mask_token"]]]), tokenizer.pad_id, before)

    def holes(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Which of `count` tokens are cut out, (count,) bool. Between two spans there is a token.

        T5's code also leaves the first token and cuts out the last one. In a text of 512 that ends one of 26
        spans; in a sentence there is but one span, and it would always be the end.
        """
        cut = min(max(round(self.share * count), 1), count - 1)
        if cut <= 0:
            return np.zeros(count, dtype=bool)
        spans = min(max(round(cut / self.length), 1), cut)
        left = parts(count - cut + 2, spans + 1, rng)  # at each end there may be none
        left[[0, -1]] -= 1
        lengths = np.zeros(2 * spans + 1, dtype=np.int64)
        lengths[::2], lengths[1::2] = left, parts(cut, spans, rng)
        return np.repeat(np.arange(2 * spans + 1) % 2 == 1, lengths)

    def __call__(self, sentences: Sentences, rng: np.random.Generator) -> tuple[Sentences, Sentences]:
        """-> what is read and what is written, as many sentences each"""
        tokens, starts, ends = sentences.tokens, sentences.offsets[:-1], sentences.offsets[1:]
        hole = np.zeros(len(tokens) + 1, dtype=bool)  # one more, for what is before the first
        for start, end in zip(starts + self.before, ends - 1, strict=True):
            hole[start:end] = self.holes(end - start, rng)
        opens = hole[:-1] & ~np.roll(hole, 1)[:-1]
        number = opens.cumsum() - 1  # of a hole, counted through all sentences
        sentence = np.repeat(np.arange(len(sentences)), np.diff(sentences.offsets))
        number -= (opens.cumsum() - opens)[starts][sentence]  # and within its own
        sentinel = self.sentinels[np.clip(number, 0, len(self.sentinels) - 1)]

        kept = ~hole[:-1] | opens
        read = Sentences(np.where(opens, sentinel, tokens)[kept].astype(np.int32), offsets(kept, starts))
        times = hole[:-1].astype(np.int64) + opens  # the first of a span comes after its sentinel
        times[ends - 1] = 1
        place = np.repeat(np.arange(len(tokens)), times)
        first = np.diff(place, prepend=-1) > 0
        text = np.where(first & opens[place], sentinel[place], tokens[place]).astype(np.int32)
        return read, Sentences(text, offsets(times, starts))

    def batches(
        self,
        sentences: Sentences,
        rng: np.random.Generator,
        sizes: list[int],
        T: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> tuple[list[SpanBatch], int]:
        """As Masking.batches: batches of these sizes -> this process's share of each; M of them all."""
        read, text = self(sentences, rng)
        of = [(read.take(which), text.take(which)) for which in shares(sizes, rank, world_size)]
        return [pack_spans(*parts, T, self.pad_id) for parts in of], len(text.tokens)


def parts(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` whole numbers of 1 or more whose sum is `total`, each way to do it equally likely."""
    cuts = np.sort(rng.choice(total - 1, count - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total)


def offsets(counts: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """How many of each token, (n,), and where sentences start -> Sentences.offsets"""
    return np.concatenate([[0], np.add.reduceat(counts.astype(np.int64), starts).cumsum()])


def pack_spans(read: Sentences, text: Sentences, T: int, pad_id: int) -> SpanBatch:
    """What is written of a sentence goes into the row of the same number as what is read of it."""
    rows, place = pack_arrays(read.tokens, np.diff(read.offsets), T, pad_id)
    first = place[read.offsets[:-1]]  # place of each sentence
    order, lengths = np.argsort(first), np.diff(text.offsets)
    row = first[order] // T
    end = lengths[order].cumsum()
    begin = end - lengths[order]
    begin -= begin[np.searchsorted(row, row)]  # within its row
    B, W = len(rows.input_ids), int((begin + lengths[order]).max())

    tokens = text.take(order).tokens.astype(np.int64)
    position = np.arange(len(tokens)) - np.repeat(end - lengths[order], lengths[order])
    where = np.repeat(row * W + begin, lengths[order]) + position
    given = np.where(position == 0, -1, np.roll(tokens, 1))  # -1: the start token, whatever it is
    filled = [np.full(B * W, pad_id), np.zeros(B * W, np.int64), np.zeros(B * W, np.int64)]
    for array, values in zip(filled, (given, np.repeat(order + 1, lengths[order]), position), strict=True):
        array[where] = values
    written = PackedBatch(*(torch.from_numpy(array).view(B, W) for array in filled), len(read))
    return SpanBatch(rows, written, torch.from_numpy(tokens))


class SpanCorruption(nn.Module):
    """A T5 that is pre-trained: cross-entropy of each token of what is written, the ones before it given.

    The scores are products with the table of words, scaled as in version 1.0.
    """

    def __init__(self, config: T5Config):
        super().__init__()
        family = FAMILIES[config.model_type]
        if family.seq2seq_class is None or config.num_decoder_layers == 0:
            known = " or ".join(name for name, row in FAMILIES.items() if row.seq2seq_class)
            what = f"task span: the shape is a {config.model_type}"
            raise InputError(f"{what}; name the config.json of a {known} with a decoder", "task")
        config = replace(config, parts=family.parts)  # so that it is saved as a whole model
        self.encoder = T5Encoder(config)
        numbers = range(config.num_decoder_layers)
        self.decoder = Decoder(config, [Attention(config, has_bias=n == 0) for n in numbers])

    def logits(self, batch: SpanBatch) -> Tensor:
        """(M, V), of the tokens that are written"""
        config, rows, written = self.encoder.config, batch.rows, batch.written
        memory = self.encoder(*rows.inputs)  # (B, T, D)
        table = self.encoder.embeddings.word.weight
        given = written.input_ids.masked_fill(written.input_ids < 0, config.decoder_start_token_id)
        seen = torch.where(written.sentence_ids > 0, written.sentence_ids, -1)  # padding sees nothing

        mask = block_diagonal_mask(rows.sentence_ids, memory.dtype, looking=seen)[:, None]  # (B, 1, W, T)
        W, numbers = given.shape[1], self.decoder.layers[0].attention.relative_bias
        later = torch.ones(W, W, dtype=torch.bool, device=given.device).triu(1)
        itself = block_diagonal_mask(written.sentence_ids, memory.dtype)[:, None]
        itself = itself.masked_fill(later, torch.finfo(memory.dtype).min)
        bias = itself + by_distance(numbers, W, config.relative_attention_max_distance, causal=True)
        hidden = self.decoder(F.embedding(given, table), memory, mask, bias)  # (B, W, D)
        hidden = hidden[written.sentence_ids > 0] * config.hidden_size**-0.5  # (M, D)
        return F.linear(hidden, table)

    def forward(self, batch: SpanBatch) -> dict[str, Tensor]:
        logits = self.logits(batch)
        return {
            "span": F.cross_entropy(logits.float(), batch.labels, reduction="sum"),
            "correct": (logits.argmax(-1) == batch.labels).sum(),
            "masked": batch.labels.new_full((), len(batch.labels)),
        }

    @staticmethod
    def loss(sums: dict[str, Tensor], masked: int, tokens: int) -> Tensor:
        return sums["span"] / masked

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """A whole T5, decoder and all."""
        ours = {f"decoder.{name}": weight for name, weight in self.decoder.state_dict().items()}
        names = {
            f"{here}.weight".format(m=m): f"{there}.weight".format(m=m)
            for there, here in (NAMES | UNUSED).items()
            for m in range(len(self.decoder.layers))
        }
        head = {names[name]: weight for name, weight in ours.items()}
        name = FAMILIES[self.encoder.config.model_type].seq2seq_class
        save_encoder(self.encoder, folder, head, name, dtype=dtype, prefix="")
