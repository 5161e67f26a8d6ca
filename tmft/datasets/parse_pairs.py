"""Parsers of released data sets of sentence pairs and word pairs: one function per published format.

Each parser takes a file or folder and returns {split: rows}; a row is a tuple of strings, which are the cells
as they were published. The parsers of single sentences with a class are in parse_single.py. Nothing is
guessed: a file with an unknown header, delimiter or encoding raises an InputError that names the line.

Sources: Cer et al., SemEval 2017 Task 1 (STS benchmark); stsb-multi-mt; Ham et al. 2020 (KorSTS); Marelli et
al. 2014 (SICK); Dolan and Brockett 2005 (MRPC); Agirre et al. 2012-2016 (STS); Abdalla et al. 2023 (STR); for
words see WORD_LISTS.
"""

import csv
import gzip
import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tmft.data import SPLITS
from tmft.errors import InputError
from tmft.io.files import is_file, is_folder
from tmft.io.text import bounded_lines
from tmft.io.tsv import select_columns

# Maximal size of an unpacked file; the data sets that are read at once have a few million bytes.
MAX_UNPACKED_BYTES = 1 << 28
Row = tuple[str, ...]  # the cells of one example, in the order of Release.columns
SCORED_PAIR_COLUMNS = ["sentence1", "sentence2", "score"]

# Name of a file -> SHA-256 of its published content, which is checked whenever such a file is read. A name
# that two publishers use has two: msr_paraphrase_test.txt is Microsoft's file or SentEval's tokenized copy.
# fmt: off
SHA256 = {
    "sts-dev.csv":             ["5d7e944d8b02734b07bfdb5df67db3420c64bed153fcaa1ba47ad03480cf4234"],
    "sts-test.csv":            ["affe45928a66ee5a708531233c95b7dacbbdc57f974f002a3d32ea0180cf816a"],
    "stsb-de-train.csv":       ["7a393283b1ec86d9919452bd793db2938831169b29f1584660c3d20e2ee2a53e"],
    "stsb-de-dev.csv":         ["40ddf84ce3d2dfb957e11687edea30e5567c542219998f906ee552cfd3ef6769"],
    "stsb-de-test.csv":        ["a92ce1015b201a342784ab7e34e024ceb0a0eeb479231fbadd05f756afb817fd"],
    "stsb-es-train.csv":       ["c0b1e809c1d5e51f95e90753656a371a5c92fff9f459ba01be20ce23f3ecc8b4"],
    "stsb-es-dev.csv":         ["7afece0711add2fb35bc65874bdf0fbbacbd5c784ebb3b926f4099f3989317d4"],
    "stsb-es-test.csv":        ["2b6f60e63f19806436cdfd8fe314f91144f97e403d1d50f20ff9ffcb323d5b2f"],
    "sts-train.tsv":           ["b5aaa7f957d6ff46f4b6834a8b0f024a9234a6eefe9289aed66746b4533da3b8"],
    "sts-dev.tsv":             ["d835b65b424401fbcce6be28a78159df8d61f5b19977ea7a0b83b8cb6105f393"],
    "sts-test.tsv":            ["13f83a3440d9db52d134eb40303ce021b03264aa338fbf2871c8786ce04d2105"],
    "SICK_trial.txt":          ["5a88cfb62f8c6bd2a3cce0f2421ba2cb8c2be5ab4a800f6f01e2c64aafb7db56"],
    "msr_paraphrase_test.txt": ["51a1f197d8786712d2f0d97700f5be653b7488a96cde00e158159350d23e3d90",
                                "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784"],
    "rg-65.csv":               ["d20733284912e2c3fe680344a8206438c94555c07329c1aed5bfdfe86bd527ee"],
    "wordsim353-sim.csv":      ["97444f54a2c22693f7f458c15278976c125360f33f2f6f8e1c6245123c2c14c7"],
    "simlex999.csv":           ["44d0b1dd5d57706acdb6cd37bd5afa4e091d7552671b9d6d4a0f4bdc321c1792"],
    "simverb-3500.csv":        ["cc481bf98ed80549e86dd87df972aa0de931ee7ba3634cdc2df361f23c7b67c9"],
    "SimLex-999.txt":          ["ca00ff8515a36cde32d13c2b83def23f5a167b67db93ebfcfb7dae039ba22c0b"],
    "EN-RG-65.txt":            ["c243f3a91c3f5d8cf67f21a67f6fb80bde8b6bb060851a6a48e6f2d68ec98c9f"],
    "EN-SimVerb-3500.txt":     ["9d84274e7ad029fd3cf69dd0516e9ade624bbef9bd4e2050f6cc1fa01471e0f5"],
    "sem_text_rel_ranked.csv":   ["2624f378bbd4793466c235720e6d6b386449c322f576667825bea3998dc66a9d"],
    "agnewsdataraw-8000":        ["9a3ecfb3d5daef1cdef2fa1cc23d1f1c23784220116c39072d6d8422f5781c06"],
    "biomedical_true_text":      ["a52cc072e35bfac1a971880ff3222239438cea24571b8910dd549f1831b34a04"],
    "TS":                        ["a2bd94663542b849477b0a2a95a23626a7c8af50d50978056159997ddd800065"],
    "search_snippets_true_text": ["e39dbcb5d956c2a34d1a68727c18b05646dfd4921857f7f61beccf6481e94787"],
    "stackoverflow_true_text":   ["e683a764d1c05828ee13828695fb273c3d61991b853af716da383061356e9ff5"],
    "tweet-original-order.txt":  ["bd63058a56d4b2ff35eca50db6fdbdf51d4dbc222e16604cbcaad813c2831479"],
    "stsa.fine.train":           ["9b52b5f686ed438d4d0274c385369251b3d579b578fddd340ba8a9bae2ca4bee"],
    "stsa.fine.dev":             ["b2f76c62b960f9fda5c6d751edb125abab4f878eb94a8754239b7f4af647f4c3"],
    "stsa.fine.test":            ["0e2ebb450c231f7b3d67fc932066e7bb26ae7bad8c88488f45ed44ef02eb3c73"],
    "stsa.binary.train":         ["71c04bcc41291fa47454dd670df701b14ee9249156babeaac404cfe2c8d74338"],
    "stsa.binary.dev":           ["02fedc82855dbdcabe82c65ed1af6c6570788eaac51073cdb35ee8c7784426d1"],
    "stsa.binary.test":          ["6a80dc9b9a0db2d3b37f2f809304febad31c90ab67a5b4157b7d9f881c53ef5b"],
    "TREC.train":                ["9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3"],
    "TREC.test":                 ["033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e"],
}
# fmt: on


