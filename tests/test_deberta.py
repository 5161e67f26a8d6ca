"""DeBERTa of versions 2 and 3: its buckets, the files of the hub, and half precision."""

import pytest
import torch
from conftest import store_weights, stored_weights

from tmft.checkpoints.load import load_encoder_with_report
from tmft.checkpoints.save import save_encoder
from tmft.deberta import log_bucket_position
from tmft.models.families import config_from_dict, parameter_counts, random_encoder
from tmft.packing import pack

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


@pytest.mark.parametrize(("buckets", "longest"), [(256, 512), (9, 33), (2, 8), (64, 300)])
def test_buckets_equal_transformers(buckets, longest):
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distance = torch.arange(-700, 701)
    theirs = make_log_bucket_position(distance, buckets, longest).long()
    assert log_bucket_position(distance, buckets, longest).equal(theirs)


def test_a_file_of_the_hub_is_read(tmp_path):
    """It has a prefix, two heads, a position table that is not used, fp16, and one legacy name."""
    save_encoder(random_encoder(config_from_dict(V3)), tmp_path)
    weights = {f"deberta.{name}": weight.half() for name, weight in stored_weights(tmp_path).items()}
    word = "deberta.embeddings.word_embeddings"
    weights[f"{word}._weight"] = weights.pop(f"{word}.weight")
    weights["deberta.embeddings.position_embeddings.weight"] = torch.zeros(512, 36).half()
    weights["deberta.embeddings.position_ids"] = torch.arange(512)[None]
    weights["lm_predictions.lm_head.bias"] = torch.zeros(40).half()
    weights["mask_predictions.dense.weight"] = torch.zeros(36, 36).half()
    store_weights(tmp_path, weights)
    _, report = load_encoder_with_report(tmp_path, layer=2)
    assert report.ignored_heads == {
        "lm_predictions": 1,
        "mask_predictions": 1,
        "embeddings.position_embeddings": 1,
    }


def test_parameter_counts_of_version_3_base():
    sizes = {"vocab_size": 128100, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    counts = parameter_counts(config_from_dict(V3 | sizes | {"intermediate_size": 3072}), 7)
    assert counts == {"paper": 147_997_440, "stored": 147_997_440 + 512 * 768 + 2 * 768}


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
