"""The folder of a run knows the settings, and the content of the data and of the checkpoint of its run."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import SENTENCES, store_weights, stored_weights, tiny_model

import tmft.runs.pretrain
import tmft.runs.train_run
import train
from tmft.checkpoints.model_folder import ModelFolder
from tmft.data import Examples
from tmft.datasets.task_lookup import subsample_train
from tmft.errors import InputError
from tmft.io.files import file_digest
from tmft.runs.run_folder import check_run_name, data_digests, first_difference
from tmft.training.checkpointing import TrainingCheckpoint
from tmft.training_free.postprocessing import keep_first_dimensions


def test_the_first_setting_with_another_value_is_found(tiny_folder, tmp_path):
    task = {"files": "x", "subtasks": {"a": {"metric": "f1"}}}
    before = {"lr": 1.0, "task": task, "seed": 0, "ckpt": str(tiny_folder)}
    assert first_difference(before, before) is None
    assert first_difference(before, {"lr": 1.0, "task": task | {"subtasks": {}}}) == "task"
    assert first_difference(before, {"lr": 2.0, "task": {}}) == "lr"
    assert first_difference(before, {"new": None}) is None and first_difference(before, {"new": 1}) == "new"
    (tmp_path / "link").symlink_to(tiny_folder)
    assert first_difference(before, {"ckpt": tmp_path / "link"}) is None
    assert first_difference(before, {"ckpt": tmp_path / "other"}) == "ckpt"


def test_a_finished_run_is_kept_and_never_overwritten(arguments, tmp_path, capsys):
    train.main([*arguments, "--layer", "1"])
    path = tmp_path / "runs/r-layer1-seed0/result.json"
    content = path.read_bytes()
    for words, key in [("--lr 2e-3", "lr"), ("--selection-metric pearson", "task"), ("--epochs 3", "epochs")]:
        with pytest.raises(InputError, match=f"holds a finished run with {key} .*: choose another run_name"):
            train.main([*arguments, "--layer", "1", *words.split()])
    capsys.readouterr()
    train.main([*arguments, "--layer", "1-2"])
    printed = capsys.readouterr().out
    assert printed.count("already finished, kept") == 1 and path.read_bytes() == content
    assert printed.count("\n    1      1 ") == printed.count("\n    2      1 ") == 1  # both in one table


@pytest.mark.parametrize("name", ["\x1b[31mred", "caf\udce9", "a/b", ".hidden", ""])
def test_a_run_name_that_no_terminal_or_folder_should_get_is_refused(name):
    with pytest.raises(InputError, match="use letters and digits, not a path"):
        check_run_name(name)


def invert_scores(folder) -> None:
    """Replace each gold score s by 5 - s."""
    header, *lines = (folder / "train.tsv").read_text().splitlines()
    cells = [line.split("\t") for line in lines]
    lines = [f"{first}\t{second}\t{5 - float(score):g}" for first, second, score in cells]
    (folder / "train.tsv").write_text("\n".join([header, *lines]) + "\n")


def change_weights(folder) -> None:
    weights = stored_weights(folder)
    store_weights(folder, {name: weight + 0.25 for name, weight in weights.items()})


def change_vocabulary(folder) -> None:
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    assert "music" in text
    (folder / "tokenizer.json").write_text(text.replace("music", "opera"), encoding="utf-8")


def replace_tokenizer(folder) -> None:
    """Leave the tokenizer to a vocab.txt, which splits off the digits of a word."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)), encoding="utf-8")
    (folder / "tokenizer.json").unlink()


def store_weights_as_bin(folder) -> None:
    torch.save(
        {name: weight + 1 for name, weight in stored_weights(folder).items()}, folder / "pytorch_model.bin"
    )
    (folder / "model.safetensors").unlink()


@pytest.fixture
def ckpt(tiny_folder, tmp_path):
    return shutil.copytree(tiny_folder, tmp_path / "copy-of-tiny")


