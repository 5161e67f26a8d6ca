"""RoBERTa, XLM-R, CamemBERT, DistilBERT and MPNet: what is special in each, against transformers.

That their hidden states, saved folders and training steps are those of transformers is tested for all
families in test_every_family.py.
"""

import random
from pathlib import Path

import pytest
import torch
from conftest import assert_equal_hidden_states, vocabulary_folder
from random_configs import RANDOM_CONFIGS

from tmft.checkpoints.load import load_encoder
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.errors import InputError
from tmft.models.families import config_from_dict, random_encoder
from tmft.sentence_encoder import SentenceEncoder

LIKE_ROBERTA = ("roberta", "xlm-roberta", "camembert")


def shape(model_type: str, **changes) -> dict:
    return RANDOM_CONFIGS[model_type](random.Random(3)) | changes


def reference(folder: Path, head: str = "", **content):
    """A transformers model with random weights, saved into folder. head: such as ForMaskedLM."""
    import transformers

    config = transformers.AutoConfig.for_model(**content)
    model = getattr(transformers, f"AutoModel{head}").from_config(config)
    torch.manual_seed(0)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.eval().save_pretrained(folder)
    return model


def token_ids(vocab_size: int, *lengths: int, without: int = 1) -> list[list[int]]:
    chance = random.Random(0)
    ids = [id for id in range(vocab_size) if id != without]
    return [[chance.choice(ids) for _ in range(length)] for length in lengths]


def random_model(layer: int | None = None, **content) -> SentenceEncoder:
    torch.manual_seed(0)
    encoder = random_encoder(config_from_dict(content), layer)
    for weight in encoder.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return SentenceEncoder(encoder, load_tokenizer(vocabulary_folder())).eval()


# ------------------------------------------------------------------------------- positions with an offset


@pytest.mark.parametrize("model_type", [*LIKE_ROBERTA, "mpnet"])
def test_the_longest_text_has_as_many_tokens_as_rows_are_left(model_type, tmp_path):
    model = random_model(**shape(model_type, pad_token_id=1, max_position_embeddings=12))
    assert model.max_length == 10
    assert len(model.tokenize(["a man plays guitar in the park and is not two"])[0]) == 10
    assert model.encode(["a man plays guitar in the park and is not two"]).shape == (1, model.dimensions)
    with pytest.raises(InputError, match="max_length 11: choose 3 to 10, the number of position embeddings"):
        SentenceEncoder(model.encoder, model.tokenizer, max_length=11)


def test_a_padding_token_in_a_text_has_a_position_of_its_own(tmp_path):
    """transformers gives it the position of padding and does not count it, unless it is given positions."""
    content = shape("roberta", pad_token_id=1)
    model = reference(tmp_path, **content)
    ids = torch.tensor([[5, 9, 1, 7]])
    mask, positions = torch.ones_like(ids), torch.arange(4)[None] + 2
    with torch.inference_mode():
        ours = load_encoder(tmp_path)(ids, mask)
        theirs = model(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
        counted = model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert (ours - counted).abs().max() > 1e-3


# ------------------------------------------------------------------------------- DistilBERT


def test_the_eps_of_a_distilbert_is_always_the_same(tmp_path):
    content = shape("distilbert", layer_norm_eps=0.1)
    model = reference(tmp_path, **content)
    assert_equal_hidden_states(load_encoder(tmp_path), model, token_ids(content["vocab_size"], 9, 4))


def test_a_distilbert_may_have_the_sizes_under_berts_names():
    content = shape("distilbert")
    named_as_bert = dict(content)
    for theirs, ours in {
        "dim": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
    }.items():
        named_as_bert[ours] = named_as_bert.pop(theirs)
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


# ------------------------------------------------------------------------------- MPNet


@pytest.mark.parametrize("buckets", [32, 40])
def test_the_biases_of_an_mpnet_at_all_edges_of_its_buckets(buckets, tmp_path):
    content = shape("mpnet", relative_attention_num_buckets=buckets, max_position_embeddings=202)
    model = reference(tmp_path, **content)
    sentences = token_ids(content["vocab_size"], 200, 129, 128, 17, 16, 9, 8, 1)
    assert_equal_hidden_states(load_encoder(tmp_path), model, sentences)
