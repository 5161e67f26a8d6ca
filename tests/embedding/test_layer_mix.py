"""A mix of layers is the mean of the embeddings of each; no layer above them is read or computed."""

import numpy as np
import pytest
import torch
from conftest import DEBERTA, PAIRS, SENTENCES, WORDS, assert_same_embeddings, tiny_model

from tmft import SentenceEncoder, distill, fine_tune
from tmft.checkpoints.weights import WeightFiles
from tmft.embedding.layer_mix import WORD_EMBEDDINGS, format_layer_mix, mean_hidden_state, parse_layer_mix
from tmft.errors import InputError
from tmft.packing import pack

FAMILIES = {
    "bert": {"model_type": "bert"},
    "electra": {"embedding_size": 24},
    "deberta-v2": DEBERTA,
}
PROJECTED = {"embedding_size": 12}  # an ELECTRA whose words are narrower than its hidden states


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    """A saved encoder of 4 layers, of each family."""
    path = tmp_path_factory.mktemp("layers") / request.param
    tiny_model(**FAMILIES[request.param]).save_pretrained(path)
    return path


def encode(folder, layer) -> np.ndarray:
    return SentenceEncoder.from_pretrained(folder, layer=layer).encode(SENTENCES)


def mean_of_words(model: SentenceEncoder) -> np.ndarray:
    """(5, E): the mean of the word embeddings of each sentence, of [CLS] and [SEP] too."""
    table = model.encoder.embeddings.word.weight.detach()
    return torch.stack([table[ids].mean(0) for ids in model.tokenize(SENTENCES)]).numpy()


# ------------------------------------------------------------------------------------------------ embeddings


@pytest.mark.parametrize("layers", [(1, 3), (0, 4), (1, 2, 4), (3, 1)])
def test_a_mix_is_the_mean_of_the_embeddings_of_its_layers(folder, layers):
    expected = np.mean([encode(folder, layer) for layer in layers], axis=0)
    assert_same_embeddings(encode(folder, "+".join(map(str, layers))), expected, 1e-6)


def test_word_is_the_mean_of_the_word_embeddings(folder):
    assert_same_embeddings(
        encode(folder, "word"), mean_of_words(SentenceEncoder.from_pretrained(folder)), 1e-6
    )


def test_poolings_are_applied_to_the_mix(tmp_path):
    tiny_model(model_type="bert").save_pretrained(tmp_path)
    model = SentenceEncoder.from_pretrained(tmp_path, layer="1+3", pooling="cls+mean")
    cls, mean = (
        np.mean(
            [SentenceEncoder.from_pretrained(tmp_path, n, pooling).encode(SENTENCES) for n in (1, 3)], axis=0
        )
        for pooling in ("cls", "mean")
    )
    assert model.dimensions == 48
    assert_same_embeddings(model.encode(SENTENCES), np.concatenate([cls, mean], axis=1), 1e-6)


# ------------------------------------------------------------------------------------- what is read, what run


@pytest.mark.parametrize(("layer", "highest"), [("1+3", 3), ("word", 0), ("word+0", 0), ("2+word", 2)])
def test_only_tensors_up_to_the_highest_layer_are_read(folder, layer, highest, monkeypatch):
    names, read = [], WeightFiles.iter_tensors

    def noted(files, wanted, dtype):
        names.extend(wanted)
        return read(files, wanted, dtype)

    monkeypatch.setattr(WeightFiles, "iter_tensors", noted)
    model = SentenceEncoder.from_pretrained(folder, layer=layer)
    numbers = {int(name.split("layer.")[1].split(".")[0]) for name in names if "layer." in name}
    assert numbers == set(range(highest))
    assert len(model.encoder.layers) == highest
    assert f"loaded the embeddings and {highest} of 4 layers" in model.load_report


@pytest.mark.parametrize(
    ("layers", "run"), [((1, 3), 3), ((0,), 0), ((WORD_EMBEDDINGS,), 0), ((WORD_EMBEDDINGS, 2), 2), ((4,), 4)]
)
def test_no_layer_above_the_highest_is_computed(layers, run):
    model, ran = tiny_model(model_type="bert"), []
    for number, layer in enumerate(model.encoder.layers, start=1):
        layer.register_forward_hook(lambda *_, number=number: ran.append(number))
    with torch.inference_mode():
        mean_hidden_state(model.encoder, layers, pack(model.tokenize(SENTENCES)))
    assert ran == list(range(1, run + 1))


