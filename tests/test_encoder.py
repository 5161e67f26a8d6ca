"""The encoder gives the hidden states of transformers, at every layer, in padded batches and in rows."""

from pathlib import Path

import pytest
import torch
import transformers
from conftest import VOCABULARY, assert_equal_hidden_states, tiny_config

from tmft.checkpoint import read_encoder
from tmft.encoder import ACTIVATIONS, Encoder, EncoderConfig
from tmft.errors import InputError
from tmft.files.tokenizer import load_tokenizer
from tmft.rows import pack

CONFIGS = {
    "bert": {"model_type": "bert"},
    "bert, 2 heads, relu": {"model_type": "bert", "num_attention_heads": 2, "hidden_act": "relu"},
    "bert, 1 token type, silu": {"model_type": "bert", "type_vocab_size": 1, "hidden_act": "silu"},
    "bert, large eps": {"model_type": "bert", "layer_norm_eps": 1e-3, "num_hidden_layers": 7},
    "electra with projection": {},
    "electra with projection, gelu_new": {"hidden_act": "gelu_new", "num_attention_heads": 12},
    "electra without projection": {"embedding_size": 24},
    "electra, 3 token types": {"type_vocab_size": 3, "num_attention_heads": 1},
}
LENGTHS = [3, 17, 9, 30, 5, 1, 12, 8]


def token_ids() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, len(VOCABULARY), (length,), generator=generator).tolist() for length in LENGTHS]


def reference(config: dict, folder):
    """A transformers model with random weights, saved into folder."""
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**config))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.eval().save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_hidden_states_are_those_of_transformers(name, tmp_path):
    model = reference(tiny_config(**CONFIGS[name]), tmp_path)
    encoder, _ = read_encoder(tmp_path)
    assert_equal_hidden_states(encoder, model, token_ids())


def test_without_token_types_nothing_is_added(tmp_path):
    """transformers cannot run type_vocab_size 0; a single type of zeros is the same function."""
    model = reference(tiny_config(model_type="bert", type_vocab_size=1), tmp_path)
    model.embeddings.token_type_embeddings.weight.data.zero_()
    encoder, _ = read_encoder(tmp_path)
    encoder.embeddings.token_type = None
    assert_equal_hidden_states(encoder, model, token_ids())
    assert Encoder(EncoderConfig.from_dict(tiny_config(type_vocab_size=0))).embeddings.token_type is None


def test_hidden_states_of_the_real_minilm(minilm):
    model = transformers.AutoModel.from_pretrained(minilm).eval()
    encoder, _ = read_encoder(Path(minilm))
    sentences = [
        "A man is playing a guitar.",
        "Zurich's Überflieger: 3.14 %!",
        "word " * 300,
        "ok",
        "你好 world",
    ]
    ids, _ = load_tokenizer(Path(minilm))(sentences, max_length=512)
    assert_equal_hidden_states(encoder, model, ids)


@pytest.mark.parametrize("layer", [0, 1, 4])
def test_truncating_is_reading_an_earlier_hidden_state_bit_for_bit(tiny_folder, layer):
    full, kept = read_encoder(tiny_folder)[0], read_encoder(tiny_folder, layer)[0]
    rows = pack(token_ids())
    inputs = (rows.input_ids, rows.sentence_ids, rows.position_ids)
    torch.testing.assert_close(kept(*inputs), full.hidden_states(*inputs)[layer], rtol=0, atol=0)
    assert len(kept.layers) == layer


def test_what_stands_beside_a_sentence_does_not_change_it():
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig.from_dict(tiny_config())).eval()
    alone, beside = torch.tensor([[2, 9, 3]]), torch.tensor([[2, 9, 3, 0, 0], [2, 5, 6, 7, 3]])
    torch.testing.assert_close(encoder(beside, beside != 0)[:1, :3], encoder(alone, alone != 0))


def test_dropout_is_on_in_training_and_off_in_evaluation():
    encoder = Encoder(EncoderConfig.from_dict(tiny_config()))
    ids = torch.tensor([[2, 9, 7, 3]])
    assert not torch.equal(encoder.train()(ids, ids != 0), encoder(ids, ids != 0))
    assert torch.equal(encoder.eval()(ids, ids != 0), encoder(ids, ids != 0))


def test_random_weights_have_the_deviation_of_the_config():
    config = EncoderConfig.from_dict(
        tiny_config(initializer_range=0.05, hidden_size=256, intermediate_size=512)
    )
    layer = Encoder(config, 1).layers[0]
    assert layer.feed_forward.up.weight.std().item() == pytest.approx(0.05, rel=0.02)
    assert layer.feed_forward.up.bias.abs().max() == 0 and layer.attention_norm.weight.min() == 1


def test_gelu_is_the_exact_one_and_gelu_new_is_not():
    x = torch.tensor([1.0], dtype=torch.float64)
    assert ACTIVATIONS["gelu"](x).item() == pytest.approx(0.8413447460685429, abs=1e-12)  # x * Phi(x)
    assert ACTIVATIONS["gelu_new"](x).item() == pytest.approx(
        0.8411919906082768, abs=1e-12
    )  # the tanh formula


def test_keys_that_old_configs_omit_get_their_old_defaults():
    sizes = {key: tiny_config()[key] for key in tiny_config() if key not in ("model_type", "embedding_size")}
    bert = EncoderConfig.from_dict(sizes)
    assert (bert.model_type, bert.embedding_size, bert.layer_norm_eps) == ("bert", 24, 1e-12)
    assert (bert.hidden_act, bert.type_vocab_size, bert.pad_token_id) == ("gelu", 2, 0)
    assert EncoderConfig.from_dict(sizes | {"model_type": "electra"}).embedding_size == 128  # not hidden_size


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' .config.json.: supported are bert, electra"),
        ({"position_embedding_type": "relative_key"}, "only 'absolute' is supported"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": "4"}, "num_hidden_layers is '4'"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps is 'small'"),
        ({"hidden_act": "mish"}, "hidden_act 'mish'"),
        ({"hidden_act": ["gelu"]}, "hidden_act .'gelu'."),
        ({"model_type": {}}, "model_type {} .config.json.: supported are"),
        ({"num_attention_heads": 5}, "hidden_size 24 is not a multiple of num_attention_heads 5"),
    ],
)
def test_a_config_that_cannot_be_is_one_clear_line(changes, message):
    with pytest.raises(InputError, match=message):
        EncoderConfig.from_dict(tiny_config(**changes))


@pytest.mark.parametrize("layer", [-1, 5])
def test_a_layer_out_of_range_says_the_range(layer):
    with pytest.raises(InputError, match=r"has 4 layers, choose 0 \(embeddings only\) to 4"):
        EncoderConfig.from_dict(tiny_config()).check_layer(layer)
