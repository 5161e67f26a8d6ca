"""What a user can do wrong on the command line of each command, and what --help says."""

import argparse
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from conftest import PAIRS, command, tiny_model

import cka
import evaluate
import tmft
import train
from tmft import InputError, SentenceEncoder
from tmft.cli import data_command, entry_points
from tmft.cli import encode_command as encode
from tmft.cli import export_command as export
from tmft.cli import predict_command as predict
from tmft.cli import report_command as report
from tmft.cli import serve_command as serve
from tmft.cli import student_command as student
from tmft.cli import tables_command as tables
from tmft.cli.parser import CommandLineParser
from tmft.loop import Recipe
from tmft.pretraining.pretraining_loop import PretrainingRecipe
from tmft.runs.run_config import FROM_SCRATCH_DEFAULTS, GENERATOR_SIZE

# What follows a command that would work, and how the message begins; after ' ... ' what it has later.
MISTAKES = [
    (["train", "--layer", "14"], "layer 14: this checkpoint has 4 layers, choose 0 (embeddings only) to 4"),
    (["train", "--layer", "two"], "--layer two: write 9, 0-12, 3,6,9, all or auto"),
    (["train", "--layer", "3-1"], "--layer 3-1: the first number must be the smaller one"),
    (["train", "--layer", "0-99999999999"], "--layer 0-99999999999: write 9"),
    (["train", "--seed", str(2**64)], f"--seed {2**64}: choose 0 to {2**63 - 1}"),
    (["train", "--ckpt", "x" * 300], "x ... : check the path, and the permissions of its folders"),
    (["train", "--run-name", "../x"], "--run-name '../x': use letters and digits, not a path"),
    (["train", "--device", "meta"], "--device meta: torch cannot compute on it"),
    (["train", "--ckpt", "no/where"], "no folder no/where, and its config.json is not in the cache"),
    (["train", "--max-length", "99"], "--max-length 99: choose 3 to 40"),
    (["train", "--device", "cuda:77"], "--device cuda:77: "),
    (["train", "--epochs", "0"], "--epochs 0: choose 1 or more"),
    (["train", "--lr", "nan"], "--lr nan: choose 0 or more"),
    (["train", "--lr", "fast"], "--lr: invalid float value: 'fast'; see --help"),
    (["train", "--precision", "fp8"], "--precision: invalid choice: 'fp8' ... ; see --help"),
    (["evaluate", "--dtype", "bf16"], "--dtype: invalid choice: 'bf16' ... ; see --help"),
    (["export", "--format", "gif"], "--format: invalid choice: 'gif' ... ; see --help"),
    (["train", "--num-seeds", "0"], "--num-seeds 0: choose 1 to 10000"),
    (["train", "--num-seeds", "2", "--seed", "3"], "--seed and --num-seeds: give only one of the two"),
    (["train", "--pooling", "meen"], "--pooling 'meen': choose one of mean,  ... ; did you mean mean?"),
    (["train", "--init", "random", "--init-from", "x"], "--init and --init-from: give only one of the two"),
    (["train", "--steps", "5"], "--epochs and --steps: give only one of the two"),
    (["train", "--save-fp16"], "--save-fp16 has no effect with --task stsb: remove "),
    (["train", "--data-root", "x"], "--data and --data-root: give only one of the two"),
    (["evaluate", "--layer", "two"], "--layer two: write a number, word, or several as in 1+12 or word+12"),
    (["evaluate", "--task", "sts-b"], "no task 'sts-b'; did you mean stsb? The tasks are "),
    (["cka", "--plot", "x.gif"], "unknown figure format (x.gif): end the name in .png, .pdf, .svg"),
    (["cka", "--all-pairs", "--plot", "x.png", "--also", "a", "b"],
     "--all-pairs --plot draws a single pair of checkpoints: remove --also"),
    (["cka", "--data", "no/file"], "no/file cannot be read (No such file"),
    (["cka", "--data", "x", "--data-root", "y"],
     "--data-root has no effect with --data: remove --data-root"),
    (["cka", "--data", "{folder}/test.tsv", "--also", "no/where", "else"], "no folder no/where"),
    (["cka", "--data", "{folder}/test.tsv", "--pooling", "men"],
     "--pooling 'men': choose one of  ... ; did you mean mean?"),
    (["evaluate", "--task", "stsb", "sts12"], "--data has the files of one task: give one --task, or use "),
    (["evaluate", "--json", "/proc/none/scores.json"], "cannot write /proc/none/scores.json"),
    (["train", "--token-weights", "idff"], "--token-weights 'idff': choose one of uniform, "),
    (["train", "--token-weights", "idf", "--pooling", "cls"],
     "--token-weights idf have no effect with --pooling cls: "),
    (["train", "--task", "tweet"], "this task cannot be trained, it has no objective: "),
    (["evaluate", "--prompt", "T9"], "--prompt 'T9': choose one of T0, "),
    (["evaluate", "--prompt-name", "querry"], "--prompt-name 'querry': choose one of query, document; did"),
    (["evaluate", "--prompt", "T0", "--prompt-name", "query"], "--prompt and --prompt-name: give only one"),
    (["evaluate", "--token-weights", "mask-token"],
     "--token-weights mask-token: the --prompt has no [M]: choose one such as T4"),
    (["evaluate", "--token-weights", "idf=no/where"],
     "no/where cannot be read (No such file or directory): "),
    (["evaluate", "--postprocess", "zscor"], "--postprocess zscor: 'zscor' is unknown: choose from center, "),
    (["evaluate", "--postprocess", "whiten"], "--postprocess whiten needs more sentences than "),
    (["evaluate", "--layer", "1+9"], "layer 9: this checkpoint has 4 layers"),
    (["evaluate", "--layer", "word+2"],
     "--layer word+2: word embeddings have 12 dimensions, hidden states 24"),
    (["evaluate", "--interpolate", "no/where", "0.5"], "no folder no/where"),
    (["evaluate", "--interpolate", "{folder}", "much"],
     "--interpolate {folder} much: give a model, then the weights "),
    (["evaluate", "--static-from", "no/where"], "no/where cannot be read (No such file or directory): "),
    (["evaluate", "--isotropy", "--task", "tweet"],
     "--isotropy with tweet: choose a task with similarity scores, "),
    (["tables", "--table", "table-6"], "--table 'table-6': choose one of table-1, "),
    (["tables", "--static", "runs/b2s"], "--static runs/b2s: give NAME=MODEL"),
    (["evaluate", "--layer", "all", "--save", "{folder}/x"], "--layer all and --save: "),
    (["evaluate", "--save", "/proc/none/x"], "cannot write "),
    (["train", "--score-range", "5", "1"], "--score-range 5 1: the first number must be the smaller one"),
    (["train", "--selection-metric", "f1"], "metric f1 does not fit --objective cosine_mse "),
    (["train", "--dev-fraction", "1"], "--dev-fraction 1.0: choose 1e-06 to 0.99"),
    (["train", "--dev-fraction", "nan"], "--dev-fraction nan: choose 1e-06 to 0.99"),
]  # fmt: skip


