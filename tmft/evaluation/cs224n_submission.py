"""Predictions in the form that the course CS 224N takes in, for its dev files and those without labels."""

from collections.abc import Iterator
from pathlib import Path

from torch import nn

from tmft.data import DATA_FOLDER
from tmft.errors import InputError
from tmft.io.atomic import write_file
from tmft.io.tsv import read_table
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import Task

# Task -> beginning of the file's name, heading; the last one is spelt as the course spells it.
FORMS = {
    "sst5": ("sst", "Predicted_Sentiment"),
    "quora": ("para", "Predicted_Is_Paraphrase"),
    "cs224n-sts": ("sts", "Predicted_Similiary"),
}
FILES = {"dev": "dev", "unlabelled": "test"}  # split -> its name in theirs


def write_predictions(
    model: SentenceEncoder, learnt: dict[str, tuple[Task, nn.Module]], folder: Path
) -> Iterator[Path]:
    """The files of each task, given with its objective, as they are written.

    Raises InputError if a task is none of the course's, or its files have no column id.
    """
    for name, (task, objective) in learnt.items():
        if name not in FORMS:
            raise InputError(f"predictions of {name}: the course has {', '.join(FORMS)}", "predictions")
        start, heading = FORMS[name]
        for split, theirs in FILES.items():
            path = DATA_FOLDER / task.files.replace("{split}", split)
            if not path.is_file():
                continue
            *texts, ids = zip(*(cells for _, cells in read_table(path, [*task.columns, "id"])), strict=True)
            predicted = objective.predict(*model.embed_columns([list(column) for column in texts]))
            values = map(int if name == "sst5" else float, predicted)
            lines = [f"{id} , {value} \n" for id, value in zip(ids, values, strict=True)]
            write_file(folder / f"{start}-{theirs}-output.csv", "".join([f"id \t {heading} \n", *lines]))
            yield folder / f"{start}-{theirs}-output.csv"
