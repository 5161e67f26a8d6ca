"""T5's encoder: each hidden state is that of a T5 of so many layers, as transformers has it."""

import json
import math

import pytest
import torch
from conftest import (
    ROOT,
    VOCABULARY,
    padded,
    store_weights,
    stored_weights,
    vocabulary_folder,
)

from tmft.checkpoints.load import load_encoder, load_encoder_with_report
from tmft.checkpoints.save import save_encoder
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.errors import InputError
from tmft.models.families import config_from_dict, parameter_counts, random_encoder
from tmft.models.t5 import OTHER_KEYS, relative_bias_matrix, relative_position_bucket
from tmft.optimizers import MixedPrecision
from tmft.packing import pack
from tmft.pooling import mean_pooling
from tmft.sentence_encoder import SentenceEncoder
from tmft.speed.occurring_words import OccurringWords

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
LENGTHS = [270, 7, 150, 1, 40]  # past 91, where the last bucket begins


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


def random_sentences(lengths=LENGTHS) -> list[list[int]]:
    return [torch.randint(1, 40, (length,)).tolist() for length in lengths]


@pytest.fixture
def folder(tmp_path):
    """A whole T5 of version 1.0, with its decoder."""
    build("ForConditionalGeneration").save_pretrained(tmp_path / "t5")
    return tmp_path / "t5"


# ------------------------------------------------------------------------------- buckets


@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (9, 20), (4, 2), (64, 300), (32, 9)])
def test_buckets_equal_transformers(buckets, longest):
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-700, 701)
    theirs = T5Attention._relative_position_bucket(distance, True, buckets, longest)
    assert relative_position_bucket(distance, buckets, longest).equal(theirs)


@pytest.mark.parametrize("T", [1, 2, 30])
def test_relative_positions_give_each_pair_the_entry_of_its_distance(T):
    numbers = torch.nn.Embedding(32, 3)
    bias = relative_bias_matrix(numbers, T, 128)
    assert bias.shape == (3, T, T)
    for i in range(T):
        for j in range(T):
            assert bias[:, i, j].equal(numbers.weight[relative_position_bucket(torch.tensor(j - i), 32, 128)])


def test_only_the_first_layer_has_relative_biases_but_in_umt5_each():
    shared = random_encoder(config_from_dict(V10))
    assert [layer.attention.relative_bias is None for layer in shared.layers] == [False, True, True]
    each = random_encoder(config_from_dict(V10 | {"model_type": "umt5"}))
    assert [layer.attention.relative_bias is None for layer in each.layers] == [False, False, False]


# ------------------------------------------------------------------------------- training


@pytest.mark.parametrize("gated", [False, True])
def test_random_weights_have_the_standard_deviations_of_t5(gated):
    sizes = {"d_model": 128, "d_kv": 24, "num_heads": 4, "d_ff": 300, "vocab_size": 500, "num_layers": 2}
    changes = sizes | {"initializer_factor": 0.5, "feed_forward_proj": "gated-gelu" if gated else "relu"}
    encoder = random_encoder(config_from_dict(V10 | changes))
    expected = {
        "word": 1,
        "query": (128 * 24) ** -0.5,
        **dict.fromkeys(["key", "value", "relative_bias", "up", "gate", "linear"], 128**-0.5),
        "output": (4 * 24) ** -0.5,
        "down": 300**-0.5,
    }
    for name, weight in encoder.named_parameters():
        if name.endswith("norm.weight"):
            assert (weight == 0.5).all()
        else:
            tolerance = 5 / math.sqrt(2 * weight.numel())
            deviation = 0.5 * expected[name.split(".")[-2]]
            assert weight.std().item() == pytest.approx(deviation, rel=tolerance), name


def dropped(module: torch.nn.Module, run) -> list[tuple]:
    """The shapes that dropout is applied to, in order."""
    shapes = []
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.register_forward_hook(lambda part, inputs, output: shapes.append(tuple(output.shape)))
    run()
    return shapes


@pytest.mark.parametrize("name", ["version 1.0", "version 1.1"])
def test_dropout_is_where_transformers_has_it(name):
    """Embeddings, inside and after each feed-forward, after each attention and the final norm; and, in
    transformers not a module but a call, on the probabilities."""
    model = build("EncoderModel", **VARIANTS[name]).train()
    encoder = random_encoder(config_from_dict(V10 | VARIANTS[name])).train()
    ids = torch.randint(1, 40, (2, 6))
    theirs = dropped(model, lambda: model(ids))
    ours = dropped(encoder, lambda: encoder(ids, torch.ones_like(ids)))
    probabilities = (2, 3, 6, 6)
    assert ours.count(probabilities) == 3
    assert [shape for shape in ours if shape != probabilities] == theirs


def test_every_dropout_has_the_one_rate_of_the_file():
    encoder = random_encoder(config_from_dict(V10 | {"dropout_rate": 0.25}))
    assert {part.p for part in encoder.modules() if isinstance(part, torch.nn.Dropout)} == {0.25}


