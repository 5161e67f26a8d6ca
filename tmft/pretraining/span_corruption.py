"""Span corruption, the pre-training of T5: spans of a text are cut out, and the decoder generates them.

    original text   [CLS] a man plays the guitar in a park [SEP]
    encoder input   [CLS] a man <0> in a park [SEP]              one sentinel per span, however long it is
    target          <0> plays the guitar [SEP]                   the content of each span, and the end
    decoder input   <start> <0> plays the guitar                 the target, shifted by one token

The sentinels <0>, <1>, ... are T5's <extra_id_0>, <extra_id_1>, ... if the vocabulary has them; otherwise all
are [MASK]. Source: Raffel et al. 2020, arXiv:1910.10683, section 3.1.4, and their released code.

Letters in this file: S sentences, n tokens of all S sentences, B rows of a batch, T tokens in a row of
encoder inputs, W tokens in a row of decoder inputs, M tokens of all targets, D hidden_size, H heads, V
vocab_size.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tmft.checkpoints.save import save_encoder
from tmft.encoder import EncoderConfig, block_diagonal_mask
from tmft.errors import InputError
from tmft.models.families import FAMILIES
from tmft.models.t5 import Attention, T5Config, T5Encoder, relative_bias_matrix
from tmft.models.t5_decoder import UNUSED_WEIGHT_NAMES, WEIGHT_NAMES, Decoder
from tmft.packing import PackedBatch, pack_arrays
from tmft.pretraining.corpus import TokenizedCorpus
from tmft.pretraining.masking import indices_of_process
from tmft.pretraining.token_heads import TokenPrediction
from tmft.tokenizer import Tokenizer

START = -1  # placeholder in decoder inputs for the start token, whose id the model's config has


@dataclass
class SpanBatch:
    """A batch for span corruption: packed encoder inputs, packed decoder inputs, and the tokens to predict.

    encoder_inputs: rows of T tokens. decoder_inputs: rows of W tokens; row b has the same sentences, in the
    same order, as row b of encoder_inputs.
    labels: (M,) int64, the target at each position of decoder_inputs that is not padding, row by row.
    """

    encoder_inputs: PackedBatch
    decoder_inputs: PackedBatch
    labels: Tensor

    def to(self, device: torch.device) -> "SpanBatch":
        """Return a copy of the batch on another device."""
        labels = self.labels.to(device, non_blocking=True)
        return SpanBatch(self.encoder_inputs.to(device), self.decoder_inputs.to(device), labels)


@dataclass(frozen=True)
class SpanMasking:
    """Cuts random spans out of sentences and makes batches of them. Special tokens are never cut out.

    sentinel_ids: ids of the sentinels, in the order in which the spans of a sentence use them; the last one
        is used for all further spans.
    pad_id: id of padding.
    num_prefix_tokens: number of special tokens at the start of a sentence. A sentence must end with one
        special token, with which the target ends as well.
    noise_density: fraction of the tokens that is cut out. mean_noise_span_length: mean number of tokens of a
        span. The names of these two are those of T5's code.
    """

    sentinel_ids: np.ndarray
    pad_id: int
    num_prefix_tokens: int
    noise_density: float = 0.15
    mean_noise_span_length: float = 3.0

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> "SpanMasking":
        """Make a SpanMasking with the ids of a tokenizer."""
        vocabulary, num_prefix_tokens = tokenizer.backend.get_vocab(), tokenizer.num_special_tokens[0]
        names = [f"<extra_id_{n}>" for n in range(100)]
        sentinel_ids = [vocabulary[name] for name in names if name in vocabulary]
        sentinel_ids = sentinel_ids or [vocabulary[tokenizer.special_tokens["mask_token"]]]
        return cls(np.array(sentinel_ids), tokenizer.pad_id, num_prefix_tokens)

    def random_spans_noise_mask(self, length: int, rng: np.random.Generator) -> np.ndarray:
        """Draw which of `length` tokens are cut out, (length,) bool. At least one token separates two spans.

        This differs from T5's code, which never cuts out the first token and always cuts out the last one. In
        a text of 512 tokens this determines only one of 26 spans. But most sentences have a single span,
        which would then always be the end of the sentence.
        """
        num_noise_tokens = min(max(round(self.noise_density * length), 1), length - 1)
        if num_noise_tokens <= 0:
            return np.zeros(length, dtype=bool)
        num_spans = min(max(round(num_noise_tokens / self.mean_noise_span_length), 1), num_noise_tokens)
        kept_lengths = random_segmentation(length - num_noise_tokens + 2, num_spans + 1, rng)
        kept_lengths[[0, -1]] -= 1  # there may be no token before the first span and after the last one
        lengths = np.zeros(2 * num_spans + 1, dtype=np.int64)
        lengths[::2], lengths[1::2] = kept_lengths, random_segmentation(num_noise_tokens, num_spans, rng)
        return np.repeat(np.arange(2 * num_spans + 1) % 2 == 1, lengths)

    def __call__(
        self, corpus: TokenizedCorpus, rng: np.random.Generator
    ) -> tuple[TokenizedCorpus, TokenizedCorpus]:
        """Cut spans out of all S sentences. Return two corpora of S sentences: encoder inputs and targets."""
        tokens, starts, ends = corpus.tokens, corpus.offsets[:-1], corpus.offsets[1:]
        noise_mask = np.zeros(len(tokens) + 1, dtype=bool)  # one more, which np.roll moves before the first
        for start, end in zip(starts + self.num_prefix_tokens, ends - 1, strict=True):
            noise_mask[start:end] = self.random_spans_noise_mask(end - start, rng)
        span_starts = noise_mask[:-1] & ~np.roll(noise_mask, 1)[:-1]
        noise_mask = noise_mask[:-1]  # (n,), as span_starts
        span_index = span_starts.cumsum() - 1  # of the span, counted through all sentences
        sentence = np.repeat(np.arange(len(corpus)), np.diff(corpus.offsets))
        span_index -= (span_starts.cumsum() - span_starts)[starts][sentence]  # counted within the sentence
        sentinels = self.sentinel_ids[np.clip(span_index, 0, len(self.sentinel_ids) - 1)]

        in_input = ~noise_mask | span_starts
        input_tokens = np.where(span_starts, sentinels, tokens)[in_input].astype(np.int32)
        encoder_inputs = TokenizedCorpus(input_tokens, offsets_from_counts(in_input, starts))
        # how often a token is in the target; the first one of a span twice: as its sentinel and as itself
        times = noise_mask.astype(np.int64) + span_starts
        times[ends - 1] = 1
        positions = np.repeat(np.arange(len(tokens)), times)
        is_first_time = np.diff(positions, prepend=-1) > 0
        is_sentinel = is_first_time & span_starts[positions]
        target_tokens = np.where(is_sentinel, sentinels[positions], tokens[positions]).astype(np.int32)
        return encoder_inputs, TokenizedCorpus(target_tokens, offsets_from_counts(times, starts))

    def make_batches(
        self,
        corpus: TokenizedCorpus,
        rng: np.random.Generator,
        batch_sizes: list[int],
        T: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> tuple[list[SpanBatch], int]:
        """Cut spans out of all sentences of a corpus and pack them into batches, in rows of T tokens.

        The parameters are those of Masking.make_batches. Returns this process's part of each batch, and the
        number of target tokens of all batches and processes together.
        """
        encoder_inputs, targets = self(corpus, rng)
        batches = [
            pack_spans(encoder_inputs.select(indices), targets.select(indices), T, self.pad_id)
            for indices in indices_of_process(batch_sizes, rank, world_size)
        ]
        return batches, len(targets.tokens)


def random_segmentation(total: int, num_segments: int, rng: np.random.Generator) -> np.ndarray:
    """Draw num_segments positive integers that add up to total, (num_segments,).

    All such sequences of integers are equally likely.
    """
    ends = np.sort(rng.choice(total - 1, num_segments - 1, replace=False)) + 1
    return np.diff(ends, prepend=0, append=total)


def offsets_from_counts(counts: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the offsets, (S + 1,), of a corpus in which each token of another corpus occurs 0, 1 or 2 times.

    counts: (n,), how often each token of the other corpus occurs. starts: (S,), index of the first token of
    each sentence of the other corpus.
    """
    return np.concatenate([[0], np.add.reduceat(counts.astype(np.int64), starts).cumsum()])


