"""Download releases of data sets, and convert them to the TSV files that tmft/data.py reads."""

import http.client
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from tqdm import tqdm

from tmft.checkpoints.hub import is_offline
from tmft.data import DATA_FOLDER, parse_label
from tmft.datasets.readers import REMEDY, example_noun
from tmft.datasets.releases import RELEASES, Release, Splits
from tmft.errors import InputError, describe_error
from tmft.io.atomic import check_output_folder, is_same_file, replacing_files, write_file
from tmft.io.files import reading
from tmft.io.text import join_lines
from tmft.tasks import CLASSES_FROM_FILE, TASKS


def download_dataset(dataset_name: str, source: str | None = None, root: Path = DATA_FOLDER) -> str:
    """Download a released data set, write it as TSV files, and return a line that says so.

    dataset_name: an entry of RELEASES. Its files are written into root/dataset_name.
    source: URL, file or folder of the release; None downloads it from the known addresses.
    Raises InputError, and changes nothing, if the release cannot be downloaded, is incomplete or has another
    format.
    """
    release, target = RELEASES[dataset_name], root / dataset_name
    check_download_folder(target, source)
    urls = release.urls if source is None else (source,) if "://" in source else ()
    if source is None and (is_offline() or not urls):
        problem = f"no address is known for {dataset_name}"
        if urls:
            problem = f"HF_HUB_OFFLINE forbids downloads, such as {urls[0]}"
        remedy = f"download it yourself and run python -m tmft data {dataset_name} --from PLACE"
        raise InputError(f"{problem}: {remedy}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = [download(url, folder, dataset_name) for url in urls]
        path = files[0] if len(files) == 1 else folder
        if source is not None and not files:
            path = Path(source)
        content = release.read(unzip_texts(path, folder))
        if isinstance(content, dict):
            check_sizes(content, release, source or urls[0])
            write_splits(content, dataset_name, target)
            counts = ", ".join(f"{split} {len(rows)}" for split, rows in content.items())
            missing = [split for split in release.sizes if split not in content]
            note = f"; this release has no scores for {', '.join(missing)}" if missing else ""
            return f"wrote {target} ({counts} {example_noun(release.columns)}s){note}"
        count = write_lines(content, target / "sentences.txt")
        return f"wrote {target / 'sentences.txt'} ({count} sentences)"


def check_download_folder(folder: Path, source: str | None) -> None:
    """Raise InputError if the folder of a data set cannot be written, or holds the release itself."""
    if folder.is_symlink():
        problem = f"cannot write {folder}: it is a symbolic link"
        raise InputError(f"{problem}: remove it, or choose another folder")
    check_output_folder(folder)
    if source is not None and folder.exists():
        place = Path(source).absolute()
        if any(is_same_file(folder, path) for path in (place, *place.parents)):
            problem = f"the release, {source}, is in this folder, which would be replaced"
            raise InputError(f"cannot write {folder}: {problem}: choose another folder")


def download(url: str, folder: Path, dataset_name: str) -> Path:
    """Download a file of a data set into a folder, with a progress bar, and return its path.

    Raises InputError if there is no answer, another answer than the file, or only a part of it.
    """
    try:
        path = folder / Path(urllib.parse.urlparse(url).path).name
        with urllib.request.urlopen(url, timeout=60) as answer, open(path, "wb") as file:
            size = int(answer.headers.get("Content-Length", 0))
            with tqdm(total=size or None, unit="B", unit_scale=True, desc=path.name, leave=False) as bar:
                while chunk := answer.read(1 << 16):
                    file.write(chunk)
                    bar.update(len(chunk))
        if size and path.stat().st_size != size:
            raise OSError(f"{path.stat().st_size} of {size} bytes arrived")
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # an HTTPError is also a response that must be closed
        reason = getattr(error, "reason", None) or describe_error(error)
        raise InputError(
            f"cannot download {url} ({reason}): check the network, or download a release yourself and run "
            f"python -m tmft data {dataset_name} --from PLACE"
        ) from None
    return path


def unzip_texts(path: Path, folder: Path) -> Path:
    """Unpack the .txt files of a zip archive into `folder`, and return it; return another path unchanged."""
    if not zipfile.is_zipfile(path):
        return path
    with reading(path, REMEDY), zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".txt"):
                (folder / Path(name).name).write_bytes(archive.read(name))
    return folder


def check_sizes(splits: Splits, release: Release, source: str) -> None:
    """Raise InputError if a split has another number of rows than `release.sizes` says."""
    for split, rows in splits.items():
        known = release.sizes.get(split, len(rows))
        sizes = known if isinstance(known, tuple) else (known,)
        if len(rows) not in sizes:
            expected = " or ".join(map(str, sizes))
            raise InputError(
                f"{split} has {len(rows)} {example_noun(release.columns)}s instead of {expected} ({source}): "
                "the release changed or is incomplete: download it again"
            )


def write_splits(splits: Splits, dataset_name: str, folder: Path) -> None:
    """Write a file {split}.tsv for each split of a released data set; if anything is wrong, write no file.

    Labels are checked with `parse_label` for every task that reads the file; InputError names a wrong one.
    """
    release = RELEASES[dataset_name]
    texts = {}
    for split, rows in splits.items():
        readers = [
            task
            for task in TASKS.values()
            if fnmatchcase(f"{dataset_name}/{split}.tsv", task.files.replace("{split}", "*"))
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
                    label = parse_label(
                        cell, task, f"{split} {example_noun(release.columns)} {number} of the release"
                    )
                    cells.append(cell if task.classes else f"{label:.15g}")
                else:
                    cells.append(join_lines(cell))
            lines.append("\t".join(cells))
        texts[split] = "\n".join(lines) + "\n"
    earlier = [path.relative_to(folder).as_posix() for path in folder.rglob("*.tsv")]
    with replacing_files(folder, earlier) as new:
        for split, text in texts.items():
            path = new / f"{split}.tsv"
            path.parent.mkdir(exist_ok=True)  # for names such as senteval's sst2/train
            path.write_text(text, encoding="utf-8", newline="\n")


def write_lines(lines: Iterable[str], path: Path) -> int:
    """Write lines to a file, one after the other, and return their number; if interrupted, write no file."""
    count = 0

    def write(new: Path) -> None:
        nonlocal count
        with open(new, "w", encoding="utf-8", newline="\n") as file:
            for line in tqdm(lines, unit=" lines", leave=False, disable=None):
                file.write(f"{line}\n")
                count += 1

    write_file(path, write)
    return count
