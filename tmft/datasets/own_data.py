"""Convert tables of your own to the TSV files of a task, with equal texts in one split only.

A table is a CSV, TSV, JSONL or Parquet file (tmft/io/tables.py). Its splits are given by the names of the
files, or it is divided at random.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tmft.data import SPLITS, label_text
from tmft.datasets.given_examples import LABEL_NAMES
from tmft.datasets.readers import Row, example_noun
from tmft.datasets.task_lookup import hold_out, text_keys
from tmft.errors import InputError, did_you_mean
from tmft.io.atomic import check_output_folder, replacing_files
from tmft.io.tables import cell_text, read_values
from tmft.io.text import has_visible_text, join_lines, parse_number
from tmft.tasks import PAIR_COLUMNS, TEXT_COLUMN, TRIPLET_COLUMNS

Table = dict[str, list[str]]  # name of a column of a TSV file -> its N cells
COLUMN_LISTS = (
    (*PAIR_COLUMNS, "score"),
    (*PAIR_COLUMNS, "label"),
    (*PAIR_COLUMNS, "score", "label"),
    (*TEXT_COLUMN, "label"),
    TRIPLET_COLUMNS[:2],
    TRIPLET_COLUMNS,
)  # the columns that a TSV file may have, in this order


def convert_tables(
    files: Sequence[str],
    columns: dict[str, str],
    out: Path,
    fractions: tuple[float, ...] | None = None,
    seed: int = 0,
) -> list[str]:
    """Read tables, write them as out/train.tsv, out/dev.tsv and out/test.tsv, and return lines of a report.

    files: paths of the tables. The name of a file tells its split, as in train.csv, or "SPLIT=PATH" does.
    columns: {name in the TSV file: name in the table}, see parse_columns.
    out: folder to write, which must not exist.
    fractions: parts of all examples for train, dev and test, which add up to 1; None: the files are splits
        already. seed: determines which examples go into which split.
    Raises InputError, and writes nothing, if a table cannot be read, a score is not a number, or a split is
    empty.
    """
    check_output_folder(out, is_new=True)
    rows: dict[str, list[Row]] = {}
    report = []
    for file in files:
        split, path = ("all", Path(file)) if fractions else split_of_file(file)
        found, num_left_out = read_own_table(path, columns)
        rows.setdefault(split, []).extend(found)
        if num_left_out:
            report.append(f"note {path}: {num_left_out} left out, with an empty text or no score or label")
    splits = {
        split: {name: [row[i] for row in rows[split]] for i, name in enumerate(columns)}
        for split in ("all", *SPLITS)
        if split in rows
    }
    if fractions:
        splits = divide_into_splits(splits["all"], fractions, seed)
    earlier: set[str] = set()  # the texts of earlier splits
    for split, table in splits.items():
        if not any(table.values()):
            raise InputError(f"no examples are left for {split}: give more, or change `split`", "split")
        report += describe_split(split, table, earlier)
    with replacing_files(out) as folder:
        for split, table in splits.items():
            lines = ["\t".join(columns), *map("\t".join, zip(*table.values(), strict=True))]
            (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return [*report, f"wrote {out} ({', '.join(f'{split}.tsv' for split in splits)})"]


def parse_columns(text: str) -> dict[str, str]:
    """Return {name in the TSV file: name in the table}, in the order of an entry of COLUMN_LISTS.

    text: such as "sentence1=first,sentence2=second,score=similarity"; a name alone stands for itself.
    """
    pairs = [part.partition("=") for part in text.split(",")]
    given = {name.strip(): (source if equals else name).strip() for name, equals, source in pairs}
    names = next((names for names in COLUMN_LISTS if {*names} == {*given}), ())
    if not names or len(pairs) > len(given) or not all(given.values()):
        forms = "; ".join(map(",".join, COLUMN_LISTS))
        known = list(dict.fromkeys(name for names in COLUMN_LISTS for name in names))
        hint = next((did_you_mean(name, known) for name in given if name not in known), "")
        raise InputError(f"columns {text}: give one of these lists: {forms}{hint}", "columns")
    return {name: given[name] for name in names}


def parse_fractions(text: str) -> tuple[float, ...]:
    """Return the fractions of train, dev and test, which add up to 1, in a text such as "0.8,0.1,0.1"."""
    try:
        fractions = tuple(parse_number(part.strip()) for part in text.split(","))
    except ValueError:
        fractions = ()
    if len(fractions) != 3 or min(fractions) < 0 or not math.isclose(sum(fractions), 1, abs_tol=1e-6):
        problem = f"split {text}: write the parts of train, dev and test, which add up to 1"
        raise InputError(f"{problem}, such as 0.8,0.1,0.1", "split")
    return fractions


def split_of_file(file: str) -> tuple[str, Path]:
    """Return the split and the path of a file such as "data/train.csv" or "train=data/a.csv"."""
    split, equals, path = file.partition("=")
    if not equals:
        split, path = Path(file).name.partition(".")[0], file
    if split not in SPLITS:
        remedy = f"write train={path}, dev={path} or test={path}, or give `split` 0.8,0.1,0.1"
        raise InputError(f"{file} names none of the splits {', '.join(SPLITS)}: {remedy}", "split")
    return split, Path(path)


def read_own_table(path: Path, columns: dict[str, str]) -> tuple[list[Row], int]:
    """Return the examples of a table, and the number of those left out for an empty text, score or label.

    columns: {name in the TSV file: name in the table}.
    """
    rows: list[Row] = []
    num_left_out = 0
    for location, values in read_values(path, list(columns.values())):
        row = {}
        for (name, column), value in zip(columns.items(), values, strict=True):
            is_label = name in LABEL_NAMES
            row[name] = label_text(value) if is_label else join_lines(cell_text(value, column, location))
        if not all(map(has_visible_text, row.values())):
            num_left_out += 1
            continue
        try:
            parse_number(row.get("score", "0"))
        except ValueError:
            raise InputError(f"score {row['score']!r} is not a number ({location}): correct it") from None
        rows.append((*row.values(),))
    if not rows and not num_left_out:
        raise InputError(f"no examples ({path}): the table is empty")
    return rows, num_left_out


def divide_into_splits(table: Table, fractions: tuple[float, ...], seed: int) -> dict[str, Table]:
    """Divide the rows of a table at random: return a table for each fraction above 0, its rows in order.

    Rows with equal texts go into the same split, so that no duplicate of a training example is tested. The
    same seed divides equal rows in the same way.
    """
    keys = row_keys(table)
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


def row_keys(table: Table) -> list[tuple[str, ...]]:
    """Return for each row of a table a key that is equal for equal texts, see text_keys."""
    return text_keys([cells for name, cells in table.items() if name not in LABEL_NAMES])


def describe_split(split: str, table: Table, earlier: set[str]) -> list[str]:
    """Return lines with the number of examples of a split and the range of its labels, and about repetitions.

    earlier: the texts of earlier splits, to which those of this one are added.
    """
    keys, noun = row_keys(table), example_noun(table)
    line = f"{split}: {len(keys)} {noun}s"
    if scores := [float(score) for score in table.get("score", [])]:
        line += f", score {min(scores):g} to {max(scores):g}"
    if "label" in table:
        line += f", {len(set(table['label']))} classes"
    lines, texts = [line], {text for key in keys for text in key}
    if repeated := len(keys) - len(set(keys)):
        lines.append(f"note {split}: {repeated} {noun}s repeat an earlier one")
    if shared := len(texts & earlier):
        lines.append(f"note {split}: {shared} of its {len(texts)} distinct texts are in an earlier split")
    earlier |= texts
    return lines
