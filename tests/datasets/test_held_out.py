"""Whatever is held out, at every door: no text of it is trained on, in any case, with any spaces."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmft.data import Examples
from tmft.datasets.given_examples import hold_out_missing
from tmft.datasets.own_data import divide_into_splits
from tmft.datasets.task_lookup import hold_out, hold_out_dev, text_keys
from tmft.errors import InputError
from tmft.packing import TokenizedCorpus
from tmft.pretraining.corpus import held_out_split
from tmft.tasks import PAIR_COLUMNS


def by_fine_tune(rows, seed):
    splits = {"train": Examples(tuple(map(list, zip(*rows, strict=True))), [*range(len(rows))])}
    hold_out_missing(splits, "train", 0.1)
    return splits


def by_contrastive_dev(rows, seed):
    splits = {"train": Examples(([], []), [])}
    splits["dev"] = Examples(tuple(map(list, zip(*rows, strict=True))), [*range(len(rows))])
    hold_out_missing(splits, "dev", 0.5)
    return {name: splits[name] for name in ("dev", "test")}


def by_dev_fraction(rows, seed):
    train = Examples(tuple(map(list, zip(*rows, strict=True))), [*range(len(rows))])
    return dict(zip(("train", "dev"), hold_out_dev(train, 0.2), strict=True))


def by_data_convert(rows, seed):
    names = ["text"] if len(rows[0]) == 1 else PAIR_COLUMNS
    table = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) | {"score": ["1"] * len(rows)}
    divided = divide_into_splits(table, (0.8, 0.1, 0.1), seed)
    return {
        split: Examples(tuple(part[name] for name in names), part["score"])
        for split, part in divided.items()
        if part["score"]
    }


DOORS = [by_fine_tune, by_contrastive_dev, by_dev_fraction, by_data_convert]


@pytest.mark.parametrize("door", DOORS)
@given(
    texts=st.lists(
        st.tuples(st.sampled_from("abcdefghij"), st.sampled_from("vwxyz")), min_size=30, max_size=80
    ),
    num_columns=st.sampled_from([1, 2]),
    seed=st.integers(0, 3),
)
def test_no_text_that_is_held_out_is_in_another_split(door, texts, num_columns, seed):
    """Odd rows have capitals, more spaces and, if they are pairs, the other order."""
    rows = [
        (
            tuple(f" {text.upper()}  b" for text in row[::-1])
            if index % 2
            else tuple(f"{text} B" for text in row)
        )[:num_columns]
        for index, row in enumerate(texts)
    ]
    try:
        splits = door(rows, seed)
    except InputError:
        return
    keys = {name: text_keys(examples.texts) for name, examples in splits.items()}
    assert sum(map(len, keys.values())) == len(rows)
    assert Counter(key for part in keys.values() for key in part) == Counter(
        text_keys([*zip(*rows, strict=True)])
    )
    assert max(Counter(key for part in keys.values() for key in set(part)).values()) == 1


@pytest.mark.parametrize("door", DOORS)
def test_a_few_texts_that_are_repeated_are_refused_or_not_scored(door):
    rows = [("A dog runs.", "It rains.")] * 40
    with pytest.raises(InputError) if door != by_data_convert else pytest.MonkeyPatch.context():
        splits = door(rows, 0)
        assert len(splits) == 1


def test_what_is_held_out_are_the_first_of_the_order_with_all_that_are_equal():
    assert hold_out("abcabd", [4, 0, 1, 2, 3, 5], 2) == ([0, 3, 2, 5], [4, 1])
    assert hold_out("abc", [2, 0, 1], 0) == ([2, 0, 1], [])


@given(st.lists(st.lists(st.integers(5, 8), min_size=1, max_size=2), min_size=2, max_size=400))
def test_no_sentence_that_pre_training_holds_out_is_trained_on(sentences):
    corpus = TokenizedCorpus.from_sentences(sentences)
    if len(set(map(tuple, sentences))) < 2:
        with pytest.raises(InputError, match="fewer than two different sentences"):
            held_out_split(corpus)
        return
    train, held_out = held_out_split(corpus)
    kept, tested = ([tuple(corpus[index]) for index in part] for part in (train, held_out))
    assert len(set(tested)) == len(tested) > 0 and not set(kept) & set(tested)
    assert set(kept) | set(tested) == set(map(tuple, sentences)) and np.all(np.diff(train) > 0)
