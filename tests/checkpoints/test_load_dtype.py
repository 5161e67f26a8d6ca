"""Loading in 16 bits: the dtype asked for or that of the file, embeddings, and what is refused."""

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import (
    SENTENCES,
    assert_same_embeddings,
    fit_with_options,
    load_encoder,
    store_weights,
    stored_weights,
    tiny_model,
    training_task,
)
from test_weights import to_bin

from tmft.checkpoints import weights as weights_module
from tmft.checkpoints.load import load_encoder_with_report, random_encoder_with_report
from tmft.checkpoints.model_folder import ModelFolder
from tmft.checkpoints.save import save_encoder, weight_bytes
from tmft.checkpoints.weights import MAX_CHECKED_ROWS, check_finite_weight
from tmft.data import Examples
from tmft.embedding.modules import Dense, Normalize
from tmft.errors import InputError
from tmft.loss import CosineMSE
from tmft.models.families import config_from_dict, random_encoder
from tmft.packing import pack
from tmft.runs.run_config import FineTuningRecipe
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import TASKS

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "models"))

from random_configs import RANDOM_CONFIGS  # noqa: E402

IDS = [[9, 7, 12, 3, 8], [30, 3], [8, 15, 20, 21, 22, 3, 5, 6, 7, 8, 9]]
NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def to_dtype(folder: Path, dtype: torch.dtype) -> None:
    """Convert the weights in a folder."""
    store_weights(folder, {name: tensor.to(dtype) for name, tensor in stored_weights(folder).items()})


def dtypes(module: torch.nn.Module) -> set[torch.dtype]:
    return {weight.dtype for weight in module.parameters()}


