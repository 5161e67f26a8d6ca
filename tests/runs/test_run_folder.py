"""The folder of a run: its settings are compared, and a finished run is kept."""

import pytest

import train
from tmft import InputError
from tmft.runs.run_folder import check_run_name, first_difference


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
