"""The compact format: weights in 4 or 8 bits, and an encoder of numpy that computes the same as tmft."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, SENTENCES, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_files_of_others import add_module, remove, reorder, set_class, write
from test_weights import cut_short

from tmft.checkpoints.compact import dequantize, pack_weights, round_weight, search_scales
from tmft.embedding.modules import Dense, LayerNorm, Normalize
from tmft.errors import InputError
from tmft.export import numpy_encoder
from tmft.export.export import export
from tmft.export.numpy_encoder import Encoder
from tmft.models.mpnet import MAX_DISTANCE
from tmft.models.t5 import relative_bias_matrix
from tmft.sentence_encoder import SentenceEncoder

LONG = [*SENTENCES, "a man " * 80, "?", "Déjà vu, again: 12,345 words?"]
TWINS = ROOT / "data/twins"


def exported(model, folder, dtype="int4"):
    export(model, folder, "compact", dtype)
    return folder


# ------------------------------------------------------------------------------------------------- rounding


@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 70).map(lambda n: 2 * n),
    dtype=st.sampled_from(["int4", "int8"]),
    magnitude=st.sampled_from([1e-3, 1.0, 50.0]),
    seed=st.integers(0, 10**6),
)
def test_every_matrix_is_near_what_it_was_and_numpy_reads_it_bit_by_bit(
    rows, columns, dtype, magnitude, seed
):
    weight = magnitude * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    weight[0, : columns // 2] = 0  # perhaps whole groups
    packed = pack_weights({"x.weight": weight}, dtype)
    numbers, scales = packed[f"x.weight.{dtype}"], packed["x.weight.scales"]
    found = dequantize(numbers, scales)
    theirs = numpy_encoder.unpack(numbers.numpy(), scales.numpy(), "x")
    assert theirs.dtype == np.float32 and np.array_equal(found.numpy(), theirs)
    assert torch.equal(round_weight(weight, dtype, scales), found)
    if scales[scales != 0].abs().min() >= torch.finfo(torch.float16).smallest_normal:
        assert torch.equal(round_weight(found, dtype), found)  # which is rounded already
    size = 32 if dtype == "int4" else columns
    for start in range(0, columns, size):
        group = slice(start, start + size)
        error = (found[:, group] - weight[:, group]).square().sum(1)
        largest = weight[:, group].abs().amax(1)
        plain = (largest / (7 if dtype == "int4" else 127)).half().float()[:, None]  # without a search
        rounded = torch.where(plain == 0, 0, (weight[:, group] / plain).round() * plain)
        assert (error <= (rounded - weight[:, group]).square().sum(1) * 1.001 + 1e-9).all()


def test_the_numbers_of_four_bits_reach_from_minus_8_to_7_and_the_byte_order_is_as_stated():
    weight = torch.tensor([[-8.0, 7.0, 1.0, -3.0]])
    packed = pack_weights({"w": weight}, "int4")
    assert packed["w.int4"].tolist() == [[0 | 15 << 4, 9 | 5 << 4]] and packed["w.scales"].tolist() == [[1.0]]
    assert torch.equal(dequantize(packed["w.int4"], packed["w.scales"]), weight)


def test_a_scale_may_be_negative():
    """Only then a group whose largest weight is positive uses the number -8."""
    weight = torch.tensor([[16.0, -14.0, 2.0, 0.0]])
    scales = search_scales(weight, "int4")
    assert scales.tolist() == [[-2.0]] and torch.equal(round_weight(weight, "int4"), weight)


# ------------------------------------------------------------------------------------------------- encoders

MPNET = {"model_type": "mpnet", "max_position_embeddings": 600}
MODELS = {
    "bert": lambda: tiny_model(model_type="bert"),
    "electra": lambda: tiny_model(embedding_size=24),
    "electra with narrow embeddings": tiny_model,
    "roberta": lambda: tiny_model(model_type="roberta"),
    "mpnet": lambda: tiny_model(**MPNET),
    "first token": lambda: with_(tiny_model(model_type="bert"), pooling="cls"),
    "relu": lambda: tiny_model(model_type="bert", hidden_act="relu"),
    "no layer": lambda: cut(tiny_model(model_type="bert")),
    "modules": lambda: with_modules(Dense(24, 8, activation="Tanh"), Normalize(), Dense(8, 6, bias=False)),
    "truncate_dim": lambda: with_(with_modules(Normalize()), truncate_dim=5),
    "prompts": lambda: with_prompts(tiny_model(model_type="bert")),
    "a short limit": lambda: with_(tiny_model(model_type="bert"), max_length=5),
}


def with_(model, **attributes):
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def cut(model):
    del model.encoder.layers[:]
    return model


def with_modules(*modules):
    model = tiny_model(model_type="bert")
    model.head_modules.extend(modules)
    return model


def with_prompts(model):
    model.prompts |= {"query": "a dog ", "other": "music: "}
    model.default_prompt_name = "other"
    return model


@pytest.mark.parametrize(("name", "dtype"), [*((name, "int4") for name in MODELS), ("electra", "int8")])
def test_numpy_and_tmft_compute_the_same_embeddings(name, dtype, tmp_path):
    model = MODELS[name]().eval()
    folder = exported(model, tmp_path / "compact", dtype)
    ours = SentenceEncoder.from_pretrained(folder)
    encoder = Encoder(folder)
    for prompt_name in (None, *(["query"] if name == "prompts" else [])):
        expected = ours.encode(LONG, prompt_name=prompt_name)
        found = encoder.encode(LONG, prompt_name=prompt_name)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert encoder.encode([]).shape == (0, model.dimensions)


def test_the_biases_of_every_distance_are_those_of_tmft_and_are_not_rounded_to_few_bits(tmp_path):
    encoder = tiny_model(**MPNET).encoder
    expected = relative_bias_matrix(encoder.relative_bias, 600, MAX_DISTANCE).detach().numpy()
    found = numpy_encoder.relative_bias(encoder.relative_bias.weight.detach().numpy(), 600)
    assert np.array_equal(found, expected)
    folder = exported(tiny_model(**MPNET), tmp_path / "compact")
    stored = SentenceEncoder.from_pretrained(folder).encoder.relative_bias.weight
    assert torch.equal(stored, encoder.relative_bias.weight.half().float())


def test_the_folder_runs_without_torch_and_without_tmft(tmp_path):
    folder = exported(SentenceEncoder.from_pretrained(TWINS / "mlm", layer=1), tmp_path / "compact")
    assert "from encode import Encoder" in (folder / "README.md").read_text(encoding="utf-8")
    code = "import sys; from encode import Encoder; Encoder('.').encode(['a b']); print(*sys.modules)"
    run = [sys.executable, "-c", code]
    modules = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=True).stdout.split()
    assert {"numpy", "tokenizers"} <= set(modules) and not {"torch", "tmft", "safetensors"} & set(modules)
    command = [sys.executable, str(folder / "encode.py"), "A man.", "Dogs sleep."]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    similarities = [[float(word) for word in line.split()[:2]] for line in printed]
    u = SentenceEncoder.from_pretrained(folder).encode(["A man.", "Dogs sleep."])
    one = subprocess.run(command[:-1], capture_output=True, text=True, check=True).stdout
    np.testing.assert_allclose(json.loads(one), u[0], atol=1e-4)
    assert np.abs(np.corrcoef(u)).max() <= 1.0001 and printed[1].endswith(" Dogs sleep.")
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    np.testing.assert_allclose(similarities, u @ u.T, atol=6e-4)


# ------------------------------------------------------------------------------------------------- refusals


def with_huge_bias():
    model = with_modules(Dense(24, 8))
    model.head_modules[0].bias.data.fill_(1e6)
    return model


def truncating_on_the_left():
    model = tiny_model(model_type="bert")
    model.tokenizer.truncation_side = "left"
    return model


REFUSED = {
    "max": (lambda: with_(tiny_model(model_type="bert"), pooling="max"), "Pooling has pooling_mode_max_toke"),
    "mix": (lambda: with_(tiny_model(model_type="bert"), layers=(1, 2)), "settings that only tmft computes"),
    "norm": (lambda: with_modules(LayerNorm(24)), "module LayerNorm, expected Dense or Normalize"),
    "causal": (lambda: tiny_model(model_type="bert", is_decoder=True), "the model is causal"),
    "template": (lambda: with_(tiny_model(model_type="bert"), prompt="[X] is"), "that only tmft computes"),
    "weight": (with_huge_bias, "linear.bias holds nan or inf"),
    "deberta": (lambda: tiny_model(model_type="deberta-v2"), "cannot be stored as BERT"),
    "prompt": (lambda: with_(tiny_model(model_type="bert"), include_prompt=False), "leaves prompts out"),
    "truncation": (truncating_on_the_left, "truncates texts on the left"),
    "activation": (lambda: tiny_model(model_type="bert", hidden_act="silu"), "hidden_act is 'silu'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_numpy_cannot_compute_is_refused(name, tmp_path):
    make, message = REFUSED[name]
    with pytest.raises(InputError, match=message) as error:
        export(make(), tmp_path / "x", "compact", "int4")
    assert str(tmp_path) not in str(error.value) or name == "weight"
    assert not (tmp_path / "x").exists()


def rewrite(path, change, **metadata):
    with safe_open(path, "pt") as file:
        metadata = file.metadata() | metadata
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata=metadata)


def weights(change, file="model.safetensors", **metadata):
    return lambda folder: rewrite(folder / file, change, **metadata)


def scaled(name, factor):
    return lambda weights: weights.update({name: weights[name] * factor})


QUERY = "encoder.layer.0.attention.self.query.weight"
BIAS = "encoder.layer.0.attention.self.query.bias"
NORM = "embeddings.LayerNorm.weight"
WORDS = "embeddings.word_embeddings.weight"
CONFIG, POOLING, DENSE = "config.json", "1_Pooling/config.json", "2_Dense/config.json"
SETTINGS, LIMITS = "config_sentence_transformers.json", "sentence_bert_config.json"
# Folders that tmft refuses, too, or in which it finds something else than this page would compute.
DAMAGED = {
    "another layout": weights(lambda w: None, compact_layout="2"),
    "no scales": weights(lambda w: w.pop(f"{QUERY}.scales")),
    "scales of another shape": weights(lambda w: w.update({f"{QUERY}.scales": torch.ones(3, 1).half()})),
    "no bias": weights(lambda w: w.pop(BIAS)),
    "NaN in a weight": weights(scaled(NORM, torch.nan)),
    "infinite scales of words": weights(scaled(f"{WORDS}.scales", torch.inf)),
    "an unknown tensor": weights(lambda w: w.update({"encoder.layer.9.output.dense.bias": w[BIAS].clone()})),
    "fewer layers than weights": write(CONFIG, num_hidden_layers=3),
    "cut short": lambda folder: cut_short(folder / "model.safetensors", -100),
    "no tokenizer": remove("tokenizer.json"),
    "a causal model": write(CONFIG, is_decoder=True),
    "another family": write(CONFIG, model_type="deberta-v2"),
    "an activation of modules": write(CONFIG, hidden_act="Tanh"),
    "relative positions": write(CONFIG, position_embedding_type="relative_key"),
    "heads that do not fit": write(CONFIG, num_attention_heads=5),
    "an unknown module": add_module("LSTM", "9"),
    "a module of another package": set_class(2, "other.Dense"),
    "no Pooling": reorder(0, 2, 3),
    "Normalize before the Pooling": reorder(0, 3, 1, 2),
    "two poolings": write(POOLING, pooling_mode_cls_token=True),
    "an unknown mode": write(POOLING, pooling_mode_attention=True),
    "no prompt in the mean": write(POOLING, include_prompt=False),
    "an unknown key of the Pooling": write(POOLING, temperature=2),
    "an activation of another package": write(DENSE, activation_function="other.Tanh"),
    "a prompt that does not exist": write(SETTINGS, default_prompt_name="other"),
    "lower case": write(LIMITS, do_lower_case=True),
}


def template_of_an_unknown_token(folder):
    """With it the library tokenizers panics, which is no Exception of Python."""
    content = json.loads((folder / "tokenizer.json").read_text())
    content["post_processor"] = json.loads(TEMPLATE)
    (folder / "tokenizer.json").write_text(json.dumps(content))


TEMPLATE = """{"type": "TemplateProcessing", "special_tokens": {},
    "single": [{"SpecialToken": {"id": "[NONE]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]}"""


@pytest.fixture(scope="module")
def compact_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compact") / "folder"
    return exported(with_modules(Dense(24, 8, activation="Tanh"), Normalize()), folder)


@pytest.mark.parametrize("damage", [*DAMAGED.values(), template_of_an_unknown_token], ids=[*DAMAGED, "panic"])
def test_a_damaged_folder_is_one_line(damage, compact_folder, tmp_path):
    folder = Path(shutil.copytree(compact_folder, tmp_path / "compact"))
    damage(folder)
    with pytest.raises(ValueError) as error:
        Encoder(folder)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)


@pytest.mark.parametrize("damage", ["no scales", "cut short"])
def test_tmft_and_the_command_refuse_a_damaged_folder_too(damage, compact_folder, tmp_path):
    folder = Path(shutil.copytree(compact_folder, tmp_path / "compact"))
    DAMAGED[damage](folder)
    with pytest.raises(InputError) as error:
        SentenceEncoder.from_pretrained(folder)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)
    command = [sys.executable, str(folder / "encode.py"), "a", "b"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2 and len(run.stderr.splitlines()) == 1 and not run.stdout


def test_a_text_that_is_no_string_is_refused(compact_folder):
    encoder = Encoder(compact_folder)
    for sentences in ("one string", [None], ["a", b"b"], {"a"}, iter(["a"])):
        with pytest.raises(ValueError, match="give a list of strings"):
            encoder.encode(sentences)
    with pytest.raises(ValueError, match="prompt_name 'x': choose one of query, document"):
        encoder.encode(["a"], prompt_name="x")
