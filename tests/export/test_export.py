"""A model for other software: the same embeddings there, or one line that says why not."""

import json
import re
import sys
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from conftest import (
    ROOT,
    SENTENCES,
    assert_same_embeddings,
    stored_weights,
    tiny_model,
    tiny_static_model,
)
from hypothesis import given, settings
from test_any_model import ENCODE_METHODS, models

import tmft.cli.export_command as export_command
from tmft.checkpoints.model_card import ModelCardData, sentence_model_card
from tmft.datasets.task_lookup import get_task, read_split
from tmft.embedding.modules import Dense, make_projection
from tmft.errors import InputError
from tmft.export import numpy_encoder
from tmft.export.export import FORMATS, export
from tmft.export.onnx import padded_batch
from tmft.sentence_encoder import SentenceEncoder

TWINS = ROOT / "data/twins"
DEBERTA = {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
DEBERTA |= {"position_buckets": 4, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
DEBERTA |= {"position_biased_input": False, "type_vocab_size": 0, "conv_kernel_size": 3}
EQUAL = {"embedding_size": 24}  # an ELECTRA without a projection
LONG = [*SENTENCES, "a man " * 15, "?"]


def truncated(model: SentenceEncoder, layer: int, pooling: str = "mean") -> SentenceEncoder:
    del model.encoder.layers[layer:]
    model.pooling = pooling
    return model


@pytest.fixture
def onnx():
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is not installed (requirements-dev.txt)")


# ------------------------------------------------------------------------------------- what cannot be written


def test_a_model_whose_embeddings_are_not_finite_is_not_exported(tmp_path):
    model = tiny_model()
    model.head_modules.append(Dense(24, 24))
    model.head_modules[0].weight.data.fill_(3e38)
    with pytest.raises(InputError, match=r"the embedding of sentence 0 \(.*\) has values that"):
        export(model, tmp_path / "x", sentences=SENTENCES)
    model = tiny_model()
    model.encoder.embeddings.word.weight.data[-1, 0] = 1e30  # of a token that no sentence here has
    with pytest.raises(
        InputError, match="numbers that are not finite in torch.float16 .*: choose dtype float32"
    ):
        export(model, tmp_path / "x", dtype="float16")
    assert not list(tmp_path.iterdir())


def unequal_widths_after_weights() -> SentenceEncoder:
    model = tiny_model(**EQUAL)
    model.head_modules = make_projection(model.head_modules, model.dimensions, 8)
    model.set_token_weights("no-special")
    return model


def one_layer_of_t5() -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(TWINS / "t5", 1)


def without_pooled_prompts() -> SentenceEncoder:
    model = tiny_model()
    model.include_prompt = False
    return model


def without_prompt_tokens() -> SentenceEncoder:
    model = tiny_model()
    model.prompt = "the man "
    model.set_token_weights("no-prompt")
    return model


# Words of the message -> the model, the options of the export.
# fmt: off
REFUSED = {
    "BERT has no linear map from 12 to 24 after": (lambda: truncated(tiny_model(), 1), {"format": "bert"}),
    "deberta-v2 cannot be stored as BERT .its attention uses relative":
        (lambda: tiny_model(**DEBERTA), {"format": "bert"}),
    "t5 cannot be .* BERT .it has relative positions, .*: choose sentence-transformers or onnx":
        (one_layer_of_t5, {"format": "bert"}),
    "static cannot be stored as BERT .it is a table of word vectors": (tiny_static_model, {"format": "bert"}),
    "a static model only looks up word vectors, which needs no graph":
        (tiny_static_model, {"format": "onnx"}),
    "token_weights no-prompt count from": (without_prompt_tokens, {"format": "onnx"}),
    "this model leaves prompts out of the pooling": (without_pooled_prompts, {"format": "onnx"}),
    "dtype float16: sentence-transformers cannot run WordWeights":
        (unequal_widths_after_weights, {"dtype": "float16"}),
    "fp16: values in a T5 exceed 65504": (one_layer_of_t5, {"format": "onnx", "dtype": "float16"}),
    "format 'tensorflow': choose one of sentence-transformers, bert, onnx":
        (tiny_model, {"format": "tensorflow"}),
    "dtype bfloat16: format onnx supports float32, float16":
        (tiny_model, {"format": "onnx", "dtype": "bfloat16"}),
    "dtype int8: format sentence-transformers supports float32": (tiny_model, {"dtype": "int8"}),
}
# fmt: on


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_exported_is_one_line_and_nothing_is_written(words, onnx, tmp_path):
    make, options = REFUSED[words]
    with pytest.raises(InputError, match=words) as error:
        export(make(), tmp_path / "new", **options)
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def without_last_layer(model: SentenceEncoder) -> SentenceEncoder:
    return truncated(deepcopy(model), 3)


# What goes wrong -> a change of a format that makes its files another model.
MISTAKES = {
    "in the conversion": lambda format: {
        "prepare": lambda model: format.prepare(without_last_layer(model)),
    },
    "in the files": lambda format: {
        "write": lambda model, *options: format.write(without_last_layer(model), *options),
    },
    "in the encoder": lambda format: {
        "embed": lambda folder, texts: format.embed(folder, texts)[:, ::-1].copy(),
    },
}


@pytest.mark.parametrize(
    ("format", "dtype", "mistakes"),
    [
        ("sentence-transformers", "bfloat16", MISTAKES),
        ("bert", "float16", MISTAKES),
        ("compact", "int4", ["in the conversion", "in the encoder"]),
        pytest.param("onnx", "float32", ["in the files", "in the encoder"], marks=pytest.mark.slow),
    ],
)
def test_an_export_that_computes_something_else_is_refused(
    format, dtype, mistakes, request, tmp_path, monkeypatch
):
    """Whatever the cause: a folder is written only if its embeddings are those of the model."""
    if format == "onnx":
        request.getfixturevalue("onnx")
    unchanged = FORMATS[format]
    for mistake in mistakes:
        monkeypatch.setitem(FORMATS, format, replace(unchanged, **MISTAKES[mistake](unchanged)))
        with pytest.raises(InputError, match="an embedding has the cosine .* choose another format or dtype"):
            export(tiny_model(**EQUAL), tmp_path / "new", format, dtype)
        assert list(tmp_path.iterdir()) == []


def test_encode_py_has_to_compute_what_tmft_computes_from_the_same_rounded_weights(tmp_path, monkeypatch):
    """A causal model whose tokens attend to later ones comes nearer to itself than rounding to four bits."""
    monkeypatch.setattr(numpy_encoder, "check", lambda is_right, problem: None)
    with pytest.raises(InputError, match=r"encode.py: an embedding has the cosine 0\.[89]"):
        export(tiny_model(model_type="bert", is_decoder=True), tmp_path / "new", "compact", "int8")
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------------------------------------- as a BERT


@settings(max_examples=30)
@given(drawn=models())
def test_any_model_is_the_same_as_a_bert_or_is_refused(drawn):
    model, _ = drawn
    family = model.encoder.config.model_type
    projected = (
        family == "electra" and model.encoder.config.embedding_size != model.encoder.config.hidden_size
    )
    with TemporaryDirectory() as name:
        folder = Path(name) / "bert"
        try:
            export(model, folder, "bert")
        except InputError as error:
            assert family in ("static", "deberta-v2") or projected, error
            return
        opened = SentenceEncoder.from_pretrained(folder)
        content = json.loads((folder / "config.json").read_text())
    assert content["model_type"] == "bert" and content["architectures"] == ["BertModel"]
    assert content["num_hidden_layers"] == len(model.encoder.layers) and "embedding_size" not in content
    for method in ENCODE_METHODS:
        assert_same_embeddings(getattr(opened, method)(SENTENCES), getattr(model, method)(SENTENCES))
    for attribute in ("prompts", "default_prompt_name", "similarity_fn_name", "dimensions"):
        assert getattr(opened, attribute) == getattr(model, attribute), attribute
    assert model.encoder.config.model_type == family  # the model is as it was


# ------------------------------------------------------------------------------------------- numbers, folders


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_are_written_in_the_dtype(dtype, tmp_path):
    model = tiny_model(**EQUAL)
    torch.manual_seed(0)
    model.head_modules = make_projection(model.head_modules, model.dimensions, 8)
    export(model, tmp_path / "x", dtype=dtype)
    kinds = {weight.dtype for weight in stored_weights(tmp_path / "x").values()}
    kinds |= {weight.dtype for weight in stored_weights(tmp_path / "x/2_Dense").values()}
    assert kinds == {getattr(torch, dtype)}
    assert json.loads((tmp_path / "x/config.json").read_text())["dtype"] == dtype
    tolerance = {"float32": 0, "float16": 5e-3, "bfloat16": 5e-2}[dtype]
    difference = np.abs(
        SentenceEncoder.from_pretrained(tmp_path / "x").encode(SENTENCES) - model.encode(SENTENCES)
    ).max()
    assert difference <= tolerance and (difference > 0) == (dtype != "float32")


# ------------------------------------------------------------------------------------------------------- onnx


def with_modules() -> SentenceEncoder:
    model = SentenceEncoder.from_pretrained(TWINS / "mlm", 2)
    torch.manual_seed(0)
    model.head_modules = make_projection(model.head_modules, model.dimensions, 16)
    model.set_token_weights("no-special")
    model.prompt = "the words are "
    return model


def with_a_default_prompt() -> SentenceEncoder:
    model = SentenceEncoder.from_pretrained(TWINS / "mlm", 1)
    model.prompts |= {"query": "music for the ", "sts": "a guitar [X] is"}
    model.default_prompt_name, model.truncate_dim = "sts", 8
    return model


GRAPHS = {
    "bert, with a default prompt and fewer dimensions": with_a_default_prompt,
    "bert, with a Dense, weights and a prompt": with_modules,
    "electra with a projection": lambda: truncated(tiny_model(), 2, "max+cls+lasttoken"),
    "electra of 0 layers": lambda: truncated(tiny_model(), 0, "weightedmean+mean_sqrt_len_tokens"),
    "deberta": lambda: truncated(tiny_model(**DEBERTA), 1),
    "modernbert": lambda: truncated(tiny_model(model_type="modernbert", local_attention=12), 3),
    "t5, with its decoder": lambda: SentenceEncoder.from_pretrained(TWINS / "t5", 1, "decoder"),
    "mpnet": lambda: tiny_model(model_type="mpnet", max_position_embeddings=600),
    "a mean of layers": lambda: SentenceEncoder.from_pretrained(TWINS / "mlm-then-rtd", "1+2"),
}


def left_padded_batch(token_ids, pad_id):
    batch = padded_batch(token_ids, pad_id)
    shifts = (batch["attention_mask"] == 0).sum(1)
    return {
        name: np.stack([np.roll(row, n) for row, n in zip(rows, shifts, strict=True)])
        for name, rows in batch.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", GRAPHS)
def test_onnx_runtime_gives_the_same_embeddings_for_batches_of_any_shape(
    case, onnx, tmp_path, capfd, monkeypatch
):
    model = GRAPHS[case]()
    export(model, tmp_path / "x", "onnx")
    assert capfd.readouterr().err == ""  # the exporter prints the graph of some models
    assert not (tmp_path / "x/model.safetensors").exists()
    embed = partial(FORMATS["onnx"].embed, tmp_path / "x")
    expected = model.encode(LONG)
    assert_same_embeddings(embed(LONG), expected, tolerance=1e-5)
    for number in (0, -2, -1):  # one text, short or long
        assert_same_embeddings(embed([LONG[number]]), expected[[number]], tolerance=1e-5)
    many = 9 * LONG
    assert_same_embeddings(embed(many), model.encode(many), tolerance=1e-5)
    monkeypatch.setattr("tmft.export.onnx.padded_batch", left_padded_batch)
    assert_same_embeddings(embed(LONG), expected, tolerance=1e-5)


@pytest.mark.slow
def test_a_graph_takes_half_of_the_space_in_float16_and_a_quarter_by_the_recipe_of_the_page(
    onnx, tmp_path, monkeypatch
):
    """Each output of a linear map has a scale; products inside attention stay in float."""
    model = SentenceEncoder.from_pretrained(TWINS / "mlm", 2)
    expected = model.encode(LONG)
    monkeypatch.chdir(tmp_path)
    export(model, "graph", "onnx")
    export(model, "half", "onnx", "float16")
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    [recipe] = re.findall(r"```python\n(from onnxruntime.quantization.*?)```", page, re.DOTALL)
    exec(recipe, {})
    graph, path = Path("graph/onnx/model.onnx"), Path("graph/onnx/model_qint8_avx512_vnni.onnx")
    sizes = [file.stat().st_size for file in (graph, Path("half/onnx/model.onnx"), path)]
    assert sizes[1] < 0.55 * sizes[0] and sizes[2] < 0.3 * sizes[0]
    assert 0 < np.abs(FORMATS["onnx"].embed(Path("half"), LONG) - expected).max() < 1e-2
    path.replace(graph)
    found = FORMATS["onnx"].embed(Path("graph"), LONG)
    assert 0.99 < torch.cosine_similarity(*map(torch.from_numpy, (found, expected))).min() < 1 - 1e-6
    nodes = sys.modules["onnx"].load(graph).graph.node
    assert {node.op_type for node in nodes if "MatMul" in node.op_type} == {"MatMulInteger", "MatMul"}


def test_a_missing_package_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match="format onnx needs onnx: pip install onnx onnxscript onnxruntime"):
        export(tiny_model(), tmp_path / "x", "onnx")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------------ cards


def run_card(folder) -> list[np.ndarray]:
    """What `embeddings` is after each line of the card that sets it."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^>>> (.*)$", text, re.MULTILINE)
    assert lines
    names, found = {}, []
    for line in lines:
        exec(line.replace("path/to/this/folder", str(folder)), names)
        if "embeddings" in line.partition("=")[0]:
            found.append(np.asarray(torch.as_tensor(names["embeddings"]).detach()))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mlm", "mlm-then-rtd", "t5"])
def test_what_the_card_says_works_word_for_word(family, tmp_path):
    model = SentenceEncoder.from_pretrained(TWINS / family, 2)
    export(model, tmp_path / "x")
    sentence_transformers, ours = run_card(tmp_path / "x")
    expected = model.encode(["A man plays a guitar.", "Someone makes music."])
    for embeddings in (sentence_transformers, ours):
        assert_same_embeddings(embeddings, expected)


@pytest.mark.slow
def test_what_the_card_of_a_graph_says_works(onnx, tmp_path):
    model = with_modules()
    model.prompt = ""
    export(model, tmp_path / "x", "onnx")
    card = tmp_path / "x/README.md"
    assert 'backend="onnx")' in card.read_text()
    run_with_engine_alone(card)
    [found] = run_card(tmp_path / "x")
    expected = model.encode(["A man plays a guitar.", "Someone makes music."])
    assert_same_embeddings(found, expected, tolerance=1e-5)


def run_with_engine_alone(card) -> None:
    """Remove the lines of a card that need sentence-transformers with optimum."""
    lines = card.read_text().splitlines()
    ours = [line for line in lines if "SentenceTransformer" not in line and "model.encode" not in line]
    card.write_text("\n".join(ours))


def test_of_random_weights_no_base_is_claimed(tmp_path):
    model = tiny_model()
    model.source = "google/electra-base-discriminator"
    assert "base_model" not in sentence_model_card(model, ModelCardData(base=""))
    assert "base_model: google/electra-base-discriminator" in sentence_model_card(model)


# ---------------------------------------------------------------------------------------------------- command


@pytest.mark.parametrize(("format", "dtype"), [("compact", "int4"), ("bert", "float32")])
def test_the_command_writes_and_compares(format, dtype, tmp_path, capsys):
    """Without a dtype each format has its own."""
    words = [str(TWINS / "mlm-then-rtd"), str(tmp_path / "x"), "--layer", "1", "--format", format]
    export_command.main(words)
    output = capsys.readouterr().out
    model = SentenceEncoder.from_pretrained(TWINS / "mlm-then-rtd", 1)
    models = model, SentenceEncoder.from_pretrained(tmp_path / "x")
    sentences = read_split(get_task("sample"), "test").sentences
    x, y = (torch.from_numpy(one.encode(sentences)) for one in models)
    difference, cosines = (x - y).abs().max(), torch.cosine_similarity(x, y)
    assert f"as {format}, {dtype}: " in output and (difference == 0) == (dtype == "float32")
    pattern = r"largest difference of 242 embeddings: (.*), cosine: (.*) on average, (.*) at least"
    [found] = re.findall(pattern, output)
    expected = torch.stack([difference, cosines.mean(), cosines.min()]).tolist()
    assert [float(value) for value in found] == pytest.approx(expected, rel=0.06, abs=1e-4)


def test_the_card_of_an_exported_run_has_its_scores(tmp_path):
    import train

    line = ["--ckpt", str(TWINS / "mlm"), "--layer", "1", "--task", "sample", "--epochs", "1"]
    train.main([*line, "--output-dir", str(tmp_path / "runs"), "--run-name", "s"])
    run = tmp_path / "runs/s-layer1-seed0"
    export_command.main([str(run), str(tmp_path / "x")])
    card = (tmp_path / "x/README.md").read_text()
    assert "Fine-tuned on sample" in card and "type: sample\n      split: test" in card
    assert not (tmp_path / "x/result.json").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["{there}"], "exists already: name a new folder"),
        (["{new}", "--format", "bert"], "--format bert: BERT has no linear map from 12 to 24 after the"),
        (["--format", "bert"], "the following arguments are required: FOLDER"),
        (["{new}", "--dtype", "int8"], "--dtype int8: --format sentence-transformers supports float32"),
    ],
)
def test_a_wrong_command_is_one_line_and_writes_nothing(options, words, tiny_folder, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    places = {"there": tmp_path, "new": tmp_path / "new"}
    with pytest.raises(InputError) as error:
        export_command.main([str(tiny_folder), *(option.format(**places) for option in options)])
    assert words in error.value.as_cli_message() and "\n" not in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before
