"""SentenceEncoder: embeddings in order, those of sentence-transformers after saving, clear errors."""

import json
import logging

import numpy as np
import pytest
import torch
from conftest import SENTENCES, VOCABULARY, tiny_model
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from tmft import InputError, SentenceEncoder
from tmft.rows import pack
from tmft.sentence import batches_to_embed, cosines


def test_embeddings_are_the_masked_mean_in_the_given_order():
    model = tiny_model()
    embeddings = model.encode(SENTENCES)
    assert embeddings.shape == (len(SENTENCES), 24) and embeddings.dtype == np.float32
    for sentence, embedding in zip(SENTENCES, embeddings, strict=True):
        ids = torch.tensor(model.tokenize([sentence]))
        with torch.inference_mode():
            mean = model.encoder(ids, torch.ones_like(ids))[0].mean(0)
        np.testing.assert_allclose(embedding, mean.numpy(), atol=1e-6)


def test_no_sentences_give_no_rows():
    assert tiny_model().encode([]).shape == (0, 24)


def test_one_string_is_not_a_list_of_letters():
    with pytest.raises(TypeError, match="write encode"):
        tiny_model().encode("a man")


def test_every_layer_in_one_pass_is_each_truncated_model(tiny_folder):
    every = SentenceEncoder.load(tiny_folder)
    ids = every.tokenize(SENTENCES)
    states = every.embed(ids, every_layer=True)
    assert states.shape == (5, len(SENTENCES), 24)
    for layer in range(5):
        torch.testing.assert_close(
            states[layer], SentenceEncoder.load(tiny_folder, layer).embed(ids), rtol=0, atol=0
        )


def test_pairs_of_equal_sentences_tie():
    u = torch.randn(500, 24, generator=torch.Generator().manual_seed(0))
    assert (cosines(u, u * 1.0000001) == 1).all()


def test_similarities_are_cosines_of_the_pairs():
    model = tiny_model()
    u, v = model.encode(SENTENCES[:2]), model.encode([SENTENCES[2], SENTENCES[0]])
    expected = [(a @ b) / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(u, v, strict=True)]
    similarities = model.similarities(SENTENCES[:2], [SENTENCES[2], SENTENCES[0]])
    np.testing.assert_allclose(similarities, expected, atol=1e-6)


def test_the_same_tokens_have_the_same_embedding_to_the_bit_and_are_computed_once():
    model = tiny_model()
    rows = []
    model.encoder.register_forward_hook(lambda _, inputs, __: rows.append(int(inputs[1].max())))
    embeddings = model.encode([*SENTENCES, "MUSIC", *SENTENCES])
    assert rows == [len(SENTENCES)] and np.array_equal(embeddings[:5], embeddings[6:])
    assert np.array_equal(embeddings[5], embeddings[SENTENCES.index("music")])


def test_encoding_does_not_leave_the_model_out_of_training():
    model = tiny_model().train()
    model.encode(SENTENCES)
    assert model.training and model.encoder.layers[0].dropout.training


FAMILIES = {
    "electra with projection": {},
    "electra": {"embedding_size": 24},
    "bert": {"model_type": "bert", "embedding_size": 24},
    "bert of 1 type": {"model_type": "bert", "type_vocab_size": 1},
}


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_opens_everywhere_with_the_same_embeddings(family, pooling, tmp_path):
    full = tiny_model(**FAMILIES[family])
    full.pooling = pooling
    full.save(tmp_path / "full")
    truncated = SentenceEncoder.load(tmp_path / "full", layer=2, max_length=12)
    truncated.save(tmp_path / "saved")
    expected = truncated.encode(SENTENCES)

    again = SentenceEncoder.load(tmp_path / "saved")
    assert (again.pooling, again.max_length, len(again.encoder.layers)) == (pooling, 12, 2)
    assert np.array_equal(again.encode(SENTENCES), expected)

    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert theirs.max_seq_length == 12
    np.testing.assert_allclose(theirs.encode(SENTENCES), expected, atol=2e-6)

    bare = AutoModel.from_pretrained(tmp_path / "saved").eval()
    batch = AutoTokenizer.from_pretrained(tmp_path / "saved")(SENTENCES[3], return_tensors="pt")
    with torch.inference_mode():
        hidden = bare(**batch).last_hidden_state[0]
    pooled = {"mean": hidden.mean(0), "cls": hidden[0], "max": hidden.max(0).values}[pooling]
    np.testing.assert_allclose(pooled.numpy(), expected[3], atol=2e-6)


