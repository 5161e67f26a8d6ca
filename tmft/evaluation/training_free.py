"""encode for a model whose embeddings are treated without training: token weights, a mix, post-processing.

What is learnt is learnt from texts without labels: those that are scored, or others. The first is called
transductive: the score of a pair then depends on the other pairs, and whoever has one sentence cannot do it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tmft.device import progress_bar
from tmft.embedding.postprocessing import learn
from tmft.embedding.static_embeddings import average_table, random_table, static_encoder, without_specials
from tmft.embedding.token_weights import LEARNT
from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder

Encode = Callable[[list[str]], Tensor]
PART = 20_000  # lines of a text that are tokenised at a time


@dataclass(frozen=True)
class Treatment:
    """What is done without training. tokens: a row of TOKENS; after: rows of AFTER as in abtt+normalize, ""
    for none; tokens_from, after_from: texts to learn them on, None: those that are scored."""

    tokens: str | None = None
    after: str = ""
    tokens_from: Sequence[str] | None = None
    after_from: Sequence[str] | None = None

    @property
    def tokens_of_task(self) -> bool:
        return self.tokens in LEARNT and self.tokens_from is None

    @property
    def without_prompt(self) -> "Treatment":
        """The same for a model that has no prompt."""
        return replace(self, tokens="all") if self.tokens in ("mask", "sentence") else self

    @property
    def transductive(self) -> list[str]:
        """What is learnt on the sentences that are scored."""
        after_of_task = self.after not in ("", "normalize") and self.after_from is None
        return [self.tokens] * self.tokens_of_task + [self.after] * after_of_task


class Treated:
    """The encoders of a model, treated: one for each hidden state asked for, or for each share of a mix.

    layers: numbers of hidden states; the last one alone is what the model makes by itself, a mix among them.
    static, shares: another model, of as many dimensions, and how much of it is in each mix (1 - share) u +
    share v with the last state: the paper's equation 10. A share may be negative.
    """

    def __init__(
        self,
        model: SentenceEncoder,
        layers: Sequence[int],
        treatment: Treatment = Treatment(),
        static: SentenceEncoder | None = None,
        shares: Sequence[float] = (),
    ):
        self.treatment, self.layers, self.shares = treatment, layers, shares
        self.model, self.static = (
            EveryLayer(model, layers),
            static and EveryLayer(static, [len(static.encoder.layers)]),
        )
        if static and static.dimensions != model.dimensions:
            widths = f"{static.source} has {static.dimensions} dimensions, the model {model.dimensions}"
            raise InputError(f"mix: {widths}: choose a static model of this width", "mix")
        if treatment.tokens is not None and not treatment.tokens_of_task:
            self.weigh(treatment.tokens_from)

    @property
    def lines(self) -> Sequence[float]:
        """What there is an encoder for: layers, or shares."""
        return self.shares or self.layers

    def weigh(self, texts: Sequence[str] | None) -> None:
        for side in filter(None, (self.model, self.static)):
            side.model.set_token_weights(self.treatment.tokens, texts)
            side.forget()  # embeddings with other weights

    def encoders(self, texts: Sequence[str]) -> dict[int | float, Encode]:
        """{layer or share: encode}, with what the treatment learns from the texts of a task."""
        self.learnt: dict[int | float, list[nn.Module]] = {}  # the post-processing of each
        if self.treatment.tokens_of_task:
            self.weigh(texts)
        if self.static is None:
            plain = {layer: self.model.encode(layer) for layer in self.layers}
        else:
            u, v = self.model.encode(self.layers[-1]), self.static.encode(self.static.layers[0])
            plain = {share: mix(u, v, share) for share in self.shares}
        if self.treatment.after:
            texts = list(texts if self.treatment.after_from is None else self.treatment.after_from)
            self.learnt = {name: learn(self.treatment.after, encode(texts)) for name, encode in plain.items()}
        return {name: followed(encode, self.learnt.get(name, [])) for name, encode in plain.items()}


def followed(encode: Encode, modules: list[nn.Module]) -> Encode:
    """encode, and then the modules."""

    @torch.inference_mode()
    def both(sentences: list[str]) -> Tensor:
        return nn.Sequential(*modules)(encode(sentences))

    return both if modules else encode


class EveryLayer:
    """encode for some hidden states of a model; a sentence goes through the model once for all of them."""

    def __init__(self, model: SentenceEncoder, layers: Sequence[int]):
        self.model, self.layers = model, list(layers)
        self.last_alone = self.layers == [len(model.encoder.layers)]
        self.forget()

    def forget(self) -> None:
        self.row: dict[str, int] = {}  # sentence -> its number in states
        self.states = torch.empty(len(self.layers), 0, self.model.dimensions)

    def encode(self, layer: int) -> Encode:
        def encode(sentences: list[str]) -> Tensor:
            if new := [sentence for sentence in dict.fromkeys(sentences) if sentence not in self.row]:
                states = self.model.embed_token_ids(self.model.tokenize(new), not self.last_alone, show_progress_bar=True)
                states = states[None] if self.last_alone else states[self.layers]
                self.states = torch.cat([self.states, states], dim=1)
                self.row |= {sentence: len(self.row) + n for n, sentence in enumerate(new)}
            return self.states[self.layers.index(layer), [self.row[sentence] for sentence in sentences]]

        return encode


def mix(one: Encode, other: Encode, share: float) -> Encode:
    """(1 - share) u + share v of two models of one width: the paper's equation 10. share may be negative."""

    def mixed(sentences: list[str]) -> Tensor:
        return (1 - share) * one(sentences) + share * other(sentences)

    return mixed


def random_embeddings(model: SentenceEncoder, dimensions: int = 768, seed: int = 0) -> SentenceEncoder:
    """A random vector for each word of the vocabulary of a model: what a score has to be compared with."""
    return static_model(
        random_table(model.encoder.config.vocab_size, dimensions, seed), model, "random embeddings"
    )


def average(model: SentenceEncoder, lines: Sequence[str]) -> SentenceEncoder:
    """The static model whose vector of a word is the mean of its vectors in the lines, over all of them."""

    with torch.inference_mode():
        states = lambda rows: [model.hidden_states_of(rows)]  # noqa: E731
        table = average_table(batches_of(model, lines), states, model.encoder.config.vocab_size)[0]
    return static_model(table.clone(), model, f"mean vectors of {model.source}")


def batches_of(model: SentenceEncoder, lines: Sequence[str]):
    """Lines of a text as rows, PART of them tokenised at a time."""
    was_training = model.training
    model.eval()
    with progress_bar(len(lines), "lines", True, desc="average") as bar:
        for start in range(0, len(lines), PART):
            for batch, rows in model.packed_batches(model.tokenize(lines[start : start + PART])):
                yield rows
                bar.update(len(batch))
    model.train(was_training)


def static_model(table: Tensor, like: SentenceEncoder, source: str) -> SentenceEncoder:
    """A table (V, D) with the tokenizer of a model, special tokens left out."""
    return SentenceEncoder(static_encoder(table), without_specials(like.tokenizer), source=source).eval()
