"""Read the files of releases: tables with or without a header, and lines of a label and a text.

A row is a tuple of strings, the cells as they were published. Nothing is guessed: a file with an unknown
header, delimiter or encoding raises an InputError that names the line.
"""

import csv
import gzip
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tmft.errors import InputError
from tmft.io.files import digest, is_file, reading
from tmft.io.text import select_columns
from tmft.tasks import PAIR_COLUMNS, TEXT_COLUMN, TRIPLET_COLUMNS

REMEDY = "download it again"
Row = tuple[str, ...]  # the cells of one example, in the order of Release.columns

# Form of a line that belongs to no table -> its pattern; the cells are its groups in the order label, text,
# fine_label. The empty second TAB of Stack Overflow, and what follows a TAB in a title, is left out.
LINE_FORMS = {
    "text": r"(?P<text>.*)",
    "class, TAB and text": r"(?P<label>\d+)\t(?P<text>[^\t]*)(\t[^\t]*)?",
    "label, space and text": r"(?P<label>[^ ]+) (?P<text>.+)",
    "text, TAB and label": r"(?P<text>.+)\t(?P<label>[^\t]+)",
    "CLASS:fine, space and question": r"(?P<fine_label>(?P<label>[^ :]*):[^ ]*) (?P<text>.+)",
}

# Name of a file -> SHA-256 of its published content, which is checked whenever such a file is read. A name
# that two publishers use has two: msr_paraphrase_test.txt is Microsoft's file or SentEval's tokenized copy,
# sts-dev.csv that of STS benchmark or of CS 224N.
# fmt: off
SHA256 = {
    "sts-dev.csv":               "5d7e944d8b02734b07bfdb5df67db3420c64bed153fcaa1ba47ad03480cf4234 "
                                 "ce3cad6f16062586ac7ba462c28b010a9be10c530fd5074165860d7b7ab4e93d",
    "sts-test.csv":              "affe45928a66ee5a708531233c95b7dacbbdc57f974f002a3d32ea0180cf816a",
    "stsb-de-train.csv":         "7a393283b1ec86d9919452bd793db2938831169b29f1584660c3d20e2ee2a53e",
    "stsb-de-dev.csv":           "40ddf84ce3d2dfb957e11687edea30e5567c542219998f906ee552cfd3ef6769",
    "stsb-de-test.csv":          "a92ce1015b201a342784ab7e34e024ceb0a0eeb479231fbadd05f756afb817fd",
    "stsb-es-train.csv":         "c0b1e809c1d5e51f95e90753656a371a5c92fff9f459ba01be20ce23f3ecc8b4",
    "stsb-es-dev.csv":           "7afece0711add2fb35bc65874bdf0fbbacbd5c784ebb3b926f4099f3989317d4",
    "stsb-es-test.csv":          "2b6f60e63f19806436cdfd8fe314f91144f97e403d1d50f20ff9ffcb323d5b2f",
    "sts-train.tsv":             "b5aaa7f957d6ff46f4b6834a8b0f024a9234a6eefe9289aed66746b4533da3b8",
    "sts-dev.tsv":               "d835b65b424401fbcce6be28a78159df8d61f5b19977ea7a0b83b8cb6105f393",
    "sts-test.tsv":              "13f83a3440d9db52d134eb40303ce021b03264aa338fbf2871c8786ce04d2105",
    "SICK_trial.txt":            "5a88cfb62f8c6bd2a3cce0f2421ba2cb8c2be5ab4a800f6f01e2c64aafb7db56",
    "msr_paraphrase_test.txt":   "51a1f197d8786712d2f0d97700f5be653b7488a96cde00e158159350d23e3d90 "
                                 "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784",
    "rg-65.csv":                 "d20733284912e2c3fe680344a8206438c94555c07329c1aed5bfdfe86bd527ee",
    "wordsim353-sim.csv":        "97444f54a2c22693f7f458c15278976c125360f33f2f6f8e1c6245123c2c14c7",
    "simlex999.csv":             "44d0b1dd5d57706acdb6cd37bd5afa4e091d7552671b9d6d4a0f4bdc321c1792",
    "simverb-3500.csv":          "cc481bf98ed80549e86dd87df972aa0de931ee7ba3634cdc2df361f23c7b67c9",
    "sem_text_rel_ranked.csv":   "2624f378bbd4793466c235720e6d6b386449c322f576667825bea3998dc66a9d",
    "agnewsdataraw-8000":        "9a3ecfb3d5daef1cdef2fa1cc23d1f1c23784220116c39072d6d8422f5781c06",
    "biomedical_true_text":      "a52cc072e35bfac1a971880ff3222239438cea24571b8910dd549f1831b34a04",
    "TS":                        "a2bd94663542b849477b0a2a95a23626a7c8af50d50978056159997ddd800065",
    "search_snippets_true_text": "e39dbcb5d956c2a34d1a68727c18b05646dfd4921857f7f61beccf6481e94787",
    "stackoverflow_true_text":   "e683a764d1c05828ee13828695fb273c3d61991b853af716da383061356e9ff5",
    "tweet-original-order.txt":  "bd63058a56d4b2ff35eca50db6fdbdf51d4dbc222e16604cbcaad813c2831479",
    "stsa.fine.train":           "9b52b5f686ed438d4d0274c385369251b3d579b578fddd340ba8a9bae2ca4bee",
    "stsa.fine.dev":             "b2f76c62b960f9fda5c6d751edb125abab4f878eb94a8754239b7f4af647f4c3",
    "stsa.fine.test":            "0e2ebb450c231f7b3d67fc932066e7bb26ae7bad8c88488f45ed44ef02eb3c73",
    "stsa.binary.train":         "71c04bcc41291fa47454dd670df701b14ee9249156babeaac404cfe2c8d74338",
    "stsa.binary.dev":           "02fedc82855dbdcabe82c65ed1af6c6570788eaac51073cdb35ee8c7784426d1",
    "stsa.binary.test":          "6a80dc9b9a0db2d3b37f2f809304febad31c90ab67a5b4157b7d9f881c53ef5b",
    "TREC.train":                "9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3",
    "TREC.test":                 "033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e",
}
# fmt: on