COMMANDS = {
    "train": train,
    "evaluate": evaluate,
    "encode": encode,
    "predict": predict,
    "serve": serve,
    "export": export,
    "student": student,
    "report": report,
    "tables": tables,
    "cka": cka,
    "data": data_command,
}


def message_of(name: str, words: list[str], arguments, tiny_folder, tiny_data) -> str:
    """The message of a command for these options, which follow those of a command that would work."""
    folder, data = [str(tiny_folder)], ["--data", str(tiny_data)]
    working = {
        "train": arguments,
        "evaluate": [*folder, *data],
        "cka": [*folder, *folder],
        "encode": [*folder, "x.txt", "--out", "x.npy"],
        "export": [*folder, str(tiny_folder / "export")],
        "report": ["runs"],
        "tables": folder,
    }
    with pytest.raises(InputError) as error:
        COMMANDS[name].main([*working[name], *words])
    return error.value.as_cli_message()


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES])
def test_mistakes_in_options(words, message, arguments, tiny_folder, tiny_data, tmp_path):
    name, *options = (word.format(folder=tiny_data) for word in words)
    shown = message_of(name, options, arguments, tiny_folder, tiny_data)
    begins, _, later = message.format(folder=tiny_data).partition(" ... ")
    assert shown.startswith(begins) and later in shown and "\n" not in shown
    assert not (tmp_path / "runs").exists()  # nothing half-written