def test_norms_and_sums_stay_in_float32_under_autocast():
    encoder = random_encoder(config_from_dict(V10)).train()
    inside, sums = [], []
    for layer in encoder.layers:
        for norm in (layer.attention_norm, layer.feed_forward_norm):
            norm.register_forward_hook(lambda part, inputs, output: sums.extend((*inputs, output)))
        layer.attention.query.register_forward_hook(lambda part, inputs, output: inside.append(output))
    rows = pack(random_sentences([5, 9, 30]))
    with MixedPrecision(torch.device("cpu"), "bf16"):
        states = encoder.hidden_states(*rows.inputs)
    assert {tensor.dtype for tensor in inside} == {torch.bfloat16}
    assert {tensor.dtype for tensor in (*sums, *states)} == {torch.float32}


def test_a_training_step_in_bf16_stays_finite():
    """With sums beyond 65504, where fp16 ends."""
    encoder = random_encoder(config_from_dict(V10)).train()
    torch.nn.init.normal_(encoder.layers[1].feed_forward.down.weight, std=1e5)
    rows = pack(random_sentences([5, 9, 30]))
    with MixedPrecision(torch.device("cpu"), "bf16"):
        *_, largest, _ = encoder.iter_pre_norm_states(*rows.inputs[:2])
        hidden = encoder(*rows.inputs)
    hidden.float().square().mean().backward()
    assert largest.abs().max() > 65504
    assert all(weight.grad.isfinite().all() for weight in encoder.parameters())


def test_fp16_is_refused_with_the_reason():
    encoder = random_encoder(config_from_dict(V10))
    rows = pack(random_sentences([5, 9]))
    expected = "precision fp16: values in a T5 exceed 65504, the largest number of fp16: choose bf16"
    with MixedPrecision(torch.device("cpu"), "fp16"), pytest.raises(InputError, match=expected) as error:
        encoder(*rows.inputs)
    assert error.value.parameters == ("precision",)
    with pytest.raises(InputError, match=expected):
        encoder.half().hidden_states(*rows.inputs)


def test_training_only_the_words_that_occur_gives_the_same():
    """Of each word the gradient, of the others none."""
    sentences = random_sentences([5, 9, 30])
    encoder = random_encoder(config_from_dict(V10)).eval()
    rows = pack(sentences)
    mean_pooling(encoder(*rows.inputs), rows).pow(3).sum().backward()
    whole = encoder.embeddings.word.weight.grad
    words = OccurringWords(encoder.embeddings, sentences)
    with words:
        mean_pooling(encoder(*rows.inputs), rows).pow(3).sum().backward()
        part = encoder.embeddings.word.weight.grad
    torch.testing.assert_close(part[:-1], whole[words.ids])
    assert whole.abs().sum() == pytest.approx(part.abs().sum().item(), rel=1e-4)


def sentence_model(**changes) -> SentenceEncoder:
    """A T5 that reads the words of the tests."""
    torch.manual_seed(0)
    encoder = random_encoder(config_from_dict(V10 | {"vocab_size": len(VOCABULARY)} | changes))
    return SentenceEncoder(encoder, load_tokenizer(vocabulary_folder()), max_length=128).eval()


@pytest.mark.parametrize("key, other", OTHER_KEYS.items())
def test_two_names_of_a_size_with_different_values_are_refused(key, other):
    """transformers takes the other name, whichever comes first in the file."""
    content = {"model_type": "t5", "vocab_size": 30, "d_ff": 9} | dict.fromkeys(OTHER_KEYS, 2)
    assert config_from_dict(content | {other: content[key]}) == config_from_dict(content)
    with pytest.raises(InputError, match=rf"{key} is \d and {other} is 7 \(config.json\): they are two"):
        config_from_dict(content | {other: 7})


# ------------------------------------------------------------------------------- checkpoints


HEADS = ["ForConditionalGeneration", "ForSequenceClassification", "ForTokenClassification"]
HEADS += ["ForQuestionAnswering", "Model"]


@pytest.mark.parametrize("kind", HEADS)
def test_the_encoder_is_loaded_from_each_class_of_transformers(kind, tmp_path):
    model = build(kind)
    model.save_pretrained(tmp_path)
    encoder, report = load_encoder_with_report(tmp_path)
    assert sum(report.ignored_heads.values()) > 0
    theirs = getattr(model, "transformer", model)
    ids, mask = padded(random_sentences([5, 9]))
    with torch.inference_mode():
        expected = theirs.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        torch.testing.assert_close(encoder(ids, mask)[mask > 0], expected[mask > 0])


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


