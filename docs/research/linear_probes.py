"""Linear probes: how well a linear classifier reads properties of tokens off each hidden state.

    python docs/research/linear_probes.py data/twins/mlm-then-rtd lines.txt --generator data/twins/mlm

lines.txt has hundreds of sentences, one per line. objectives.py draws the scores of many models, which are
the lower panels of docs/objectives.svg.

One probe predicts which token stands at a position, another which token comes next, the third whether the
token was replaced. For the third, a generator replaces some of 15 % of the tokens, as in replaced-token
detection, and the encoder reads the result. The classifier is linear discriminant analysis, fitted to four
fifths of the sentences and scored on the others. It has no learning rate and no number of steps to choose, so
that the result depends on the hidden states alone.
Source: Alain and Bengio 2016, arXiv:1610.01644, for linear probes; Fisher 1936 for the classifier.

Letters in this file: N tokens, D hidden_size, C classes, L layers.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tmft.checkpoints.load import load_encoder_with_report  # noqa: E402
from tmft.checkpoints.model_folder import ModelFolder  # noqa: E402
from tmft.checkpoints.tokenizers import load_tokenizer  # noqa: E402
from tmft.packing import PackedBatch, pack  # noqa: E402
from tmft.pretraining.corpus import TokenizedCorpus  # noqa: E402
from tmft.pretraining.masking import Masking  # noqa: E402
from tmft.pretraining.token_heads import MaskedLM, read_mlm_head, sample_tokens  # noqa: E402
from tmft.sentence_encoder import SentenceEncoder  # noqa: E402

MIN_COUNT = 5  # a token is a class if it occurs at least so often in the training sentences
RIDGE = 1e-4  # this share of the mean variance is added to each variance, so that none is 0
SENTENCES_PER_BATCH = 256
TEST_EVERY = 5  # every fifth sentence is for testing
MAX_SENTENCES = 5000  # the hidden states of all sentences are in memory


@dataclass
class LayerProbe:
    """The scores, in [0, 1], of three linear classifiers (probes) that read one hidden state of the encoder.

    The token probe predicts from the hidden state of a position which token stands there, the probe of the
    next token which one follows it in the sentence. The replacement probe predicts whether a generator has
    replaced the token.

    token_accuracy: share of the test tokens that the token probe predicts correctly.
    next_token_accuracy: share of the test tokens whose next token its probe predicts correctly.
    replaced_auc: area under the ROC curve of the replacement probe, which is the probability that it gives a
        replaced token a higher score than an original one. 0.5 is chance. It is NaN if there is no generator,
        because no token is replaced then.
    """

    token_accuracy: float
    next_token_accuracy: float
    replaced_auc: float


def probe_layers(
    model: SentenceEncoder, sentences: Sequence[str], generator: MaskedLM | None = None
) -> list[LayerProbe]:
    """Fit and score the probes on each hidden state of a model; return L + 1 results, in order.

    generator: a masked language model with the vocabulary of the model, which replaces some of the tokens. If
        None, no token is replaced, and the replacement probe is not scored.
    """
    torch.manual_seed(0)  # for the tokens that the generator draws
    original_ids = model.tokenize(list(sentences)[:MAX_SENTENCES])
    if generator:
        token_ids, replaced = replace_tokens(generator, original_ids, model)
    else:
        token_ids, replaced = original_ids, [[False] * len(sentence) for sentence in original_ids]
    special_tokens = model.tokenizer.special_tokens.values()
    special_ids = {model.tokenizer.backend.token_to_id(token) for token in special_tokens}
    states = encode_hidden_states(model, token_ids)  # L + 1 of (N, D)

    # One entry per token, sentence after sentence, (N,) each.
    token = torch.tensor([id for sentence in token_ids for id in sentence])
    is_replaced = torch.tensor([flag for sentence in replaced for flag in sentence])
    is_test = torch.tensor(
        [i % TEST_EVERY == TEST_EVERY - 1 for i, sentence in enumerate(token_ids) for _ in sentence]
    )
    is_ordinary = torch.tensor([id not in special_ids for sentence in token_ids for id in sentence])
    counts = torch.bincount(token[is_ordinary & ~is_test], minlength=int(token.max()) + 1)
    is_frequent = is_ordinary & (counts[token] >= MIN_COUNT)
    is_last = torch.tensor([i == len(sentence) - 1 for sentence in token_ids for i in range(len(sentence))])
    next_token, has_next = token.roll(-1), is_ordinary & is_frequent.roll(-1) & ~is_last
    assert (is_frequent & is_test).any(), f"{len(token_ids)} sentences are too few for a probe"

    results = []
    for x in states:
        x = x.double()
        token_accuracy = probe_accuracy(x, token, is_frequent, is_test)
        next_token_accuracy = probe_accuracy(x, next_token, has_next, is_test)
        replaced_auc = float("nan")
        if generator:
            train, test = is_ordinary & ~is_test, is_ordinary & is_test
            _, scores = fit_and_score_lda(x[train], is_replaced[train].long(), x[test])
            replaced_auc = roc_auc((scores[:, 1] - scores[:, 0]).numpy(), is_replaced[test].numpy())
        results.append(LayerProbe(token_accuracy, next_token_accuracy, replaced_auc))
    return results


def probe_accuracy(x: Tensor, classes: Tensor, is_used: Tensor, is_test: Tensor) -> float:
    """Fit a probe to the training tokens, and return its accuracy on the test tokens, in [0, 1].

    x: (N, D), the hidden states. classes: (N,), what the probe predicts. is_used: (N,) bool, the tokens that
    have a class. is_test: (N,) bool, the tokens of the test sentences.
    """
    train, test = is_used & ~is_test, is_used & is_test
    distinct, scores = fit_and_score_lda(x[train], classes[train], x[test])
    return (distinct[scores.argmax(1)] == classes[test]).double().mean().item()


def fit_and_score_lda(x: Tensor, classes: Tensor, test_x: Tensor) -> tuple[Tensor, Tensor]:
    """Fit linear discriminant analysis to examples, and score the classes of other examples.

    It models each class as normally distributed, with its own mean, and one covariance for all classes.
    x: (N, D), the features of the examples to fit. classes: (N,), their classes.
    test_x: (M, D), the features of the examples to score.
    Returns the distinct classes, (C,), and their scores for each test example, (M, C): logarithms of the
    probabilities, plus a constant for each example.
    """
    distinct, index = classes.unique(return_inverse=True)
    counts = torch.bincount(index).to(x.dtype)
    means = x.new_zeros(len(distinct), x.shape[1]).index_add_(0, index, x) / counts[:, None]
    centered = x - means[index]
    covariance = centered.T @ centered / len(x)
    covariance.diagonal().add_(RIDGE * covariance.diagonal().mean() + 1e-12)
    weights = torch.linalg.solve(covariance, means.T)  # (D, C)
    bias = (counts / len(x)).log() - (means.T * weights).sum(0) / 2
    return distinct, test_x @ weights + bias


def roc_auc(scores: np.ndarray, is_positive: np.ndarray) -> float:
    """Return the area under the ROC curve: how often a positive example scores higher than a negative one.

    scores: (N,). is_positive: (N,) bool. Equal scores count one half.
    """
    ranks, num_positive = stats.rankdata(scores), int(is_positive.sum())
    higher = ranks[is_positive].sum() - num_positive * (num_positive + 1) / 2
    return float(higher / (num_positive * (len(scores) - num_positive)))


@torch.inference_mode()
def encode_hidden_states(model: SentenceEncoder, token_ids: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return each hidden state of all tokens, sentence after sentence: L + 1 of (N, D) float32."""
    batches: list[list[Tensor]] = []
    for start in range(0, len(token_ids), SENTENCES_PER_BATCH):
        batch = pack(token_ids[start : start + SENTENCES_PER_BATCH]).to(model.device)
        order, states = token_order(batch), model.encoder.hidden_states(*batch.inputs)
        batches.append([state.flatten(0, 1)[order].float().cpu() for state in states])
    return [torch.cat(layer_states) for layer_states in zip(*batches, strict=True)]


