"""Embeddings that are changed by hand: what evaluate.py and `tmft tables` are compared with."""

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from tmft import SentenceEncoder
from tmft.data import Examples
from tmft.metrics import cosines, spearman
from tmft.training_free.postprocessing import fit_postprocessing

WORDS = "a the man woman dog cat plays eats guitar music is not in park two".split()


def random_sentences(count: int, seed: int) -> list[str]:
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(2, 7))) for _ in range(count)]


def random_pairs(count: int, seed: int, labels: str = "012345") -> Examples:
    scores = list(map(float, random.Random(seed).choices(labels, k=count)))
    return Examples((random_sentences(count, seed), random_sentences(count, seed + 1)), scores)


def random_texts(count: int, seed: int, labels) -> Examples:
    return Examples((random_sentences(count, seed),), random.Random(seed).choices(labels, k=count))


def write_examples(path: Path, examples: Examples, label: str = "score") -> None:
    """Write a TSV file of one or two texts and a label, as a task reads it."""
    names = ["text"] if len(examples.texts) == 1 else ["sentence1", "sentence2"]
    labels = [f"{value:g}" if isinstance(value, float) else str(value) for value in examples.labels]
    lines = map("\t".join, zip(*examples.texts, labels, strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["\t".join([*names, label]), *lines]) + "\n")


def change(
    model: SentenceEncoder,
    token_weights: str | None = None,
    token_texts: Sequence[str] | None = None,
    postprocess: str = "",
    fit_texts: Sequence[str] = (),
):
    """Return a function that encodes sentences with a model, after these changes of it."""
    if token_weights is not None:
        model.set_token_weights(token_weights, token_texts)
    embed = lambda column: model.embed_token_ids(model.tokenize(column))  # noqa: E731
    modules = fit_postprocessing(postprocess, embed(list(fit_texts))) if postprocess else []

    @torch.no_grad()
    def encode(column: list[str]) -> Tensor:
        return nn.Sequential(*modules)(embed(column))

    return encode


def spearman_of(encode, examples: Examples) -> float:
    """Return Spearman's correlation of the cosines of the embeddings with the scores of pairs."""
    return spearman(cosines(*(torch.as_tensor(encode(column)) for column in examples.texts)), examples.labels)