def test_an_old_file_gives_the_encoder_and_reports_ignored_tensors(folder, old_file):
    encoder, report = load_encoder_with_report(folder, layer=2)
    decoder = sum(name.startswith("decoder.") for name in old_file)
    assert report.ignored_heads == {"decoder": decoder, "encoder.embed_tokens": 1, "lm_head": 1}
    assert (len(report.loaded), report.truncated) == (2 * 8 + 1 + 2, 8)
    assert encoder.embeddings.word.weight.equal(old_file["shared.weight"])
    assert str(report).startswith("loaded the embeddings and 2 of 3 layers: 19 tensors, ")


def test_the_old_config_means_what_its_defaults_were(folder):
    """Without feed_forward_proj, relative_attention_max_distance and pad_token_id."""
    config = config_from_dict(V10)
    assert (config.feed_forward_proj, config.hidden_act) == ("relu", "relu")
    assert (config.relative_attention_max_distance, config.pad_token_id, config.eos_token_id) == (128, 0, 1)
    assert config_from_dict(V10 | {"model_type": "mt5"}).feed_forward_proj == "gated-gelu"


@pytest.mark.parametrize(
    "name",
    [
        "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight",  # of the first layer alone
        "encoder.block.0.layer.0.SelfAttention.q.bias",
        "encoder.block.0.layer.1.DenseReluDense.wi_0.weight",  # of the gated kind
        "encoder.block.3.layer.1.layer_norm.weight",
    ],
)
def test_a_tensor_that_no_such_t5_has_is_refused_by_name(name, folder):
    store_weights(folder, stored_weights(folder) | {name: torch.zeros(2)})
    with pytest.raises(InputError, match=f"unknown tensor {name} "):
        load_encoder(folder)


def test_config_has_what_other_readers_require(folder, tmp_path):
    save_encoder(load_encoder(folder, layer=1), tmp_path / "kept")
    assert json.loads((tmp_path / "kept/config.json").read_text()) == {
        "model_type": "t5",
        "architectures": ["T5EncoderModel"],
        "vocab_size": 40,
        "d_model": 36,
        "d_kv": 12,
        "d_ff": 48,
        "num_layers": 1,
        "num_heads": 3,
        "feed_forward_proj": "relu",
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "dropout_rate": 0.1,
        "initializer_factor": 1.0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "num_decoder_layers": 3,  # of the original: a run that starts from this one compares the two
        "decoder_start_token_id": 0,
        "is_encoder_decoder": False,
        "dtype": "float32",
    }


# ------------------------------------------------------------------------------- parameters


def of_size(D, A, F, H, L, gated=False) -> dict:
    sizes = {"vocab_size": 32128, "d_model": D, "d_kv": A, "d_ff": F, "num_heads": H, "num_layers": L}
    return V10 | sizes | {"feed_forward_proj": "gated-gelu" if gated else "relu"}


@pytest.mark.parametrize(
    ("sizes", "stored", "of_a_layer"),
    [
        ((512, 64, 2048, 8, 6), 35_330_816, 3_146_752),  # t5-small
        ((768, 64, 3072, 12, 12), 109_628_544, 7_079_424),  # t5-base
        ((1024, 64, 4096, 16, 24), 334_939_648, 12_584_960),  # t5-large
        ((1024, 128, 16384, 32, 24), 1_240_909_824, 50_333_696),  # t5-3b
        ((1024, 128, 65536, 128, 24), 4_864_791_552, 201_328_640),  # t5-11b
        ((512, 64, 1024, 6, 8, True), 35_332_800, 2_360_320),  # version 1.1: small
        ((768, 64, 2048, 12, 12, True), 109_628_544, 7_079_424),  # base
        ((1024, 64, 2816, 16, 24, True), 341_231_104, 12_847_104),  # large
        ((2048, 64, 5120, 32, 24, True), 1_223_527_424, 48_238_592),  # xl
    ],
)
def test_parameter_counts_of_the_published_sizes(sizes, stored, of_a_layer):
    config = config_from_dict(of_size(*sizes))
    D = config.hidden_size
    assert parameter_counts(config) == {"paper": stored - D, "stored": stored}  # without the final norm
    assert parameter_counts(config, 3)["stored"] - parameter_counts(config, 2)["stored"] == of_a_layer


# ------------------------------------------------------------------------------- length


def test_a_text_may_have_any_length_and_the_default_limit_is_512_tokens():
    model = sentence_model()
    said = [SentenceEncoder(model.encoder, model.tokenizer, max_length=n).max_length for n in (None, 4000)]
    assert said == [512, 4000]
    model.tokenizer.max_length = 256
    assert SentenceEncoder(model.encoder, model.tokenizer).max_length == 256


def test_the_first_layer_of_a_t5_cannot_be_removed():
    model = SentenceEncoder.from_pretrained(ROOT / "data/twins/t5")
    with pytest.raises(InputError, match="keep_layers must include layer 0: .* add 0") as error:
        model.encoder.keep_layers([1])
    assert error.value.parameters == ("keep_layers",)