CHANGES = {  # what the message says -> the change, of the folder of the data or of the checkpoint
    "the content of data train has changed": invert_scores,
    "the content of checkpoint model.safetensors has changed": change_weights,
    "the content of checkpoint tokenizer.json has changed": change_vocabulary,
    "checkpoint vocab.txt was added": replace_tokenizer,
    "checkpoint pytorch_model.bin was added": store_weights_as_bin,
}


@pytest.mark.parametrize(
    ("kind", "what"), [*(("a finished", what) for what in CHANGES), ("an unfinished", next(iter(CHANGES)))]
)
def test_a_run_whose_data_or_checkpoint_changed_is_not_kept_or_resumed(
    kind, what, arguments, tiny_data, ckpt, tmp_path, monkeypatch
):
    words = [*arguments, "--layer", "1", "--ckpt", str(ckpt)]
    if kind == "a finished":
        train.main(words)
    else:

        def interrupt(checkpoint, step=0):
            checkpoint.stop_requested = True
            return True

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(TrainingCheckpoint, "should_save", interrupt)
            train.main(words)
        assert (tmp_path / "runs/r-layer1-seed0/state.pt").is_file()
    CHANGES[what](tiny_data if "data train" in what else ckpt)
    with pytest.raises(InputError) as error:
        train.main(words)
    assert f"holds {kind} run, but since then {what}: " in str(error.value)
    assert "choose another --run-name" in error.value.as_cli_message() and "\n" not in str(error.value)


def test_only_the_content_of_the_files_that_are_read_counts(arguments, tiny_data, ckpt, tmp_path, capsys):
    """Not their names and times; and another program may put the weights in other forms into the cache."""
    words = [*arguments, "--layer", "1", "--ckpt", str(ckpt)]
    train.main(words)
    before = ModelFolder(ckpt).digests()
    for path in [*tiny_data.iterdir(), *filter(Path.is_file, ckpt.iterdir())]:
        path.write_bytes(path.read_bytes())
    (ckpt / "README.md").write_text("Another model card.")
    (ckpt / "pytorch_model.bin").write_bytes(b"the same weights in another form")
    train.main(words)
    assert "already finished, kept" in capsys.readouterr().out
    assert ModelFolder(shutil.copytree(ckpt, tmp_path / "other")).digests() == before
    assert before.keys() - ModelFolder(ckpt).digests(weights=False) == {"model.safetensors"}


def test_a_checkpoint_that_changes_while_a_sweep_runs_is_noticed(
    arguments, ckpt, tmp_path, monkeypatch, capsys
):
    """Otherwise the table of its layers would be one of two models."""
    write_result = tmft.runs.train_run.write_result

    def change_after_first(folder, *arguments):
        write_result(folder, *arguments)
        change_weights(ckpt)

    monkeypatch.setattr(tmft.runs.train_run, "write_result", change_after_first)
    with pytest.raises(InputError, match="1 of 2 runs failed"):
        train.main([*arguments, "--ckpt", str(ckpt), "--layer", "1,2"])
    assert "was changed while it was read" in capsys.readouterr().out
    assert [path.parent.name for path in (tmp_path / "runs").glob("*/result.json")] == ["r-layer1-seed0"]


def test_the_modules_of_a_checkpoint_are_a_part_of_it(tmp_path):
    model = tiny_model()
    keep_first_dimensions(model, 8)
    model.save_pretrained(tmp_path)
    assert {"modules.json", "2_Dense/model.safetensors", "2_Dense/config.json"} <= set(
        ModelFolder(tmp_path).digests()
    )