# ----------------------------------------------------------------------------------------- files and tables


def first_existing(folder: Path, *names: str) -> Path:
    """Return the path of the first of the files `names` that exists in a folder.

    Raises InputError if none does.
    """
    for name in names:
        if is_file(folder / name):
            return folder / name
    raise InputError(f"no {names[0]} in {folder}: name the folder of the release, with {' or '.join(names)}")


def check_sha256(path: Path, content: bytes, known: dict[str, list[str]]) -> None:
    """Raise InputError if the content of a file is not the published one.

    known: name of a file -> possible SHA-256 of its content. Files with other names are not checked.
    """
    if path.name in known and hashlib.sha256(content).hexdigest() not in known[path.name]:
        raise InputError(
            f"{path} is not the published {path.name} (SHA-256), or is incomplete: download it again"
        )


def read_text(path: Path, encoding: str = "utf-8-sig") -> str:
    """Return the text of a released file, gzipped or not.

    encoding: the default is UTF-8 with or without a byte-order mark.
    Raises InputError if the file cannot be read, or is in SHA256 with another content.
    """
    try:
        content = path.read_bytes()
        check_sha256(path, content, SHA256)
        if content[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                content = file.read(MAX_UNPACKED_BYTES + 1)
            check_size(len(content), path)
        return content.decode(encoding)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): download it again") from None


def check_size(size: int, path: Path) -> None:
    """Raise InputError if the unpacked content of a file has more than MAX_UNPACKED_BYTES. size: in bytes."""
    if size > MAX_UNPACKED_BYTES:
        raise InputError(f"{path} unpacks to more than {MAX_UNPACKED_BYTES:,} bytes: unpack it yourself")


def split_fields(path: Path, quoted: bool = False) -> list[list[str]]:
    r"""Return the fields of each line of a file.

    quoted: read the file as CSV, where a field may have newlines; otherwise lines are split at TABs, only \n
        or \r\n ends a line, and empty lines at the end are dropped.
    Raises InputError if the file is not valid.
    """
    if not quoted:
        lines = read_text(path).rstrip("\r\n").split("\n")
        return [line.removesuffix("\r").split("\t") for line in lines]
    try:
        return list(csv.reader(io.StringIO(read_text(path), newline=""), strict=True)) or [[""]]
    except csv.Error as error:
        raise InputError(f"{path} is no CSV file ({error}): download it again") from None