@torch.inference_mode()
def replace_tokens(
    generator: MaskedLM, token_ids: Sequence[Sequence[int]], model: SentenceEncoder
) -> tuple[list[list[int]], list[list[bool]]]:
    """Mask 15 % of the tokens, and put tokens that the generator draws in their places.

    Returns the new token ids of each sentence, and for each token whether it differs from the original one.
    """
    masking = Masking.from_tokenizer(model.tokenizer, random_prob=0.0, keep_prob=0.0)
    rng = np.random.default_rng(0)
    new_ids, replaced = [], []
    for start in range(0, len(token_ids), SENTENCES_PER_BATCH):
        sentences = token_ids[start : start + SENTENCES_PER_BATCH]
        lengths = [len(sentence) for sentence in sentences]
        tokens = np.concatenate([np.asarray(sentence, dtype=np.int32) for sentence in sentences])
        corpus = TokenizedCorpus(tokens, np.concatenate([[0], np.cumsum(lengths)]))
        [batch], _ = masking.make_batches(corpus, rng, [len(sentences)], max(lengths))
        drawn = sample_tokens(generator.logits(batch))
        filled = batch.packed.input_ids.flatten().index_copy(0, batch.label_positions, drawn)
        filled = filled[token_order(batch.packed)]
        for old, new in zip(sentences, filled.split(lengths), strict=True):
            new_ids.append(new.tolist())
            replaced.append([a != b for a, b in zip(old, new_ids[-1], strict=True)])
    return new_ids, replaced


def token_order(batch: PackedBatch) -> Tensor:
    """Return the indices, in the flattened rows of a batch, of the tokens sentence after sentence, (N,)."""
    sentence_ids = batch.sentence_ids.flatten()
    return torch.argsort(sentence_ids, stable=True)[(sentence_ids == 0).sum() :]  # 0 is padding


def load_generator(checkpoint: str, model: SentenceEncoder) -> MaskedLM:
    """Load a checkpoint that has a head of masked language modeling, for use as a generator."""
    folder = ModelFolder.open(checkpoint)
    encoder, _ = load_encoder_with_report(folder)
    head_and_layout = read_mlm_head(folder, encoder.config)
    assert head_and_layout, f"{checkpoint} has no head of masked language modeling"
    same_vocabulary = load_tokenizer(folder).backend.get_vocab() == model.tokenizer.backend.get_vocab()
    assert same_vocabulary, f"{checkpoint} has another vocabulary than the model"
    return MaskedLM(encoder, *head_and_layout).eval()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model", help="folder or hub id")
    p.add_argument("file", type=Path, help="text with one sentence per line")
    p.add_argument(
        "--generator", help="model with a head of masked language modeling and the same vocabulary"
    )
    args = p.parse_args()
    model = SentenceEncoder.from_pretrained(args.model)
    generator = load_generator(args.generator, model) if args.generator else None
    print("layer  token accuracy x 100  next token accuracy x 100  replaced ROC AUC x 100")
    for layer, probe in enumerate(probe_layers(model, args.file.read_text("utf-8").splitlines(), generator)):
        accuracies = f"{100 * probe.token_accuracy:20.2f}  {100 * probe.next_token_accuracy:25.2f}"
        print(f"{layer:5}  {accuracies}  {100 * probe.replaced_auc:22.2f}")


if __name__ == "__main__":
    main()