def pack_spans(encoder_inputs: TokenizedCorpus, targets: TokenizedCorpus, T: int, pad_id: int) -> SpanBatch:
    """Pack encoder inputs into rows of T tokens, and decoder inputs into rows with the same sentences.

    encoder_inputs, targets: S sentences each. pad_id: id of padding. Sentence s has sentence_ids s + 1 in
    both.
    """
    packed_inputs, index = pack_arrays(encoder_inputs.tokens, np.diff(encoder_inputs.offsets), T, pad_id)
    first = index[encoder_inputs.offsets[:-1]]  # (S,) of the first token of each sentence
    order, lengths = np.argsort(first), np.diff(targets.offsets)
    row = first[order] // T
    end = lengths[order].cumsum()
    column = end - lengths[order]
    column -= column[np.searchsorted(row, row)]  # of the first target of each sentence in its row
    B, W = len(packed_inputs.input_ids), int((column + lengths[order]).max())

    labels = targets.select(order).tokens.astype(np.int64)
    position = np.arange(len(labels)) - np.repeat(end - lengths[order], lengths[order])
    index = np.repeat(row * W + column, lengths[order]) + position
    shifted = np.where(position == 0, START, np.roll(labels, 1))
    arrays = [np.full(B * W, pad_id), np.zeros(B * W, np.int64), np.zeros(B * W, np.int64)]
    sentence_ids = np.repeat(order + 1, lengths[order])
    for array, values in zip(arrays, (shifted, sentence_ids, position), strict=True):
        array[index] = values
    decoder_ids, sentence_numbers, positions = (torch.from_numpy(array).view(B, W) for array in arrays)
    decoder_inputs = PackedBatch(decoder_ids, sentence_numbers, positions, len(encoder_inputs))
    return SpanBatch(packed_inputs, decoder_inputs, torch.from_numpy(labels))


