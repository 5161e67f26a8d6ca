"""What README.md and docs/ show is what the code does: Python runs, commands parse, files exist."""

import csv
import importlib
import json
import re
import shlex
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from conftest import ROOT, VOCABULARY, assert_equal_hidden_states, embed_columns, vocabulary_folder

import evaluate
import train
from tmft import SentenceEncoder
from tmft.cli.entry_points import COMMANDS as COMMAND_NAMES
from tmft.cli.entry_points import SCRIPTS, module_name
from tmft.cli.options import fields_from_args
from tmft.cli.train_options import objective_args, parse_train_args
from tmft.data import Examples, read_examples
from tmft.datasets.task_lookup import expand_groups, get_task
from tmft.embedding.layer_mix import parse_layer_mix
from tmft.embedding.prompts import parse_prompt
from tmft.embedding.token_weights import check_token_weights
from tmft.evaluation.evaluators import EVALUATORS
from tmft.models import bert_families, config_from_dict
from tmft.models import families as registry
from tmft.pooling import parse_pooling
from tmft.pretraining.pretraining_loop import PretrainingRecipe
from tmft.runs.pretrain import PRETRAINING_TASKS, PretrainingConfig
from tmft.runs.run_config import FineTuningRecipe
from tmft.runs.sweep_plan import parse_layers
from tmft.training_free.postprocessing import POSTPROCESSING

PATHS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PATHS += [ROOT / "data/README.md", ROOT / "data/twins/README.md", ROOT / "data/tiny/README.md"]
PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in PATHS}
README = PAGES["README.md"]
PARSERS = {f"-m tmft {name}": importlib.import_module(module_name(name)) for name in COMMAND_NAMES}
PARSERS |= {f"{name}.py": PARSERS[f"-m tmft {name}"] for name in SCRIPTS}
PARSERS["data/get_data.py"] = PARSERS["-m tmft data"]


# Commands


def commands_of(page: str) -> list[tuple[str, str]]:
    """The commands of a page, as (file, words): those in sh blocks, and those in backticks."""
    page = page.replace("\\\n", " ")
    for name, value in re.findall(r'^(\w+)="(.*)"$', page, re.MULTILINE):  # variables that sh blocks set
        page = page.replace(f"${name}", value)
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.split("\n")]
    prose = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    lines += [" ".join(words.split()) for words in re.findall(r"`([^`]+)`", prose)]
    call = re.compile(r"(?:python|torchrun --nproc-per-node \w+) ([\w/]+\.py|-m tmft [a-z]+)\b([^#]*)")
    found = [call.search(line) for line in lines]
    return [(match[1], match[2].strip()) for match in found if match]


COMMANDS = [(page, *command) for page, text in PAGES.items() for command in commands_of(text)]
PARSED = [
    (page, name, words)
    for page, name, words in COMMANDS
    if name in PARSERS and "..." not in words and words not in ("NAME", "--help")
    if words or not name.startswith("-m")  # a command that is only mentioned
]
# fmt: off
ADDED = {  # section of docs/extending.md -> what it adds, as options of train.py
    "A pooling":    ["--pooling", "norm"],
    "An objective": ["--objective", "pearson", "--margin", "0.1"],
    "A task":       ["--task", "alike"],
    "A metric":     ["--selection-metric", "kendall"],
    "A token weight": ["--token-weights", "long"],
}
OF_EVALUATE = ["A post-processing", "An evaluator"]  # what else it adds
# fmt: on


@pytest.fixture
def add(monkeypatch):
    """add(section): do what a section of docs/extending.md says, until the test ends."""

    def add(section: str) -> None:
        text = PAGES["docs/extending.md"].split(f"\n## {section}:")[1].split("\n## ")[0]
        module = re.search(r"`(tmft/[\w/]+)\.py`", text)[1].replace("/", ".")
        table = re.search(r"entry\s+of\s+`(\w+)`", text)[1]
        *code, row = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        names = dict(vars(importlib.import_module(module)))
        exec("".join(code), names)
        for name, value in eval("{" + row + "}", names).items():
            monkeypatch.setitem(names[table], name, value)

    return add


