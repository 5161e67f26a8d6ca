"""What tests/models/test_every_family.py, which compares with transformers, does not draw of a BERT."""

import random
from pathlib import Path

import pytest
import torch
from conftest import VOCABULARY, assert_equal_hidden_states, load_encoder, tiny_config
from random_configs import RANDOM_CONFIGS

from tmft.bert import BertEncoder
from tmft.checkpoints.tokenizers import load_tokenizer
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


def tiny_encoder(**changes) -> BertEncoder:
    torch.manual_seed(0)
    return BertEncoder(config_from_dict(tiny_config(**changes))).eval()


def test_without_token_types_nothing_is_added():
    """transformers cannot run type_vocab_size 0; a single type of zeros is the same function."""
    one_type, none = tiny_encoder(type_vocab_size=1), tiny_encoder(type_vocab_size=0)
    one_type.embeddings.token_type.weight.data.zero_()
    weights = {name: weight for name, weight in one_type.state_dict().items() if "token_type" not in name}
    none.load_state_dict(weights)
    ids = torch.tensor([[2, 9, 7, 3]])
    torch.testing.assert_close(none(ids, ids != 0), one_type(ids, ids != 0), rtol=0, atol=0)


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
def test_hidden_states_of_the_real_minilm(minilm):
    """In float64, rounding is out of the way: what is left is the method. A sentence has 302 tokens."""
    import transformers

    sentences = ["A man is playing a guitar.", "Zurich's Überflieger: 3.14 %!", "word " * 300, "ok"]
    ids, _ = load_tokenizer(Path(minilm))(sentences, max_length=512)
    encoder, model = load_encoder(minilm), transformers.AutoModel.from_pretrained(minilm).eval()
    assert_equal_hidden_states(encoder.double(), model.double(), ids, 1e-10)


def test_dropout_of_attention_is_on_in_training_and_off_in_evaluation():
    encoder = tiny_encoder(hidden_dropout_prob=0.0)
    ids = torch.tensor([[2, 9, 7, 3]])
    for training in (True, False):
        encoder.train(training)
        same = torch.equal(encoder(ids, ids != 0), encoder(ids, ids != 0))
        assert same is not training