@dataclass(frozen=True)
class ReleaseFile:
    """Where a file of a release is, and how its rows are read.

    name: its path below the folder of the release, in which ** stands for any folders.
    columns: the cells of a row, by their names in the header or, in a file without header, by their indices.
        Or the form of a line that belongs to no table, a key of LINE_FORMS.
    csv_delimiter: of a file whose cells may be in quotes, and then have the delimiter and line ends; without
        it cells are separated by TABs.
    skip_incomplete: leave out lines with too few cells, and rows with an empty cell.
    unnamed_index: lines may begin with an index that the header does not name.
    encoding: the default is UTF-8 with or without a byte-order mark.
    """

    name: str
    columns: str | tuple[str, ...] | tuple[int, ...]
    csv_delimiter: str = ""
    skip_incomplete: bool = False
    unnamed_index: bool = False
    encoding: str = "utf-8-sig"


def example_noun(columns: Iterable[str]) -> str:
    """Return what an example with these columns is called: "text", "pair" or "triplet"."""
    texts = {*TEXT_COLUMN, *PAIR_COLUMNS, *TRIPLET_COLUMNS} & {*columns}
    return {1: "text", 2: "pair", 3: "triplet"}[len(texts)]


def read_files(path: Path, files: Mapping[str, Sequence[ReleaseFile]]) -> dict[str, list[Row]]:
    """Return {name: rows} for each name of `files`, whose rows are read from the first form that is there.

    path: the folder with the files; or the file itself, if it is only one. A name such as "mr=1" says that
    all rows of the file are of class 1 of the data set mr; the class becomes their first cell.
    """
    result: dict[str, list[Row]] = {}
    for key, forms in files.items():
        found = [(place, form) for form in forms for place in sorted(path.glob(form.name))]
        if len(files) == 1 and is_file(path):
            found = [(path, next((form for form in forms if path.match(form.name)), forms[0]))]
        if not found:
            names = " or ".join(form.name.removeprefix("**/") for form in forms)
            raise InputError(f"no {names} in {path}: name the folder of the release")
        name, _, label = key.partition("=")
        rows = read_release_file(*found[0])
        result.setdefault(name, []).extend((label, *row) if label else row for row in rows)
    return result


def read_release_file(path: Path, file: ReleaseFile) -> list[Row]:
    """Return the rows of a file, which is at `path` whatever file.name says."""
    with reading(path, REMEDY):
        content = path.read_bytes()
        if digest(content) not in SHA256.get(path.name, digest(content)):
            raise InputError(
                f"{path} is not the published {path.name} (SHA-256), or is incomplete: download it again"
            )
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        text = content.decode(file.encoding)
    if isinstance(file.columns, str):
        return match_lines(text, file.columns, path)
    if file.csv_delimiter:
        with reading(path, REMEDY):
            lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=file.csv_delimiter)) or [[""]]
    else:  # only \n or \r\n ends a line
        lines = [line.removesuffix("\r").split("\t") for line in text.rstrip("\r\n").split("\n")]
    first_line, names = 1, [*map(str, file.columns)]
    if isinstance(file.columns[0], int):  # there is no header: one of indices takes its place
        width = 1 + max(map(int, names))
        first_line, lines = 0, [[*map(str, range(width))], *(cells[:width] for cells in lines)]
    if file.skip_incomplete:
        width = len(lines[0])
        part = slice(-width, None) if file.unnamed_index else slice(width)
        lines = [cells[part] for cells in lines if len(cells) >= width]
    table = select_columns(enumerate(lines, start=first_line), path, names, remedy=REMEDY)
    rows = [tuple(row) for _, row in table]
    return [row for row in rows if not file.skip_incomplete or all(cell.strip() for cell in row)]


def match_lines(text: str, form: str, path: Path) -> list[Row]:
    """Return the row of each line of a text, also of an empty one; a line of another form is an error."""
    pattern, rows = re.compile(LINE_FORMS[form]), []
    groups = [name for name in ("label", "text", "fine_label") if name in pattern.groupindex]
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        match = pattern.fullmatch(line.removesuffix("\r"))
        if not match:
            raise InputError(f"no {form} ({path}, line {number}): {REMEDY}")
        rows.append(tuple(match[group] for group in groups))
    return rows