def cosines(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return torch.cosine_similarity(torch.as_tensor(u), torch.as_tensor(v)).numpy()


# ------------------------------------------------------------------------------------------ what is loaded


@pytest.mark.parametrize("model_type", sorted(RANDOM_CONFIGS))
def test_every_family_in_bfloat16_loaded_or_under_autocast_is_near_to_itself_in_float32(model_type, tmp_path):
    torch.manual_seed(0)
    config = config_from_dict(RANDOM_CONFIGS[model_type](random.Random(f"dtype {model_type}")))
    encoder = random_encoder(config)
    for name, weight in encoder.named_parameters():
        torch.nn.init.normal_(weight, mean=0.5 if "norm" in name else 0.0, std=0.1)
    save_encoder(encoder, tmp_path, dtype=torch.bfloat16)
    exact, rounded, batch = load_encoder(tmp_path), load_encoder(tmp_path, dtype="auto"), pack(IDS)
    assert dtypes(exact) == {torch.float32} and dtypes(rounded) == {torch.bfloat16}
    for name, weight in rounded.state_dict().items():
        assert torch.equal(weight.float(), exact.state_dict()[name])
    with torch.inference_mode():
        outputs = [model.eval()(*batch.inputs) for model in (exact, rounded)]
    assert [output.dtype for output in outputs] == [torch.float32, torch.bfloat16]
    means = [
        torch.stack([output[batch.attention_mask == s].float().mean(0) for s in range(1, len(IDS) + 1)])
        for output in outputs
    ]
    assert 0.99 < cosines(*means).min() and not torch.equal(*means)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = exact(*batch.inputs)
    mixed.float().square().mean().backward()
    if hasattr(config, "rms_norm_eps") or "t5" in model_type:  # sums of so many layers stay in float32
        assert mixed.dtype == torch.float32
    assert all(weight.grad.isfinite().all() for weight in exact.parameters() if weight.grad is not None)
    there = batch.attention_mask > 0
    assert torch.cosine_similarity(mixed[there].float(), outputs[0][there]).min() > 0.99


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_the_dtype_of_the_file_or_the_one_asked_for(form, dtype, tiny_folder):
    to_dtype(tiny_folder, dtype)
    before = stored_weights(tiny_folder)["embeddings_project.weight"]
    if form == "bin":
        to_bin(tiny_folder, stored_weights(tiny_folder))
    encoder, report = load_encoder_with_report(tiny_folder, 2, dtype="auto")
    assert dtypes(encoder) == {dtype} == {report.dtype}
    assert torch.equal(encoder.embeddings.project.weight, before)
    assert (f"parameters in {NAMES[dtype]};" in str(report)) is (dtype != torch.float32)
    for asked in NAMES:
        encoder = load_encoder(tiny_folder, 2, dtype=NAMES[asked])
        assert dtypes(encoder) == dtypes(load_encoder(tiny_folder, 2, dtype=asked)) == {asked}
        assert torch.equal(encoder.embeddings.project.weight, before.to(asked))


def test_auto_is_the_dtype_of_most_numbers_and_float32_for_float64(tiny_folder):
    weights = stored_weights(tiny_folder)
    mixed = {name: tensor if "LayerNorm" in name else tensor.bfloat16() for name, tensor in weights.items()}
    store_weights(tiny_folder, mixed)
    assert dtypes(load_encoder(tiny_folder, dtype="auto")) == {torch.bfloat16}
    store_weights(tiny_folder, {name: tensor.double() for name, tensor in weights.items()})
    assert dtypes(load_encoder(tiny_folder, dtype="auto")) == {torch.float32}


def test_random_weights_have_the_dtype_asked_for_and_are_those_of_float32(tiny_folder):
    torch.manual_seed(3)
    exact, _ = random_encoder_with_report(ModelFolder(tiny_folder))
    torch.manual_seed(3)
    rounded, _ = random_encoder_with_report(ModelFolder(tiny_folder), dtype="bfloat16")
    assert dtypes(rounded) == {torch.bfloat16}
    assert torch.equal(rounded.embeddings.word.weight, exact.embeddings.word.weight.bfloat16())
    assert dtypes(random_encoder_with_report(ModelFolder(tiny_folder), dtype="auto")[0]) == {torch.float32}


def test_a_file_that_is_opened_again_and_again_gives_the_same_weights(tiny_folder, monkeypatch):
    to_dtype(tiny_folder, torch.bfloat16)
    before, opened = load_encoder(tiny_folder).state_dict(), []
    open_file = weights_module.open_safetensors
    monkeypatch.setattr(weights_module, "MAX_MAPPED_BYTES", 1000)
    monkeypatch.setattr(weights_module, "open_safetensors", lambda path: opened.append(1) or open_file(path))
    after = load_encoder(tiny_folder).state_dict()
    assert len(opened) > 10
    assert all(torch.equal(before[name], after[name]) for name in before)
    opened.clear()
    load_encoder(tiny_folder, dtype="auto")  # nothing is converted: the file stays mapped
    assert len(opened) == 2  # for the names and dtypes, for the tensors


# ------------------------------------------------------------------------------------------ embeddings


@pytest.fixture
def dense_folder(tmp_path) -> Path:
    """A saved BERT with a Dense and a Normalize after the pooling, all in bfloat16."""
    torch.manual_seed(1)
    model = tiny_model(model_type="bert")
    model.head_modules.extend([Dense(24, 8, activation="Tanh"), Normalize()])
    model.save_pretrained(tmp_path / "dense", dtype=torch.bfloat16)
    return tmp_path / "dense"


def test_embeddings_are_those_of_sentence_transformers_in_bfloat16(dense_folder):
    import sentence_transformers

    theirs = sentence_transformers.SentenceTransformer(
        str(dense_folder), device="cpu", model_kwargs={"torch_dtype": "bfloat16"}
    )
    ours = SentenceEncoder.from_pretrained(dense_folder, dtype="bfloat16")
    exact = SentenceEncoder.from_pretrained(dense_folder).encode(SENTENCES)
    u, v = ours.encode(SENTENCES), theirs.encode(SENTENCES, convert_to_tensor=True).float().numpy()
    assert ours.dtype == torch.bfloat16 and u.dtype == np.float32
    assert dtypes(ours.head_modules) == {torch.float32}
    error = np.abs(v - exact).max()
    assert 0 < np.abs(u - exact).max() <= 2 * error
    assert_same_embeddings(u, v, 3 * error)


# ------------------------------------------------------------------------------------------ saving, training


def test_a_model_is_saved_in_its_dtype_unless_another_one_is_asked_for(dense_folder, tmp_path):
    model = SentenceEncoder.from_pretrained(dense_folder, dtype="auto")
    model.save_pretrained(tmp_path / "again")
    for name in ("model.safetensors", "2_Dense/model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (dense_folder / name).read_bytes()
    model.save_pretrained(tmp_path / "wide", dtype=torch.float32)
    assert {tensor.dtype for tensor in stored_weights(tmp_path / "wide").values()} == {torch.float32}
    assert json.loads((tmp_path / "wide/config.json").read_text())["dtype"] == "float32"
    assert dtypes(model.encoder) == {torch.bfloat16}  # saving changes nothing
    assert weight_bytes(model.encoder) == sum(w.nbytes for w in stored_weights(dense_folder).values())
    SentenceEncoder.from_pretrained(dense_folder).save_pretrained(tmp_path / "default")
    assert {tensor.dtype for tensor in stored_weights(tmp_path / "default").values()} == {torch.float32}


def test_a_model_of_16_bits_is_not_trained(dense_folder):
    model = SentenceEncoder.from_pretrained(dense_folder, dtype="bfloat16")
    train = Examples((["a man", "a dog"], ["a cat", "music"]), [1.0, 4.0])
    task = training_task(TASKS["stsb"], CosineMSE(), train, train)
    with pytest.raises(InputError, match="the weights of the model are bfloat16.*load it with dtype float32"):
        list(fit_with_options(model, task, FineTuningRecipe(epochs=1, batch_size=2)))


# ------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(("model_type", "name"), [("t5", "T5"), ("gemma3_text", "Gemma"), ("qwen3", "")])
def test_fp16_is_refused_where_values_exceed_its_range(model_type, name):
    config, rows = config_from_dict(RANDOM_CONFIGS[model_type](random.Random(1))), pack(IDS)
    encoder = random_encoder(config)
    if not name:
        assert encoder.half()(*rows.inputs).dtype == torch.float16
        return
    expected = f"precision fp16: values in a {name} exceed 65504, the largest number of fp16: choose bf16"
    with pytest.raises(InputError, match=expected) as error, torch.autocast("cpu", torch.float16):
        encoder(*rows.inputs)
    assert error.value.parameters == ("precision",)
    with pytest.raises(InputError, match=expected):
        encoder.half().hidden_states(*rows.inputs)


@pytest.mark.parametrize("dtype", ["int8", "fp16", torch.float64, torch.int8, None, 16])
def test_an_unknown_dtype_is_one_clear_line(dtype, tiny_folder):
    with pytest.raises(InputError, match="dtype .*: choose one of auto, float32, float16, bfloat16"):
        load_encoder(tiny_folder, dtype=dtype)


def test_numbers_that_are_too_large_for_float16_are_one_clear_line(tiny_folder):
    name = "encoder.layer.0.output.dense.weight"
    weights = stored_weights(tiny_folder)
    weights[name][3, 4] = 1e5
    store_weights(tiny_folder, weights)
    with pytest.raises(InputError, match=rf"{name} has numbers that are not finite in torch.float16 \("):
        load_encoder(tiny_folder, dtype="float16")
    assert load_encoder(tiny_folder, dtype="bfloat16").layers[0].feed_forward.down.weight[3, 4] > 9e4
    weights[name][3, 4] = 3.4e38  # rounded to bfloat16 it is infinite
    store_weights(tiny_folder, weights)
    with pytest.raises(InputError, match=rf"{name} has numbers that are not finite in torch.bfloat16 \("):
        load_encoder(tiny_folder, dtype="bfloat16")


def test_large_matrices_of_layers_are_checked_for_nan_but_tables_of_words_are_not():
    nan = torch.full((), float("nan"), dtype=torch.bfloat16)
    with pytest.raises(InputError, match="up.weight holds nan or inf"):
        check_finite_weight(nan.expand(MAX_CHECKED_ROWS, 300), "up.weight", Path("x"))
    check_finite_weight(nan.expand(MAX_CHECKED_ROWS + 1, 300), "word.weight", Path("x"))
