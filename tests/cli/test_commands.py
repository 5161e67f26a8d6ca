"""What a user can do wrong on the command line, and what --help says."""

import re

import pytest
from conftest import command

import cka
import evaluate
import train
from tmft import InputError
from tmft.cli.parser import CommandLine
from tmft.pretraining.loop import PretrainingRecipe
from tmft.runs.run_config import FROM_SCRATCH, GENERATOR_SIZE
from tmft.training.loop import Recipe


@pytest.mark.slow
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(tiny_folder, tiny_data):
    answer = command("train.py", "--ckpt", str(tiny_folder), "--data", str(tiny_data), "--layer", "14")
    assert answer.returncode == 2 and answer.stdout == ""
    said = "layer 14: this checkpoint has 4 layers, choose 0 (embeddings only) to 4"
    assert answer.stderr == f"train.py: {said}\n"


COMMANDS = [
    (["train.py", "--lay", "2"], "no option --lay; did you mean --layer?"),
    (["evaluate.py", "--out", "x"], "--out does nothing with a model: leave it out"),
    (["cka.py", "A", "B", "--plot", "x.gif"], "x.gif is no figure that can be written: end its name in"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "message"), COMMANDS, ids=[line[0] for line, _ in COMMANDS])
def test_a_command_names_itself_and_what_is_wrong(line, message):
    answer = command(*line)
    assert answer.returncode == 2 and answer.stdout == ""
    (said,) = answer.stderr.splitlines()
    assert said.startswith(f"{line[0]}: {message}")