def read_columns(path: Path, *known: list[str]) -> list[Row]:
    """Return the cells of some columns of a file that has a header.

    known: lists of column names; the first list whose names are all in the header is used.
    """
    lines = split_fields(path, quoted=path.suffix == ".csv")
    return [tuple(row) for _, row in select_columns(lines, path, *known, remedy="download it again")]


def check_num_fields(path: Path, lines: list[list[str]], width: int, first: int = 1) -> None:
    """Raise InputError if a line does not have `width` fields. first: line number of lines[0]."""
    for number, fields in enumerate(lines, start=first):
        if len(fields) != width:
            raise InputError(
                f"{len(fields)} fields instead of {width} ({path}, line {number}): download it again"
            )


# ------------------------------------------------------------------------------------------- sentence pairs


def read_stsb(path: Path) -> dict[str, list[Row]]:
    """Read STS benchmark as rows (sentence1, sentence2, score).

    path: the table of sbert.net, or a folder with the original files sts-*.csv or with GLUE's files. GLUE's
        test split has no scores and is skipped.
    Raises InputError if there is none of these.
    """
    if is_file(path / "sts-train.csv"):
        return {split: read_original_stsb(first_existing(path, f"sts-{split}.csv")) for split in SPLITS}
    if is_file(path / "train.tsv"):
        scored = [
            split for split in SPLITS if "score" in split_fields(first_existing(path, f"{split}.tsv"))[0]
        ]
        return {split: read_columns(path / f"{split}.tsv", SCORED_PAIR_COLUMNS) for split in scored}
    if is_file(path):
        return rows_by_split(path, ["split", *SCORED_PAIR_COLUMNS], {split: split for split in SPLITS})
    raise InputError(
        f"no STS benchmark in {path}: expected stsbenchmark.tsv.gz, or a folder with sts-train.csv or "
        "train.tsv"
    )


def rows_by_split(path: Path, names: list[str], splits: dict[str, str]) -> dict[str, list[Row]]:
    """Read a table with a header that has all splits, and return {split: rows}.

    names: names[0] is the column that says which split a line belongs to; the cells of the other columns, in
        this order, make up a row.
    splits: {name of a split in the table: our name}.
    Raises InputError if a line belongs to a split that is not in `splits`.
    """
    rows: dict[str, list[Row]] = {split: [] for split in splits.values()}
    for number, (word, *row) in enumerate(read_columns(path, names), start=2):
        if word not in splits:
            raise InputError(f"no split {word!r} ({path}, line {number}): download it again")
        rows[splits[word]].append(tuple(row))
    return rows


def read_original_stsb(path: Path) -> list[Row]:
    """Read rows (sentence1, sentence2, score) of an original sts-*.csv file.

    It is a TSV file without header: genre, file, year, id, score, sentence1, sentence2 and perhaps sources.
    Raises InputError for a line with fewer fields.
    """
    rows: list[Row] = []
    for number, fields in enumerate(split_fields(path), start=1):
        if len(fields) < 7:
            raise InputError(
                f"{len(fields)} fields instead of 7 or more ({path}, line {number}): download it again"
            )
        rows.append((fields[5], fields[6], fields[4]))
    return rows


def read_stsb_multi_mt(folder: Path, language: str) -> dict[str, list[Row]]:
    """Read one language of stsb-multi-mt (CSV files without header) as rows (sentence1, sentence2, score)."""
    splits = {}
    for split in SPLITS:
        path = first_existing(folder, f"stsb-{language}-{split}.csv")
        lines = split_fields(path, quoted=True)
        check_num_fields(path, lines, 3)
        splits[split] = [tuple(fields) for fields in lines]
    return splits


def read_kor_sts(folder: Path) -> dict[str, list[Row]]:
    """Read KorSTS (one TSV file per split, with a header) as rows (sentence1, sentence2, score)."""
    return {
        split: read_columns(first_existing(folder, f"sts-{split}.tsv"), SCORED_PAIR_COLUMNS)
        for split in SPLITS
    }


# The column names of the SemEval files, and those of other copies.
SICK_COLUMNS = (
    ["sentence_A", "sentence_B", "relatedness_score", "entailment_judgment"],
    ["sentence1", "sentence2", "score", "label"],
)


