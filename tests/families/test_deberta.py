"""DeBERTa of versions 2 and 3: equal to transformers in every shape that a config can ask for."""

import json

import numpy as np
import pytest
import torch
from conftest import assert_equal_hidden_states
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, DebertaV2Config, DebertaV2ForMaskedLM, DebertaV2Model
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from tmft.checkpoint import load_encoder, parameter_counts, random_encoder, read_encoder, save_encoder
from tmft.encoder import EncoderConfig
from tmft.errors import InputError
from tmft.families.deberta import by_distance, log_bucket
from tmft.rows import pack
from tmft.sentence import SentenceEncoder

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
VARIANTS = {
    "version 3": {},
    "separate projections": {"share_att_key": False},
    "only c2p": {"pos_att_type": ["c2p"]},
    "only p2c, separate": {"pos_att_type": "p2c", "share_att_key": False},
    "no position terms": {"pos_att_type": []},
    "no relative attention": {"relative_attention": False},
    "no buckets": {"position_buckets": -1, "norm_rel_ebd": "none"},
    "no buckets, short span": {"position_buckets": -1, "max_relative_positions": 20},
    "few buckets": {"position_buckets": 9, "max_relative_positions": 33},
    "convolution": {"conv_kernel_size": 3, "conv_act": "gelu"},
    "wide grouped convolution": {"conv_kernel_size": 5, "conv_groups": 4, "position_biased_input": True},
    "absolute positions and types": {"position_biased_input": True, "type_vocab_size": 2},
    "narrow embeddings": {"embedding_size": 16, "attention_head_size": 12},
}
LENGTHS = [270, 7, 150, 1, 40]  # past 128, where buckets begin to be shared, and past 256


def reference(**changes) -> DebertaV2Model:
    """transformers' model with weights so large that attention is far from uniform."""
    torch.manual_seed(0)
    model = DebertaV2Model(DebertaV2Config(**(V3 | changes))).eval()
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, mean=float(name.endswith("LayerNorm.weight")), std=0.2)
    return model


