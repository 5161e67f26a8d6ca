"""Options that change a model before training: token weights, a projection, a choice of layers."""

import pytest
import torch
from conftest import ROOT, SENTENCES, tiny_model, tiny_static_model

from tmft import InputError, SentenceEncoder
from tmft.training.model_options import add_projection, apply_training_options


def test_without_options_a_model_stays_as_it_is():
    model = tiny_model()
    before = model.encode(SENTENCES)
    apply_training_options(model, None, SENTENCES, None)
    assert (model.encode(SENTENCES) == before).all()


def test_the_chosen_layers_are_kept_in_their_order():
    model = tiny_model()
    layers = list(model.encoder.layers)
    apply_training_options(model, None, [], None, keep_layers=[0, 3])
    assert list(model.encoder.layers) == [layers[0], layers[3]]


def test_the_first_layer_of_a_t5_cannot_be_removed():
    model = SentenceEncoder.from_pretrained(ROOT / "data/twins/t5")
    with pytest.raises(InputError, match="keep_layers must include layer 0: .* add 0") as error:
        apply_training_options(model, None, [], None, keep_layers=[1])
    assert error.value.parameters == ("keep_layers",)


def test_token_weights_are_estimated_on_the_texts():
    model, expected = tiny_model(), tiny_model()
    apply_training_options(model, "idf", SENTENCES, None)
    expected.set_token_weights("idf", SENTENCES)
    assert torch.equal(model.token_weights.table, expected.token_weights.table)


@pytest.mark.parametrize(("pooling", "token_weights"), [("max", None), ("mean", "idf")])
def test_a_static_model_that_could_not_be_saved_is_refused_before_training(pooling, token_weights):
    model = tiny_static_model(pooling=pooling)
    with pytest.raises(InputError, match="static model can be saved with the plain mean only"):
        apply_training_options(model, token_weights, SENTENCES, None)


def test_a_projection_is_a_linear_map_and_normalize():
    model = tiny_model()
    add_projection(model, 10)
    assert [type(module).__name__ for module in model.head_modules] == ["Dense", "Normalize"]
    assert model.dimensions == 10 and model.head_modules[0].bias is None
    norms = torch.from_numpy(model.encode(SENTENCES)).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(len(SENTENCES)))


def test_a_projection_of_the_same_dimensions_is_added_once_and_another_is_an_error():
    model = tiny_model()
    add_projection(model, 10)
    weight = model.head_modules[0].weight
    add_projection(model, 10)
    assert len(model.head_modules) == 2 and model.head_modules[0].weight is weight
    with pytest.raises(
        InputError, match="projection 12: .* has Dense and Normalize to 10 dimensions already"
    ):
        add_projection(model, 12)
