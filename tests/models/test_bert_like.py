"""RoBERTa, XLM-R, CamemBERT, DistilBERT and MPNet: what is special in each, against transformers.

That their hidden states, saved folders and training steps are those of transformers is tested for all
families in test_every_family.py.
"""

import random

import pytest
import torch
from conftest import assert_equal_hidden_states, tiny_model
from random_configs import RANDOM_CONFIGS
from test_bert import reference

from tmft.checkpoints.load import load_encoder
from tmft.errors import InputError
from tmft.models.families import config_from_dict, random_encoder
from tmft.sentence_encoder import SentenceEncoder

LIKE_ROBERTA = ("roberta", "xlm-roberta", "camembert")


def shape(model_type: str, **changes) -> dict:
    return RANDOM_CONFIGS[model_type](random.Random(3)) | changes


def token_ids(vocab_size: int, *lengths: int, without: int = 1) -> list[list[int]]:
    chance = random.Random(0)
    ids = [id for id in range(vocab_size) if id != without]
    return [[chance.choice(ids) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("model_type", [*LIKE_ROBERTA, "mpnet"])
def test_the_longest_text_has_as_many_tokens_as_rows_are_left(model_type):
    model = tiny_model(model_type=model_type, pad_token_id=1, max_position_embeddings=12)
    assert model.max_length == 10
    assert len(model.tokenize(["a man plays guitar in the park and is not two"])[0]) == 10
    assert model.encode(["a man plays guitar in the park and is not two"]).shape == (1, model.dimensions)
    with pytest.raises(InputError, match="max_length 11: choose 3 to 10, the number of position embeddings"):
        SentenceEncoder(model.encoder, model.tokenizer, max_length=11)


def test_a_padding_token_in_a_text_has_a_position_of_its_own(tmp_path):
    """transformers gives it the position of padding and does not count it, unless it is given positions."""
    model = reference(shape("roberta", pad_token_id=1), tmp_path)
    ids = torch.tensor([[5, 9, 1, 7]])
    mask, positions = torch.ones_like(ids), torch.arange(4)[None] + 2
    with torch.inference_mode():
        ours = load_encoder(tmp_path)(ids, mask)
        theirs = model(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
        counted = model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert (ours - counted).abs().max() > 1e-3


def test_a_distilbert_may_have_the_sizes_under_berts_names():
    content = shape("distilbert")
    names = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}
    named_as_bert = {names.get(key, key): value for key, value in content.items()}
    assert config_from_dict(named_as_bert) == config_from_dict(content)


def test_a_distilbert_has_no_dropout_after_the_attention():
    """With p = 0.5 the output would change from one call to the next."""
    ids, mask = torch.tensor([[2, 9, 7, 3]]), torch.ones(1, 4)
    encoder = random_encoder(config_from_dict(shape("distilbert", dropout=0.5))).train()
    encoder.embeddings.dropout.p = 0.0
    for layer in encoder.layers:
        layer.attention.dropout.p = 0.0
        for weight in layer.feed_forward.parameters():  # so that the dropout after it has no effect
            torch.nn.init.zeros_(weight)
    assert torch.equal(encoder(ids, mask), encoder(ids, mask))


@pytest.mark.parametrize("buckets", [32, 40])
def test_the_biases_of_an_mpnet_at_all_edges_of_its_buckets(buckets, tmp_path):
    content = shape("mpnet", relative_attention_num_buckets=buckets, max_position_embeddings=202)
    model = reference(content, tmp_path)
    sentences = token_ids(content["vocab_size"], 200, 129, 128, 17, 16, 9, 8, 1)
    assert_equal_hidden_states(load_encoder(tmp_path), model, sentences)