@pytest.fixture
def folder(tmp_path):
    """A version 3 checkpoint with a vocabulary."""
    reference().save_pretrained(tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    return tmp_path


@pytest.mark.parametrize("name", VARIANTS)
def test_every_hidden_state_equals_transformers_padded_and_in_rows(name, tmp_path):
    model = reference(**VARIANTS[name])
    model.save_pretrained(tmp_path)
    encoder = load_encoder(tmp_path).eval()
    sentences = [torch.randint(1, 40, (length,)).tolist() for length in LENGTHS]
    assert_equal_hidden_states(encoder, model, sentences)


def test_truncating_is_reading_an_earlier_hidden_state(folder):
    ids, mask = torch.tensor([[2, 9, 7, 3]]), torch.ones(1, 4)
    full = load_encoder(folder).eval().hidden_states(ids, mask)
    for layer in (0, 1, 2):
        torch.testing.assert_close(load_encoder(folder, layer).eval()(ids, mask), full[layer], rtol=0, atol=0)


def test_buckets_are_exact_near_and_logarithmic_far():
    anchors = {0: 0, 127: 127, 128: 128, 129: 129, 130: 130, 150: 143, 200: 169, 256: 192, 300: 207}
    anchors |= {400: 233, 500: 254, 510: 255, 511: 255}
    distance = torch.tensor(list(anchors))
    assert log_bucket(distance, 256, 512).tolist() == list(anchors.values())
    assert log_bucket(-distance, 256, 512).tolist() == [-bucket for bucket in anchors.values()]


@pytest.mark.parametrize(("buckets", "longest"), [(256, 512), (9, 33), (2, 8), (64, 300)])
def test_buckets_equal_transformers(buckets, longest):
    distance = torch.arange(-700, 701)
    theirs = make_log_bucket_position(distance, buckets, longest).long()
    assert log_bucket(distance, buckets, longest).equal(theirs)


@pytest.mark.parametrize("T", [1, 2, 5])
def test_by_distance_reads_the_entry_of_each_pair(T):
    content, positions = torch.randn(2, 3, T, 4), torch.randn(2, 2 * T, 4)
    pairs = by_distance(content, positions)
    for i in range(T):
        for j in range(T):
            torch.testing.assert_close(
                pairs[:, :, i, j], (content[:, :, i] * positions[:, None, j - i + T - 1]).sum(-1)
            )


def test_gradients_equal_transformers(tmp_path):
    model = reference(share_att_key=False, conv_kernel_size=3)
    model.save_pretrained(tmp_path)
    encoder = load_encoder(tmp_path).eval()
    ids = torch.randint(1, 40, (2, 140))
    model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state.square().mean().backward()
    encoder(ids, torch.ones_like(ids)).square().mean().backward()
    pairs = [
        (encoder.rel_embeddings, model.encoder.rel_embeddings),
        (encoder.layers[0].attention.pos_query, model.encoder.layer[0].attention.self.pos_query_proj),
        (encoder.convolution.conv, model.encoder.conv.conv),
        (encoder.embeddings.word, model.embeddings.word_embeddings),
    ]
    for ours, theirs in pairs:
        largest = theirs.weight.grad.abs().max()
        torch.testing.assert_close(
            ours.weight.grad / largest, theirs.weight.grad / largest, rtol=0, atol=1e-4
        )


# ------------------------------------------------------------------------------------------------ checkpoints


def test_a_hub_file_half_precision_with_heads_and_unused_positions(folder):
    """The prefix, the two heads, the position table that is not used, fp16, one legacy name."""
    weights = {
        f"deberta.{name}": weight.half() for name, weight in load_file(folder / "model.safetensors").items()
    }
    word = "deberta.embeddings.word_embeddings"
    weights[f"{word}._weight"] = weights.pop(f"{word}.weight")
    weights["deberta.embeddings.position_embeddings.weight"] = torch.zeros(512, 36).half()
    weights["deberta.embeddings.position_ids"] = torch.arange(512)[None]
    weights["lm_predictions.lm_head.bias"] = torch.zeros(40).half()
    weights["mask_predictions.dense.weight"] = torch.zeros(36, 36).half()
    save_file(weights, folder / "model.safetensors")

    encoder, report = read_encoder(folder, layer=2)
    assert {weight.dtype for weight in encoder.parameters()} == {torch.float32}
    assert encoder.embeddings.word.weight.equal(weights[f"{word}._weight"].float())
    assert report.heads == {"lm_predictions": 1, "mask_predictions": 1, "embeddings.position_embeddings": 1}


def test_the_heads_of_transformers_are_known(tmp_path):
    for legacy in (True, False):
        DebertaV2ForMaskedLM(DebertaV2Config(**V3, legacy=legacy)).save_pretrained(tmp_path)
        assert sum(read_encoder(tmp_path)[1].heads.values()) > 0


def test_parameter_counts_of_version_3_base():
    content = V3 | {
        "vocab_size": 128100,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    }
    counts = parameter_counts(EncoderConfig.from_dict(content), 7)
    assert counts == {"paper": 147_997_440, "stored": 147_997_440 + 512 * 768 + 2 * 768}


@pytest.mark.parametrize("name", VARIANTS)
def test_saved_config_and_weights_mean_the_same_to_transformers(name, tmp_path):
    reference(**VARIANTS[name]).save_pretrained(tmp_path / "whole")
    encoder = load_encoder(tmp_path / "whole", layer=2).eval()
    save_encoder(encoder, tmp_path / "kept")
    model, loading = AutoModel.from_pretrained(tmp_path / "kept", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    ids = torch.randint(1, 40, (2, 140))
    ours = encoder(ids, torch.ones_like(ids))
    theirs = model.eval()(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert load_encoder(tmp_path / "kept").eval()(ids, torch.ones_like(ids)).equal(ours)


def test_config_has_what_other_readers_require(folder, tmp_path):
    save_encoder(load_encoder(folder, layer=1), tmp_path / "kept")
    content = json.loads((tmp_path / "kept/config.json").read_text())
    expected = {
        "model_type": "deberta-v2",
        "architectures": ["DebertaV2Model"],
        "num_hidden_layers": 1,
        "relative_attention": True,
        "max_relative_positions": 512,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "initializer_range": 0.02,
        "pooler_hidden_size": 36,
        "pooler_hidden_act": "gelu",
        "pooler_dropout": 0,
        "dtype": "float32",
    }
    assert {key: content.get(key) for key in expected} == expected
    assert "position_embedding_type" not in content


def test_saved_model_gives_the_same_embeddings_in_sentence_transformers(folder, tmp_path):
    model = SentenceEncoder.load(folder, layer=2)
    sentences = ["a b c", "d", "k e y z " * 40]
    model.save(tmp_path / "saved")
    ours = model.encode(sentences)
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(sentences)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(SentenceEncoder.load(tmp_path / "saved").encode(sentences), ours)


# -------------------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_training_step_in_half_precision_stays_finite(dtype):
    """Unscaled, the products of these weights pass 65504, the largest number of fp16."""
    torch.manual_seed(0)
    encoder = random_encoder(EncoderConfig.from_dict(V3 | {"hidden_size": 192})).train()
    for layer in encoder.layers:
        for projection in (layer.attention.query, layer.attention.key):
            torch.nn.init.normal_(projection.weight, std=1.5)
    rows = pack([torch.randint(1, 40, (length,)).tolist() for length in (30, 9, 50, 4)])
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-4)
    with torch.autocast("cpu", dtype=dtype):
        hidden = encoder(rows.input_ids, rows.sentence_ids, rows.position_ids)
    loss = hidden.float().square().mean()
    loss.backward()
    assert all(weight.grad.isfinite().all() for weight in encoder.parameters())
    optimizer.step()
    assert loss.isfinite() and all(weight.isfinite().all() for weight in encoder.parameters())


# ----------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "deberta"}, "this is version 1, take a DeBERTa of version 2 or 3"),
        ({"pos_att_type": "c2p|p2p"}, "pos_att_type 'p2p' (config.json): supported are c2p and p2c"),
        ({"pos_att_type": 3}, "pos_att_type '3' (config.json)"),
        ({"position_buckets": 1}, "position_buckets 1 (config.json): with max_relative_positions 512"),
        ({"position_buckets": 64, "max_relative_positions": 32}, "it is 2 to 61, or -1 for none"),
        ({"conv_kernel_size": 4}, "conv_kernel_size 4 (config.json): expected an odd number"),
        ({"conv_kernel_size": 3, "conv_groups": 5}, "conv_groups 5 (config.json)"),
        ({"conv_act": "maxout"}, "conv_act 'maxout' (config.json): supported are"),
        ({"attention_head_size": 8}, "attention_head_size 8 (config.json): 3 heads"),
        ({"share_att_key": "yes"}, "share_att_key is 'yes' (config.json): expected true or false"),
        ({"vocab_size": None}, "vocab_size is missing (config.json)"),
        ({"hidden_size": None}, "hidden_size is missing (config.json)"),
        ({"max_position_embeddings": "512"}, "max_position_embeddings is '512' (config.json)"),
        ({"position_buckets": "256"}, "position_buckets is '256' (config.json)"),
    ],
)
def test_a_config_that_cannot_be_is_one_line(changes, message):
    with pytest.raises(InputError) as error:
        EncoderConfig.from_dict(V3 | changes)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_zero_layers_run_but_are_not_saved(folder, tmp_path):
    model = SentenceEncoder.load(folder, layer=0)
    assert model.encode(["a b", "c"]).shape == (2, 36)
    with pytest.raises(InputError, match="a DeBERTa of 0 layers is not saved"):
        model.save(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
