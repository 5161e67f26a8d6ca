"""Write predictions for the dev and test files of the course CS 224N, in the format of its submissions."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tmft.data import DATA_FOLDER
from tmft.errors import InputError
from tmft.evaluation.evaluators import Evaluation
from tmft.io.atomic import write_file
from tmft.io.files import is_file
from tmft.io.text import read_table
from tmft.sentence_encoder import SentenceEncoder

# Task -> the beginning of the file name, and the header. "Similiary" is how the course spells it.
FILE_FORMATS = {
    "sst5": ("sst", "Predicted_Sentiment"),
    "quora": ("para", "Predicted_Is_Paraphrase"),
    "cs224n-sts": ("sts", "Predicted_Similiary"),
}
SPLIT_NAMES = {"dev": "dev", "unlabelled": "test"}  # our name of a split -> that in the file names


def write_predictions(
    model: SentenceEncoder, evaluations: Mapping[str, Evaluation], folder: Path
) -> Iterator[Path]:
    """Write the files with the predictions for each task; yield the path of each file once it is written.

    evaluations: those of the tasks, with trained objectives; a task without one has no file.
    A split is skipped if its data file does not exist.
    """
    for name, evaluation in evaluations.items():
        if (objective := evaluation.objective) is None:
            continue
        if name not in FILE_FORMATS:
            known = ", ".join(FILE_FORMATS)
            raise InputError(
                f"task {name} does not belong to CS 224N: choose one of {known}", "cs224n_predictions"
            )
        prefix, header = FILE_FORMATS[name]
        for split, split_name in SPLIT_NAMES.items():
            data_file = DATA_FOLDER / evaluation.task.files.replace("{split}", split)
            if not is_file(data_file):
                continue
            lines = read_table(data_file, [*evaluation.task.columns, "id"])
            *texts, ids = zip(*(cells for _, cells in lines), strict=True)
            sentences = [sentence for column in texts for sentence in column]
            embeddings = model.embed_token_ids(model.tokenize(sentences))
            predictions = objective.predict(*embeddings.chunk(len(texts)))
            values = map(int if name == "sst5" else float, predictions)
            content = [f"{id} , {value} \n" for id, value in zip(ids, values, strict=True)]
            path = folder / f"{prefix}-{split_name}-output.csv"
            write_file(path, "".join([f"id \t {header} \n", *content]))
            yield path