def read_sick(path: Path) -> dict[str, list[Row]]:
    """Read SICK as rows (sentence1, sentence2, relatedness from 1 to 5, entailment).

    path: the file SICK.txt, a folder with it, or a folder with the three files of SemEval 2014. The trial
        split becomes dev.
    """
    single_file = path / "SICK.txt" if is_folder(path) else path
    if is_file(single_file):
        names = ["SemEval_set", "sentence_A", "sentence_B", "relatedness_score", "entailment_label"]
        return rows_by_split(single_file, names, {"TRAIN": "train", "TRIAL": "dev", "TEST": "test"})
    return {
        "train": read_columns(first_existing(path, "SICK_train.txt", "train.tsv"), *SICK_COLUMNS),
        "dev": read_columns(first_existing(path, "SICK_trial.txt", "trial.tsv"), *SICK_COLUMNS),
        "test": read_columns(first_existing(path, "SICK_test_annotated.txt", "test.tsv"), *SICK_COLUMNS),
    }


def unzip_texts(path: Path, folder: Path) -> Path:
    """Unpack the .txt files of a zip archive into `folder`, and return `folder`.

    If path is not a zip archive, nothing is done, and path is returned. Raises InputError if the archive is
    damaged, unpacks to more than MAX_UNPACKED_BYTES, or is compressed by another method than deflate.
    """
    if not zipfile.is_zipfile(path):
        return path
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".txt")]
            check_size(sum(member.file_size for member in members), path)
            if not {member.compress_type for member in members} <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                # zipfile unpacks a block of bzip2 as a whole: 50 bytes become 45 MB, whatever file_size is
                raise InputError(f"{path} is compressed by another method than deflate: unpack it yourself")
            for member in members:  # no more bytes than file_size are read
                (folder / Path(member.filename).name).write_bytes(archive.read(member))
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise InputError(f"{path} cannot be read ({error}): download it again") from None
    return folder


MRPC_COLUMNS = (["#1 String", "#2 String", "Quality"], ["sentence1", "sentence2", "label"])
MRPC_DEV = 500  # number of training pairs that become dev


def read_mrpc(folder: Path) -> dict[str, list[Row]]:
    """Read MRPC as rows (sentence1, sentence2, label).

    The release has no dev split. Here dev is the last 500 of the 4076 training pairs, as in dataset-sts; the
    paper used GLUE's dev split, which has 408 other pairs.
    """
    train = read_columns(first_existing(folder, "msr_paraphrase_train.txt", "train.tsv"), *MRPC_COLUMNS)
    test = read_columns(first_existing(folder, "msr_paraphrase_test.txt", "test.tsv"), *MRPC_COLUMNS)
    return {"train": train[:-MRPC_DEV], "dev": train[-MRPC_DEV:], "test": test}


def read_sts_year(folder: Path, subsets: list[str]) -> dict[str, list[Row]]:
    """Read one year of STS12-16; return {name of a subset: rows (sentence1, sentence2, score)}.

    The pairs are in STS.input.NAME.txt and their scores in STS.gs.NAME.txt, for each NAME in subsets. Pairs
    whose score is empty are skipped. Raises InputError if a file is missing or damaged.
    """
    rows: dict[str, list[Row]] = {}
    for name in subsets:
        pairs = first_existing(folder, f"STS.input.{name}.txt", f"STS2016.input.{name}.txt")
        gold = first_existing(folder, pairs.name.replace(".input.", ".gs."))
        sentences = split_fields(pairs)
        scores = read_text(gold).removesuffix("\n").split("\n")  # the last ones may be empty
        if len(sentences) != len(scores):
            raise InputError(f"{len(scores)} scores for {len(sentences)} pairs ({gold}): download both again")
        for number, fields in enumerate(sentences, start=1):
            if len(fields) < 2:  # further fields are the sources of the sentences
                raise InputError(f"1 field instead of 2 or more ({pairs}, line {number}): download it again")
        scored = zip(sentences, scores, strict=True)
        rows[name] = [(fields[0], fields[1], score) for fields, score in scored if score.strip()]
    return rows


def read_str(path: Path) -> dict[str, list[Row]]:
    """Read STR-2022, semantic textual relatedness, as rows (sentence1, sentence2, score) of the split test.

    path: a CSV file, or the folder with it; its column Text has both sentences, on two lines.
    Raises InputError if the file is missing or damaged.
    """
    if is_folder(path):
        path = first_existing(path, "sem_text_rel_ranked.csv")
    rows = []
    cells = select_columns(
        split_fields(path, quoted=True), path, ["Text", "Score"], remedy="download it again"
    )
    for number, (_, (text, score)) in enumerate(cells, start=1):  # a pair has two lines: count pairs
        sentences = text.split("\n")
        if len(sentences) != 2 or not all(sentence.strip() for sentence in sentences):
            raise InputError(
                f"Text is not two sentences on two lines ({path}, pair {number}): download it again"
            )
        rows.append((*sentences, score))
    return {"test": rows}


