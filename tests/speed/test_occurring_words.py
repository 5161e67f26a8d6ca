"""Training the words that occur is training all of them."""

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


def train(table: nn.Embedding, sentences, steps: int, optimizer=None):
    """A few steps of AdamW with a large decay on some function of the rows."""
    optimizer = optimizer or torch.optim.AdamW(table.parameters(), lr=0.1, weight_decay=0.5)
    for step in range(steps):
        optimizer.zero_grad()
        loss = sum((table(torch.tensor(sentence)) - step).square().sum() for sentence in sentences)
        loss.backward()
        optimizer.step()
    return optimizer


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
            train(ours.word, SENTENCES, 1)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert ours.word is table and torch.equal(table.weight[7], words.compact(torch.tensor(7)))