MISTAKES = [
    (["train", "--task", "stsc"], "no task 'stsc': choose from "),
    (["train", "--layer", "two"], "--layer two: write 9, 0-12, 3,6,9, all or auto"),
    (["train", "--layer", "3-1"], "--layer 3-1: the first number must be the smaller one"),
    (["train", "--layer", "0-99999999999"], "--layer 0-99999999999: write 9"),
    (["train", "--layer", "0-999999999"], "layer 999999999: this checkpoint has 4 layers"),
    (["train", "--layer", "\u0663"], "--layer \u0663: write 9"),
    (["train", "--seed", str(2**64)], f"--seed {2**64}: choose 0 to {2**63 - 1}"),
    (["train", "--seed", "-1"], "--seed -1: choose 0 or more"),
    (["train", "--batch-size", str(2**64)], f"--batch-size {2**64}: choose 1 to 1000000000"),
    (["train", "--name", "x" * 300], "--name xxxxxxxxxx"),
    (["train", "--name", "../x"], "--name '../x': give letters and digits, no path"),
    (["train", "--name", ".x"], "--name '.x': give letters"),
    (["train", "--ckpt", "~nosuchuser/x"], "~nosuchuser/x: there is no such user here"),
    (["train", "--device", "meta"], "--device meta: nothing can be computed there"),
    (["train", "--ckpt", "no/where"], "no folder no/where, and its config.json is neither in the cache"),
    (["train", "--max-length", "99"], "--max-length 99: choose 3 to 40"),
    (["train", "--device", "cuda:77"], "--device cuda:77: "),
    (["train", "--epochs", "0"], "--epochs 0: choose 1 or more"),
    (["train", "--batch-size", "-1"], "--batch-size -1: choose 1 or more"),
    (["train", "--lr", "nan"], "--lr nan: choose 0 or more"),
    (["train", "--lr", "-1"], "--lr -1.0: choose 0 or more"),
    (["train", "--lr", "fast"], "--lr: invalid float value: 'fast'; see --help"),
    (["train", "--weight-decay", "-1"], "--weight-decay -1.0: choose 0 or more"),
    (["train", "--max-grad-norm", "inf"], "--max-grad-norm inf: choose 0 or more"),
    (["train", "--warmup", "2"], "--warmup 2.0: choose 0 to 1"),
    (["train", "--precision", "fp8"], "--precision: invalid choice: 'fp8'"),
    (["train", "--seeds", "0"], "--seeds 0: choose 1 or more"),
    (["train", "--seeds", "2", "--seed", "3"], "--seed and --seeds: give one of the two"),
    (["train", "--pooling", "meen"], "--pooling 'meen': choose one of mean, "),
    (["train", "--objective", "softmax"], "--objective softmax: the task has scores, not classes"),
    (["train", "--metric", "f1"], "--metric f1: with --objective cosine_mse on this task choose "),
    (["train", "--score-range", "5", "0"], "--score-range 5 0: the first number must be the smaller one"),
    (["train", "--init", "random", "--init-from", "x"], "--init random and --init-from: give one of the two"),
    (["train", "--steps", "5"], "--steps does nothing with --task stsb: leave it out"),
    (["train", "--half"], "--half does nothing with --task stsb: leave it out"),
    (["train", "--text", "x.txt"], "--text: --objective cosine_mse has none, leave it out"),
    (["train", "--data-root", "x"], "--data and --data-root: give one of the two"),
    (["train", "--lay", "2"], "no option --lay; did you mean --layer?"),
    (["train", "--learning-rate", "1"], "no option --learning-rate; see --help"),
    (["train", "--bach-size=4"], "no option --bach-size=4; did you mean --batch-size?"),
    (["evaluate", "--layer", "two"], "--layer two: write a number, word, or several as in 1+12 or word+12"),
    (["evaluate", "--layer", "5"], "layer 5: this checkpoint has 4 layers"),
    (["evaluate", "--task", "sts-b"], "no task 'sts-b': choose from "),
    (["evaluate", "--task", "stsb", "sts12"], "--data replaces the files of one task"),
    (["evaluate", "--json", "/proc/none/scores.json"], "cannot write /proc/none/scores.json"),
    (["evaluate", "--json", "{folder}"], "cannot write {folder}: it is a folder, name a file"),
    (["evaluate", "--pooling", "max+meen"], "--pooling 'max+meen': choose one of mean, "),
    (["evaluate", "--report", "runs"], "--data does nothing with --report: leave it out"),
    (["evaluate", "--out", "x"], "--out does nothing with a model: leave it out"),
    (["train", "--tokens", "idff"], "--tokens 'idff': choose one of all, "),
    (["train", "--tokens", "idf", "--pooling", "cls"], "--tokens idf: --pooling cls takes no"),
    (["train", "--task", "tweet"], "this --task has no objective: score it with evaluate.py"),
    (["evaluate", "--prompt", "T9"], "--prompt 'T9': choose one of T0, "),
    (["evaluate", "--prompt", "it means [M]"], "--prompt 'it means [M]': choose one of T0, "),
    (["evaluate", "--tokens", "mask"], "--tokens mask: the --prompt has no [M], choose one such as T4"),
    (["evaluate", "--tokens", "idff"], "--tokens 'idff': choose one of all, "),
    (["evaluate", "--tokens", "idf", "--pooling", "cls"], "--tokens idf: --pooling cls takes no"),
    (["evaluate", "--tokens", "idf", "--pooling", "cls+max"], "--tokens idf: --pooling cls+max "),
    (["evaluate", "--tokens", "idf=no/where"], "cannot be read as UTF-8 text: "),
    (["evaluate", "--after", "zscor"], "--after has no 'zscor' (zscor): choose from center, "),
    (["evaluate", "--after", "whiten"], "--after whiten learns from more sentences than "),
    (["evaluate", "--layer", "1+9"], "layer 9: this checkpoint has 4 layers"),
    (["evaluate", "--layer", "1+1"], "--layer 1+1: a layer stands there twice"),
    (["evaluate", "--layer", "word+2"], "--layer word+2: words have 12 dimensions, hidden states 24"),
    (["evaluate", "--mix", "no/where", "0.5"], "no folder no/where"),
    (["evaluate", "--mix", "{folder}", "much"], "--mix {folder} much: write a model and then "),
    (["evaluate", "--average", "no/where"], "cannot be read as UTF-8 text: "),
    (["evaluate", "--isotropy", "--task", "tweet"], "--isotropy with tweet: choose a task of "),
    (["evaluate", "--isotropy", "--task", "mrpc"], "--isotropy with mrpc: choose a task of "),
    (["evaluate", "--text", "x.txt"], "--text does nothing without --study: leave it out"),
    (["evaluate", "--study", "--advise", "x.txt"], "--study and --advise: give one of the two"),
    (["evaluate", "--study", "--report", "runs"], "--study and --report: give one of the two"),
    (["evaluate", "--study", "--precision", "bf16"], "--precision does nothing with --study: leave it out"),
    (["evaluate", "--study", "--dimensions", "3"], "--dimensions does nothing with --study: leave it out"),
    (["evaluate", "--study", "--tokens", "idf"], "--tokens does nothing with --study: leave it out"),
    (["evaluate", "--study", "--json", "x.json"], "--json does nothing with --study: leave it out"),
    (["evaluate", "--probe", "x.txt", "--advise", "x.txt"], "--advise and --probe: give one of the two"),
    (["evaluate", "--probe", "x.txt", "--task", "stsb"], "--probe reads the lines of a file, not a task"),
    (["evaluate", "--generator", "y"], "--generator does nothing without --probe"),
    (["evaluate", "--advise", "x.txt", "--save", "x"], "--save does nothing with --advise"),
    (["evaluate", "--advise", "no/where"], "cannot be read as UTF-8 text: "),
    (["evaluate", "--advise", "x.txt", "--split", "dev"], "--split does nothing with --advise"),
    (["evaluate", "--study", "--task", "stsb", "--split", "dev"], "--split does nothing with --study"),
    (["evaluate", "--mix", "{folder}", "nan"], "--mix {folder} nan: write a model and then "),
    (["evaluate", "--layer", "all", "--save", "{folder}/x"], "--layer all and --save: "),
    (["evaluate", "--save", "/proc/none/x"], "cannot write "),
]  # fmt: skip