@pytest.mark.parametrize("module", [cka, evaluate])
def test_a_folder_that_is_missing_is_said_before_data_are_downloaded(module, tmp_path, monkeypatch):
    second = {cka: [str(tmp_path)], evaluate: []}[module]
    monkeypatch.setattr("tmft.datasets.task_lookup.download_dataset", None)  # would be called
    words = [str(tmp_path / "typo"), *second, "--data-root", str(tmp_path)]
    with pytest.raises(InputError, match="^no folder .*/typo: check the path"):
        module.main(words if module is cka else [*words, "--task", "sickr"])


# Every output of every command. {pairs} is a folder of tables, {runs} one of runs.
OUTPUT_FILES = [
    (encode, "{model} {text} --out {out}", "--out"),
    (data_command, "sentences {text} --out {out}", "--out"),
    (evaluate, "{model} --data {pairs} --json {out}", "--json"),
    (cka, "{model} {model} --json {out}", "--json"),
]
FIGURE_FILES = [(cka, "{model} {model} --plot {out}", "--plot")]
OUTPUT_FOLDERS = [
    (evaluate, "{model} --data {pairs} --save {out}", "--save"),
    (evaluate, "{model} --data {pairs} --cs224n-predictions {out}", "--cs224n-predictions"),
    (tables, "{model} --out {out}", "--out"),
    (report, "{runs} --out {out}", "--out"),
    (export, "{model} {out}", "FOLDER"),
    (student, "{model} {out} --text {text}", "FOLDER"),
    (data_command, "convert {pairs}/train.tsv --columns sentence1,sentence2,score --out {out}", "--out"),
]
# They get a folder for each run or data set, and may be the current folder.
OUTPUT_ROOTS = [
    (train, "--ckpt {model} --data {pairs} --layer 1 --output-dir {out}", "--output-dir"),
    (train, "--task mlm --ckpt {model} --text {text} --output-dir {out}", "--output-dir"),
    (data_command, "stsb --from {archive} --to {out}", "--to"),
]
NOT_WRITABLE = {
    "file/new.png": "cannot write {out}.*: .*file is not a folder that can be written",
    "locked/new.png": "cannot write {out}.*: .*locked is not a folder that can be written",
    "": "{option} is empty: give a value, or remove it",
}
NO_FILE = dict.fromkeys(
    [".", "..", "/", "folder"], "cannot write {out}: it is a folder, link, pipe or device"
)
NO_FOLDER = dict.fromkeys([".", "..", "/"], "cannot write into {out}: the current folder is in it, or is")
NO_FOLDER["file"] = "cannot write {out}.*: .*file is not a folder|{out} exists already: name a new folder"
BAD_OUTPUTS = [
    (*row, out, message)
    for rows, outputs in (
        (OUTPUT_FILES, NOT_WRITABLE | NO_FILE),
        (FIGURE_FILES, NOT_WRITABLE),  # other names are no figures
        (OUTPUT_FOLDERS, NOT_WRITABLE | NO_FOLDER),
        (OUTPUT_ROOTS, NOT_WRITABLE | {"file": NO_FOLDER["file"]}),
    )
    for row in rows
    for out, message in outputs.items()
]