def test_pre_training_knows_its_text_and_the_checkpoint_of_a_hub_id(ckpt, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tmft.runs.pretrain.ModelFolder, "open", lambda *_, **__: ModelFolder(ckpt))
    text = tmp_path / "text.txt"
    text.write_text("\n".join(SENTENCES * 9), encoding="utf-8")
    words = ["--task", "mlm", "--ckpt", "someone/tiny", "--text", str(text), "--steps", "1"]
    words += ["--output-dir", str(tmp_path / "runs"), "--run-name", "r", "--max-length", "20"]
    for _ in range(2):
        train.main(words)
    assert "already finished, kept" in capsys.readouterr().out
    digests = json.loads((tmp_path / "runs/r-seed0/result.json").read_text())["digests"]
    assert digests["checkpoint"] == ModelFolder(ckpt).digests()
    text.write_text("\n".join(reversed(SENTENCES * 9)), encoding="utf-8")  # of the same size
    with pytest.raises(InputError, match="the content of text .* has changed"):
        train.main(words)
    text.write_text("\n".join(SENTENCES * 9), encoding="utf-8")
    change_weights(ckpt)
    with pytest.raises(InputError, match="the content of checkpoint model.safetensors has changed"):
        train.main(words)


def test_the_digest_of_examples_depends_on_every_text_and_label():
    texts = ["a", "b c", "d"], ["e", "f", "g"]
    reference = Examples(texts, [1.0, 2.0, 3.0])
    others = [
        Examples((["a b", "c", "d"], texts[1]), [1.0, 2.0, 3.0]),
        Examples((texts[1], texts[0]), [1.0, 2.0, 3.0]),
        Examples((texts[0], ["e", "f", "h"]), [1.0, 2.0, 3.0]),
        Examples(texts, [1.0, 3.0, 2.0]),
        Examples((texts[0],), [1.0, 2.0, 3.0]),
        Examples(texts, torch.tensor([1.0, 2.0, 3.0])),
        Examples(texts, torch.tensor([1.0, 3.0, 2.0])),
    ]
    assert len({examples.digest for examples in [reference, *others]}) == 1 + len(others)
    again = Examples(tuple(map(list, texts)), [1.0, 2.0, 3.0])
    assert data_digests({"": {"train": reference}}) == data_digests({"": {"train": again}})
    assert data_digests({"x": {"dev": again}}).keys() == {"x/dev"}


def test_the_digest_of_examples_does_not_depend_on_the_blocks_in_which_it_reads_them(monkeypatch):
    texts = ["a", "b", "", "d", "e"], ["f", "g", "h", "i", ""]
    expected = Examples(texts, [0.0] * 5).digest
    for size in (1, 2, 5):
        monkeypatch.setattr("tmft.data.DIGEST_BLOCK", size)
        assert Examples(texts, [0.0] * 5).digest == expected


def test_the_digest_of_a_file_is_the_beginning_of_its_sha256(tmp_path):
    content = bytes(range(256)) * 2**12  # several blocks
    (tmp_path / "file").write_bytes(content)
    assert file_digest(tmp_path / "file") == hashlib.sha256(content).hexdigest()[:32]


def test_a_train_fraction_is_drawn_by_the_seed_from_train_alone():
    train_set = Examples(([f"a{n}" for n in range(40)], [f"b{n}" for n in range(40)]), list(range(40)))
    vectors = Examples(([f"a{n}" for n in range(40)],), torch.arange(80).view(40, 2))
    data = {"x": {"train": train_set, "dev": train_set}, "y": {"train": vectors, "dev": vectors}}
    part = subsample_train(data, 0.25, 0)
    assert len(part["x"]["train"]) == 10 and part["x"]["dev"] is train_set
    for a, b, label in zip(*part["x"]["train"].texts, part["x"]["train"].labels, strict=True):
        assert (a, b) == (f"a{label}", f"b{label}")
    for a, label in zip(*part["y"]["train"].texts, part["y"]["train"].labels, strict=True):
        assert label.tolist() == [2 * int(a[1:]), 2 * int(a[1:]) + 1]
    assert subsample_train(data, 0.25, 0)["x"]["train"].labels == part["x"]["train"].labels
    assert subsample_train(data, 0.25, 1)["x"]["train"].labels != part["x"]["train"].labels
    assert subsample_train(data, 1.0, 0) is data and len(subsample_train(data, 1e-6, 0)["x"]["train"]) == 2
