"""The table of the words that occur is a copy inside a block, and the whole table is there after it.

tests/speed/test_without_speed.py compares training it with training the whole table.
"""

import pytest
import torch
from torch import nn

from tmft.encoder import TokenEmbeddings
from tmft.speed.occurring_words import OccurringWords

SENTENCES = [[2, 7, 3], [2, 5, 5, 3]]  # four words of ten


def test_a_block_that_ends_in_an_error_leaves_the_whole_table_with_the_words_as_they_are():
    embeddings = TokenEmbeddings()
    embeddings.word = table = nn.Embedding(10, 4)
    words = OccurringWords(embeddings, SENTENCES)
    with pytest.raises(KeyboardInterrupt), words:
        assert torch.equal(embeddings.word(torch.tensor(7)), table.weight[7])
        torch.nn.init.ones_(embeddings.word.weight)
        raise KeyboardInterrupt
    words.compact.weight.data.add_(1)  # the words of the block were copies
    assert embeddings.word is table and table.weight.eq(1).all(1).nonzero().flatten().tolist() == [2, 3, 5, 7]
