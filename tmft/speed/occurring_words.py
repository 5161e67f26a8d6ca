"""Training the word embeddings that occur in the text, and no others, with the result of training them all.

STSB's training split has 10,796 of the 30,522 words of BERT. A row of the table whose word never occurs gets
no gradient, so Adam's two averages of it stay 0, and AdamW only shrinks it: by 1 - lr * weight_decay a step.
That can wait until somebody looks, and until then gradient, averages and norms are those of the other rows.
"""

from array import array

import torch
from torch import nn


class AllWords:
    """In its place for an optimizer that looks at a table as a whole, like Adafactor, whose step depends on
    the root mean square of all rows: then it matters which rows there are."""

    def __init__(self, embeddings: nn.Module, token_ids: list[list[int]], tokens: nn.Module | None = None):
        pass

    def renumber(self, token_ids: list[list[int]]) -> list[list[int]]:
        return token_ids

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error) -> None:
        pass

    def state_dict(self) -> dict:
        """What is not in the model's own, inside the block."""
        return {}

    def load_state_dict(self, state: dict) -> None:
        pass


class OccurringWords:
    """`with words:` the table of words has only the rows that occur; afterwards it is whole again.

    embeddings: a module with `word`, an nn.Embedding of (V, E), and perhaps with `also`, ids that are looked
    up in whatever text; token_ids: all others that will be; tokens: None, or a module whose `table`, (V,), is
    looked up by the same ids. Of W words that occur the small table has W + 1 rows. The last one is of ones
    and belongs to no word: the optimizer shrinks it as it would have the rows that are not here.
    """

    def __init__(self, embeddings: nn.Module, token_ids: list[list[int]], tokens: nn.Module | None = None):
        self.also = getattr(embeddings, "also", [])
        ids = sorted({id for sentence in [*token_ids, self.also] for id in sentence})
        self.embeddings, self.whole = embeddings, embeddings.word
        self.number = {id: number for number, id in enumerate(ids)}
        table = self.whole.weight.detach()
        self.ids = torch.tensor(ids, device=table.device)
        rows = torch.cat([table[self.ids], torch.ones_like(table[:1])])
        self.small = nn.Embedding.from_pretrained(rows, freeze=not self.whole.weight.requires_grad)
        self.tokens, self.whole_table = tokens, None if tokens is None else tokens.table

    def renumber(self, token_ids: list[list[int]]) -> list[array]:
        """The same sentences in numbers of the small table. Padding may be any number: nobody reads it."""
        return [array("i", map(self.number.__getitem__, sentence)) for sentence in token_ids]

    def __enter__(self) -> None:
        self.embeddings.word = self.small
        if self.also:
            self.embeddings.also = [self.number[id] for id in self.also]
        if self.tokens is not None:
            self.tokens.table = self.whole_table[self.ids]

    @torch.no_grad()
    def __exit__(self, *error) -> None:
        self.embeddings.word = self.whole
        if self.also:
            self.embeddings.also = self.also
        self.whole.weight.mul_(self.small.weight[-1, 0])
        self.whole.weight[self.ids] = self.small.weight[:-1]
        self.small.weight[-1] = 1.0
        if self.tokens is not None:
            self.tokens.table = self.whole_table

    def state_dict(self) -> dict:
        """What is not in the model's own, inside the block: rows that do not occur, as they were before."""
        return {"whole": self.whole.weight.detach()}

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        self.whole.weight.copy_(state["whole"])
