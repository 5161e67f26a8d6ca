"""Training the word embeddings that occur in the text, and no others, with the result of training them all.

STSB's training split has 10,796 of the 30,522 tokens of BERT's vocabulary. A row of the embedding matrix
whose token never occurs gets no gradient, so Adam's two averages of it stay 0, and AdamW only shrinks it: by
1 - lr * weight_decay a step. That can wait until the end of the epoch, and until then gradient, averages and
norms are those of the other rows.

Shapes: V tokens in the vocabulary, W of them that occur, E embedding_size.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def occurring_words(
    embeddings: nn.Module, token_ids: Iterable[Sequence[int]], elementwise: bool
) -> "FullEmbedding | OccurringWords":
    """A context in which only word embeddings that occur are trained, if that gives the same result.

    embeddings: a module with `word`, an nn.Embedding of (V, E). token_ids: all training sentences.
    elementwise: whether the optimizer updates each element by itself, as AdamW does. It matters which rows
    there are to one that looks at a whole matrix, like Adafactor, whose step depends on the root mean square
    of all rows; and frozen embeddings are not trained at all.
    """
    if elementwise and embeddings.word.weight.requires_grad:
        return OccurringWords(embeddings, token_ids)
    return FullEmbedding()


class FullEmbedding:
    """A context that does nothing: all word embeddings are trained."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error) -> None:
        pass

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        pass


class CompactEmbedding(nn.Module):
    """A drop-in for an nn.Embedding that holds some of its rows; it is called with the same token ids.

    Its last row is of ones and belongs to no token: the optimizer applies the same weight decay to it as it
    would have applied to the rows that are not here.
    """

    def __init__(self, full: nn.Embedding, ids: Tensor):
        """ids: (W,) int64, of the rows to hold. Other ids, such as padding, look up the first row."""
        super().__init__()
        table = full.weight.detach()
        self.weight = nn.Parameter(torch.cat([table[ids], torch.ones_like(table[:1])]))  # (W + 1, E)
        new_ids = torch.zeros(len(table), dtype=torch.long, device=ids.device)
        new_ids[ids] = torch.arange(len(ids), device=ids.device)
        self.register_buffer("new_ids", new_ids, persistent=False)  # (V,)

    def forward(self, input_ids: Tensor) -> Tensor:
        """(..., ) token ids of the full vocabulary -> (..., E)"""
        return F.embedding(self.new_ids[input_ids], self.weight)


class OccurringWords:
    """Inside the context, the word embeddings are a CompactEmbedding of the tokens that occur in the training
    text; on exit the full matrix is restored, with the trained rows in it and the others decayed.

    embeddings: a module with `word`, an nn.Embedding of (V, E), and perhaps with `extra_ids`, tokens that are
    looked up whatever the text is. token_ids: all training sentences.
    """

    def __init__(self, embeddings: nn.Module, token_ids: Iterable[Sequence[int]]):
        self.embeddings, self.full = embeddings, embeddings.word
        extra_ids = getattr(embeddings, "extra_ids", [])
        ids = sorted({id for sentence in chain(token_ids, [extra_ids]) for id in sentence})
        self.ids = torch.tensor(ids, device=self.full.weight.device)
        self.compact = CompactEmbedding(self.full, self.ids)

    def __enter__(self) -> None:
        self.embeddings.word = self.compact

    @torch.no_grad()
    def __exit__(self, *error) -> None:
        self.embeddings.word = self.full
        decay = self.compact.weight[-1, 0]
        self.full.weight.mul_(decay)
        self.full.weight[self.ids] = self.compact.weight[:-1]
        self.compact.weight[-1] = 1.0

    def state_dict(self) -> dict:
        """What is not in the state of the model inside the context: the full matrix as it was before."""
        return {"full": self.full.weight.detach()}

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        self.full.weight.copy_(state["full"])
