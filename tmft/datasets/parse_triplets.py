"""Parsers of training data for contrastive learning: SimCSE's triplets, NLI tables, duplicate questions."""

import csv
from collections import defaultdict
from pathlib import Path

from tmft.datasets.parse_pairs import Row
from tmft.errors import InputError
from tmft.io.files import is_folder, matching_paths
from tmft.io.tsv import read_table

SIMCSE_COLUMNS = ("sent0", "sent1", "hard_neg")
NLI_COLUMNS = [("sentence1", "sentence2", "label"), ("sentence1", "sentence2", "gold_label")]
DUPLICATE_COLUMNS = [
    ("question1", "question2", "is_duplicate"),  # the file of Quora
    ("sentence1", "sentence2", "is_duplicate"),  # the file of CS 224N
    ("sentence1", "sentence2", "label"),
]


def read_triplets(path: Path) -> dict[str, list[Row]]:
    """Read triplets of a sentence, one that it entails and one that contradicts it.

    path: nli_for_simcse.csv, which has such triplets; or a .tsv file, or a folder of .tsv files, of pairs of
        a premise and a hypothesis, with labels such as entailment and contradiction.
    From such pairs, every entailed hypothesis of a premise makes a triplet with one that contradicts the same
    premise. If a premise has fewer contradictions than entailments, they are used again in rotation; a
    premise without contradictions is skipped.
    Returns {"train": rows (anchor, positive, negative)}. Raises InputError if there are no triplets.
    """
    if path.suffix == ".csv":
        try:
            with open(path, encoding="utf-8", newline="") as file:
                rows = list(csv.reader(file))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path} cannot be read ({error}): download it again") from None
        if tuple(rows[0] if rows else ()) != SIMCSE_COLUMNS:
            raise InputError(f"{path} has no columns {', '.join(SIMCSE_COLUMNS)}: get nli_for_simcse.csv")
        for number, row in enumerate(rows, start=1):
            if len(row) != 3 or not all(text.strip() for text in row):
                raise InputError(f"no three texts ({path}, row {number}): download it again")
        return {"train": [tuple(row) for row in rows[1:]]}

    triplets: list[Row] = []
    for table in matching_paths(path, "*.tsv") if is_folder(path) else [path]:
        hypotheses: dict[str, dict[str, list[str]]] = defaultdict(
            lambda: {"entailment": [], "contradiction": []}
        )
        for _, (premise, hypothesis, label) in read_table(table, *NLI_COLUMNS):
            if label in ("entailment", "contradiction"):
                hypotheses[premise][label].append(hypothesis)
        for premise, by_label in hypotheses.items():
            if negatives := by_label["contradiction"]:
                triplets += [
                    (premise, positive, negatives[i % len(negatives)])
                    for i, positive in enumerate(by_label["entailment"])
                ]
    if not triplets:
        raise InputError(f"{path} has no premise with an entailed and a contradicting sentence: name another")
    return {"train": triplets}


def read_duplicates(path: Path) -> dict[str, list[Row]]:
    """Read the duplicates in a table of pairs of questions: return {"train": rows (question, question)}.

    path: a TSV file with two questions and a class; the pairs of class 1 are duplicates.
    Raises InputError if there are none.
    """
    if is_folder(path):
        raise InputError(f"{path} is a folder: name the file with the questions")
    found: list[Row] = [
        (a, b) for _, (a, b, label) in read_table(path, *DUPLICATE_COLUMNS) if label in ("1", "1.0")
    ]
    if not found:
        raise InputError(f"{path} has no pair of class 1: name a file of duplicate questions")
    return {"train": found}