def test_gradients_reach_every_part_of_a_mix():
    model = tiny_model(model_type="bert")
    model.layers = (WORD_EMBEDDINGS, 2)
    model(pack(model.tokenize(SENTENCES))).square().sum().backward()
    word, second, third = model.encoder.embeddings.word, *model.encoder.layers[1:3]
    assert word.weight.grad.abs().max() > 0 and second.feed_forward.up.weight.grad.abs().max() > 0
    assert third.feed_forward.up.weight.grad is None


# ---------------------------------------------------------------------------------------------------- widths


def test_words_alone_may_be_narrower_than_hidden_states(tmp_path):
    tiny_model(**PROJECTED).save_pretrained(tmp_path)
    model = SentenceEncoder.from_pretrained(tmp_path, layer="word")
    assert model.dimensions == 12 == model.encode(SENTENCES).shape[1]
    assert_same_embeddings(model.encode(SENTENCES), mean_of_words(model), 1e-6)
    model.save_pretrained(tmp_path / "saved")
    again = SentenceEncoder.from_pretrained(tmp_path / "saved")
    assert again.dimensions == 12 and np.array_equal(again.encode(SENTENCES), model.encode(SENTENCES))


# -------------------------------------------------------------------------------------------- names, mistakes


@pytest.mark.parametrize(
    ("text", "layers"),
    [(9, (9,)), ("9", (9,)), ("0", (0,)), ("word", (-1,)), ("1+12", (1, 12)), ("word+12", (-1, 12))],
)
def test_a_mix_is_written_as_numbers_and_word(text, layers):
    assert parse_layer_mix(text) == layers
    assert format_layer_mix(layers) == str(text)
    assert parse_layer_mix(None) is None  # no mix is the last layer


OTHERS = dict.fromkeys(
    ["", "+", "1+", "first+last", "1-12", "1,12", "-1", -1, "1+x", "words", "1.5"],
    "write a number, word, or several as in 1.12 or word.12",
) | dict.fromkeys(["1+1", "word+3+word"], "names a layer twice")


@pytest.mark.parametrize("text", OTHERS)
def test_anything_else_is_an_error(text):
    with pytest.raises(InputError, match=OTHERS[text]) as error:
        parse_layer_mix(text)
    assert "\n" not in str(error.value) and "--layer" in error.value.as_cli_message()


@pytest.mark.parametrize("how", ["distill", "fine_tune"])
def test_what_keeps_single_layers_of_a_mean_of_layers_pools_the_last_of_them(how, tmp_path, caplog):
    """Else it would be the mean of the layers of the mix that are left, in a folder that does not open."""
    mixed = tiny_model(model_type="bert")
    mixed.layers = (2, 4)
    mixed.save_pretrained(tmp_path / "mixed")
    if how == "distill":
        lines = [f"a man plays {word}" for word in WORDS.split()] * 4
        kept = distill(mixed, [f"{line} {number}" for number, line in enumerate(lines)], layers=2)
        assert mixed.layers == (2, 4)
    else:
        rows = [(a, b, float(score)) for a, b, score in (pair.split("\t") for pair in PAIRS)]
        kept = fine_tune(tmp_path / "mixed", rows, rows, rows, keep_layers=(0, 3), epochs=1).model
        assert f"{tmp_path}/mixed pools a mean of layers, 2+4: training pools the last layer" in caplog.text
    token_ids = kept.tokenize(SENTENCES)
    last = kept.embed_token_ids(token_ids, kept.forward_all_layers)[2]
    torch.testing.assert_close(kept.embed_token_ids(token_ids), last)
    kept.save_pretrained(tmp_path / "kept")
    assert (
        SentenceEncoder.from_pretrained(tmp_path / "kept").encode(SENTENCES) == kept.encode(SENTENCES)
    ).all()


# ---------------------------------------------------------------------------------------------- save, load


@pytest.mark.parametrize("layer", [2, "word", "0+2", "3"])
def test_a_named_layer_replaces_a_saved_mix(folder, layer, tmp_path):
    SentenceEncoder.from_pretrained(folder, layer="1+3").save_pretrained(tmp_path)
    assert np.array_equal(encode(tmp_path, layer), encode(folder, layer))