@pytest.mark.parametrize(("page", "name", "words"), PARSED, ids=[" ".join(command) for command in PARSED])
def test_a_command_parses_and_what_it_asks_for_exists(page, name, words, add):
    if page == "docs/extending.md":
        for section in [*ADDED, *OF_EVALUATE]:
            add(section)
    args = PARSERS[name].parse_args(shlex.split(words))
    if name == "train.py" and args.task in PRETRAINING_TASKS:
        recipe = PretrainingRecipe(**fields_from_args(args, PretrainingRecipe))
        fields = fields_from_args(args, PretrainingConfig)
        PretrainingConfig(**fields | {"ckpt": (args.ckpt or [None])[0], "recipe": recipe})
    elif name == "train.py":
        overrides = args.score_range, args.objective, args.selection_metric, objective_args(args)
        task = get_task(args.task, None, None, *overrides)
        FineTuningRecipe(**task.recipe | fields_from_args(args, FineTuningRecipe))
        parse_pooling(args.pooling or "mean")
        check_token_weights(args.token_weights)
        shape = {"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
        config = config_from_dict(shape | {"num_hidden_layers": 24})
        assert args.layer == "auto" or parse_layers(args.layer, config)
    elif name == "evaluate.py":
        for task in expand_groups(args.task or []):
            get_task(task)
        assert args.model and (args.layer in ("all", None) or parse_layer_mix(args.layer))
        check_token_weights(args.token_weights and args.token_weights.partition("=")[0])
        assert set((args.postprocess or "center").partition("=")[0].split("+")) <= POSTPROCESSING.keys()
        parse_prompt(args.prompt or "[X]")
    elif name == "cka.py":
        parse_pooling(args.pooling)


def test_every_file_of_a_command_is_there():
    for page, name, _ in COMMANDS:
        is_on_the_page = re.search(rf"`{re.escape(name)}`[^`]*:\n\n```python\n", PAGES[page])
        assert name in PARSERS or (ROOT / name).is_file() or is_on_the_page, (page, name)


def test_options_that_the_text_names_exist(add, capsys):
    add("An objective")  # whose hyperparameter is an option
    known = set()
    has_help_all = train, evaluate
    helps = [(one, ["--help-all" if one in has_help_all else "--help"]) for one in PARSERS.values()]
    helps += [(PARSERS["-m tmft data"], [name, "--help"]) for name in ("convert", "sentences")]
    for command, words in helps:
        with pytest.raises(SystemExit):
            command.parse_args(words)
        known |= set(re.findall(r"--[a-z][\w-]*", capsys.readouterr().out))
    for page, text in PAGES.items():
        for span in re.findall(r"`(--[^`]+)`", text):
            assert set(re.findall(r"--[a-z][\w-]*", span)) <= known, (page, span)


def test_every_command_is_shown():
    for name, command in PARSERS.items():
        assert any(PARSERS[found] is command for _, found, _ in PARSED), name
    page = PAGES["docs/commands.md"]
    assert all(re.search(rf"`[^`]*\b{name}(?:\.py)? ", page) for name in COMMAND_NAMES)


def test_the_readme_says_what_the_first_run_stands_for():
    words = next(words for name, words in commands_of(README) if "--task sample" in words)
    said, does = train.parse_args(shlex.split(words)), train.parse_args(train.FIRST_RUN)
    said.ckpt, does.ckpt = ([Path(path).resolve() for path in args.ckpt] for args in (said, does))
    assert said == does


# Commands of docs/commands.md that need no network and little time: name, first words on the page, changes.
FINE_TUNED, ELECTRA = "runs/electra-base-discriminator-stsb-layer9-seed0", "google/electra-base-discriminator"
BERT = "google-bert/bert-base-cased"
RUN = [
    ("-m tmft data", "convert", {}),
    ("train.py", f"--ckpt {BERT} --data", {BERT: "{tiny} --epochs 1"}),
    ("evaluate.py", "runs", {FINE_TUNED: "{run} --data my-pairs"}),
    ("evaluate.py", "google", {ELECTRA: "{tiny} --data my-pairs"}),
    ("train.py", "--ckpt data/twins/mlm", {"--text": "--epochs 1 --selection-metric teacher_cosine --text"}),
    ("-m tmft encode", "", {}),
    ("cka.py", "", {ELECTRA: "{tiny}", BERT: "{tiny} --data sentences.txt"}),
    ("-m tmft report", "", {}),
]


@pytest.mark.slow
def test_the_commands_of_the_table_run(tiny_folder, tmp_path, monkeypatch):
    """In their order, on files of the names that they have: what one writes, the next ones read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tmft.students.distillation.DATA_FOLDER", tmp_path / "cache")
    (tmp_path / "data").symlink_to(ROOT / "data")
    (tmp_path / "my-encoder").symlink_to(ROOT / "data/tiny")
    table = (ROOT / "data/sample/train.tsv").read_text(encoding="utf-8").splitlines()[1:41]
    rows = [(a, b, float(score) / 5) for a, b, score in (line.split("\t") for line in table)]
    with open(tmp_path / "pairs.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("a", "b", "s"), *rows])
    for name in ("sentences.txt", "lines.txt"):
        (tmp_path / name).write_text("".join(f"{a}\n{b}\n" for a, b, _ in rows), encoding="utf-8")
    commands = [command for page, *command in PARSED if page == "docs/commands.md"]
    for name, start, changes in RUN:
        words = next(words for other, words in commands if other == name and words.startswith(start))
        for old, new in changes.items():
            run = next(iter(tmp_path.glob("runs/*-seed0")), "")
            words = words.replace(old, new.format(tiny=tiny_folder, run=run), 1)
        PARSERS[name].main(shlex.split(words))
    for path in ("my-pairs/dev.tsv", "report/report.md", "vectors.npy"):
        assert (tmp_path / path).is_file(), path


# Python


def test_the_python_of_the_readme_runs(tiny_folder):
    [step] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    step = step.replace("google/electra-base-discriminator", str(tiny_folder)).replace("layer=9", "layer=2")
    exec(step, names := {})
    assert names["u"].shape == (2, 24)
    assert names["loss"].item() > 0
    [call] = re.findall(r"`(SentenceEncoder\.[^`]*\(texts\))`", README)
    assert eval(call, names | {"texts": ["A man plays a guitar."]}).shape == (1, 384)


@pytest.mark.parametrize("section", ADDED)
def test_what_the_docs_add_is_trained_with_and_scores_the_same_when_it_was_saved(
    section, add, arguments, tiny_data, tmp_path
):
    add(section)
    options = ADDED[section]
    if section == "A task":
        lines = ["question1\tquestion2\talike", "a cat\ta dog\tno", "music\tguitar music\tyes", "a\ttwo\tno"]
        for split in ("train", "dev", "test"):
            (tiny_data / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    train.main([*arguments, "--layer", "1", *options])
    folder = tmp_path / "runs" / "r-layer1-seed0"
    result = json.loads((folder / "result.json").read_text())
    recorded = vars(parse_train_args(train.train_parser(), ["--config", str(folder)])[0])
    for option, value in zip(options[::2], options[1::2], strict=True):
        assert str(recorded[option[2:].replace("-", "_")]) == value

    evaluate.main([str(folder), "--json", str(tmp_path / "again.json")])
    again = json.loads((tmp_path / "again.json").read_text())["layers"]["1"]
    assert list(again.values()) == [result["test"]]


def test_the_family_of_the_docs_gives_the_hidden_states_of_transformers(add, monkeypatch, tmp_path):
    transformers = pytest.importorskip("transformers")
    add("A model family")
    monkeypatch.setitem(registry.FAMILIES, "rembert", bert_families.FAMILIES["rembert"])
    torch.manual_seed(0)
    folder = vocabulary_folder()
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
    sizes |= {"vocab_size": len(VOCABULARY), "max_position_embeddings": 40}
    config = transformers.RemBertConfig(input_embedding_size=10, output_embedding_size=20, **sizes)
    theirs = transformers.RemBertModel(config).eval()
    theirs.save_pretrained(folder)
    ours = SentenceEncoder.from_pretrained(folder)
    assert_equal_hidden_states(
        ours.encoder, theirs, ours.tokenize(["a man plays", "the cat is not in the park"])
    )
    SentenceEncoder.from_pretrained(folder, layer=2).save_pretrained(tmp_path / "saved")
    again = transformers.AutoModel.from_pretrained(tmp_path / "saved").eval()
    assert type(again).__name__ == "RemBertModel"
    assert len(again.encoder.layer) == 2


def test_the_post_processing_of_the_docs_is_scored_and_saved(add, tiny_folder, tiny_data, tmp_path, capsys):
    add("A post-processing")
    words = f"{tiny_folder} --data {tiny_data} --postprocess unit --save {tmp_path / 'unit'}"
    evaluate.main(words.split())
    texts = read_examples(get_task("stsb", str(tiny_data)), "test").texts
    x = embed_columns(SentenceEncoder.from_pretrained(tmp_path / "unit"), texts)
    assert torch.cat(x).var(0).mean().item() == pytest.approx(1, rel=1e-4)


def test_the_suite_of_the_docs_needs_encode_alone(add):
    add("An evaluator")
    pairs = Examples((["a", "b"], ["b", "a"]), [1.0, 1.0])
    vectors = {"a": [1.0, 0.0], "b": [0.9, 0.1]}
    result = EVALUATORS["nearest"](
        lambda texts: torch.tensor([vectors[t] for t in texts]), None, lambda split: pairs
    )
    assert result == {"pairs": 2, "accuracy": 0.0}


def test_the_callbacks_of_the_docs_send_the_scores_of_each_epoch(tiny_folder, monkeypatch):
    section = PAGES["docs/extending.md"].split("\n## Callbacks")[1]
    code = "".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
    wandb, tensorboard = Mock(), Mock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    monkeypatch.chdir(ROOT)
    exec(code.replace("data/twins/mlm", str(tiny_folder)), {})
    run, writer = wandb.init.return_value, tensorboard.SummaryWriter.return_value
    logged = [(name, call.kwargs["step"]) for call in run.log.call_args_list for name in call.args[0]]
    written = [(name, step) for name, _, step in (call.args for call in writer.add_scalar.call_args_list)]
    for sent, end in ((logged, run.finish), (written, writer.close)):
        assert [step for name, step in sent if name == "dev/spearman"] == [1, 2]
        assert {"loss", "lr", "dev/pearson"} <= {name for name, _ in sent}
        end.assert_called_once()


# Files, links and numbers


def test_the_tree_has_every_file_of_the_method_and_every_package_and_nothing_else():
    tree = set()
    for line in README.split("## Read the code")[1].split("```")[1].strip("\n").split("\n"):
        indent = len(line) - len(line.lstrip())
        if indent != 2:  # the heading of a ring
            tree |= {f"tmft/{word}" if indent else word for word in line.strip().split("  ")[0].split(", ")}
    names = {f"tmft/{path.name}" for path in ROOT.glob("tmft/*.py")}
    names |= {f"tmft/{path.parent.name}/" for path in ROOT.glob("tmft/*/__init__.py")}
    assert names - tree == {"tmft/__init__.py", "tmft/__main__.py"}
    assert all((ROOT / name).exists() for name in tree)


# CHANGELOG.md is not among them: it links to pages that are gone, too.
OTHERS = ("CONTRIBUTING.md", "SECURITY.md", "docs/lecture/README.md")
ALL_PAGES = PAGES | {name: (ROOT / name).read_text(encoding="utf-8") for name in OTHERS}


def test_links_lead_to_a_file_and_anchors_to_a_heading_of_its():
    for page, text in ALL_PAGES.items():
        for path, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?[^)]*\)", text):
            if "://" not in path:
                target = (ROOT / page).parent.joinpath(path) if path else ROOT / page
                assert target.exists(), (page, path)
                assert not anchor or anchor in anchors(target.read_text("utf-8")), (page, path, anchor)


def anchors(page: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub and the site name them."""
    page = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    words = (
        re.sub(r"[^\w\s-]", "", heading.lower()) for heading in re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    )
    return {re.sub(r"\s", "-", heading.strip()) for heading in words}


def test_every_page_is_linked_from_the_index_and_the_index_from_the_readme():
    index = PAGES["docs/README.md"]
    for path in ROOT.glob("docs/*.md"):
        name = path.relative_to(ROOT / "docs")
        assert name.as_posix() in ("README.md", *re.findall(r"\]\(([^)]+)\)", index)), name
    assert "](docs/README.md)" in README


def test_the_first_screen_of_the_readme_is_the_method():
    """First run and the paper's command come at once, and what does not fit stands in docs/."""
    assert len(README.split()) <= 900
    first_run = "pip install -r requirements.txt -e . && python train.py\n"
    for command in (first_run, "python train.py --ckpt google/electra-base-discriminator --layer 9 "):
        assert len(README.partition(command)[0].split()) < 300 and command in README


def test_the_models_of_the_readme_have_the_scores_of_the_docs():
    def rows(page: str) -> list[list[str]]:
        return [[cell.strip() for cell in row.strip("|").split("|")] for row in page.split("\n")]

    table = README.partition("| model |")[2].partition("\n\n")[0]
    found = rows(table)[2:]
    measured = rows(PAGES["docs/students.md"])
    assert len(found) == 3
    for _, megabytes, quality, speed in found:
        assert [quality, megabytes, speed] in [row[1:4] for row in measured], quality