def of_command(name: str, words: list[str], arguments, tiny_folder, tiny_data) -> str:
    """What a command says to these options, after those of a run that would work."""
    with pytest.raises(InputError) as error:
        if name == "train":
            train.main([*arguments, *words])
        else:
            evaluate.main([str(tiny_folder), "--data", str(tiny_data), *words])
    return error.value.of_command()


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES])
def test_mistakes_in_options(words, message, arguments, tiny_folder, tiny_data, tmp_path):
    name, *options = (word.format(folder=tiny_data) for word in words)
    said = of_command(name, options, arguments, tiny_folder, tiny_data)
    assert said.startswith(message.format(folder=tiny_data)) and "\n" not in said
    assert not (tmp_path / "runs").exists()  # nothing half-written


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["train", "--task", "stsc"], "stsb"),
        (["evaluate", "--task", "sts-b"], "stsb"),
        (["evaluate", "--task", "sickR"], "sickr"),
        (["train", "--pooling", "meen"], "mean"),
        (["train", "--metric", "spearmann"], "spearman"),
    ],
)
def test_a_slip_of_the_pen_is_recognised(words, nearest, arguments, tiny_folder, tiny_data):
    name, *options = words
    assert of_command(name, options, arguments, tiny_folder, tiny_data).endswith(
        f"did you mean {nearest}?"
    )


def test_a_folder_that_cannot_be_written_is_told_before_a_model_is_loaded(
    tiny_folder, tiny_data, monkeypatch
):
    def load(*_):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(evaluate.SentenceEncoder, "load", load)
    where = tiny_data / "test.tsv" / "treated"  # below a file
    for words in (["--save", str(where)], ["--study", "--task", "stsb", "--out", str(where)]):
        with pytest.raises(InputError, match="^cannot write "):
            evaluate.main([str(tiny_folder), "--data", str(tiny_data), *words])


