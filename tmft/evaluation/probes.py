"""What a linear map can read off each hidden state: which word a token is, and whether it was replaced.

A generator fills in 15 % of the tokens, as in replaced-token detection. The encoder reads the result; of each
of its hidden states linear discriminant analysis learns on four sentences of five, and is judged on the
fifth. It has no rate and no number of steps to be chosen: what it finds depends on the hidden states alone.
Source: Alain and Bengio 2016, arXiv:1610.01644, for linear probes; Fisher 1936 for the analysis.

Letters in this file: N tokens, D hidden_size, C classes, L layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from tmft.checkpoints.hub import resolve_checkpoint
from tmft.checkpoints.load import load_encoder_with_report
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.errors import InputError
from tmft.packing import PackedBatch, pack
from tmft.pretraining.corpus import Sentences
from tmft.pretraining.heads import MaskedLM, read_mlm_head, sample
from tmft.pretraining.masking import Masking
from tmft.sentence_encoder import SentenceEncoder

LEAST = 5  # tokens of a word to learn from: rarer ones are left out
RIDGE = 1e-4  # of the mean variance, added to each: no direction is divided by nothing
LINES_AT_A_TIME = 256
HELD_OUT = 5  # every fifth sentence
MOST = 5000  # sentences: their hidden states are held in memory


@dataclass
class LayerProbe:
    """What can be read off one hidden state, 0 to 1. word: share of the tokens whose word is found; replaced:
    how often a replaced token looks more replaced than an original one, 0.5 is chance (area under the ROC
    curve); NaN without a generator."""

    word: float
    replaced: float


def probe_layers(model: SentenceEncoder, lines: Sequence[str], generator: MaskedLM | None = None) -> list[LayerProbe]:
    """Of each of the L + 1 hidden states. generator: with the vocabulary of the model; None: nothing is
    replaced. Raises InputError if the lines are too few."""
    torch.manual_seed(0)  # of what the generator fills in
    ids = model.tokenize(list(lines)[:MOST])
    given, replaced = replace_tokens(generator, ids, model) if generator else (ids, [[False] * len(s) for s in ids])
    special = set(model.tokenizer.backend.token_to_id(name) for name in model.tokenizer.special_tokens.values())
    states = hidden_states(model, given)  # L + 1 of (N, D)
    word = torch.tensor([id for sentence in given for id in sentence])
    wrong = torch.tensor([flag for sentence in replaced for flag in sentence])
    test = torch.tensor([n % HELD_OUT == HELD_OUT - 1 for n, sentence in enumerate(given) for _ in sentence])
    real = torch.tensor([id not in special for sentence in given for id in sentence])
    counts = torch.bincount(word[real & ~test], minlength=int(word.max()) + 1)
    frequent = real & (counts[word] >= LEAST)
    if not (frequent & test).any() or (generator and len(wrong[real & test].unique()) < 2):
        raise InputError(f"{len(ids)} sentences are too few for a probe: give hundreds")

    found = []
    for x in states:
        x = x.double()
        words, scores = linear_discriminant_scores(x[frequent & ~test], word[frequent & ~test], x[frequent & test])
        right = (words[scores.argmax(1)] == word[frequent & test]).double().mean().item()
        area = float("nan")
        if generator:
            _, scores = linear_discriminant_scores(x[real & ~test], wrong[real & ~test].long(), x[real & test])
            area = roc_auc((scores[:, 1] - scores[:, 0]).numpy(), wrong[real & test].numpy())
        found.append(LayerProbe(right, area))
    return found


def linear_discriminant_scores(x: Tensor, classes: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Linear discriminant analysis: x (N, D), classes (N,) to learn from -> the C classes that there are, and
    of each row of test, (M, D), the logarithm of their probabilities up to a term of the row, (M, C).

    Each class is normal, with its own mean and one covariance for all.
    """
    known, number = classes.unique(return_inverse=True)
    counts = torch.bincount(number).to(x.dtype)
    means = x.new_zeros(len(known), x.shape[1]).index_add_(0, number, x) / counts[:, None]
    within = x - means[number]
    covariance = within.T @ within / len(x)
    covariance.diagonal().add_(RIDGE * covariance.diagonal().mean() + 1e-12)
    weights = torch.linalg.solve(covariance, means.T)  # (D, C)
    bias = (counts / len(x)).log() - (means.T * weights).sum(0) / 2
    return known, test @ weights + bias


def roc_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """The share of pairs of a positive and another in which the positive one has the higher score (N,)."""
    ranks, P = stats.rankdata(scores), int(positive.sum())
    return float((ranks[positive].sum() - P * (P + 1) / 2) / (P * (len(scores) - P)))


@torch.inference_mode()
def hidden_states(model: SentenceEncoder, ids: Sequence[Sequence[int]]) -> list[Tensor]:
    """Of every layer, from 0: those of all tokens, sentence after sentence, (N, D) float32."""
    parts: list[list[Tensor]] = []
    for start in range(0, len(ids), LINES_AT_A_TIME):
        rows = pack(ids[start : start + LINES_AT_A_TIME]).to(model.device)
        order, states = token_order(rows), model.encoder.hidden_states(*rows.inputs)
        parts.append([state.flatten(0, 1)[order].float().cpu() for state in states])
    return [torch.cat(of_layer) for of_layer in zip(*parts, strict=True)]


@torch.inference_mode()
def replace_tokens(generator: MaskedLM, ids: Sequence[Sequence[int]], model: SentenceEncoder) -> tuple[list, list]:
    """Some tokens of sentences are masked and filled in by a generator -> the sentences, and of each token
    whether it is another than before."""
    masking, rng = Masking.of(model.tokenizer, random=0.0, same=0.0), np.random.default_rng(0)
    given, replaced = [], []
    for start in range(0, len(ids), LINES_AT_A_TIME):
        part = ids[start : start + LINES_AT_A_TIME]
        lengths = [len(sentence) for sentence in part]
        tokens = np.concatenate([np.asarray(sentence, dtype=np.int32) for sentence in part])
        sentences = Sentences(tokens, np.concatenate([[0], np.cumsum(lengths)]))
        [batch], _ = masking.batches(sentences, rng, [len(part)], max(lengths))
        seen = batch.rows.input_ids.flatten()
        filled = seen.index_copy(0, batch.places, sample(generator.logits(batch)))[token_order(batch.rows)]
        for sentence, new in zip(part, filled.split(lengths), strict=True):
            given.append(new.tolist())
            replaced.append([a != b for a, b in zip(sentence, given[-1], strict=True)])
    return given, replaced


def token_order(rows: PackedBatch) -> Tensor:
    """Where in the rows, read row by row, the tokens are: sentence after sentence, no padding, (N,)."""
    numbers = rows.sentence_ids.flatten()
    return torch.argsort(numbers, stable=True)[(numbers == 0).sum() :]  # number 0 is padding


def load_generator(checkpoint: str, model: SentenceEncoder) -> MaskedLM:
    """A checkpoint with a head of masked language modelling. Raises InputError if it has none, or another
    vocabulary than the model."""
    folder: Path = resolve_checkpoint(checkpoint)
    encoder, _ = load_encoder_with_report(folder)
    head, layout = read_mlm_head(folder, encoder.config) or (None, 0)
    if head is None:
        raise InputError(f"{checkpoint} has no head that fills in words: name one that has", "generator")
    if load_tokenizer(folder).backend.get_vocab() != model.tokenizer.backend.get_vocab():
        raise InputError(
            f"{checkpoint} has another vocabulary than the model: name one with its", "generator"
        )
    return MaskedLM(encoder, head, layout).eval()