@pytest.mark.parametrize(("module", "line", "option", "out", "message"), BAD_OUTPUTS)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    module, line, option, out, message, shared_inputs, tmp_path, monkeypatch
):
    """By the same rule in each command; no model is loaded, and nothing is written."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here/file").write_text("in the way")
    for name in ("folder", "locked"):
        (tmp_path / "here" / name).mkdir()
    may_access = os.access
    # as if another user had made it: the tests may run as root, who may write everywhere
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path).name != "locked" and may_access(path, mode)
    )
    monkeypatch.setattr(SentenceEncoder, "from_pretrained", None)
    before = sorted(tmp_path.rglob("*"))
    words = [word.format(out=out, **shared_inputs) for word in line.split()]
    with pytest.raises(InputError) as error:
        module.main(words)
    expected = message.format(out=re.escape(out), option=option)
    assert re.match(expected, error.value.as_cli_message()), error.value
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture(scope="module")
def shared_inputs(tmp_path_factory):
    """What the commands read, by the names in OUTPUT_FILES."""
    folder = tmp_path_factory.mktemp("inputs")
    tiny_model().save_pretrained(folder / "model")
    (folder / "pairs").mkdir()
    for split in ("train", "dev", "test"):
        table = "\n".join(["sentence1\tsentence2\tscore", *PAIRS]) + "\n"
        (folder / "pairs" / f"{split}.tsv").write_text(table)
    (folder / "text").write_text("a man plays\nthe cat eats\n")
    (folder / "runs").mkdir()
    (folder / "archive").write_bytes(b"")
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe"])
@pytest.mark.parametrize(("module", "line"), [row[:2] for row in (*OUTPUT_FILES, *FIGURE_FILES)])
def test_no_output_replaces_a_link_or_a_pipe(kind, module, line, shared_inputs, tmp_path, monkeypatch):
    """Before a model is loaded."""
    monkeypatch.setattr(SentenceEncoder, "from_pretrained", None)
    mine, path = tmp_path / "mine", tmp_path / "out.png"
    mine.write_text("mine")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(mine if kind == "link" else tmp_path / "nowhere")
    message = "^cannot write .*: it is a folder, link, pipe or device, name a file$"
    with pytest.raises(InputError, match=message):
        module.main([word.format(out=path, **shared_inputs) for word in line.split()])
    assert (path.is_symlink() or path.is_fifo()) and mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (evaluate, "{model} --data {data} --json {data}/test.tsv"),
        (evaluate, "{model} --data {data} --json {model}/config.json"),
        (evaluate, "{model} --data {data} --save {model}"),
        (evaluate, "{model} --data {data} --save {data}/../{data_name}"),
        (cka, "{model} {model} --data {data}/dev.tsv --json {data}/dev.tsv"),
        (cka, "{model} {model} --json {model}/tokenizer.json"),
        (evaluate, "{model} --data {data} --save {finished}"),
        (tables, "{model} --out {model}"),
        (train, "--ckpt {run} --data {data} --run-name r --layer 1 --output-dir {runs}"),
        (data_command, "sick --from {root}/sick/SICK.txt --to {root}"),
    ],
)
def test_no_output_replaces_an_input(module, line, tiny_folder, tiny_data, tmp_path):
    runs = tmp_path / "output"
    shutil.copytree(tiny_folder, runs / "r-layer1-seed0")
    (tmp_path / "finished").mkdir()
    (tmp_path / "finished/result.json").write_text("{}")
    places = {"model": tiny_folder, "data": tiny_data, "data_name": tiny_data.name, "runs": runs}
    (tmp_path / "sick").mkdir()
    (tmp_path / "sick/SICK.txt").write_text("mine")
    places |= {"root": tmp_path, "run": runs / "r-layer1-seed0", "finished": tmp_path / "finished"}
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(
        InputError, match="the command reads .*, name another place|it is the folder of a run"
    ):
        module.main([word.format(**places) for word in line.split()])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# ----------------------------------------------------------------------------------------------- --help


class Parsed(Exception):
    """The parser of a command, as it is when it is asked to parse."""


def parser_of(module, monkeypatch) -> CommandLineParser:
    def parse_args(self, argv=None):
        raise Parsed(self)

    monkeypatch.setattr(CommandLineParser, "parse_args", parse_args)
    with pytest.raises(Parsed) as parsed:
        module.parse_args([])
    return parsed.value.args[0]


# Options that are off if they are absent, and arguments that a command needs.
WITHOUT_DEFAULT = {
    *("MODEL", "OTHER", "A", "B", "TEACHER", "FOLDER", "FILE", "QUERY", "RUNS", "NAME"),
    *("--init-from", "--text", "--teacher", "--second-teacher", "--config", "--from-scratch", "--vocab-size"),
    *("--steps", "--save-fp16", "--prompt", "--static-from", "--isotropy", "--speed", "--json", "--save"),
    *("--cs224n-predictions", "--postprocess", "--also", "--all-pairs", "--debiased", "--plot", "--corpus"),
    *("--out", "--column"),
}


@pytest.mark.parametrize("module", COMMANDS.values(), ids=COMMANDS)
def test_help_begins_with_examples_and_states_the_default_of_each_option_that_has_one(module, monkeypatch):
    parser = parser_of(module, monkeypatch)
    lines = parser.format_help().splitlines()
    assert lines[2] == module.__doc__.splitlines()[0] and lines[4] == "examples:"
    assert "None" not in parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        shown = parser.formatter_class("x")._get_help_string(action)
        name = (action.option_strings or [action.metavar or action.dest])[0]
        is_needed = module is predict and name == "--task"  # if the run was trained on several
        is_silent = name in WITHOUT_DEFAULT or is_needed or action.help == argparse.SUPPRESS
        assert "default: " in shown or is_silent, name


def test_the_defaults_of_the_recipe_are_those_that_are_used(monkeypatch):
    recipe, continued, scratch = Recipe(), PretrainingRecipe(), FROM_SCRATCH_DEFAULTS
    of_both = ("epochs", "lr", "batch_size", "weight_decay", "warmup_ratio", "max_grad_norm")
    expected = {name: [getattr(recipe, name)] for name in of_both}
    assert expected == {name: [getattr(continued, name)] for name in of_both}
    expected |= {"generator_size": [GENERATOR_SIZE], "num_seeds": [1], "max_length": [512]}
    expected["gradient_accumulation_steps"] = [continued.gradient_accumulation_steps]
    for name in ("batch_size", "lr", "gradient_accumulation_steps", "max_length"):
        expected[name].append(scratch[name])
    shown = {action.dest: action.help for action in parser_of(train, monkeypatch)._actions}
    for name, values in expected.items():
        numbers = re.findall(r"[\d.]+(?:e-?\d+)?", shown[name].partition("default: ")[2])
        assert list(map(float, numbers)) == values, name


# ------------------------------------------------------------------------------------- python -m tmft NAME


def test_the_list_of_commands_has_the_first_line_of_each(capsys, monkeypatch):
    for argv in ([], ["--help"], ["-h"]):
        monkeypatch.setattr("sys.argv", ["tmft", *argv])
        entry_points.main()
        lines = capsys.readouterr().out.splitlines()
        listed = [line.split(maxsplit=1) for line in lines if line.startswith("  ")]
        assert {name: text for name, text in listed} == {
            name: module.__doc__.splitlines()[0] for name, module in COMMANDS.items()
        }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("encod", "tmft: unknown command 'encod'; did you mean encode?"),
        ("xyzzy", "tmft: unknown command 'xyzzy'; choose one of train, evaluate, "),
    ],
)
def test_an_unknown_command_is_one_line_and_exit_code_2(name, message, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["tmft", name])
    with pytest.raises(SystemExit) as end:
        entry_points.main()
    assert end.value.code == 2 and capsys.readouterr().err.startswith(message)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "name", "option"),
    [
        ("train.py", "train.py", "--lay"),
        ("evaluate.py x", "evaluate.py", "--sav"),
        ("cka.py x x", "cka.py", "--plo"),
        ("data/get_data.py stsb", "get_data.py", "--fro"),
        ("tmft/__main__.py train", "tmft train", "--lay"),
        ("tmft/__main__.py cka x x", "tmft cka", "--plo"),
        ("tmft/__main__.py encode x x --out y", "tmft encode", "--pool"),
    ],
)
def test_each_program_has_help_and_names_itself_in_a_mistake(file, name, option):
    answer = command(*file.split(), "--help")
    assert answer.returncode == 0 and answer.stdout.startswith(f"usage: {name}") and answer.stderr == ""
    answer = command(*file.split(), option)
    assert answer.returncode == 2 and answer.stdout == "" and answer.stderr.count("\n") == 1
    assert answer.stderr.startswith(f"{name}: unknown option {option}; did you mean {option}")


def test_version_prints_what_a_bug_report_needs(monkeypatch, capsys):
    """In a process of its own the same: `python -m tmft --version` and the installed `tmft --version`."""
    monkeypatch.setattr(sys, "argv", ["tmft", "--version"])
    entry_points.dispatch()
    names = dict(line.split(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert list(names) == ["tmft", "python", "torch", "device"]
    assert names["tmft"] == tmft.__version__ and names["torch"] == str(torch.__version__)
    assert names["python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert re.fullmatch(r"(cuda, .+|cpu, threads \d+), (fp32|bf16|fp16)", names["device"])
    assert "--version" in entry_points.format_help()
