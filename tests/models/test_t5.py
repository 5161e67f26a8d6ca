"""T5's encoder: each hidden state is that of a T5 of so many layers, as transformers has it."""

import pytest
import torch
from conftest import (
    VOCABULARY,
    store_weights,
    stored_weights,
    vocabulary_folder,
)

from tmft.checkpoints.load import load_encoder_with_report
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.models.families import config_from_dict, random_encoder
from tmft.sentence_encoder import SentenceEncoder

V10 = {  # as google-t5/t5-base says it, but small, and three heads of 12
    "model_type": "t5",
    "vocab_size": 40,
    "d_model": 36,
    "d_kv": 12,
    "d_ff": 48,
    "num_layers": 3,
    "num_heads": 3,
    "n_positions": 512,
    "relative_attention_num_buckets": 32,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "is_encoder_decoder": True,
}
VARIANTS = {
    "version 1.0": {},
    "version 1.1": {"feed_forward_proj": "gated-gelu"},
    "heads narrower than D": {"d_kv": 5, "feed_forward_proj": "gated-gelu"},
    "heads wider than D": {"d_kv": 17, "num_heads": 5},
    "gated silu": {"feed_forward_proj": "gated-silu"},
    "exact gelu, no gate": {"feed_forward_proj": "gelu"},
    "few buckets": {"relative_attention_num_buckets": 9, "relative_attention_max_distance": 20},
    "mt5": {"model_type": "mt5", "feed_forward_proj": "gated-gelu"},
    "umt5": {"model_type": "umt5", "feed_forward_proj": "gated-gelu"},
}


def build(kind: str, **changes):
    """A class of transformers, with weights so large that attention is far from uniform."""
    import transformers

    content = V10 | changes
    family = content.pop("model_type").upper()
    torch.manual_seed(0)
    model = getattr(transformers, family + kind)(getattr(transformers, f"{family}Config")(**content)).eval()
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, mean=float(name.endswith("norm.weight")), std=0.2)
    return model


def random_sentences(lengths: list[int]) -> list[list[int]]:
    return [torch.randint(1, 40, (length,)).tolist() for length in lengths]


@pytest.fixture
def folder(tmp_path):
    """A whole T5 of version 1.0, with its decoder."""
    build("ForConditionalGeneration").save_pretrained(tmp_path / "t5")
    return tmp_path / "t5"


# ------------------------------------------------------------------------------- training


def sentence_model(**changes) -> SentenceEncoder:
    """A T5 that reads the words of the tests."""
    torch.manual_seed(0)
    encoder = random_encoder(config_from_dict(V10 | {"vocab_size": len(VOCABULARY)} | changes))
    return SentenceEncoder(encoder, load_tokenizer(vocabulary_folder()), max_length=128).eval()


# ------------------------------------------------------------------------------- checkpoints


@pytest.fixture
def old_file(folder) -> dict:
    """The weights of folder as the oldest files have them: a .bin, every alias, and a table left over."""
    weights = stored_weights(folder)
    shared = weights["shared.weight"]
    weights |= {"encoder.embed_tokens.weight": shared, "decoder.embed_tokens.weight": shared}
    weights["lm_head.weight"] = torch.zeros(40, 36)
    weights["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.zeros(32, 3)
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    return weights


def test_a_file_with_the_word_embeddings_of_the_encoder_alone_is_read(folder):
    """As T5EncoderModel of some versions saves it: `shared` is left out, and its copy is there."""
    expected = load_encoder_with_report(folder)[0].state_dict()
    weights = stored_weights(folder)
    weights["encoder.embed_tokens.weight"] = weights.pop("shared.weight")
    store_weights(folder, weights)
    for name, weight in load_encoder_with_report(folder)[0].state_dict().items():
        assert weight.equal(expected[name]), name


def test_an_old_file_gives_the_encoder_and_reports_ignored_tensors(folder, old_file):
    encoder, report = load_encoder_with_report(folder, layer=2)
    decoder = sum(name.startswith("decoder.") for name in old_file)
    assert report.ignored_heads == {"decoder": decoder, "encoder.embed_tokens": 1, "lm_head": 1}
    assert (len(report.loaded), report.truncated) == (2 * 8 + 1 + 2, 8)
    assert encoder.embeddings.word.weight.equal(old_file["shared.weight"])
    assert str(report).startswith("loaded the embeddings and 2 of 3 layers: 19 tensors, ")


# ------------------------------------------------------------------------------- length


def test_a_text_may_have_any_length_and_the_default_limit_is_512_tokens():
    model = sentence_model()
    said = [SentenceEncoder(model.encoder, model.tokenizer, max_length=n).max_length for n in (None, 4000)]
    assert said == [512, 4000]
    model.tokenizer.max_length = 256
    assert SentenceEncoder(model.encoder, model.tokenizer).max_length == 256
