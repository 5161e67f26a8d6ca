"""The table of the words that occur is a copy inside a block, and the whole table is there after it.

tests/speed/test_without_speed.py compares training it with training the whole table.
"""

import torch
from torch import nn

from tmft.encoder import TokenEmbeddings
from tmft.speed.occurring_words import OccurringWords

SENTENCES = [[2, 7, 3], [2, 5, 5, 3]]  # four words of ten


def embeddings(word: nn.Embedding) -> TokenEmbeddings:
    """What holds the table in an encoder."""
    module = TokenEmbeddings()
    module.word = word
    return module


def test_a_block_without_a_step_changes_nothing_and_words_are_copies():
    ours = embeddings(nn.Embedding(10, 4))
    before = ours.word.weight.detach().clone()
    words = OccurringWords(ours, SENTENCES)
    with words:
        assert torch.equal(ours.word(torch.tensor(7)), before[7])
    assert torch.equal(ours.word.weight, before)
    with torch.no_grad():
        words.compact.weight.add_(1)
    assert torch.equal(ours.word.weight, before)


def test_a_block_that_ends_in_an_error_leaves_the_whole_table():
    ours = embeddings(nn.Embedding(10, 4))
    table, words = ours.word, OccurringWords(ours, SENTENCES)
    try:
        with words:
            torch.nn.init.ones_(ours.word.weight)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert ours.word is table and table.weight.eq(1).all(1).nonzero().flatten().tolist() == [2, 3, 5, 7]
