"""Official releases of data sets -> the canonical TSV files of tmft/data.py.

STS benchmark is published in three forms, and read_stsb knows each of them:
  sbert.net's copy   stsbenchmark.tsv.gz: one table with a header and a column `split`
  the original       sts-train.csv, sts-dev.csv, sts-test.csv: TAB, no header, some lines with extra columns
  GLUE               train.tsv, dev.tsv, test.tsv with a header; the test split has no scores
None of them quotes. Source: Cer et al., SemEval 2017 Task 1.
"""

import gzip
import os
import shutil
import tempfile
import urllib.error
import urllib.request
import zlib
from pathlib import Path

from tqdm import tqdm

from tmft.data import DATA_FOLDER, TASKS, Task, check_score
from tmft.errors import InputError

STSB_URL = "https://sbert.net/datasets/stsbenchmark.tsv.gz"
STSB_SIZES = {"train": 5749, "dev": 1500, "test": 1379}
COLUMNS = ["sentence1", "sentence2", "score"]
Line = tuple[str, str, str]  # these three, the score as written in the release


def get_stsb(source: str = STSB_URL, root: Path = DATA_FOLDER) -> str:
    """Convert STS benchmark from a URL, file or folder to root/stsb; returns what was done, in one line.

    Raises InputError, and changes nothing, if it cannot be fetched or is not the whole of a known form.
    """
    if source.startswith(("http://", "https://")):
        with tempfile.TemporaryDirectory() as scratch:
            splits = read_stsb(download(source, Path(scratch) / "stsbenchmark.tsv.gz"))
    else:
        splits = read_stsb(Path(source))
    for split, lines in splits.items():
        if len(lines) != STSB_SIZES[split]:
            raise InputError(
                f"{split} has {len(lines)} pairs instead of {STSB_SIZES[split]} ({source}): get it anew"
            )
    write_splits(splits, TASKS["stsb"], root / "stsb")
    counts = ", ".join(f"{split} {len(lines)}" for split, lines in splits.items())
    note = "" if "test" in splits else "; GLUE's test split has no scores, so there is no test.tsv"
    return f"wrote {root / 'stsb'} ({counts} pairs){note}"


RELEASES = {"stsb": get_stsb}


def fetch_if_absent(name: str, data_root: str | None = None) -> None:
    """Fetch a data set with a known release into data/ if it is absent, and say so; not into a data_root."""
    if name in RELEASES and data_root is None and not (DATA_FOLDER / name).is_dir():
        print(f"{DATA_FOLDER / name} is absent: fetching the official release")
        print(RELEASES[name]())


def download(url: str, path: Path) -> Path:
    """Fetch url into the file path, with a bar; InputError if that fails."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, open(path, "wb") as file:
            size = int(answer.headers.get("Content-Length", 0))
            with tqdm(total=size or None, unit="B", unit_scale=True, desc=path.name, leave=False) as bar:
                while chunk := answer.read(1 << 16):
                    file.write(chunk)
                    bar.update(len(chunk))
        if size and path.stat().st_size != size:
            raise OSError(f"{path.stat().st_size} of {size} bytes arrived")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(
            f"cannot download {url} ({reason}): check the network, or fetch a release yourself and run "
            "data/get_data.py stsb --from FILE"
        ) from None
    return path


def read_stsb(path: Path) -> dict[str, list[Line]]:
    """A release of STS benchmark in any of its three forms -> {split: lines}."""
    if path.is_dir() and (path / "sts-train.csv").is_file():
        return {split: read_original(path / f"sts-{split}.csv") for split in STSB_SIZES}
    if path.is_dir() and (path / "train.tsv").is_file():
        return read_glue(path)
    if path.is_file():
        return read_sbert(path)
    raise InputError(
        f"no STS benchmark in {path}: expected stsbenchmark.tsv.gz, or a folder with sts-train.csv or "
        "train.tsv"
    )


def read_text(path: Path) -> list[list[str]]:
    """The fields of each line of a TAB-separated file, .gz or not; only \\n ends a line."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): get it anew") from None
    return [line.rstrip("\r").split("\t") for line in text.split("\n") if line]


def read_sbert(path: Path) -> dict[str, list[Line]]:
    splits: dict[str, list[Line]] = {split: [] for split in STSB_SIZES}
    for number, (split, *line) in enumerate(read_table(path, ["split", *COLUMNS]), start=2):
        if split not in splits:
            raise InputError(f"no split {split!r} in STS benchmark ({path}, line {number}): get it anew")
        splits[split].append(tuple(line))
    return splits


def read_original(path: Path) -> list[Line]:
    lines = []
    for number, fields in enumerate(read_text(path), start=1):
        if len(fields) < 7:  # genre, file, year, id, score, sentence1, sentence2; then perhaps sources
            raise InputError(
                f"{len(fields)} fields instead of 7 or more ({path}, line {number}): get it anew"
            )
        lines.append((fields[5], fields[6], fields[4]))
    return lines


def read_glue(folder: Path) -> dict[str, list[Line]]:
    return {split: read_table(folder / f"{split}.tsv", COLUMNS) for split in ("train", "dev")}


def read_table(path: Path, names: list[str]) -> list[tuple[str, ...]]:
    """The named columns of a TAB-separated file with a header, line by line."""
    header, *lines = read_text(path) or [[]]
    for name in names:
        if name not in header:
            raise InputError(
                f"no column {name!r} ({path}, line 1): this is not a known release of STS benchmark"
            )
    columns = [header.index(name) for name in names]
    for number, fields in enumerate(lines, start=2):
        if len(fields) != len(header):
            raise InputError(
                f"{len(fields)} fields instead of {len(header)} ({path}, line {number}): get it anew"
            )
    return [tuple(fields[column] for column in columns) for fields in lines]


def write_splits(splits: dict[str, list[Line]], task: Task, folder: Path) -> None:
    """Write {split}.tsv files into folder: all of them or, if anything is wrong, none."""
    texts = {}
    for split, lines in splits.items():
        rows = ["\t".join(COLUMNS)]
        for number, (sentence1, sentence2, score) in enumerate(lines, start=1):
            value = check_score(score, task, f"{split} pair {number} of the release")
            # Whatever Python or an editor breaks lines at becomes a space, so that a pair stays on its line.
            sentences = [" ".join(sentence.splitlines()).strip() for sentence in (sentence1, sentence2)]
            rows.append("\t".join([*sentences, f"{value:.15g}"]))
        texts[split] = "\n".join(rows) + "\n"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".writing-") as scratch:
            complete = Path(scratch) / folder.name
            complete.mkdir()
            for split, text in texts.items():
                (complete / f"{split}.tsv").write_text(text, encoding="utf-8", newline="\n")
            if folder.exists():  # an earlier copy gives way once the new one is complete
                os.replace(folder, Path(scratch) / "old")
            shutil.move(complete, folder)
    except OSError as error:
        raise InputError(f"cannot write {folder} ({error}): check space and permissions") from None
