"""The encoder gives the hidden states of transformers, at every layer, in padded batches and in rows."""

import random
from pathlib import Path

import pytest
import torch
from conftest import VOCABULARY, assert_equal_hidden_states, tiny_config
from random_configs import RANDOM_CONFIGS

from tmft.bert import BertEncoder
from tmft.checkpoints.load import load_encoder
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.encoder import ACTIVATIONS
from tmft.models.families import config_from_dict


def token_ids(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, len(VOCABULARY), (length,), generator=generator).tolist() for length in lengths]


def reference(config: dict, folder):
    """A transformers model with random weights, saved into folder."""
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**config))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.eval().save_pretrained(folder)
    return model


def tiny_encoder(layer: int | None = None, **changes) -> BertEncoder:
    torch.manual_seed(0)
    return BertEncoder(config_from_dict(tiny_config(**changes)), layer).eval()


def test_without_token_types_nothing_is_added(tmp_path):
    """transformers cannot run type_vocab_size 0; a single type of zeros is the same function."""
    model = reference(tiny_config(model_type="bert", type_vocab_size=1), tmp_path)
    model.embeddings.token_type_embeddings.weight.data.zero_()
    encoder = load_encoder(tmp_path)
    encoder.embeddings.token_type = None
    assert_equal_hidden_states(encoder, model, token_ids(3, 17, 9, 30, 5, 1, 12, 8))


def test_an_encoder_of_no_token_types_has_no_table_of_them():
    assert tiny_encoder(type_vocab_size=0).embeddings.token_type is None


def test_a_padding_token_in_a_text_has_a_position_of_its_own(tmp_path):
    """transformers gives it the position of padding and does not count it, unless it is given positions."""
    model = reference(RANDOM_CONFIGS["roberta"](random.Random(3)) | {"pad_token_id": 1}, tmp_path)
    ids = torch.tensor([[5, 9, 1, 7]])
    mask, positions = torch.ones_like(ids), torch.arange(4)[None] + 2
    with torch.inference_mode():
        ours = load_encoder(tmp_path)(ids, mask)
        theirs = model(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
        counted = model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert (ours - counted).abs().max() > 1e-3


def test_a_distilbert_may_have_the_sizes_under_berts_names():
    content = RANDOM_CONFIGS["distilbert"](random.Random(3))
    names = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}
    named_as_bert = {names.get(key, key): value for key, value in content.items()}
    assert config_from_dict(named_as_bert) == config_from_dict(content)


def test_the_biases_of_an_mpnet_at_all_edges_of_its_buckets(tmp_path):
    content = RANDOM_CONFIGS["mpnet"](random.Random(3))
    model = reference(content | {"max_position_embeddings": 202}, tmp_path)
    sentences = token_ids(200, 129, 128, 17, 16, 9, 8, 1)
    assert_equal_hidden_states(load_encoder(tmp_path), model, sentences)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_hidden_states_of_the_real_minilm(dtype, tolerance, minilm):
    """In float64, rounding is out of the way: what is left is the method. A sentence has 302 tokens."""
    import transformers

    sentences = [
        "A man is playing a guitar.",
        "Zurich's Überflieger: 3.14 %!",
        "word " * 300,
        "ok",
        "你好 world",
    ]
    ids, _ = load_tokenizer(Path(minilm))(sentences, max_length=512)
    encoder, model = load_encoder(minilm), transformers.AutoModel.from_pretrained(minilm).eval()
    assert_equal_hidden_states(encoder.to(dtype), model.to(dtype), ids, tolerance)


def test_dropout_is_on_in_training_and_off_in_evaluation():
    encoder = tiny_encoder()
    ids = torch.tensor([[2, 9, 7, 3]])
    for training in (True, False):
        encoder.train(training)
        same = torch.equal(encoder(ids, ids != 0), encoder(ids, ids != 0))
        assert same is not training


@pytest.mark.parametrize(
    ("name", "expected"),  # x * Phi(x) at 1, and its approximation by tanh
    [
        ("gelu", 0.8413447460685429),
        ("gelu_new", 0.8411919906082768),
        ("gelu_pytorch_tanh", 0.8411919906082768),
    ],
)
def test_gelu_is_exact_and_gelu_new_is_the_tanh_formula(name, expected):
    found = ACTIVATIONS[name](torch.tensor([1.0], dtype=torch.float64))
    assert found.item() == pytest.approx(expected, abs=1e-12)
