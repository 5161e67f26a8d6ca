"""DeBERTa of versions 2 and 3: equal to transformers in every shape that a config can ask for."""

import pytest
import torch
from conftest import store_weights, stored_weights

from tmft.checkpoints.load import load_encoder_with_report
from tmft.checkpoints.model_card import describe_compatibility
from tmft.checkpoints.save import save_encoder
from tmft.deberta import log_bucket_position
from tmft.models.families import config_from_dict, parameter_counts, random_encoder
from tmft.packing import pack
from tmft.sentence_encoder import SentenceEncoder

V3 = {  # as microsoft/deberta-v3-base says it, but small; 12 per head, so that no scale is a power of two
    "model_type": "deberta-v2",
    "vocab_size": 40,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "relative_attention": True,
    "max_relative_positions": -1,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
}


@pytest.fixture
def folder(tmp_path):
    """A version 3 checkpoint with a vocabulary."""
    save_encoder(random_encoder(config_from_dict(V3)), tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    return tmp_path


@pytest.mark.parametrize(("buckets", "longest"), [(256, 512), (9, 33), (2, 8), (64, 300)])
def test_buckets_equal_transformers(buckets, longest):
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distance = torch.arange(-700, 701)
    theirs = make_log_bucket_position(distance, buckets, longest).long()
    assert log_bucket_position(distance, buckets, longest).equal(theirs)


@pytest.fixture
def hub_file(folder) -> dict:
    """The weights of folder, now as the hub has them.

    That is: the prefix, two heads, a position table that is not used, fp16, one legacy name.
    """
    weights = {f"deberta.{name}": weight.half() for name, weight in stored_weights(folder).items()}
    word = "deberta.embeddings.word_embeddings"
    weights[f"{word}._weight"] = weights.pop(f"{word}.weight")
    weights["deberta.embeddings.position_embeddings.weight"] = torch.zeros(512, 36).half()
    weights["deberta.embeddings.position_ids"] = torch.arange(512)[None]
    weights["lm_predictions.lm_head.bias"] = torch.zeros(40).half()
    weights["mask_predictions.dense.weight"] = torch.zeros(36, 36).half()
    store_weights(folder, weights)
    return weights


def test_heads_in_hub_files_are_known(hub_file, folder):
    _, report = load_encoder_with_report(folder, layer=2)
    assert report.ignored_heads == {
        "lm_predictions": 1,
        "mask_predictions": 1,
        "embeddings.position_embeddings": 1,
    }


def test_parameter_counts_of_version_3_base():
    content = V3 | {
        "vocab_size": 128100,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    }
    counts = parameter_counts(config_from_dict(content), 7)
    assert counts == {"paper": 147_997_440, "stored": 147_997_440 + 512 * 768 + 2 * 768}


def test_zero_layers_are_saved_with_the_warning_that_transformers_cannot_run_them(folder, tmp_path):
    model = SentenceEncoder.from_pretrained(folder, layer=0)
    model.save_pretrained(tmp_path / "saved")
    assert describe_compatibility(model) == "transformers cannot run a deberta-v2 of 0 layers; tmft can."
    assert (
        f"**In other libraries:** {describe_compatibility(model)}"
        in (tmp_path / "saved/README.md").read_text()
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_training_step_in_half_precision_stays_finite(dtype):
    """Unscaled, the products of these weights pass 65504, the largest number of fp16."""
    torch.manual_seed(0)
    encoder = random_encoder(config_from_dict(V3 | {"hidden_size": 192})).train()
    for layer in encoder.layers:
        for projection in (layer.attention.query, layer.attention.key):
            torch.nn.init.normal_(projection.weight, std=1.5)
    rows = pack([torch.randint(1, 40, (length,)).tolist() for length in (30, 9, 50, 4)])
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-4)
    with torch.autocast("cpu", dtype=dtype):
        hidden = encoder(*rows.inputs)
    loss = hidden.float().square().mean()
    loss.backward()
    assert all(weight.grad.isfinite().all() for weight in encoder.parameters())
    optimizer.step()
    assert loss.isfinite()
    assert all(weight.isfinite().all() for weight in encoder.parameters())
