"""SentenceEncoder: sentences in, embeddings in the same order out; a saved model is the same everywhere."""

import copy
import json
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest
import torch
from conftest import SENTENCES, assert_same_embeddings, tiny_model

import tmft.sentence_encoder
from tmft import InputError, SentenceEncoder, distill
from tmft.embedding.modules import Dense
from tmft.export.export import export
from tmft.packing import length_bucketed_batches
from tmft.sentence_encoder import check_finite_embeddings
from tmft.students.narrow_models import factorize_embeddings
from tmft.students.vocabulary_pruning import prune_vocabulary
from tmft.tokenizer import check_sentences

# ------------------------------------------------------------------------------------------------- encode


def test_embeddings_are_the_mean_of_the_last_hidden_state():
    model = tiny_model()
    for sentence, embedding in zip(SENTENCES, model.encode(SENTENCES), strict=True):
        ids = torch.tensor(model.tokenize([sentence]))
        with torch.inference_mode():
            mean = model.encoder(ids, torch.ones_like(ids))[0].mean(0)
        assert_same_embeddings(embedding, mean.numpy())


def test_all_layers_in_one_pass_equal_each_truncated_model(tiny_folder):
    model = SentenceEncoder.from_pretrained(tiny_folder)
    ids = model.tokenize(SENTENCES)
    states = model.embed_token_ids(ids, model.forward_all_layers)
    assert states.shape == (5, len(SENTENCES), 24)
    for layer in range(5):
        expected = SentenceEncoder.from_pretrained(tiny_folder, layer).embed_token_ids(ids)
        torch.testing.assert_close(states[layer], expected, rtol=0, atol=0)


def test_sentences_of_the_same_tokens_have_bit_identical_embeddings():
    embeddings = tiny_model().encode([*SENTENCES, "MUSIC", *SENTENCES])
    assert np.array_equal(embeddings[:5], embeddings[6:])
    assert np.array_equal(embeddings[5], embeddings[SENTENCES.index("music")])


def test_dropout_is_off_while_a_model_in_training_mode_encodes_and_each_module_keeps_its_mode():
    model = tiny_model()
    expected = model.encode(SENTENCES)
    model.train().encoder.layers[0].eval()
    before = [module.training for module in model.modules()]
    assert np.array_equal(model.encode(SENTENCES), expected)
    assert [module.training for module in model.modules()] == before


def test_long_sentences_are_truncated_and_counted_in_one_line(caplog, monkeypatch):
    monkeypatch.setattr("tmft.sentence_encoder.TOKENIZE_BLOCK", 2)  # also if they are in several blocks
    model = tiny_model()
    with caplog.at_level(logging.WARNING, "tmft"):
        model.encode(["music " * 100, "music", "cat " * 50])
    assert caplog.messages == ["2 of 3 sentences are longer than 40 tokens and were truncated"]


@pytest.mark.parametrize("all_layers", [False, True])
def test_an_empty_result_has_the_dimensions_of_any_other(all_layers):
    model = tiny_model()
    model.head_modules.append(Dense(24, 6))
    forward = model.forward_all_layers if all_layers else None
    some, none = (model.embed_token_ids(ids, forward) for ids in (model.tokenize(SENTENCES), []))
    assert none.shape[:-2] == some.shape[:-2] and none.shape[-2:] == (0, 6)
    assert model.encode([]).shape == (0, 6)


# ----------------------------------------------------------------------------------------- options of encode


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def embeddings(model):
    return model.encode(SENTENCES)


SAME_EMBEDDINGS = {
    "any iterable": lambda model: model.encode(sentence for sentence in SENTENCES),
    "options without effect": lambda model: model.encode(
        SENTENCES, batch_size=2, show_progress_bar=None, convert_to_numpy=True, prompt=None
    ),
    "a tensor": lambda model: model.encode(SENTENCES, convert_to_tensor=True).numpy(force=True),
    "not numpy": lambda model: model.encode(SENTENCES, convert_to_numpy=False).numpy(force=True),
    "a copy": lambda model: copy.deepcopy(model).encode(SENTENCES),
    "a pickle": lambda model: pickle.loads(pickle.dumps(model)).encode(SENTENCES),
}


@pytest.mark.parametrize("call", SAME_EMBEDDINGS.values(), ids=SAME_EMBEDDINGS)
def test_the_embeddings_are_the_same_however_they_are_asked_for(call, model, embeddings):
    assert np.array_equal(call(model), embeddings)