class SpanCorruption(TokenPrediction):
    """A T5, encoder and decoder with random weights, and the loss of span corruption.

    The loss is the cross-entropy of each target token, given the encoder input and the target tokens before
    it. The logits are products of the decoder's output with the word embeddings, scaled as in T5 version 1.0.
    Raises InputError if the config is not that of a T5 with a decoder.
    """

    encoder: T5Encoder
    decoder: Decoder
    objective = "span"

    def __init__(self, config: EncoderConfig):
        super().__init__()
        family = FAMILIES[config.model_type]
        is_t5 = isinstance(config, T5Config) and family.seq2seq_class is not None
        if not isinstance(config, T5Config) or not is_t5 or config.num_decoder_layers == 0:
            supported = " or ".join(name for name, family in FAMILIES.items() if family.seq2seq_class)
            raise InputError(
                f"task span cannot train this {config.model_type}: "
                f"name the config.json of a {supported} with a decoder",
                "task",
            )
        config = replace(config, components=family.components)  # so that the decoder is saved, too
        self.encoder = T5Encoder(config)
        layers = range(config.num_decoder_layers)
        self.decoder = Decoder(config, [Attention(config, has_bias=layer == 0) for layer in layers])

    def logits(self, batch: SpanBatch) -> Tensor:
        """Return the logits of all target tokens, (M, V)."""
        config, inputs = self.encoder.config, batch.encoder_inputs
        memory = self.encoder(*inputs.inputs)  # (B, T, D)
        word_embeddings = self.encoder.embeddings.word.weight  # (V, D)
        decoder_ids = batch.decoder_inputs.input_ids  # (B, W)
        decoder_ids = decoder_ids.masked_fill(decoder_ids == START, config.decoder_start_token_id)
        sentence_ids = batch.decoder_inputs.sentence_ids  # (B, W)
        query_ids = torch.where(sentence_ids > 0, sentence_ids, -1)  # padding attends to nothing

        cross_mask = block_diagonal_mask(inputs.sentence_ids, memory.dtype, query_ids)  # (B, W, T)
        attention = self.decoder.layers[0].attention
        assert isinstance(attention, Attention) and attention.relative_bias is not None  # see __init__
        W, bias_table = decoder_ids.shape[1], attention.relative_bias
        self_mask = block_diagonal_mask(sentence_ids, memory.dtype, after=0)[:, None]  # (B, 1, W, W)
        max_distance = config.relative_attention_max_distance
        bias = self_mask + relative_bias_matrix(bias_table, W, max_distance, causal=True)  # (B, H, W, W)
        embedded = F.embedding(decoder_ids, word_embeddings)  # (B, W, D)
        hidden = self.decoder(embedded, memory, cross_mask[:, None], bias)  # (B, W, D)
        hidden = hidden[sentence_ids > 0] * config.hidden_size**-0.5  # (M, D)
        return F.linear(hidden, word_embeddings)

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write config.json and the weights of encoder and decoder, with the names of transformers.

        dtype: that of the weights in the file.
        """
        weights = {f"decoder.{name}": weight for name, weight in self.decoder.state_dict().items()}
        checkpoint_names = {
            f"{ours}.weight".format(m=m): f"{theirs}.weight".format(m=m)
            for theirs, ours in (WEIGHT_NAMES | UNUSED_WEIGHT_NAMES).items()
            for m in range(len(self.decoder.layers))
        }
        head = {checkpoint_names[name]: weight for name, weight in weights.items()}
        class_name = FAMILIES[self.encoder.config.model_type].seq2seq_class
        save_encoder(self.encoder, folder, head, class_name, dtype=dtype, prefix="")
