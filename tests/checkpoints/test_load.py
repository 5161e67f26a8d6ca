"""Checkpoint to encoder: every tensor accounted for, the kept ones read, and the counts of the paper."""

import pytest
import torch
from conftest import load_encoder, store_weights, stored_weights

from tmft.checkpoints.load import load_encoder_with_report
from tmft.encoder import EncoderConfig
from tmft.errors import InputError
from tmft.models.families import config_from_dict, parameter_counts


def with_heads_and_buffers(folder):
    extra = {
        "discriminator_predictions.dense.weight": torch.ones(24, 24),
        "generator_lm_head": torch.ones(7),  # a head may be a single tensor
        "electra.embeddings.position_ids": torch.arange(40)[None],
    }
    weights = {f"electra.{name}": tensor for name, tensor in stored_weights(folder).items()}
    store_weights(folder, weights | extra)


def test_the_report_lists_loaded_and_ignored_tensors(tiny_folder):
    with_heads_and_buffers(tiny_folder)
    encoder, report = load_encoder_with_report(tiny_folder, layer=1)
    count = sum(weight.numel() for weight in encoder.parameters())
    assert str(report) == (
        f"loaded the embeddings and 1 of 4 layers: 23 tensors, {count:,} parameters; "
        "not loaded: 48 tensors of the layers above, discriminator_predictions (1), generator_lm_head (1)"
    )


QUERY, GATE = "encoder.layer.1.attention.self.query.weight", "encoder.layer.1.attention.self.gate.weight"
BIAS, WORDS = "encoder.layer.1.output.dense.bias", "embeddings.word_embeddings.weight"
PROJECTION = "embeddings_project"
WRONG = [  # words of the message, and what is changed in {name: tensor}
    (rf"missing tensor {BIAS} \(.*model.safetensors\)", lambda w: w.pop(BIAS)),
    (
        rf"missing tensor {QUERY} and 15 more \(",
        lambda w: [w.pop(name) for name in [*w] if "layer.1." in name],
    ),
    (rf"unknown tensor {GATE} .*: it belongs neither to", lambda w: w.update({GATE: torch.ones(1)})),
    (
        "unknown tensor encoder.layer.4.* electra encoder of 4 layers",
        lambda w: w.update({QUERY.replace("1", "4"): torch.ones(24, 24)}),
    ),
    (
        "unknown tensor discriminator_predictions_2",
        lambda w: w.update({"discriminator_predictions_2": torch.ones(3)}),
    ),
    (
        f"{WORDS} and .* are the same weight .*: remove one of them",
        lambda w: w.update({f"electra.{WORDS}": w[WORDS].clone()}),
    ),
    (
        rf"{PROJECTION}.weight has shape \(24, 13\) .* asks for \(24, 12\)",
        lambda w: w.update({f"{PROJECTION}.weight": torch.ones(24, 13)}),
    ),
    (
        f"{PROJECTION}.bias has dtype torch.int64",
        lambda w: w.update({f"{PROJECTION}.bias": torch.ones(24, dtype=torch.int64)}),
    ),
    (
        rf"{QUERY} has dtype torch.float8_e4m3fn \(.*\): expected .* not quantized",
        lambda w: w.update({QUERY: w[QUERY].to(torch.float8_e4m3fn)}),
    ),
    (rf"{WORDS} holds nan or inf \(.*model.safetensors\)", lambda w: w[WORDS][7, 3:4].fill_(torch.nan)),
]


@pytest.mark.parametrize(("words", "change"), WRONG)
def test_a_tensor_that_matches_nothing_is_one_clear_line(words, change, tiny_folder):
    change(weights := stored_weights(tiny_folder))
    store_weights(tiny_folder, weights)
    with pytest.raises(InputError, match=words) as error:
        load_encoder(tiny_folder)
    assert "\n" not in str(error.value)


SIZES = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
SIZES += ("intermediate_size",)
ELECTRA = {
    "D small": (128, 256, 12, 4, 1024),
    "D base": (768, 768, 12, 12, 3072),
    "D large": (1024, 1024, 24, 16, 4096),
    "G small": (128, 256, 12, 4, 1024),
    "G base": (768, 256, 12, 4, 1024),
    "G large": (1024, 256, 24, 4, 1024),
}


def config_of(model_type: str, *sizes: int) -> EncoderConfig:
    return config_from_dict({"model_type": model_type} | dict(zip(SIZES, sizes, strict=True)))


def electra(size: str) -> EncoderConfig:
    return config_of("electra", 30522, *ELECTRA[size])


def bert(V: int, D: int, L: int, H: int) -> EncoderConfig:
    return config_of("bert", V, D, D, L, H, 4 * D)


# name: (config, layer, millions in the paper, all parameters if they are more)
PAPER = {
    "BERT tiny": (bert(30522, 128, 2, 2), 2, "4.37", None),
    "BERT mini": (bert(30522, 256, 4, 4), 4, "11.10", None),
    "BERT small": (bert(30522, 512, 4, 8), 4, "28.50", None),
    "BERT medium": (bert(30522, 512, 8, 8), 8, "41.11", None),
    "BERT base cased": (bert(28996, 768, 12, 12), 12, "107.72", None),
    "BERT large cased": (bert(28996, 1024, 24, 16), 24, "332.53", None),
    "ELECTRA D small @1": (electra("D small"), 1, "4.76", 33_024),
    "ELECTRA D small @12": (electra("D small"), 12, "13.45", 33_024),
    "ELECTRA D base @3": (electra("D base"), 3, "45.10", None),
    "ELECTRA D base @7": (electra("D base"), 7, "73.45", None),
    "ELECTRA D base @9": (electra("D base"), 9, "87.63", None),
    "ELECTRA D base @12": (electra("D base"), 12, "108.89", None),
    "ELECTRA D large @12": (electra("D large"), 12, "182.94", None),
    "ELECTRA D large @24": (electra("D large"), 24, "334.09", None),
    "ELECTRA G small @12": (electra("G small"), 12, "13.45", 33_024),
    "ELECTRA G base @11": (electra("G base"), 11, "32.52", 196_864),
    "ELECTRA G base @12": (electra("G base"), 12, "33.31", 196_864),
    "ELECTRA G large @24": (electra("G large"), 24, "50.74", 262_400),
}


@pytest.mark.parametrize("name", PAPER)
def test_parameter_counts_are_those_of_the_paper(name):
    config, layer, millions, projection = PAPER[name]
    counts = parameter_counts(config, layer)
    assert f"{counts['paper'] / 1e6:.2f}" == millions
    assert counts["stored"] == counts["paper"] + (projection or 0)
