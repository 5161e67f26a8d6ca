"""Training the word embeddings that occur in the text, and no others, with the result of training them all.

STSB's training split has 10,796 of the 30,522 words of BERT. A row of the table whose word never occurs gets
no gradient, so Adam's two averages of it stay 0, and AdamW only shrinks it: by 1 - lr * weight_decay a step.
That can wait until somebody looks, and until then gradient, averages and norms are those of the other rows.
"""

import torch
from torch import nn


class OccurringWords:
    """The rows of `table` that occur in `token_ids`, copied into `weight`, to be trained in its place.

    table: (V, E), all words; weight: (W + 1, E) for W words that occur. The last row of weight is of ones and
    belongs to no word: the optimizer shrinks it as it would have the rows that are not here.
    """

    def __init__(self, table: nn.Parameter, token_ids: list[list[int]]):
        ids = sorted({id for sentence in token_ids for id in sentence})
        self.table = table
        self.ids = torch.tensor(ids, device=table.device)
        self.number = {id: number for number, id in enumerate(ids)}
        self.weight = nn.Parameter(torch.cat([table.detach()[self.ids], torch.ones_like(table[:1])]))

    def renumber(self, token_ids: list[list[int]]) -> list[list[int]]:
        """The same sentences in numbers of rows of weight. Padding may be any number, as nobody reads it."""
        return [[self.number[id] for id in sentence] for sentence in token_ids]

    @torch.no_grad()
    def write_back(self) -> None:
        """Bring the whole table up to date."""
        self.table.mul_(self.weight[-1, 0])
        self.table[self.ids] = self.weight[:-1]
        self.weight[-1] = 1.0