# -------------------------------------------------------------------------------------------- words and text

# The lists of word pairs that make up the word similarity set, in this order: possible names of the file,
# number of pairs, maximal score. Rubenstein and Goodenough 1965; Hill et al. 2015; Gerz et al. 2016; Agirre
# et al. 2009 (similarity only).
WORD_LISTS: list[Any] = [
    (("rg-65.csv", "EN-RG-65.txt", "rg65.tsv"), 65, 4),
    (("SimLex-999.txt", "simlex999.csv", "EN-SIMLEX-999.txt", "simlex999.tsv"), 999, 10),
    (("SimVerb-3500.txt", "simverb-3500.csv", "EN-SimVerb-3500.txt", "simverb3500.tsv"), 3500, 10),
    (("wordsim353-sim.csv", "EN-WS-353-SIM.txt", "ws353-sim.tsv"), 203, 10),
]
WORD_COLUMNS = [["word1", "word2", name] for name in ("similarity", "SimLex999", "score")]


def read_word_similarity(folder: Path) -> dict[str, list[Row]]:
    """Read the word similarity set of Rep et al. 2024, four lists, as rows (word1, word2, score from 0 to 1).

    A pair that occurs several times, in either order, keeps its first score. 70 % of the pairs become train,
    15 % dev and 15 % test, by NumPy's random permutation for seed 0, which is the same on every machine. It
    is not known whether the authors split them in the same way. Raises InputError if a list is missing or
    damaged.
    """
    scores: dict[Row, str] = {}
    for names, num_pairs, max_score in WORD_LISTS:
        path = first_existing(folder, *names)
        rows = read_word_list(path)
        if len(rows) != num_pairs:
            raise InputError(f"{len(rows)} pairs instead of {num_pairs} ({path}): download it again")
        for number, (word1, word2, score) in enumerate(rows, start=1):
            try:
                scaled = f"{float(score) / max_score:.15g}"
            except ValueError:
                raise InputError(
                    f"score {score!r} is not a number ({path}, pair {number}): download it again"
                ) from None
            if (word2, word1) not in scores:
                scores.setdefault((word1, word2), scaled)
    pairs = [(*words, score) for words, score in scores.items()]
    order = np.random.RandomState(0).permutation(len(pairs))
    dev_start, test_start, _ = (np.array([0.70, 0.85, 1.0]) * len(pairs)).astype(int)
    indices = {"train": order[:dev_start], "dev": order[dev_start:test_start], "test": order[test_start:]}
    return {split: [pairs[i] for i in indices[split]] for split in SPLITS}


def read_word_list(path: Path) -> list[Row]:
    """Read rows (word1, word2, score) of one list.

    The files EN-*.txt (from wordvectors.org) and SimVerb-3500.txt have no header, the others have one.
    """
    if path.name.startswith(("EN-", "SimVerb")):
        columns = [0, 1, 2] if path.name.startswith("EN-") else [0, 1, 3]  # SimVerb: word type, relation
        lines = split_fields(path)
        check_num_fields(path, lines, 3 if path.name.startswith("EN-") else 5)
        return [tuple(fields[column] for column in columns) for fields in lines]
    rows = read_columns(path, *WORD_COLUMNS)
    return [row for row in rows if any(row)]  # the last row of wordsim353-sim.csv is empty


def read_nli_sentences(path: Path) -> Iterator[str]:
    """Yield each distinct sentence of AllNLI.tsv.gz (SNLI and MultiNLI, all splits) once, in order.

    Raises InputError if the file is damaged.
    """
    seen = set()
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
            lines = bounded_lines(file, path)
            header = next(lines, "").rstrip("\r\n").split("\t")
            if not {"sentence1", "sentence2"} <= set(header):
                raise InputError(f"no columns sentence1 and sentence2 ({path}, line 1): get AllNLI.tsv.gz")
            columns = header.index("sentence1"), header.index("sentence2")
            for number, line in enumerate(lines, start=2):
                fields = line.rstrip("\r\n").split("\t")
                check_num_fields(path, [fields], len(header), first=number)
                for column in columns:
                    sentence = single_line(fields[column])
                    if sentence and sentence not in seen:
                        seen.add(sentence)
                        yield sentence
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): download it again") from None


def single_line(text: str) -> str:
    """Return the text in one line: TABs, and all characters at which Python ends a line, become spaces."""
    return " ".join(text.replace("\t", " ").splitlines()).strip()
