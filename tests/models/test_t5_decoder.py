"""T5's decoder: its first output is that of transformers, for sentences padded and in rows."""

import json

import numpy as np
import pytest
import torch
from conftest import SENTENCES, padded, stored_weights
from test_every_family import dropped
from test_t5 import V10, VARIANTS, build, random_sentences, sentence_model

from tmft.checkpoints.load import load_encoder_with_report
from tmft.checkpoints.save import save_encoder
from tmft.errors import InputError
from tmft.models.families import config_from_dict, random_encoder
from tmft.packing import pack
from tmft.sentence_encoder import SentenceEncoder
from tmft.speed.occurring_words import OccurringWords

DEEP = {"num_decoder_layers": 2}
MODELS = {name: changes | DEEP for name, changes in VARIANTS.items()}
MODELS["as many decoder layers, by default"] = {}
MODELS["another start token"] = {"decoder_start_token_id": 5}


def first_output(model, sentences: list[list[int]]) -> torch.Tensor:
    """By transformers: the last hidden state of the decoder, fed with the start token alone."""
    ids, mask = padded(sentences)
    start = torch.full((len(ids), 1), getattr(model.config, "decoder_start_token_id", 0))
    return model(input_ids=ids, attention_mask=mask, decoder_input_ids=start).last_hidden_state[:, 0]


def decoded(encoder, sentences: list[list[int]], width: int = 64) -> torch.Tensor:
    rows = pack(sentences, width)
    return encoder.decoder_pooling(encoder(*rows.inputs), rows)


@pytest.mark.parametrize("width", [64, 300])
@pytest.mark.parametrize("name", MODELS)
def test_the_first_output_equals_transformers(name, width, tmp_path):
    model = build("Model", **MODELS[name])
    model.save_pretrained(tmp_path)
    encoder, _ = load_encoder_with_report(tmp_path, components=["decoder"])
    sentences = random_sentences([270, 7, 150, 1, 40, 3, 3, 20])
    with torch.inference_mode():
        theirs, ours = first_output(model, sentences), decoded(encoder, sentences, width)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5 * theirs.abs().max().item())


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_the_decoder_reads_the_normed_state_of_the_last_kept_layer(layer, tmp_path):
    """As in a whole model of so many layers."""
    model = build("Model")
    model.save_pretrained(tmp_path)
    short = build("Model", num_layers=layer, num_decoder_layers=3)
    short.load_state_dict({name: model.state_dict()[name] for name in short.state_dict()})
    encoder, report = load_encoder_with_report(tmp_path, layer, ["decoder"])
    sentences = random_sentences([20, 7, 1])
    with torch.inference_mode():
        theirs, ours = first_output(short, sentences), decoded(encoder, sentences)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * theirs.abs().max().item())
    assert str(report).startswith(f"loaded the embeddings and {layer} of 3 layers and decoder: ")


@pytest.mark.parametrize("name", ["version 1.1", "heads wider than D", "umt5"])
def test_gradients_equal_transformers_and_the_rest_of_the_decoder_has_none(name, tmp_path):
    model = build("Model", **VARIANTS[name])
    model.save_pretrained(tmp_path)
    model, encoder = model.double(), load_encoder_with_report(tmp_path, components=["decoder"])[0].double()
    sentences = random_sentences([140, 50, 3])
    (first_output(model, sentences) ** 3).sum().backward()
    (decoded(encoder, sentences) ** 3).sum().backward()
    for weight in encoder.parameters():
        weight.data = weight.grad
    save_encoder(encoder, tmp_path / "gradients", dtype=torch.float64)
    ours = stored_weights(tmp_path / "gradients")
    theirs = {name: weight.grad for name, weight in model.named_parameters()}
    for name, gradient in theirs.items():
        if name in ours:
            error = (ours[name] - gradient).abs().max() / gradient.abs().max()
            assert error < 3e-5, name  # their norms are in float32
        else:
            assert gradient is None or not gradient.any(), name
    dead = {name.split("SelfAttention.")[1] for name in theirs.keys() - ours.keys()}
    assert dead == {"q.weight", "k.weight", "relative_attention_bias.weight"}


# ------------------------------------------------------------------------------- training