@pytest.mark.parametrize("prompt", ["a dog ", "the cat [X] is [M]"])
def test_a_prompt_of_one_call_is_applied_and_not_kept(prompt, model, embeddings):
    with_prompt = tiny_model()
    with_prompt.prompt = prompt
    expected = with_prompt.encode(SENTENCES)
    assert not np.allclose(expected, embeddings, atol=0.01)
    assert np.array_equal(model.encode(SENTENCES, prompt=prompt), expected)
    assert np.array_equal(model.encode(SENTENCES), embeddings)
    assert np.array_equal(with_prompt.encode(SENTENCES, prompt=""), embeddings)


def test_token_weights_that_count_the_tokens_of_a_prompt_fit_prompts_of_its_length_alone():
    model, other = tiny_model(), tiny_model()
    model.prompt, other.prompt = "a dog ", "the cat "
    for one in (model, other):
        one.set_token_weights("no-prompt")
    assert np.array_equal(model.encode(SENTENCES, prompt="a dog "), model.encode(SENTENCES))
    assert np.array_equal(model.encode(SENTENCES, prompt="the cat "), other.encode(SENTENCES))
    with pytest.raises(InputError, match="prompt: the token weights of this model exclude the tokens of"):
        model.encode(SENTENCES, prompt="the cat in ")
    model.prompt = "the cat in "
    with pytest.raises(InputError, match="prompt: the token weights of this model exclude the tokens of"):
        model.encode(SENTENCES)
    model.set_token_weights("idf", SENTENCES)
    assert np.isfinite(model.encode(SENTENCES)).all()


