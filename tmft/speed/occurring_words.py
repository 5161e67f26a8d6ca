"""Train only the word embeddings of tokens that occur in the text, with the same result as training all.

In STSB's training split, 10,796 of the 30,522 tokens of BERT's vocabulary occur. A row of the embedding
matrix whose token never occurs has no gradient. Its two moving averages in Adam stay 0, and AdamW only
multiplies it by 1 - lr * weight_decay in each step. That can be done at the end of the epoch; until then,
only the other rows need gradients and moving averages. An optimizer such as Adafactor looks at a whole matrix
(its step depends on the root mean square of all rows), so that all rows have to be there.

Letters in this file: V tokens in the vocabulary, W tokens that occur, E embedding_size.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class WordEmbeddings(Protocol):
    """What the functions here need of the embeddings of an encoder, see TokenEmbeddings in encoder.py."""

    word: nn.Embedding  # (V, E)
    extra_ids: Sequence[int]  # of tokens that are looked up in addition to the text


class CompactEmbedding(nn.Embedding):
    """An embedding with only some of the rows of another one; it is called with the same token ids.

    Its last row starts as ones and belongs to no token: the weight decay that the optimizer applies to it is
    the one that the missing rows would have got.
    """

    def __init__(self, full: nn.Embedding, ids: Tensor):
        """full: the embedding of (V, E) to copy rows from. ids: (W,) int64, the token ids of these rows.

        Other token ids, such as padding, look up the first row.
        """
        table = full.weight.detach()
        rows = torch.cat([table[ids], torch.ones_like(table[:1])])  # (W + 1, E)
        super().__init__(len(rows), full.embedding_dim, _weight=rows)
        new_ids = torch.zeros(len(table), dtype=torch.long, device=ids.device)
        new_ids[ids] = torch.arange(len(ids), device=ids.device)
        self.new_ids: Tensor
        self.register_buffer("new_ids", new_ids, persistent=False)  # (V,)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the embeddings of token ids of the full vocabulary: input_ids (...), result (..., E)."""
        return F.embedding(self.new_ids[input_ids], self.weight)


class OccurringWords:
    """A context manager that trains only the word embeddings of tokens that occur in the training text.

    On entry the word embeddings are replaced by a CompactEmbedding. On exit the full matrix is restored: the
    trained rows are copied into it, and the weight decay is applied to the other rows.
    """

    embeddings: WordEmbeddings
    full: nn.Embedding
    ids: Tensor
    compact: CompactEmbedding

    def __init__(self, embeddings: WordEmbeddings, token_ids: Iterable[Sequence[int]]):
        self.embeddings, self.full = embeddings, embeddings.word
        ids = sorted({id for sentence in chain(token_ids, [embeddings.extra_ids]) for id in sentence})
        self.ids = torch.tensor(ids, device=self.full.weight.device)
        self.compact = CompactEmbedding(self.full, self.ids)

    def __enter__(self) -> None:
        self.embeddings.word = self.compact

    @torch.no_grad()
    def __exit__(self, *error: object) -> None:
        self.embeddings.word = self.full
        decay = self.compact.weight[-1, 0]
        self.full.weight.mul_(decay)
        self.full.weight[self.ids] = self.compact.weight[:-1]
        self.compact.weight[-1] = 1.0

    def state_dict(self) -> dict[str, Any]:
        """Return {"full": (V, E)}, the full matrix as it was on entry.

        The trained rows are not in it; inside the context they are in the state dict of the model.
        """
        return {"full": self.full.weight.detach()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the full matrix from the result of state_dict."""
        self.full.weight.copy_(state["full"])
