"""Pre-training runs: they learn, can be resumed and divided among processes without another result."""

import json
import math
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, open_in_transformers, tiny_config, tiny_model, vocabulary_folder
from safetensors.torch import load_file

import tmft.pretraining.pretraining_loop
import tmft.training.checkpointing
import train
from tmft import SentenceEncoder
from tmft.errors import InputError
from tmft.pretraining.masking import Masking
from tmft.pretraining.pretraining_loop import PretrainingRecipe, set_seed
from tmft.pretraining.token_heads import MaskedLM

LINES = [
    "a man plays the guitar",
    "the cat eats",
    "two dogs in the park",
    "a woman eats",
    "music is not in the park",
]
BERT = {"model_type": "bert", "initializer_range": 0.02}
ELECTRA = {"initializer_range": 0.02}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    ends = product(("", " music", " the cat", " two dogs"), ("", " eats", " plays"))
    lines = [line + noun + verb for noun, verb in ends for line in LINES]  # 60 different ones
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def shape(folder: Path, **changes) -> Path:
    """A folder with a config.json and a vocabulary, without weights."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny_config(**changes)), encoding="utf-8")
    (folder / "vocab.txt").write_text(
        (vocabulary_folder() / "vocab.txt").read_text(encoding="utf-8"), "utf-8"
    )
    return folder


def pretrain(tmp_path, text, *more, task="mlm", runs="runs", name="x") -> Path:
    """Run the command and return the folder of the run."""
    options = ["--task", task, "--text", text, "--output-dir", tmp_path / runs, "--run-name", name]
    options += ["--max-length", 24, "--batch-size", 8, "--precision", "fp32", "--device", "cpu"]
    train.main([str(word) for word in [*options, *more]])
    return tmp_path / runs / f"{name}-seed0"


def read_result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def held_out(folder: Path, name: str) -> tuple[float, float]:
    """Return a mean on the held-out text, before and after the run."""
    means = read_result(folder)["held_out"]
    return means["before"][name], means["after"][name]


@pytest.mark.parametrize("changes", [BERT, ELECTRA], ids=["bert", "electra"])
def test_mlm_from_scratch_learns_and_opens_in_transformers_with_the_same_embeddings(changes, tmp_path, text):
    config = shape(tmp_path / "shape", **changes)
    folder = pretrain(tmp_path, text, "--from-scratch", config, "--steps", 25, "--lr", 1e-2)
    before, after = held_out(folder, "mlm_loss")
    assert before == pytest.approx(math.log(len(VOCABULARY)), rel=0.1) and after < 0.8 * before
    assert "25 steps of 8 sentences" in (folder / "README.md").read_text()
    assert not (folder / "state.pt").exists()

    import transformers

    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch, ours = tokenizer(["the cat eats"], return_tensors="pt"), SentenceEncoder.from_pretrained(folder)
    assert batch["input_ids"][0].tolist() == ours.tokenize(["the cat eats"])[0]
    with torch.inference_mode():
        hidden = model(**batch, output_hidden_states=True).hidden_states[-1].mean(1)
    torch.testing.assert_close(torch.from_numpy(ours.encode(["the cat eats"])), hidden, rtol=0, atol=1e-5)


def test_continued_pretraining_uses_the_head_of_the_checkpoint(tmp_path, text, capsys):
    """It starts with the held-out loss with which the earlier run ended."""
    config = shape(tmp_path / "shape", **BERT)
    first = pretrain(tmp_path, text, "--from-scratch", config, "--steps", 5, "--lr", 3e-3)
    more = pretrain(tmp_path, text, "--ckpt", first, "--epochs", 1, name="more")
    assert "the head is that of the checkpoint\n" in capsys.readouterr().out
    assert held_out(more, "mlm_loss")[0] == pytest.approx(held_out(first, "mlm_loss")[1], rel=1e-6)
    assert len(read_result(more)["curve"]) == 2  # 59 sentences are one step of 8 batches of 8


def test_a_checkpoint_without_a_head_gets_a_new_one_and_the_run_reports_it(tmp_path, text, capsys):
    tiny_model(untrained=True).save_pretrained(tmp_path / "tiny")
    folder = pretrain(tmp_path, text, "--ckpt", tmp_path / "tiny", "--epochs", 4, "--lr", 1e-2)
    assert "the head is new, as the checkpoint has none for this task" in capsys.readouterr().out
    before, after = held_out(folder, "mlm_loss")
    assert after < before
    assert "generator_lm_head.bias" in load_file(folder / "model.safetensors")


@pytest.mark.slow
def test_rtd_from_scratch_saves_a_generator_and_a_discriminator(tmp_path, text, capsys):
    config = shape(tmp_path / "shape", **ELECTRA)
    text.write_text("\n".join(LINES * 12) + "\n", encoding="utf-8")  # few sentences, which are soon known
    scratch = ("--from-scratch", config, "--steps", 150, "--lr", 3e-3, "--generator-size", 0.5)
    folder = pretrain(tmp_path, text, *scratch, task="rtd")
    first, *_, last = [entry["train"] for entry in read_result(folder)["curve"][1:]]
    assert last["mlm_loss"] < 0.9 * first["mlm_loss"] and last["rtd_loss"] < 0.6 * first["rtd_loss"]
    assert last["rtd_accuracy"] > last["rtd_baseline"] + 0.02
    assert "(always original" in capsys.readouterr().out
    models = [SentenceEncoder.from_pretrained(folder / name) for name in ("discriminator", "generator")]
    assert [model.dimensions for model in models] == [24, 12]
    open_in_transformers("ElectraForPreTraining", folder / "discriminator")
    open_in_transformers("ElectraForMaskedLM", folder / "generator")


def test_save_fp16_saves_the_same_weights_in_float16(tmp_path, text):
    config = shape(tmp_path / "shape", **ELECTRA)
    scratch = ("--from-scratch", config, "--steps", 2)
    full, half = (
        pretrain(tmp_path, text, *scratch, *more, name=f"x{len(more)}") for more in ([], ["--save-fp16"])
    )
    weights, half_weights = (load_file(folder / "model.safetensors") for folder in (full, half))
    for name, weight in weights.items():
        assert torch.equal(weight.half(), half_weights[name]), name
    assert SentenceEncoder.from_pretrained(half).encode(["the cat eats"]).dtype == "float32"
    open_in_transformers("ElectraForMaskedLM", half)


def test_a_vocabulary_is_trained_on_the_text_if_there_is_none(tmp_path, text, capsys):
    config = shape(tmp_path / "shape", **BERT)
    folder = pretrain(tmp_path, text, "--from-scratch", config, "--steps", 1, "--vocab-size", 70)
    assert "a WordPiece vocabulary from the text" in capsys.readouterr().out
    vocab_size = len(SentenceEncoder.from_pretrained(folder).tokenizer.backend.get_vocab())
    assert 40 < vocab_size <= 70
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == vocab_size


class Stop(Exception):
    """The run is killed."""


@pytest.mark.parametrize("seconds", [300.0, 0.0], ids=["from a log entry", "from any step"])
@pytest.mark.parametrize(("task", "changes"), [("mlm", BERT), ("rtd", ELECTRA)])
def test_an_interrupted_and_resumed_run_ends_with_the_same_bits(
    task, changes, seconds, tmp_path, text, monkeypatch
):
    monkeypatch.setattr(tmft.training.checkpointing, "SAVE_INTERVAL", seconds)
    config = shape(tmp_path / "shape", **changes)
    scratch = ("--from-scratch", config, "--steps", 11, "--save-steps", 4, "--lr", 3e-3)
    uninterrupted = pretrain(tmp_path, text, *scratch, task=task, runs="uninterrupted")

    def killed(device, seed, step, rank):
        if step == 6:
            raise Stop
        set_seed(device, seed, step, rank)

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(tmft.pretraining.pretraining_loop, "set_seed", killed)
        pretrain(tmp_path, text, *scratch, task=task, runs="resumed")
    resumed = tmp_path / "resumed" / "x-seed0"
    assert (resumed / "state.pt").is_file() and not (resumed / "result.json").exists()
    torch.manual_seed(99)  # must have no effect
    with pytest.raises(InputError, match="holds an unfinished run with steps 11, not 12: choose another"):
        pretrain(tmp_path, text, *scratch, "--steps", 12, task=task, runs="resumed")
    pretrain(tmp_path, text, *scratch, task=task, runs="resumed")

    files = sorted(path.relative_to(uninterrupted) for path in uninterrupted.rglob("model.safetensors"))
    assert len(files) == (2 if task == "rtd" else 1)
    assert all((uninterrupted / path).read_bytes() == (resumed / path).read_bytes() for path in files)
    one, two = read_result(uninterrupted)["curve"], read_result(resumed)["curve"]
    assert [entry["step"] for entry in two] == [0, 4, 8, 11]
    for a, b in zip(one, two, strict=True):
        assert (a["train"], a["held_out"], a["tokens"]) == (b["train"], b["held_out"], b["tokens"])


def test_accumulated_batches_equal_one_large_batch(tmp_path, text):
    """Each batch is divided by the masked tokens of all, so that they add up to the mean; without dropout."""
    config = shape(tmp_path / "shape", **BERT, **NO_DROPOUT)
    scratch = ("--from-scratch", config, "--steps", 4, "--lr", 3e-3, "--save-steps", 1)
    results = []
    for size, number in [(12, 1), (3, 4)]:
        batches = ("--batch-size", size, "--gradient-accumulation-steps", number)
        results.append(read_result(pretrain(tmp_path, text, *scratch, *batches, name=f"x{size}")))
    for one, two in zip(*(result["curve"][1:] for result in results), strict=True):
        assert one["train"]["mlm_loss"] == pytest.approx(two["train"]["mlm_loss"], abs=2e-6)
        assert one["held_out"]["mlm_loss"] == pytest.approx(two["held_out"]["mlm_loss"], abs=2e-6)


def test_an_epoch_has_every_sentence_once_and_each_epoch_has_its_own_order(tmp_path, text, monkeypatch):
    steps, make_batches = [], Masking.make_batches

    def note(masking, sentences, rng, batch_sizes, T, *process):
        steps.append([tuple(sentences.select(np.array([n])).tokens) for n in range(len(sentences))])
        return make_batches(masking, sentences, rng, batch_sizes, T, *process)

    monkeypatch.setattr(Masking, "make_batches", note)
    scratch = ("--from-scratch", shape(tmp_path / "shape", **BERT), "--gradient-accumulation-steps", 2)
    pretrain(tmp_path, text, *scratch, "--epochs", 2, "--save-steps", 99)
    held_out, *trained, _ = steps  # before the first step, and after the last
    first, second = trained[: len(trained) // 2], trained[len(trained) // 2 :]
    assert [len(step) for step in first] == [16, 16, 16, 11] and len(held_out) == 1
    assert sorted(sum(first, [])) == sorted(sum(second, [])) and sum(first, []) != sum(second, [])
    assert not set(held_out) & set(sum(first, []))


def test_reduced_precision_stays_close(tmp_path, text):
    config = shape(tmp_path / "shape", **ELECTRA)
    scratch = ("--from-scratch", config, "--steps", 4, "--lr", 1e-3)
    exact, *rounded = (
        read_result(pretrain(tmp_path, text, *scratch, "--precision", each, task="rtd", name=each))
        for each in ("fp32", "bf16", "fp16")
    )
    for result in rounded:
        for name in ("mlm_loss", "rtd_loss"):
            a, b = (each["curve"][1]["train"][name] for each in (exact, result))
            assert a != b and a == pytest.approx(b, rel=0.02)
        assert math.isfinite(result["held_out"]["after"]["rtd_loss"])


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, text, monkeypatch):
    config = shape(tmp_path / "shape", **BERT)
    forward = MaskedLM.forward
    monkeypatch.setattr(MaskedLM, "forward", lambda *a: {k: v * math.nan for k, v in forward(*a).items()})
    with pytest.raises(InputError, match=r"the mlm loss is nan \(by step 2\): the last saved state is kept"):
        pretrain(tmp_path, text, "--from-scratch", config, "--steps", 4, "--save-steps", 2)


def test_steps_in_which_no_token_is_masked_have_the_loss_0(tmp_path, text, monkeypatch):
    forward = MaskedLM.forward
    monkeypatch.setattr(MaskedLM, "forward", lambda *a: {k: v * 0 for k, v in forward(*a).items()})
    folder = pretrain(tmp_path, text, "--from-scratch", shape(tmp_path / "shape", **BERT), "--steps", 1)
    assert read_result(folder)["curve"][1]["train"]["mlm_loss"] == 0


@pytest.mark.parametrize(("positions", "tokens"), [(40, 40), (600, 512)])
def test_lines_are_cut_at_512_tokens_or_at_the_limit_of_the_model(positions, tokens):
    model = MaskedLM(tiny_model(max_position_embeddings=positions).encoder)
    assert PretrainingRecipe().length_for(model) == tokens
    assert PretrainingRecipe(max_length=24).length_for(model) == 24


def test_the_default_recipe_is_that_of_the_paper():
    limits = {"steps": None, "max_length": None, "save_steps": None}
    paper = PretrainingRecipe(10, 32, 2e-5, 0.01, 0.1, 1.0, "auto", gradient_accumulation_steps=8, **limits)
    assert PretrainingRecipe() == paper and paper.optimizer == "adamw"


MISTAKES = [
    (["--ckpt", "{tiny}"], r"--task mlm needs files to train on: name them with --text FILE\.\.\."),
    (["--text", "{text}"], "--task mlm needs a checkpoint to continue with .--ckpt. or"),
    (["--text", "{text}", "--ckpt", "{tiny}", "--from-scratch", "{tiny}"], "--task mlm needs a checkpoint"),
    (["--text", "{text}", "--ckpt", "{tiny}", "--layer", "2"],
     "--layer has no effect with --task mlm: remove --layer"),
    (["--text", "absent.txt", "--ckpt", "{tiny}"], "absent.txt cannot be read .*: check the name"),
    (["--text", "{text}", "--ckpt", "{tiny}", "--max-length", "99"], "--max-length 99: choose at most 40"),
    (["--text", "{text}", "--ckpt", "{tiny}", "--steps", "0"], "--steps 0: choose 1 or more"),
    (["--text", "{text}", "--from-scratch", "{tiny}", "--generator-size", "2"], "--generator-size 2.0: "),
    (["--text", "{text}", "--ckpt", "{unmasked}"], r"the vocabulary has no \[MASK\]"),
    (["--text", "{text}", "--from-scratch", "{small}"], "the tokenizer gives ids up to"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_a_mistake_is_a_one_line_error_before_anything_is_written(
    words, message, tmp_path, text, tiny_folder
):
    unmasked = shape(tmp_path / "unmasked", **BERT)
    (unmasked / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", encoding="utf-8")
    tiny_model(untrained=True, **BERT).save_pretrained(tmp_path / "weights")
    (unmasked / "model.safetensors").write_bytes((tmp_path / "weights/model.safetensors").read_bytes())
    places = {"text": text, "tiny": tiny_folder, "unmasked": unmasked}
    places["small"] = shape(tmp_path / "small", **BERT | {"vocab_size": 10})
    runs = tmp_path / "runs"
    with pytest.raises(InputError) as error:
        train.main(["--task", "mlm", "--output-dir", str(runs), *(word.format(**places) for word in words)])
    assert re.match(message, error.value.as_cli_message()) and "\n" not in str(error.value)
    assert not runs.exists()