def test_a_figure_or_a_file_of_scores_that_cannot_be_written_is_told_before_a_model_is_loaded(
    tiny_folder, tiny_data, tmp_path, monkeypatch
):
    def load(*_):
        raise AssertionError("a model was loaded")

    for module in (evaluate, cka):
        monkeypatch.setattr(module.SentenceEncoder, "load", load)
    with pytest.raises(InputError, match=f"^cannot write {tmp_path}: it is a folder, name a file$"):
        evaluate.main([str(tiny_folder), "--data", str(tiny_data), "--json", str(tmp_path)])
    for option in ("--json", "--plot"):
        path = tiny_data / "test.tsv" / "x.png"  # below a file
        with pytest.raises(InputError, match=f"^cannot write {path}: .* is not a folder"):
            cka.main([str(tiny_folder), str(tiny_folder), option, str(path)])


# ----------------------------------------------------------------------------------------------- --help


class Parsed(Exception):
    """The parser of a command, as it is when it is asked to parse."""


def parser_of(module, monkeypatch) -> CommandLine:
    def parse_args(self, argv=None):
        raise Parsed(self)

    monkeypatch.setattr(CommandLine, "parse_args", parse_args)
    with pytest.raises(Parsed) as parsed:
        module.parse_args([])
    return parsed.value.args[0]


# Left out, they are off, or there is none of what they name; or a command needs them.
WITHOUT_DEFAULT = {
    train: {
        "--seed",
        "--init-from",
        "--data",
        "--text",
        "--from-scratch",
        "--vocab-size",
        "--steps",
        "--half",
        "--one-way",
        "--distinct",
    },
    evaluate: {
        *(
            "model",
            "--isotropy",
            "--data",
            "--json",
            "--predictions",
            "--encode",
            "--neighbours",
            "--in",
            "--export",
            "--push-to-hub",
            "--public",
            "--report",
            "--prompt",
            "--after",
            "--average",
            "--mix",
        ),
        *("--save", "--study", "--text", "--advise", "--probe"),
    },
    cka: {"A", "B", "--also", "--matrix", "--debiased", "--json", "--plot"},
}


@pytest.mark.parametrize("module", WITHOUT_DEFAULT, ids=lambda module: module.__name__)
def test_help_states_the_default_of_each_option_that_has_one(module, monkeypatch):
    parser = parser_of(module, monkeypatch)
    silent = set()
    for action in parser._actions[1:]:  # after --help
        said = parser.formatter_class("x")._get_help_string(action)
        name = (action.option_strings or [action.metavar or action.dest])[0]
        if "default: " not in said:
            silent.add(name)
    if module is train:
        silent.remove("--ckpt")  # "without it, the first run"
    assert silent == WITHOUT_DEFAULT[module]
    assert "None" not in parser.format_help()


def test_the_defaults_of_the_recipe_are_those_that_are_used(monkeypatch):
    recipe, continued, scratch = Recipe(), PretrainingRecipe(), FROM_SCRATCH
    said = {action.dest: action.help for action in parser_of(train, monkeypatch)._actions}
    assert continued.epochs == recipe.epochs and continued.lr == recipe.lr
    assert continued.batch_size == recipe.batch_size

    def numbers(dest: str) -> list[float]:
        return [
            float(text) for text in re.findall(r"[\d.]+(?:e-?\d+)?", said[dest].partition("default: ")[2])
        ]

    assert numbers("epochs") == [recipe.epochs]
    assert numbers("batch_size") == [recipe.batch_size, scratch["batch_size"]]
    assert numbers("lr") == [recipe.lr, scratch["lr"]]
    assert numbers("accumulate") == [continued.accumulate, scratch["accumulate"]]
    assert numbers("max_length") == [continued.max_length]
    for dest in ("weight_decay", "warmup", "max_grad_norm"):
        assert numbers(dest) == [getattr(recipe, dest)] == [getattr(continued, dest)]
    assert numbers("generator_size") == [GENERATOR_SIZE]
    assert numbers("seeds") == [1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train.py", "evaluate.py", "cka.py", "data/get_data.py"])
def test_help_is_printed(name):
    answer = command(name, "--help")
    assert answer.returncode == 0 and answer.stdout.startswith("usage: ") and answer.stderr == ""
    assert "None" not in answer.stdout