REFUSED_SETTINGS = [  # attribute, value, words of the message
    ("max_length", 41, "^max_length 41: choose 3 to 40,"),
    ("max_length", "20", "^max_length 20: choose 3 to"),
    ("truncate_dim", 12.0, "^truncate_dim 12.0: give a whole number"),
    ("default_prompt_name", "sts", "^default_prompt_name 'sts': choose one of query, document"),
    ("layers", (1, 9), "^layers 1.9: .* has 4 layers"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED_SETTINGS)
def test_a_setting_that_cannot_be_is_refused_at_the_latest_by_encode(name, value, message):
    model = tiny_model()
    with pytest.raises(InputError, match=message):
        setattr(model, name, value)
        model.encode(SENTENCES)


def encode_with(**options):
    return lambda model: model.encode(SENTENCES, **options)


def load_with(**options):
    return lambda model: SentenceEncoder.from_pretrained("data/tiny", **options)


HALF_CHARACTER = r"sentence 1 \('.*'\) has half a character .*: decode the text"
NO_MODEL = r"load a model with SentenceEncoder.from_pretrained\('all-MiniLM-L6-v2'\)$"
REFUSED_CALLS = [  # the error, words of its message, and the call
    (InputError, "^init 'Random': choose one of pretrained, random", load_with(init="Random")),
    (InputError, "^device xla: .*: use auto or cpu", load_with(device=torch.device("xla"))),
    (InputError, "^device gpu: torch calls an NVIDIA GPU cuda: use cuda or auto$", load_with(device="gpu")),
    (InputError, NO_MODEL, lambda model: SentenceEncoder("all-MiniLM-L6-v2", device="cuda")),
    (InputError, "^prompt 5: give a text", encode_with(prompt=5)),
    (InputError, "^prompt_name 5: choose one of query, doc", encode_with(prompt_name=5)),
    (TypeError, "unexpected keyword argument 'batchsize'", encode_with(batchsize=3)),
    (TypeError, "encode: precision='int8'", encode_with(precision="int8")),
    (TypeError, "encode: output_value='token_em.* is not", encode_with(output_value="token_embeddings")),
    (TypeError, "encode: device='cuda'", encode_with(device="cuda")),
    (TypeError, "sentence 1 is 'None',", lambda model: model.encode(["a", None])),
    (TypeError, "a list of sentences is", lambda model: model.tokenize("abc")),
    (TypeError, "compares embeddings, not sentences", lambda model: model.similarity(["a"], ["b"])),
    (TypeError, "compares embeddings, not sentences", lambda model: model.similarity_pairwise("a", "b")),
    (InputError, HALF_CHARACTER, lambda model: model.encode(["a", json.loads('"a \\ud83d"')])),
]


@pytest.mark.parametrize(("error", "message", "call"), REFUSED_CALLS)
def test_a_call_that_cannot_be_is_refused_by_name(error, message, call, model):
    with pytest.raises(error, match=message):
        call(model)


class Table(dict):
    """Has columns, and iterates over their names, as a DataFrame and a DatasetDict do."""

    columns = property(lambda self: [*self])


class Series:
    """Texts whose indices have a gap, as a Series has after rows were removed: series[1] is a KeyError."""

    texts: ClassVar = {0: "a man", 2: "a dog", 5: "music"}
    __len__ = lambda self: len(self.texts)  # noqa: E731
    __iter__ = lambda self: iter(self.texts.values())  # noqa: E731
    __getitem__ = lambda self, index: self.texts[index]  # noqa: E731


NO_SENTENCES = {
    "a table": (Table(text=["a man"], label=["b"]), "not a Table: give one column or value, as a list"),
    "a dict": ({"q1": "a man"}, "not a dict: give one column or value, as a list"),
    "a set": ({"a man", "a dog"}, "not a set, which has no order"),
    "bytes": (b"a man", r"not bytes: write \[sentence.decode\(\)\]"),
    "a number": (5, "not int: give a list of strings"),
    "a batch of rows": ([{"text": "a man"}], "sentence 0 is .* of type dict: give strings"),
}
TAKERS = {
    "encode": lambda model, texts: model.encode(texts),
    "encode_query": lambda model, texts: model.encode_query(texts),
    "tokenize": lambda model, texts: model.tokenize(texts),
    "set_token_weights": lambda model, texts: model.set_token_weights("idf", texts),
    "distill": lambda model, texts: distill(model, layers=1, lines=texts),
    "prune_vocabulary": lambda model, texts: prune_vocabulary(model, texts),
    "factorize_embeddings": lambda model, texts: factorize_embeddings(
        tiny_model(model_type="bert"), texts, 8
    ),
    "export": lambda model, texts: export(model, "new", sentences=texts),
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("name", NO_SENTENCES)
def test_what_is_no_list_of_texts_is_refused_with_the_remedy(name, taker, model):
    sentences, message = NO_SENTENCES[name]
    with pytest.raises(TypeError, match=message):
        TAKERS[taker](model, sentences)
    with pytest.raises(TypeError, match=message):
        check_sentences(sentences)


def test_any_order_of_texts_is_a_list_and_its_sentence_is_named(model):
    expected = model.encode(["a man", "a dog", "music"])
    broken = tiny_model()
    broken.head_modules.append(Dense(24, 24))
    broken.head_modules[0].weight.data.fill_(3e38)
    for make in (Series, lambda: iter([*Series()]), lambda: tuple(Series()), lambda: np.array([*Series()])):
        assert np.array_equal(model.encode(make()), expected)
        with pytest.raises(
            InputError, match="the embedding of sentence 0 .*'a man'.* has values that are not"
        ):
            broken.encode(make())


def test_threads_give_the_same_embeddings(model, embeddings):
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: model.encode(SENTENCES), range(8)):
            np.testing.assert_allclose(result, embeddings, atol=1e-6)
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.slow
def test_the_evaluators_of_sentence_transformers_accept_a_model(model):
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    one, other, scores = SENTENCES, [*SENTENCES[1:], SENTENCES[0]], list(np.linspace(0, 1, len(SENTENCES)))
    documents = {str(n): text for n, text in enumerate(SENTENCES)}
    similarity = evaluation.EmbeddingSimilarityEvaluator(one, other, scores)(model)
    u, v = (model.encode(texts, normalize_embeddings=True) for texts in (one, other))
    assert similarity["pearson_cosine"] == pytest.approx(np.corrcoef((u * v).sum(1), scores)[0, 1], abs=1e-5)
    retrieval = evaluation.InformationRetrievalEvaluator({"q": "a cat"}, documents, {"q": {"1"}})(model)
    assert np.isfinite(list(retrieval.values())).all()


# -------------------------------------------------------------------------------------------- from_pretrained


def test_any_setting_of_a_folder_can_be_overridden(tmp_path):
    tiny_model(model_type="bert").save_pretrained(tmp_path / "tiny")
    model = SentenceEncoder.from_pretrained(tmp_path / "tiny", layer="word+1+3", max_length=20)
    model.prompt, model.pooling, model.truncate_dim = "a dog [X] is [M]", "cls+mean", 5
    model.set_token_weights("idf", SENTENCES)
    model.head_modules.append(Dense(48, 6, activation="Tanh"))
    model.save_pretrained(tmp_path / "saved")
    other = SentenceEncoder.from_pretrained(tmp_path / "saved", layer=2, pooling="max", max_length=30)
    assert (other.layers, other.token_weights, other.truncate_dim, other.max_length) == (None, None, None, 30)
    plain = SentenceEncoder.from_pretrained(tmp_path / "tiny", layer=2, pooling="max")
    assert np.array_equal(other.encode(["music"]), plain.encode(["a dog music is [MASK]"]))


def test_a_model_is_put_on_the_device_that_is_named(tiny_folder, monkeypatch):
    assert SentenceEncoder.from_pretrained(tiny_folder).device.type == "cpu"
    monkeypatch.setattr(tmft.sentence_encoder, "choose_device", {"cuda:1": torch.device("meta")}.get)
    assert SentenceEncoder.from_pretrained(tiny_folder, device="cuda:1").device.type == "meta"


def test_random_weights_need_no_file_follow_the_seed_and_may_have_fewer_layers(tiny_folder):
    (tiny_folder / "model.safetensors").unlink()

    def encode(seed: int) -> np.ndarray:
        torch.manual_seed(seed)
        return SentenceEncoder.from_pretrained(tiny_folder, init="random").encode(SENTENCES)

    first = encode(0)
    assert first.shape == (len(SENTENCES), 24) and np.array_equal(first, encode(0))
    assert not np.allclose(first, encode(1))
    model = SentenceEncoder.from_pretrained(tiny_folder, layer=1, init="random")
    assert len(model.encoder.layers) == 1 and model.load_report.startswith("random weights: ")


# -------------------------------------------------------------------------------------------- save_pretrained


@pytest.mark.slow
def test_the_real_minilm_equals_sentence_transformers(minilm):
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(minilm, device="cpu").encode(SENTENCES)
    assert_same_embeddings(SentenceEncoder.from_pretrained(minilm).encode(SENTENCES), theirs)


# ---------------------------------------------------------------------------------------- speed, precision


@pytest.mark.parametrize(
    ("lengths", "tokens_per_batch", "expected"),
    [
        ([3, 64, 7, 300, 7, 20, 70, 65], 150, [([3], 300), ([6, 7], 72), ([1, 5, 2, 4, 0], 64)]),
        ([3, 301], 700, [([1], 304), ([0], 3)]),
        ([300] * 5, 1500, [([0, 1], 304), ([2, 3], 304), ([4], 304)]),  # 2 * 300**2 scores
        ([5, 12], 60, [([1, 0], 17)]),
        ([0], 60, [([0], 1)]),
        ([], 60, []),
    ],
)
def test_long_sentences_get_rows_of_their_length_and_the_others_are_dealt_out(
    lengths, tokens_per_batch, expected
):
    batches = length_bucketed_batches(np.array(lengths, dtype=int), tokens_per_batch, 64, max_scores=200_000)
    assert [(indices.tolist(), row_length) for indices, row_length in batches] == expected


def test_a_short_sentence_alone_is_a_row_of_its_tokens_and_has_the_embedding_that_it_has_among_others():
    model = tiny_model()
    for sentence, expected in zip(SENTENCES * 2, model.encode(SENTENCES * 2), strict=True):
        [token_ids] = model.tokenize([sentence])
        [(_, batch)] = model.packed_batches(model.tokenize_to_corpus([sentence]))
        assert batch.input_ids.tolist() == [token_ids]
        np.testing.assert_allclose(model.encode(sentence), expected, rtol=1e-5, atol=1e-5)


def test_other_names_of_the_ecosystem_say_the_same():
    model = tiny_model()
    assert (
        model.get_sentence_embedding_dimension() == model.get_embedding_dimension() == model.dimensions == 24
    )
    model.max_seq_length = 5
    assert model.max_length == 5 and [len(ids) for ids in model.tokenize(["a man plays the guitar"])] == [5]


@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3)])
def test_an_embedding_that_is_not_finite_is_named_but_large_numbers_are_finite(shape):
    embeddings = torch.full(shape, 3e38)  # their sum is infinite
    check_finite_embeddings(embeddings, ["a", "b", "c", "d"])
    for value in (torch.nan, torch.inf, -torch.inf):
        embeddings[..., 2, 1] = value
        with pytest.raises(InputError, match=r"sentence 2 \('c'\) has values that are not finite"):
            check_finite_embeddings(embeddings, ["a", "b", "c", "d"])