def test_layer_0_can_be_saved_and_opened_too(tiny_folder, tmp_path):
    model = SentenceEncoder.load(tiny_folder, layer=0)
    model.save(tmp_path / "saved")
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(theirs.encode(SENTENCES), model.encode(SENTENCES), atol=2e-6)


def test_the_pooling_of_newer_sentence_transformers_is_read(tiny_folder):
    (tiny_folder / "1_Pooling/config.json").write_text(
        json.dumps({"embedding_dimension": 24, "pooling_mode": "cls"})
    )
    assert SentenceEncoder.load(tiny_folder).pooling == "cls"


def test_an_unknown_pooling_is_refused(tiny_folder):
    (tiny_folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))
    with pytest.raises(InputError, match="pooling 'lasttoken': choose one of mean, cls, max"):
        SentenceEncoder.load(tiny_folder)


def test_modules_that_are_not_run_are_named(tiny_folder):
    modules = json.loads((tiny_folder / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (tiny_folder / "modules.json").write_text(json.dumps(modules))
    assert "not applied: Dense" in SentenceEncoder.load(tiny_folder).report


def test_long_sentences_are_cut_and_counted_in_one_line(caplog):
    model = tiny_model()
    with caplog.at_level(logging.WARNING, "tmft"):
        model.encode(["music " * 100, "music", "cat " * 50])
    assert caplog.messages == ["2 of 3 sentences are longer than 40 tokens and were cut"]


@pytest.mark.parametrize("max_length", [2, 41])
def test_a_length_beyond_the_position_table_is_refused(tiny_folder, max_length):
    with pytest.raises(InputError, match="choose 3 to 40, the size of the position table"):
        SentenceEncoder.load(tiny_folder, max_length=max_length)


def test_a_tokenizer_of_another_checkpoint_is_refused(tiny_folder):
    with open(tiny_folder / "vocab.txt", "w", encoding="utf-8") as vocabulary:
        vocabulary.write("\n".join(["[UNK]", "[CLS]", "[SEP]", *(f"word{n}" for n in range(200))]))
    (tiny_folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=f"ids up to 202, the embedding table has {len(VOCABULARY)} rows"):
        SentenceEncoder.load(tiny_folder)


def test_random_weights_need_no_file_and_follow_the_seed(tiny_folder):
    (tiny_folder / "model.safetensors").unlink()
    embeddings = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        embeddings.append(SentenceEncoder.load(tiny_folder, init="random").encode(SENTENCES))
    assert np.array_equal(embeddings[0], embeddings[1]) and not np.allclose(embeddings[0], embeddings[2])


def test_long_sentences_get_rows_made_to_measure_and_the_others_are_dealt_out():
    lengths = [3, 64, 7, 300, 7, 20, 70, 65]
    expected = [([3], 304), ([6, 7], 72), ([1, 5, 2, 4, 0], 64)]
    assert list(batches_to_embed(lengths, tokens_per_batch=150)) == expected
    assert list(batches_to_embed([3, 64, 7, 7, 20], tokens_per_batch=60)) == [([1, 2, 0], 64), ([4, 3], 64)]
    assert list(batches_to_embed([], tokens_per_batch=60)) == []


def test_batches_of_mixed_lengths_fill_their_rows():
    lengths = torch.randint(5, 40, (500,), generator=torch.Generator().manual_seed(0)).tolist()
    places = 0
    for batch, width in batches_to_embed(lengths, tokens_per_batch=2048):
        places += pack([[0] * lengths[s] for s in batch], width).input_ids.numel()
    assert sum(lengths) / places > 0.93


@pytest.mark.parametrize("family", [{}, {"model_type": "deberta-v2", "relative_attention": True}])
def test_a_model_in_bfloat16_gives_nearly_the_same_embeddings(family):
    model = tiny_model(untrained=True, **family)
    exact = model.encode(SENTENCES)
    rounded = model.bfloat16().encode(SENTENCES)
    assert rounded.dtype == np.float32 and not np.array_equal(rounded, exact)
    np.testing.assert_allclose(rounded, exact, atol=0.1)


def test_the_real_minilm_equals_sentence_transformers(minilm):
    theirs = SentenceTransformer(minilm, device="cpu")
    ours = SentenceEncoder.load(minilm).encode(SENTENCES)
    ours = ours / np.linalg.norm(ours, axis=1, keepdims=True)  # theirs ends with a Normalize module
    np.testing.assert_allclose(theirs.encode(SENTENCES), ours, atol=1e-6)
