"""How texts that mean the same are published: SimCSE's triplets, files of inference, duplicate questions."""

import csv
from collections import defaultdict
from pathlib import Path

from tmft.datasets.parse_pairs import Row
from tmft.errors import InputError
from tmft.io.tsv import read_table

SIMCSE = ("sent0", "sent1", "hard_neg")
INFERENCE = [("sentence1", "sentence2", "label"), ("sentence1", "sentence2", "gold_label")]
DUPLICATES = [
    ("question1", "question2", "is_duplicate"),  # Quora's own file
    ("sentence1", "sentence2", "is_duplicate"),  # the course's
    ("sentence1", "sentence2", "label"),
]


def read_triplets(path: Path) -> dict[str, list[Row]]:
    """{"train": (anchor, positive, negative)} of nli_for_simcse.csv, or of tables of inference.

    Of the latter (a file or a folder of .tsv, labels entailment and contradiction) each entailed sentence
    comes with one that contradicts the same premise, each of those in turn.
    """
    if path.suffix == ".csv":
        try:
            with open(path, encoding="utf-8", newline="") as file:
                rows = list(csv.reader(file))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path} cannot be read ({error}): get it anew") from None
        if tuple(rows[0] if rows else ()) != SIMCSE:
            raise InputError(f"{path} has no columns {', '.join(SIMCSE)}: get nli_for_simcse.csv")
        for number, row in enumerate(rows, start=1):
            if len(row) != 3 or not all(text.strip() for text in row):
                raise InputError(f"no three texts ({path}, row {number}): get it anew")
        return {"train": [tuple(row) for row in rows[1:]]}

    triplets = []
    for file in sorted(path.glob("*.tsv")) if path.is_dir() else [path]:
        of_premise = defaultdict(lambda: {"entailment": [], "contradiction": []})
        for _, (premise, hypothesis, label) in read_table(file, *INFERENCE):
            if label in ("entailment", "contradiction"):
                of_premise[premise][label].append(hypothesis)
        for premise, found in of_premise.items():
            if negatives := found["contradiction"]:
                triplets += [
                    (premise, positive, negatives[n % len(negatives)])
                    for n, positive in enumerate(found["entailment"])
                ]
    if not triplets:
        raise InputError(f"{path} has no premise with an entailed and a contradicting sentence: name another")
    return {"train": triplets}


def read_duplicates(path: Path) -> dict[str, list[Row]]:
    """{"train": (question, duplicate)}: the pairs of class 1 of a table of Quora's questions."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: name the file with the questions")
    found = [(a, b) for _, (a, b, label) in read_table(path, *DUPLICATES) if label in ("1", "1.0")]
    if not found:
        raise InputError(f"{path} has no pair of class 1: name a file of duplicate questions")
    return {"train": found}
