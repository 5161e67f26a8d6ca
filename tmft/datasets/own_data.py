"""Convert tables of your own to the TSV files of a task, and report what is in them.

A table is a CSV, TSV, JSONL or Parquet file (tmft/io/tables.py). Its splits are given by the names of the
files, or it is divided at random, with equal texts in one split only.

A line of the report begins with "note" if the data may be worth a second look: duplicates, labels that
contradict each other, texts of a later split that are in an earlier one.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path

import numpy as np

from tmft.data import SPLITS, label_text
from tmft.datasets.given_examples import LABEL_NAMES
from tmft.datasets.readers import Row, example_noun
from tmft.datasets.task_lookup import hold_out, text_keys
from tmft.errors import InputError, check_choice, did_you_mean, sanitize
from tmft.io.atomic import check_output_folder, replacing_files
from tmft.io.tables import cell_text, read_values, shortest_number
from tmft.io.text import UTF8, has_visible_text, join_lines, parse_number
from tmft.tasks import BINARY, BOOLEANS, ENTAILMENT, PAIR_COLUMNS, TEXT_COLUMN, TRIPLET_COLUMNS

Table = dict[str, list[str]]  # name of a column of a TSV file -> its N cells
# The columns that a TSV file may have, in this order, and the task that reads such a file. The task is ""
# where it depends on the classes in the file.
TASK_OF_COLUMNS: dict[tuple[str, ...], str] = {
    (*PAIR_COLUMNS, "score"): "stsb",
    (*PAIR_COLUMNS, "label"): "",
    (*PAIR_COLUMNS, "score", "label"): "stsb",
    (*TEXT_COLUMN, "label"): "",
    TRIPLET_COLUMNS[:2]: "quora-pairs",
    TRIPLET_COLUMNS: "nli",
}
COLUMN_LISTS = tuple(TASK_OF_COLUMNS)
# Word in the name of a file -> split.
SPLIT_NAMES = {"train": "train", "test": "test"} | dict.fromkeys(("dev", "validation", "valid", "val"), "dev")
DECIMALS = (".", ",")
MAX_CLASSES_SHOWN = 10
EMPTY_TEXT, NO_LABEL = "an empty text", "no score or label"  # why an example is left out


def convert_tables(
    files: Sequence[str],
    columns: dict[str, str],
    out: Path | None = None,
    fractions: tuple[float, float, float] | None = None,
    seed: int = 0,
    encoding: str = "utf-8",
    decimal: str = ".",
) -> list[str]:
    """Read tables, write them as out/train.tsv, out/dev.tsv and out/test.tsv, and return lines of a report.

    files: paths of the tables. A word of SPLIT_NAMES in the name of a file tells its split, or "SPLIT=PATH"
        does. Several files of a split are joined.
    columns: {name in the TSV file: name in the table}, see parse_columns.
    out: folder to write; it must not have files of these names. None: nothing is written.
    fractions: parts of the examples for train, dev and test, which add up to 1; None: the
        files are splits already. seed: determines which examples go into which split.
    encoding: of the text files, as Python calls it. decimal: what stands before the decimals of a score.
    Raises InputError, and writes nothing, if a table cannot be read, a score is not a number, or a split is
    empty.
    """
    check_choice("decimal", decimal, DECIMALS)
    encoding = UTF8 if encoding == "utf-8" else encoding
    paths = assign_splits(files, divided=fractions is not None)
    if out is not None:
        check_output_folder(out)
        for file in (out / f"{name}.tsv" for name in SPLITS):
            if file.exists():
                raise InputError(f"{file} exists: remove it, or name another folder with `out`", "out")
    rows: dict[str, list[Row]] = {}
    left_out: Counter[tuple[str, str]] = Counter()  # (split, why) -> number of examples
    for split, path in paths:
        found, reasons = read_own_table(path, columns, encoding, decimal)
        rows.setdefault(split, []).extend(found)
        left_out.update((split or "all", reason) for reason in reasons)
    splits = {
        split: {name: [row[i] for row in rows[split]] for i, name in enumerate(columns)}
        for split in ("", *SPLITS)
        if split in rows
    }
    if fractions is not None:
        splits = divide_into_splits(splits[""], fractions, seed)
    for name, table in splits.items():
        if not any(table.values()):
            raise InputError(
                f"no examples are left for {name}: give more of them, or change `split`", "split"
            )
    report = [describe_split(name, table) for name, table in splits.items()]
    for name in (*SPLITS, "all"):
        for reason in (EMPTY_TEXT, NO_LABEL):
            if count := left_out[name, reason]:
                report.append(f"note {name}: {count} left out, with {reason}")
    report += describe_repetitions(splits)
    if out is None:
        return report
    with replacing_files(out) as folder:
        for name, table in splits.items():
            lines = ["\t".join(columns), *map("\t".join, zip(*table.values(), strict=True))]
            (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    report.append(f"wrote {out} ({', '.join(f'{name}.tsv' for name in splits)})")
    return [*report, describe_next_command(out, splits)]


# ------------------------------------------------------------------------------------------------- arguments


def parse_columns(text: str) -> dict[str, str]:
    """Return {name in the TSV file: name in the table}, in the order of an entry of COLUMN_LISTS.

    text: such as "sentence1=first,sentence2=second,score=similarity"; a name alone stands for itself. A name
    in the table may have commas.
    """
    names = list(dict.fromkeys(name for form in COLUMN_LISTS for name in form))
    parts = re.split(rf",(?=\s*(?:{'|'.join(names)})\s*(?:=|,|$))", text)
    pairs = [part.partition("=")[::2] if "=" in part else (part, part) for part in parts]
    given = {name.strip(): source.strip() for name, source in pairs}
    form = next((form for form in COLUMN_LISTS if {*form} == {*given}), None)
    if form is None or len(pairs) > len(given) or not all(given.values()):
        forms = "; ".join(map(",".join, COLUMN_LISTS))
        hint = next((did_you_mean(name, names) for name in given if name not in names), "")
        raise InputError(f"columns {text}: give one of these lists: {forms}{hint}", "columns")
    return {name: given[name] for name in form}


def parse_fractions(text: str) -> tuple[float, float, float]:
    """Return the fractions of train, dev and test, which add up to 1, in a text such as "0.8,0.1,0.1"."""
    try:
        fractions = tuple(parse_number(part.strip()) for part in text.split(","))
    except ValueError:
        fractions = ()
    if len(fractions) != 3 or min(fractions) < 0 or not math.isclose(sum(fractions), 1, abs_tol=1e-6):
        problem = f"split {text}: write the parts of train, dev and test, which add up to 1"
        raise InputError(f"{problem}, such as 0.8,0.1,0.1", "split")
    return fractions


def assign_splits(files: Sequence[str], divided: bool) -> list[tuple[str, Path]]:
    """Return (split, path) of each file; the split is "" if the examples are to be divided."""
    result = []
    for file in files:
        split, equals, path = file.partition("=")
        if not equals or split not in SPLITS:
            words = re.split(r"[^a-z]+", Path(file).name.lower())
            found = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
            split, path = found.pop() if len(found) == 1 else "", file
        if not split and not divided:
            problem = f"{file}: its name has none of the words {', '.join(SPLIT_NAMES)}"
            remedy = f"write train={file}, dev={file} or test={file}, or give `split` 0.8,0.1,0.1"
            raise InputError(f"{problem}: {remedy}", "split")
        result.append((split, Path(path)))
    if not divided:
        return result
    names = dict.fromkeys(split or "of no split" for split, _ in result)
    if len(names) > 1:
        problem = f"split divides one set of examples, but the files are {', '.join(names)}"
        raise InputError(f"{problem}: leave it out, or name the files of one split", "split")
    return [("", path) for _, path in result]


# ---------------------------------------------------------------------------------------------------- reading


def read_own_table(
    path: Path, columns: dict[str, str], encoding: str, decimal: str
) -> tuple[list[Row], list[str]]:
    """Return the examples of a table, and for each one that is left out the reason.

    columns: {name in the TSV file: name in the table}.
    """
    rows: list[Row] = []
    reasons: list[str] = []
    for location, values in read_values(path, list(columns.values()), encoding):
        row = dict(zip(columns, values, strict=True))
        texts = {
            name: join_lines(cell_text(value, columns[name], location))
            for name, value in row.items()
            if name not in LABEL_NAMES
        }
        labels = {name: label_text(row[name]) for name in LABEL_NAMES if name in row}
        if not all(map(has_visible_text, texts.values())):
            reasons.append(EMPTY_TEXT)
        elif not all(labels.values()):
            reasons.append(NO_LABEL)
        else:
            if "score" in labels:
                labels["score"] = normalize_score(labels["score"], location, decimal)
            rows.append(tuple((texts | labels)[name] for name in columns))
    if not rows and not reasons:
        raise InputError(f"no examples ({path}): the table is empty")
    return rows, reasons


def normalize_score(cell: str, location: str, decimal: str) -> str:
    """Return the text of a score in a table as it is written in a TSV file."""
    number = cell.replace(",", ".") if decimal == "," and "." not in cell else cell
    with suppress(ValueError):
        if (decimal == "." or "." not in cell) and math.isfinite(parse_number(number)):
            return shortest_number(number)
    remedy = "correct it, or name another column"
    if decimal == "." and re.fullmatch(r"[+-]?\d+,\d+", cell):
        remedy = "give `decimal` , if the comma stands before the decimals"
    raise InputError(f"score {cell!r} is not a number ({location}): {remedy}", "decimal")


def divide_into_splits(table: Table, fractions: tuple[float, float, float], seed: int) -> dict[str, Table]:
    """Divide the rows of a table at random: return a table for each fraction above 0, its rows in order.

    Rows with equal texts go into the same split, so that no duplicate of a training example is tested. The
    same seed divides equal rows in the same way.
    """
    keys = text_keys(texts_of(table))
    distinct = list(dict.fromkeys(keys))
    drawn = np.random.default_rng(seed).permutation(len(distinct))
    place = {distinct[index]: number for number, index in enumerate(drawn)}
    rest = sorted(range(len(keys)), key=lambda index: place[keys[index]])
    result, num_divided = {}, 0
    for split, fraction, bound in zip(SPLITS, fractions, np.cumsum(fractions), strict=True):
        rest, part = hold_out(keys, rest, round(len(keys) * float(bound)) - num_divided)
        num_divided += len(part)
        if fraction > 0:
            result[split] = {name: [cells[index] for index in sorted(part)] for name, cells in table.items()}
    return result


def texts_of(table: Table) -> list[list[str]]:
    """Return the columns of a table that have texts."""
    return [cells for name, cells in table.items() if name not in LABEL_NAMES]


# ------------------------------------------------------------------------------------------------- the report


def describe_split(split: str, table: Table) -> str:
    """Return a line with the number of examples of a split, the range of its scores and its classes."""
    parts = [f"{len(texts_of(table)[0])} {example_noun(table)}s"]
    if scores := [float(score) for score in table.get("score", [])]:
        parts.append(f"score {min(scores):g} to {max(scores):g}, mean {sum(scores) / len(scores):.4g}")
    if counts := Counter(table.get("label", [])).most_common():
        shown = [f"{sanitize(label, 40)} {count}" for label, count in counts[:MAX_CLASSES_SHOWN]]
        rest = [f"and {len(counts) - len(shown)} more"] if len(counts) > len(shown) else []
        parts.append(f"label {', '.join([*shown, *rest])}")
    return f"{split}: {'; '.join(parts)}"


def describe_repetitions(splits: dict[str, Table]) -> list[str]:
    """Return lines about examples that occur twice in a split, or in two."""
    result = []
    keys = {split: text_keys(texts_of(table)) for split, table in splits.items()}
    for split, table in splits.items():
        labels: dict[tuple[str, ...], set] = {}
        contradictions = 0
        columns = [table.get(name, [""] * len(keys[split])) for name in LABEL_NAMES]
        for key, *label in zip(keys[split], *columns, strict=True):
            contradictions += key in labels and tuple(label) not in labels[key]
            labels.setdefault(key, set()).add(tuple(label))
        if repeated := len(keys[split]) - len(labels):
            other = f", {contradictions} of them with another label" if contradictions else ""
            result.append(f"note {split}: {repeated} {example_noun(table)}s repeat an earlier one{other}")
    texts = {split: {text for key in keys[split] for text in key} for split in splits}
    for first, second in combinations(splits, 2):
        known = {*keys[first]}
        leaks = sum(key in known for key in keys[second])
        shared = len(texts[first] & texts[second])
        if leaks or shared:
            result.append(
                f"note {second}: also in {first} are {leaks} of its {len(keys[second])} "
                f"{example_noun(splits[second])}s, and {shared} of its {len(texts[second])} distinct texts"
            )
    return result


def describe_next_command(out: Path, splits: dict[str, Table]) -> str:
    """Return a line with the command that reads the files, or how to add a task if none reads such files."""
    columns = tuple(next(iter(splits.values())))
    task, options = TASK_OF_COLUMNS.get(columns, ""), ""
    if "score" in columns:
        scores = [float(score) for table in splits.values() for score in table["score"]]
        low, high = min(scores), max(scores)
        if 0 <= low and high <= 1:
            options = " --score-range 0 1"
        elif not (0 <= low and high <= 5):
            options = f" --score-range {math.floor(low)} {math.ceil(high)}"
    elif columns == (*PAIR_COLUMNS, "label"):
        classes = {label for table in splits.values() for label in table["label"]}
        is_binary = classes <= {*BINARY} or classes <= {*BOOLEANS}
        task = "mrpc" if is_binary else "sicke" if classes <= {*ENTAILMENT} else ""
    if not task and "train" in splits:  # no task of the command has these classes
        files = ", ".join(f"{name}={str(out / f'{name}.tsv')!r}" for name in splits)
        objective = "softmax" if len(columns) > 2 else "single_text_head"
        call = f'fine_tune("google/electra-base-discriminator", {files}, objective="{objective}", layer=9)'
        return f"next, in Python: from tmft import fine_tune; {call}"
    if not task:
        return "to use them, add an entry to TASKS, with the names of the classes: docs/extending.md"
    command = "train.py --ckpt google/electra-base-discriminator --layer 9"
    command = command if "train" in splits else "evaluate.py data/tiny"
    return f"next: python {command} --task {task} --data {out}{options}"
