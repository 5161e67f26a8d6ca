"""Packing: every sentence is in the batch once, complete, with its own number and its own positions."""

import numpy as np
import torch

from tmft.packing import TokenizedCorpus, pack, pack_arrays

SENTENCES = [[1, 2, 3], [4], [5] * 60, [6] * 10, [7, 8], [9] * 64]


def test_packing_loses_no_token_restarts_the_positions_and_the_rest_of_a_row_is_padding():
    batch = pack(SENTENCES, packed_length=64, pad_id=99)
    assert batch.num_sentences == len(SENTENCES)
    for number, sentence in enumerate(SENTENCES, 1):
        mask = batch.attention_mask == number
        assert batch.input_ids[mask].tolist() == sentence
        assert batch.position_ids[mask].tolist() == list(range(len(sentence)))
    padding = batch.attention_mask == 0
    assert padding.sum() == batch.input_ids.numel() - sum(map(len, SENTENCES))
    assert (batch.input_ids[padding] == 99).all()


def test_one_sentence_that_fills_its_row_is_packed_as_the_same_row_of_arrays():
    ids = (2, 9, 7, 3)
    batch = pack([ids], packed_length=4)
    arrays, _ = pack_arrays(np.array(ids), np.array([4]), T=4, pad_id=0)
    for tensor, expected in zip(batch.inputs, arrays.inputs, strict=True):
        assert torch.equal(tensor, expected) and tensor.dtype == expected.dtype
    assert batch.num_sentences == arrays.num_sentences


def test_a_long_sentence_widens_the_rows_to_a_multiple():
    assert pack([[1] * 130, [2]], packed_length=64).input_ids.shape == (1, 192)


def test_random_batches_fill_more_than_nine_tenths_of_the_rows():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 25, (64,), generator=generator).tolist()
    batch = pack([[1] * length for length in lengths])
    assert sum(lengths) / batch.input_ids.numel() > 0.9


def test_pack_arrays_returns_the_index_of_each_token():
    tokens = np.arange(1, 18)
    batch, index = pack_arrays(tokens, np.array([3, 9, 5]), T=10, pad_id=0)
    assert batch.input_ids.flatten()[torch.from_numpy(index)].tolist() == tokens.tolist()


def test_a_corpus_gives_each_sentence_back_as_it_came_and_takes_four_bytes_a_token_and_eight_a_sentence():
    sentences = [[2, 9, 3], [], [2, 30_000, 8, 3], [2, 3]]
    corpus = TokenizedCorpus.from_blocks([sentences[:3], [], sentences[3:]])
    assert [*corpus] == sentences == [corpus[index] for index in range(len(corpus))]
    assert corpus.tokens.nbytes == 4 * 9 and corpus.offsets.nbytes == 8 * 5
