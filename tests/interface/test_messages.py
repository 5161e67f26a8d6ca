"""What cannot be done is one sentence, and what sentence-transformers takes is taken."""

import numpy as np
import pytest
import torch
from conftest import SENTENCES, tiny_model
from torch import nn

from tmft import InputError, distill
from tmft.checkpoints.model_folder import parse_modules


def replace_layer(model):
    layer = model.encoder.layers[0].feed_forward
    layer.up = nn.Sequential(layer.up)


CHANGES = {  # of a model that is then saved -> words of the message
    "replaced": (replace_layer, "the encoder has layers.0.feed_forward.up.0.weight of shape .*: undo"),
    "without bias": (
        lambda model: setattr(model.encoder.layers[0].attention.query, "bias", None),
        "the encoder lacks layers.0.attention.query.bias, unlike its configuration .electra.: undo",
    ),
    "linear": (
        lambda model: setattr(model, "head_modules", nn.Sequential(nn.Linear(24, 8))),
        "a Linear after the pooling cannot be saved: use one of Dense, LayerNorm, Normalize",
    ),
    "meta": (lambda model: model.to("meta"), "the model is on the device meta, .*: load it on the cpu"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_model_that_no_reader_could_open_is_not_saved(name, tmp_path):
    change, message = CHANGES[name]
    model = tiny_model()
    change(model)
    with pytest.raises(InputError, match=f"^{message}"):
        model.save_pretrained(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sentences", [SENTENCES, SENTENCES[0], []])
def test_a_model_without_values_encodes_nothing(sentences):
    with pytest.raises(InputError, match="^the model is on the device meta, where weights have no values"):
        tiny_model().to("meta").encode(sentences)


FORMS = [list, tuple, np.array, torch.tensor, lambda u: [*torch.tensor(u)], lambda u: [*np.array(u)]]


@pytest.mark.parametrize("form", FORMS)
def test_embeddings_of_any_form_are_compared(form):
    model, rows = tiny_model(), [[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]]
    expected = torch.tensor([[1.0, 0.6, -1.0], [0.6, 1.0, -0.6], [-1.0, -0.6, 1.0]])
    torch.testing.assert_close(model.similarity(form(rows), form(rows)), expected)
    torch.testing.assert_close(model.similarity_pairwise(form(rows), form(rows)), torch.ones(3))


@pytest.mark.parametrize("given", [None, [[1, 2], [1]], [torch.ones(2), torch.ones(3)], [None], object()])
def test_what_is_no_embedding_is_one_line(given):
    with pytest.raises(
        InputError, match="are no embeddings .*: give an array, a tensor, or a list of"
    ) as error:
        tiny_model().similarity(given, [[1.0, 2.0]])
    assert "\n" not in str(error.value)


def test_settings_of_distillation_are_given_as_those_of_fine_tune():
    lines = [f"{'music ' * n} the man" for n in range(1, 30)]
    with pytest.raises(TypeError, match="'epoch'"):
        distill(tiny_model(), lines, layers=1, epoch=1)
    with pytest.raises(InputError, match="epochs"):
        distill(tiny_model(), lines, layers=1, epochs=0)
    first, *_ = distill(tiny_model(), lines, layers=1, epochs=1, lr=0.0).encoder.layers
    assert torch.equal(first.attention.query.weight, tiny_model().encoder.layers[-1].attention.query.weight)


@pytest.mark.parametrize("path", ["1_Pooling", "1_Pooling/", "./1_Pooling", "./1_Pooling/"])
def test_a_folder_of_a_module_is_the_same_in_any_spelling(path):
    entry = {"idx": 1, "name": "1", "path": path, "type": "sentence_transformers.models.Pooling"}
    assert parse_modules([entry]) == [("Pooling", "1_Pooling")]
    assert [module.subfolder for module in parse_modules([{**entry, "path": "./"}])] == [""]
