"""Training the words that occur is training all of them."""

import torch
from torch import nn

from tmft.speed.occurring_words import OccurringWords

SENTENCES = [[2, 7, 3], [2, 5, 5, 3]]  # four words of ten


def train(table: nn.Parameter, sentences, steps: int, optimizer=None):
    """A few steps of AdamW with a large decay on some function of the rows."""
    optimizer = optimizer or torch.optim.AdamW([table], lr=0.1, weight_decay=0.5)
    for step in range(steps):
        optimizer.zero_grad()
        loss = sum((table[sentence] - step).square().sum() for sentence in sentences)
        loss.backward()
        optimizer.step()
    return optimizer


def test_the_words_that_occur_equal_the_whole_table_also_after_writing_back_twice():
    torch.manual_seed(0)
    whole = nn.Parameter(torch.randn(10, 4))
    table = nn.Parameter(whole.detach().clone())
    words = OccurringWords(table, SENTENCES)
    assert words.weight.shape == (5, 4) and words.renumber(SENTENCES) == [[0, 3, 1], [0, 2, 2, 1]]
    ours = theirs = None
    for steps in (3, 4):
        theirs = train(whole, SENTENCES, steps, theirs)
        ours = train(words.weight, words.renumber(SENTENCES), steps, ours)
        words.write_back()
        torch.testing.assert_close(table, whole, rtol=1e-6, atol=1e-7)
    assert not torch.equal(table[0], torch.zeros(4)) and words.weight[-1].tolist() == [1.0] * 4


def test_the_first_write_back_changes_nothing_and_words_are_copies():
    table = nn.Parameter(torch.randn(10, 4))
    before = table.detach().clone()
    words = OccurringWords(table, SENTENCES)
    words.write_back()
    assert torch.equal(table, before)
    with torch.no_grad():
        words.weight.add_(1)
    assert torch.equal(table, before)
