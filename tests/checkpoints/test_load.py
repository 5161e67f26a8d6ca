"""Checkpoint to encoder: every tensor accounted for, the kept ones read, and the counts of the paper."""

import pytest
import torch
from conftest import store_weights, stored_weights

from tmft.checkpoints.load import load_encoder, load_encoder_with_report
from tmft.encoder import EncoderConfig
from tmft.errors import InputError
from tmft.models.families import config_from_dict, parameter_counts

# ------------------------------------------------------------------------------------------- what is kept


def with_heads_and_buffers(folder):
    extra = {
        "discriminator_predictions.dense.weight": torch.ones(24, 24),
        "generator_lm_head.bias": torch.ones(7),
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


# ------------------------------------------------------------------------------------- what can be wrong


QUERY, GATE = "encoder.layer.1.attention.self.query.weight", "encoder.layer.1.attention.self.gate.weight"
WRONG = {  # what is changed in {name: tensor} -> words of the message
    "no bias": (
        lambda w: w.pop("encoder.layer.1.output.dense.bias"),
        r"missing tensor encoder.layer.1.output.dense.bias \(.*model.safetensors\)",
    ),
    "no layer": (
        lambda w: [w.pop(name) for name in [*w] if "layer.1." in name],
        rf"missing tensor {QUERY} and 15 more \(",
    ),
    "another part": (
        lambda w: w.update({GATE: torch.ones(1)}),
        rf"unknown tensor {GATE} .*: it belongs neither to",
    ),
    "another layer": (
        lambda w: w.update({QUERY.replace("1", "4"): torch.ones(24, 24)}),
        "unknown tensor encoder.layer.4.* electra encoder of 4 layers",
    ),
    "a tensor twice": (
        lambda w: w.update({"electra.embeddings.LayerNorm.bias": torch.ones(12)}),
        "embeddings.LayerNorm.bias and .* are the same weight .*: remove one of them",
    ),
    "another shape": (
        lambda w: w.update({"embeddings_project.weight": torch.ones(24, 13)}),
        r"embeddings_project.weight has shape \(24, 13\) .* asks for \(24, 12\)",
    ),
    "whole numbers": (
        lambda w: w.update({"embeddings_project.bias": torch.ones(24, dtype=torch.int64)}),
        "embeddings_project.bias has dtype torch.int64",
    ),
    "not a number": (
        lambda w: w["embeddings.word_embeddings.weight"][7, 3:4].fill_(torch.nan),
        r"embeddings.word_embeddings.weight holds nan or inf \(.*model.safetensors\)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_tensor_that_matches_nothing_is_one_clear_line(name, tiny_folder):
    change, words = WRONG[name]
    change(weights := stored_weights(tiny_folder))
    store_weights(tiny_folder, weights)
    with pytest.raises(InputError, match=words) as error:
        load_encoder(tiny_folder)
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------------------- parameters


def electra(size: str, **changes) -> EncoderConfig:
    sizes = {
        "D small": (128, 256, 12, 4, 1024),
        "D base": (768, 768, 12, 12, 3072),
        "D large": (1024, 1024, 24, 16, 4096),
        "G small": (128, 256, 12, 4, 1024),
        "G base": (768, 256, 12, 4, 1024),
        "G large": (1024, 256, 24, 4, 1024),
    }
    E, D, L, H, I = sizes[size]  # noqa: E741
    return config_of("electra", 30522, E, D, L, H, I)


def config_of(model_type, V, E, D, L, H, I) -> EncoderConfig:  # noqa: E741
    return config_from_dict(
        {
            "model_type": model_type,
            "vocab_size": V,
            "embedding_size": E,
            "hidden_size": D,
            "num_hidden_layers": L,
            "num_attention_heads": H,
            "intermediate_size": I,
        }
    )


def bert(V, D, L, H) -> EncoderConfig:
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
