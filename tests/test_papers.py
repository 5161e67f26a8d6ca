"""docs/papers.md: each of its commands parses, and runs to its end on small models and cut data."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from conftest import ROOT, SENTENCES, tiny_config, vocabulary_folder
from test_readme import PARSERS, commands_of

from tmft import SentenceEncoder
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.data import SPLITS
from tmft.errors import InputError
from tmft.models.families import FAMILIES, config_from_dict, random_encoder
from tmft.tasks import CLASSES_FROM_FILE, TASKS

PAGE = (ROOT / "docs/papers.md").read_text(encoding="utf-8")
CHAPTERS = {title: text for title, _, text in (part.partition("\n") for part in PAGE.split("\n## ")[1:])}
COLUMNS = "| experiment | the document | command | what differs | real weights |"
# Words of the page -> the same in a run of a test.
SHORTER = {
    r"-{2}layer all --num-seeds 5": "--layer 12",
    r"-{2}task wordsim --layer all": "--task wordsim --layer 12",
    r"-{2}num-seeds 5": "",
    r"-{2}epochs 10": "",
    r"-{2}projection 768": "--projection 8",
    r"(layer=?)24": r"\g<1>12",
    r"sts transfer": "sts12 mr mrpc-transfer",
    r"sts str clustering classification": "stsb tweet subj",
    r"sts str": "stsb str",
    r"clustering classification": "tweet subj",
    r"task clustering": "task tweet",
    r"sentglue": "cola glue-stsb",
    r"-0.75 -0.5 -0.25 0 0.25 0.5 0.75 1": "-0.75 0.5",
}
TRAINING = " --epochs 1 --device cpu"
PRETRAINING = " --steps 2 --batch-size 16 --gradient-accumulation-steps 1 --max-length 16 --device cpu"


def rows(chapter: str) -> list[list[str]]:
    """The rows of the table of a chapter, each a list of its cells."""
    table = CHAPTERS[chapter].partition(f"\n{COLUMNS}\n|---|---|---|---|---|\n")[2].partition("\n\n")[0]
    return [re.split(r" (?<!\\)\| ", line.strip("| \n")) for line in table.strip().split("\n")]


def commands(chapter: str) -> list[tuple[str, str]]:
    """The commands of a chapter in their order, as (file, words)."""
    variables = "\n".join(re.findall(r'^\w+=".*"$', CHAPTERS[chapter], re.MULTILINE))
    cells = "\n\n".join(row[2] for row in rows(chapter))
    return commands_of(f"{variables}\n{cells}")


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_row_has_a_command_that_parses_or_says_why_there_is_none(chapter):
    assert len(rows(chapter)) >= 12
    for row in rows(chapter):
        assert len(row) == 5 and all(row), row[0]
        assert commands_of(row[2]) or (row[2] == "not done" and len(row[3]) > 30), row[0]
    for name, words in commands(chapter):
        assert PARSERS[name].parse_args(shlex.split(words)) is not None


# ------------------------------------------------------------------------------------------------------- runs


def write_cut_data(folder: Path) -> None:
    """Write 40 examples for each split of each task, made of sentences of the tests."""
    tables: dict[str, dict[str, list[str]]] = {}  # path -> {column: values}
    for task in TASKS.values():
        names = task.classes if task.classes != CLASSES_FROM_FILE else {"one": 0, "two": 1}
        classes = list(names or [""])
        for split in SPLITS:
            path = task.files.replace("{split}", split).replace("*", "one")
            table = tables.setdefault(path, {})
            for place, column in enumerate(task.columns):
                table[column] = [SENTENCES[(n + place) % len(SENTENCES)] for n in range(40)]
            if task.label in ("label", "score"):
                scores = [task.min_score + (task.max_score - task.min_score) * n / 39 for n in range(40)]
                labels = [classes[n % len(classes)] for n in range(40)]
                table[task.label] = labels if task.label == "label" else [f"{score:.2f}" for score in scores]
    for path, table in tables.items():
        if path:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            lines = ["\t".join(table), *("\t".join(cells) for cells in zip(*table.values(), strict=True))]
            (folder / path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "nli").mkdir()
    (folder / "nli/sentences.txt").write_text("\n".join(SENTENCES * 8) + "\n", encoding="utf-8")


def write_checkpoint(folder: Path) -> None:
    """Write a checkpoint of 12 layers with random weights; its name says of which family it is."""
    families = {"deberta": "deberta-v2", "roberta": "roberta", "electr": "electra"}
    model_type = next((kind for part, kind in families.items() if part in folder.name), "bert")
    shape = {"num_hidden_layers": 12, "max_position_embeddings": 128, "initializer_range": 0.1}
    content = tiny_config(model_type=model_type, **shape)
    torch.manual_seed(0)
    config = config_from_dict(content, FAMILIES[model_type].components)
    encoder = random_encoder(config)
    model = SentenceEncoder(
        encoder, load_tokenizer(vocabulary_folder()), "+".join(["mean", *config.components])
    )
    model.save_pretrained(folder)
    for name in ("modules.json", "tmft.json"):  # as a checkpoint of transformers
        (folder / name).unlink(missing_ok=True)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with cut data, in which the commands run; the data of the checkout are out of reach."""
    monkeypatch.chdir(tmp_path)
    write_cut_data(tmp_path / "data")
    for module in ("tmft.data", "tmft.datasets.task_lookup", "tmft.cli.options"):
        monkeypatch.setattr(f"{module}.DATA_FOLDER", tmp_path / "data", raising=False)
    for name in ("wikitext-2/sentences.txt", "wikitext-103.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    lines = [f"word{n} " + " ".join(str((n * d) % 7 / 7) for d in range(1, 9)) for n in range(120)]
    (tmp_path / "b2s.txt").write_text("\n".join(["120 8", *lines]) + "\n", encoding="utf-8")
    for path in ("few/stsb", "few/clustering", "one/stsb"):  # for tables of many rows
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).symlink_to(tmp_path / "data" / Path(path).name)
    monkeypatch.setattr("tmft.datasets.task_lookup.download_dataset", lambda name, *_: refuse(name))
    return tmp_path


def refuse(name: str) -> None:
    raise InputError(f"no data set {name}")


def make_checkpoints(words: str) -> None:
    """Write the checkpoints that a command names, unless they are there; a T5 is the one of this project."""
    for name in re.findall(r"(?<![\w/'-])(?!runs/|data/|scores/)[\w-]+/[\w.-]+|\bbert-\w+-cased\b", words):
        folder = Path(name)
        if not folder.exists():
            folder.parent.mkdir(exist_ok=True)
            if re.search(r"\bt5", name):
                folder.symlink_to(ROOT / "data/twins/t5")
            else:
                write_checkpoint(folder)


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_commands_run_to_their_end(chapter, place, capsys):
    """In their order: what one writes, the next ones read."""
    for name, words in commands(chapter):
        if name == "-m tmft data" and "statistics" not in words:  # needs a network
            continue
        make_checkpoints(words)
        for old, new in SHORTER.items():
            words = re.sub(old, new, words)
        if chapter == "Sentence-T5":
            words = words.replace("layer12", "layer8")  # it has eight
        if name == "-m tmft tables":
            words += f" --fast --layer 3 --data-root {'few' if 'table-4' in words else 'one'}"
        if name == "train.py":
            words += PRETRAINING if "--task mlm" in words else TRAINING
        PARSERS[name].main(shlex.split(words))
        capsys.readouterr()
