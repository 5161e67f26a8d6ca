"""Predictions in the format of the course CS 224N, for its dev files and its test files without labels."""

from collections.abc import Iterator
from pathlib import Path

from torch import nn

from tmft.data import DATA_FOLDER
from tmft.errors import InputError
from tmft.io.atomic import write_file
from tmft.io.tsv import read_table
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import Task

# Task -> beginning of the file's name, header. "Similiary" is spelled as in the files of the course.
FILE_FORMATS = {
    "sst5": ("sst", "Predicted_Sentiment"),
    "quora": ("para", "Predicted_Is_Paraphrase"),
    "cs224n-sts": ("sts", "Predicted_Similiary"),
}
SPLIT_NAMES = {"dev": "dev", "unlabelled": "test"}  # our split -> its name in the names of the course's files


def write_predictions(
    model: SentenceEncoder, tasks: dict[str, tuple[Task, nn.Module]], folder: Path
) -> Iterator[Path]:
    """Write the files of each task, and yield the path of each file when it is written.

    tasks: name -> the task and its trained objective. A split whose file does not exist is skipped.
    Raises InputError if a task does not belong to the course, or if its data files have no column id.
    """
    for name, (task, objective) in tasks.items():
        if name not in FILE_FORMATS:
            known = ", ".join(FILE_FORMATS)
            raise InputError(
                f"task {name} does not belong to CS 224N: choose one of {known}", "cs224n_predictions"
            )
        prefix, header = FILE_FORMATS[name]
        for split, split_name in SPLIT_NAMES.items():
            data_file = DATA_FOLDER / task.files.replace("{split}", split)
            if not data_file.is_file():
                continue
            lines = read_table(data_file, [*task.columns, "id"])
            *texts, ids = zip(*(cells for _, cells in lines), strict=True)
            predictions = objective.predict(*model.embed_columns([list(column) for column in texts]))
            values = map(int if name == "sst5" else float, predictions)
            content = [f"{id} , {value} \n" for id, value in zip(ids, values, strict=True)]
            path = folder / f"{prefix}-{split_name}-output.csv"
            write_file(path, "".join([f"id \t {header} \n", *content]))
            yield path