@pytest.mark.parametrize("start", [0, 7])
def test_training_only_the_words_that_occur_gives_the_same(start):
    """The start token is one of them, though it is in no sentence."""
    sentences = [[9, 12, 30], [20, 9, 3, 3]]
    content = V10 | {"decoder_start_token_id": start}
    encoder = random_encoder(config_from_dict(content, ["decoder"])).eval()
    decoded(encoder, sentences).pow(3).sum().backward()
    whole = encoder.embeddings.word.weight.grad
    words = OccurringWords(encoder.embeddings, sentences)
    assert words.ids.tolist() == sorted([start, 3, 9, 12, 20, 30])
    with words:
        decoded(encoder, sentences).pow(3).sum().backward()
        part = encoder.embeddings.word.weight.grad
    torch.testing.assert_close(part[:-1], whole[words.ids])
    assert whole[start].abs().max() > 0
    assert encoder.embeddings.extra_ids == [start]


def test_dropout_is_where_transformers_has_it():
    """Also on the one probability of a first token's self-attention, so that heads of it are dropped."""
    model = build("Model", **DEEP).train()
    encoder = random_encoder(config_from_dict(V10 | DEEP, ["decoder"])).train()
    sentences = [torch.randint(1, 40, (6,)).tolist() for _ in range(2)]
    theirs = dropped(model, lambda: first_output(model, sentences))
    ours = dropped(encoder, lambda: decoded(encoder, sentences, width=6))
    probabilities = [(2, 3, 6, 6), (2, 1, 3, 1), (2, 3, 1, 6)]
    assert [ours.count((0.1, shape)) for shape in probabilities] == [3, 2, 2]
    assert [call for call in ours if call[1] not in probabilities] == theirs


# ------------------------------------------------------------------------------- folders


@pytest.fixture
def folder(tmp_path):
    """A whole T5 with the tokenizer of the tests."""
    model = sentence_model()
    model.save_pretrained(tmp_path / "whole")
    build("ForConditionalGeneration", vocab_size=model.encoder.config.vocab_size).save_pretrained(
        tmp_path / "whole"
    )
    return tmp_path / "whole"


def test_a_saved_model_gives_the_same_embeddings_here_and_in_transformers(folder, tmp_path):
    import transformers

    model = SentenceEncoder.from_pretrained(folder, layer=2, pooling="decoder")
    model.save_pretrained(tmp_path / "kept")
    again = SentenceEncoder.from_pretrained(tmp_path / "kept")
    assert again.pooling == "decoder"
    np.testing.assert_array_equal(again.encode(SENTENCES), model.encode(SENTENCES))
    config = json.loads((tmp_path / "kept/config.json").read_text())
    assert config["architectures"] == ["T5Model"]
    assert (config["num_layers"], config["num_decoder_layers"], config["is_encoder_decoder"]) == (2, 3, True)
    theirs = transformers.T5Model.from_pretrained(tmp_path / "kept").eval()
    with torch.inference_mode():
        expected = first_output(theirs, model.tokenize(SENTENCES))
    np.testing.assert_allclose(model.encode(SENTENCES), expected.numpy(), atol=1e-5, rtol=0)


def test_every_layer_is_read_by_the_decoder(folder):
    model = SentenceEncoder.from_pretrained(folder, pooling="decoder")
    every = model.embed_token_ids(model.tokenize(SENTENCES), model.forward_all_layers)
    for layer, expected in enumerate(every):
        found = SentenceEncoder.from_pretrained(folder, layer, "decoder").encode(SENTENCES)
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-5, rtol=0)


# ------------------------------------------------------------------------------- errors


def test_a_checkpoint_of_the_encoder_alone_has_none(tmp_path):
    sentence_model().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="missing tensor decoder.*, or it is a checkpoint without decoder"):
        SentenceEncoder.from_pretrained(tmp_path, pooling="decoder")


def test_decoder_pooling_needs_an_encoder_with_a_decoder():
    model = sentence_model()
    with pytest.raises(
        InputError, match="pooling 'decoder': the encoder has no such component, or was loaded without it"
    ):
        SentenceEncoder(model.encoder, model.tokenizer, "decoder")
