"""SentenceEncoder: text in, embeddings in the same order out; saved, it is the same everywhere."""

import logging

import numpy as np
import pytest
import torch
from conftest import SENTENCES, VOCABULARY, assert_same_embeddings, tiny_model

from tmft import InputError, SentenceEncoder
from tmft.embedding.modules import Dense, LayerNorm, Normalize
from tmft.embedding.pooling_components import parts_of
from tmft.packing import pack
from tmft.pooling import POOLINGS
from tmft.speed.length_buckets import length_bucketed_batches

DEBERTA = {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": "c2p|p2c"}
FAMILIES = {
    "electra with projection": {},
    "electra": {"embedding_size": 24},
    "bert": {"model_type": "bert", "embedding_size": 24},
    "bert of 1 type": {"model_type": "bert", "type_vocab_size": 1},
    "deberta": DEBERTA,
}


# ------------------------------------------------------------------------------------------------- encode


def test_embeddings_are_the_mean_of_the_last_hidden_state():
    model = tiny_model()
    for sentence, embedding in zip(SENTENCES, model.encode(SENTENCES), strict=True):
        ids = torch.tensor(model.tokenize([sentence]))
        with torch.inference_mode():
            mean = model.encoder(ids, torch.ones_like(ids))[0].mean(0)
        assert_same_embeddings(embedding, mean.numpy())


def test_embeddings_are_numpy_float32_of_the_models_dimensions():
    embeddings = tiny_model().encode(SENTENCES)
    assert isinstance(embeddings, np.ndarray)
    assert embeddings.dtype == np.float32
    assert embeddings.shape == (len(SENTENCES), 24)


def test_the_tiny_model_tells_its_sentences_apart():
    """On which the tests that compare embeddings rely."""
    embeddings = tiny_model().encode(SENTENCES)
    distances = np.linalg.norm(embeddings[:, None] - embeddings, axis=-1) + 9 * np.eye(len(SENTENCES))
    assert distances.min() > 0.1


def test_no_sentences_give_no_rows():
    assert tiny_model().encode([]).shape == (0, 24)


def test_every_layer_in_one_pass_is_each_truncated_model(tiny_folder):
    every = SentenceEncoder.from_pretrained(tiny_folder)
    ids = every.tokenize(SENTENCES)
    states = every.embed_token_ids(ids, all_layers=True)
    assert states.shape == (5, len(SENTENCES), 24)
    for layer in range(5):
        expected = SentenceEncoder.from_pretrained(tiny_folder, layer).embed_token_ids(ids)
        torch.testing.assert_close(states[layer], expected, rtol=0, atol=0)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_texts_of_examples_are_embedded_column_by_column(k):
    model = tiny_model()
    texts = [SENTENCES[:2], [SENTENCES[2], SENTENCES[0]], SENTENCES[3:5]][:k]
    embeddings = model.embed_columns(texts)
    assert len(embeddings) == k
    for column, text in zip(embeddings, texts, strict=True):
        assert_same_embeddings(column.numpy(), model.encode(text))


def test_sentences_of_the_same_tokens_have_the_same_embedding_to_the_bit():
    embeddings = tiny_model().encode([*SENTENCES, "MUSIC", *SENTENCES])
    assert np.array_equal(embeddings[:5], embeddings[6:])
    assert np.array_equal(embeddings[5], embeddings[SENTENCES.index("music")])


def test_sentences_of_the_same_tokens_are_computed_once():
    model = tiny_model()
    counts = []
    model.encoder.register_forward_hook(lambda _, inputs, __: counts.append(int(inputs[1].max())))
    model.encode([*SENTENCES, "MUSIC", *SENTENCES])
    assert counts == [len(SENTENCES)]


def test_dropout_is_off_while_encoding():
    model = tiny_model()
    expected = model.encode(SENTENCES)
    assert np.array_equal(model.train().encode(SENTENCES), expected)


def test_encoding_does_not_leave_the_model_out_of_training():
    model = tiny_model().train()
    model.encode(SENTENCES)
    assert model.training
    assert model.encoder.layers[0].dropout.training


def test_long_sentences_are_cut_and_counted_in_one_line(caplog):
    model = tiny_model()
    with caplog.at_level(logging.WARNING, "tmft"):
        model.encode(["music " * 100, "music", "cat " * 50])
    assert caplog.messages == ["2 of 3 sentences are longer than 40 tokens and were cut"]


def test_the_prompt_is_put_before_each_sentence():
    model = tiny_model()
    model.prompt = "a dog "
    assert np.array_equal(model.encode(["cat"]), tiny_model().encode(["a dog cat"]))
    assert np.abs(model.encode(SENTENCES) - tiny_model().encode(SENTENCES)).max() > 0.1


@pytest.mark.parametrize("every_layer", [False, True])
def test_no_sentences_have_the_shape_of_some(every_layer):
    model = tiny_model()
    model.head_modules.append(Dense(24, 6))
    some, none = (model.embed_token_ids(ids, every_layer) for ids in (model.tokenize(SENTENCES), []))
    assert none.shape[:-2] == some.shape[:-2] and none.shape[-2:] == (0, 6)


def test_anything_that_is_made_of_rows_can_be_read_in_the_order_of_the_sentences():
    """Here the number of tokens, and of sentences in the same batch of rows, of each."""
    model = tiny_model()
    ids = model.tokenize([*SENTENCES, "music", *SENTENCES[::-1]])

    def lengths(rows):
        counts = torch.bincount(rows.sentence_ids.flatten(), minlength=rows.num_sentences + 1)[1:]
        return torch.stack([counts, torch.full_like(counts, rows.num_sentences)])[..., None].float()

    found = model.map_batches(ids, lengths, False)
    assert found.shape == (2, 11, 1)
    assert found[0].flatten().tolist() == [len(sentence) for sentence in ids]
    assert set(found[1].flatten().tolist()) == {5}  # as often as they come


def test_rows_of_sentences_tell_which_they_are():
    model = tiny_model()
    ids = model.tokenize(["music " * n for n in range(1, 30)])
    seen = []
    for batch, rows in model.packed_batches(ids):
        for number, sentence in enumerate(batch, start=1):
            assert rows.input_ids[rows.sentence_ids == number].tolist() == ids[sentence]
        seen += batch
    assert sorted(seen) == list(range(29))


# ------------------------------------------------------------------------------------ poolings, what follows


WITHOUT_PARTS = [name for name in POOLINGS if not parts_of(name)]


@pytest.mark.parametrize("pooling", [*WITHOUT_PARTS, "max+mean", "mean+cls+lasttoken"])
def test_poolings_stand_side_by_side(pooling):
    model = tiny_model()
    parts = []
    for name in pooling.split("+"):
        model.pooling = name
        parts.append(model.encode(SENTENCES))
    model.pooling = pooling
    assert np.array_equal(model.encode(SENTENCES), np.concatenate(parts, axis=1))


@pytest.mark.parametrize(
    ("pooling", "modules", "dimensions"),
    [
        ("mean", [], 24),
        ("max+mean", [], 48),
        ("mean", [Normalize()], 24),
        ("max+mean", [Dense(48, 8)], 8),
        ("mean", [Dense(24, 16), LayerNorm(16), Dense(16, 6), Normalize()], 6),
    ],
)
def test_dimensions_are_those_of_an_embedding(pooling, modules, dimensions):
    tiny = tiny_model()
    model = SentenceEncoder(tiny.encoder, tiny.tokenizer, pooling, modules=modules)
    assert model.dimensions == dimensions == model.encode(SENTENCES).shape[1]


def test_modules_follow_the_pooling_in_their_order():
    tiny = tiny_model()
    modules = [Dense(24, 8, activation="Tanh"), Normalize()]
    model = SentenceEncoder(tiny.encoder, tiny.tokenizer, modules=modules)
    pooled = torch.from_numpy(tiny.encode(SENTENCES))
    expected = modules[1](modules[0](pooled)).detach().numpy()
    assert_same_embeddings(model.encode(SENTENCES), expected)


def test_an_unknown_pooling_is_refused():
    tiny = tiny_model()
    with pytest.raises(InputError, match="pooling 'meen': .*; did you mean mean?"):
        SentenceEncoder(tiny.encoder, tiny.tokenizer, "meen")


# --------------------------------------------------------------------------------------------------- load


@pytest.mark.parametrize("max_length", [2, 41])
def test_a_length_beyond_the_position_table_is_refused(tiny_folder, max_length):
    with pytest.raises(InputError, match="choose 3 to 40, the size of the position table"):
        SentenceEncoder.from_pretrained(tiny_folder, max_length=max_length)


def test_a_tokenizer_of_another_checkpoint_is_refused(tiny_folder):
    with open(tiny_folder / "vocab.txt", "w", encoding="utf-8") as vocabulary:
        vocabulary.write("\n".join(["[UNK]", "[CLS]", "[SEP]", *(f"word{n}" for n in range(200))]))
    (tiny_folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=f"ids up to 202, the embedding table has {len(VOCABULARY)} rows"):
        SentenceEncoder.from_pretrained(tiny_folder)


def test_all_choices_of_a_folder_come_back_together_and_any_can_be_replaced(tmp_path):
    tiny_model(model_type="bert").save_pretrained(tmp_path / "tiny")
    model = SentenceEncoder.from_pretrained(tmp_path / "tiny", layer="word+1+3", max_length=20)
    model.prompt, model.pooling = "a dog [X] is [M]", "cls+mean"
    model.set_token_weights("idf", SENTENCES)
    model.head_modules.append(Dense(48, 6, activation="Tanh"))
    model.save_pretrained(tmp_path / "saved")
    again = SentenceEncoder.from_pretrained(tmp_path / "saved")
    assert np.array_equal(again.encode(SENTENCES), model.encode(SENTENCES))
    assert (again.layers, again.prompt, again.max_length) == ((-1, 1, 3), model.prompt, 20)
    other = SentenceEncoder.from_pretrained(tmp_path / "saved", layer=2, pooling="max", max_length=30)
    assert (other.layers, other.token_weights, len(other.head_modules), other.max_length) == (None, None, 0, 30)
    assert other.prompt == model.prompt
    plain = SentenceEncoder.from_pretrained(tmp_path / "tiny", layer=2, pooling="max")
    assert np.array_equal(other.encode(["music"]), plain.encode(["a dog music is [MASK]"]))


def test_a_checkpoint_that_says_nothing_is_the_mean_of_all_tokens_of_its_last_layer(tiny_folder):
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (tiny_folder / name).unlink()
    model = SentenceEncoder.from_pretrained(tiny_folder)
    assert (model.layers, model.token_weights, model.prompt, model.pooling) == (None, None, "", "mean")
    assert np.array_equal(model.encode(SENTENCES), tiny_model().encode(SENTENCES))


@pytest.fixture
def without_weights(tiny_folder):
    (tiny_folder / "model.safetensors").unlink()
    return tiny_folder


def random_embeddings(folder, seed: int) -> np.ndarray:
    torch.manual_seed(seed)
    return SentenceEncoder.from_pretrained(folder, init="random").encode(SENTENCES)


def test_random_weights_need_no_file(without_weights):
    assert random_embeddings(without_weights, 0).shape == (len(SENTENCES), 24)


def test_random_weights_follow_the_seed(without_weights):
    first = random_embeddings(without_weights, 0)
    assert np.array_equal(first, random_embeddings(without_weights, 0))
    assert not np.allclose(first, random_embeddings(without_weights, 1))


def test_random_weights_can_be_of_fewer_layers(without_weights):
    model = SentenceEncoder.from_pretrained(without_weights, layer=1, init="random")
    assert len(model.encoder.layers) == 1
    assert model.load_report.startswith("random weights: ")


# --------------------------------------------------------------------------------------------------- save


@pytest.fixture(
    scope="module",
    params=[(family, pooling) for family in FAMILIES for pooling in ("mean", "cls", "max")],
    ids=": ".join,
)
def truncated(request, tmp_path_factory) -> tuple:
    """The first two of four layers, the folder where they were saved"""
    family, pooling = request.param
    folder = tmp_path_factory.mktemp("models")
    full = tiny_model(**FAMILIES[family])
    full.pooling = pooling
    full.save_pretrained(folder / "full")
    model = SentenceEncoder.from_pretrained(folder / "full", layer=2, max_length=12)
    model.save_pretrained(folder / "saved")
    return model, folder / "saved"


def test_a_saved_model_is_the_same_when_it_is_loaded(truncated):
    model, folder = truncated
    again = SentenceEncoder.from_pretrained(folder)
    assert np.array_equal(again.encode(SENTENCES), model.encode(SENTENCES))
    assert again.pooling == model.pooling
    assert again.max_length == 12
    assert len(again.encoder.layers) == 2


def test_a_saved_model_is_the_same_in_transformers(truncated):
    from transformers import AutoModel, AutoTokenizer

    model, folder = truncated
    bare = AutoModel.from_pretrained(folder).eval()
    batch = AutoTokenizer.from_pretrained(folder)(SENTENCES[3], return_tensors="pt")
    with torch.inference_mode():
        hidden = bare(**batch).last_hidden_state[0]
    pooled = {"mean": hidden.mean(0), "cls": hidden[0], "max": hidden.max(0).values}[model.pooling]
    assert_same_embeddings(model.encode(SENTENCES[3:4])[0], pooled.numpy())


@pytest.mark.slow
def test_a_saved_model_is_the_same_in_sentence_transformers(truncated):
    from sentence_transformers import SentenceTransformer

    model, folder = truncated
    theirs = SentenceTransformer(str(folder), device="cpu")
    assert theirs.max_seq_length == 12
    assert_same_embeddings(model.encode(SENTENCES), theirs.encode(SENTENCES))


@pytest.mark.slow
def test_layer_0_is_the_same_in_sentence_transformers(tiny_folder, tmp_path):
    from sentence_transformers import SentenceTransformer

    model = SentenceEncoder.from_pretrained(tiny_folder, layer=0)
    model.save_pretrained(tmp_path / "saved")
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert_same_embeddings(model.encode(SENTENCES), theirs.encode(SENTENCES))


@pytest.mark.slow
def test_the_real_minilm_equals_sentence_transformers(minilm):
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(minilm, device="cpu").encode(SENTENCES)
    assert_same_embeddings(SentenceEncoder.from_pretrained(minilm).encode(SENTENCES), theirs)


def test_the_card_says_what_the_model_is(tiny_folder, tmp_path):
    model = SentenceEncoder.from_pretrained(tiny_folder, layer=3, pooling="max+mean", max_length=20)
    model.save_pretrained(tmp_path / "saved")
    card = (tmp_path / "saved/README.md").read_text()
    assert "from the first 3 layers of tiny" in card
    assert "Hidden state 3, pooling 'max+mean', 48 dimensions, at most 20 tokens." in card


# ---------------------------------------------------------------------------------------- speed, precision


@pytest.mark.parametrize(
    ("lengths", "tokens_per_batch", "expected"),
    [
        ([3, 64, 7, 300, 7, 20, 70, 65], 150, [([3], 304), ([6, 7], 72), ([1, 5, 2, 4, 0], 64)]),
        ([3, 64, 7, 7, 20], 60, [([1, 2, 0], 64), ([4, 3], 64)]),
        ([], 60, []),
    ],
)
def test_long_sentences_get_rows_made_to_measure_and_the_others_are_dealt_out(
    lengths, tokens_per_batch, expected
):
    assert list(length_bucketed_batches(lengths, tokens_per_batch, 64)) == expected


def test_batches_of_mixed_lengths_fill_their_rows():
    lengths = torch.randint(5, 40, (500,), generator=torch.Generator().manual_seed(0)).tolist()
    places = 0
    for batch, width in length_bucketed_batches(lengths, 2048, 64):
        places += pack([[0] * lengths[s] for s in batch], width).input_ids.numel()
    assert sum(lengths) / places > 0.93


@pytest.mark.parametrize("family", [{}, DEBERTA])
def test_a_model_in_bfloat16_gives_nearly_the_same_embeddings(family):
    model = tiny_model(untrained=True, **family)
    exact = model.encode(SENTENCES)
    rounded = model.bfloat16().encode(SENTENCES)
    assert rounded.dtype == np.float32
    assert not np.array_equal(rounded, exact)
    np.testing.assert_allclose(rounded, exact, atol=0.1)
