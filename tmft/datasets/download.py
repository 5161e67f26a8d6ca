"""Download releases of data sets, and convert them to the TSV files that tmft/data.py reads."""

import http.client
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from tmft.checkpoints.hub import is_offline
from tmft.data import DATA_FOLDER
from tmft.datasets.readers import REMEDY, Row, example_noun
from tmft.datasets.releases import RELEASES, Splits
from tmft.errors import InputError, describe_error
from tmft.io.atomic import check_output_folder, replacing_files
from tmft.io.files import reading
from tmft.io.text import join_lines, parse_number


def download_dataset(dataset_name: str, source: str | None = None, root: Path = DATA_FOLDER) -> str:
    """Download a released data set, write it as TSV files, and return a line that says so.

    dataset_name: an entry of RELEASES. Its files are written into root/dataset_name.
    source: URL, file or folder of the release; None downloads it from the known addresses.
    Raises InputError, and changes nothing, if the release cannot be downloaded, is incomplete or has another
    format.
    """
    release, target = RELEASES[dataset_name], root / dataset_name
    urls = release.urls if source is None else (source,) if "://" in source else ()
    place = None if source is None or urls else Path(source).absolute()
    check_output_folder(target, [place, *place.parents] if place else [])
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
            check_sizes(content, dataset_name, source or urls[0])
            write_splits(content, dataset_name, target)
            counts = ", ".join(f"{split} {len(rows)}" for split, rows in content.items())
            return f"wrote {target} ({counts} {example_noun(release.columns)}s)"
        count = write_sentences(content, target)
        return f"wrote {target / 'sentences.txt'} ({count} sentences)"


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


def check_sizes(splits: Splits, dataset_name: str, source: str) -> None:
    """Raise InputError if a split has another number of rows than the release is known to have."""
    release = RELEASES[dataset_name]
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
    """Write a file {split}.tsv for each split of a released data set; if anything is wrong, write no file."""
    earlier = [path.relative_to(folder).as_posix() for path in folder.rglob("*.tsv")]
    with replacing_files(folder, earlier) as new:
        for split, rows in splits.items():
            first = int(split == "unlabelled")  # these rows lack the label, which is the first column
            columns = RELEASES[dataset_name].columns[first:][: len(rows[0]) if rows else None]
            path = new / f"{split}.tsv"
            path.parent.mkdir(exist_ok=True)  # for names such as senteval's sst2/train
            lines = ["\t".join(columns), *(row_to_line(row, columns, split) for row in rows)]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def row_to_line(row: Row, columns: tuple[str, ...], split: str) -> str:
    """Return the line of a row in a TSV file: texts on one line, scores as short as they can be."""
    cells = dict(zip(columns, map(join_lines, row), strict=True))
    if "score" in cells:
        try:
            cells["score"] = f"{parse_number(cells['score']):.15g}"
        except ValueError:
            problem = f"score {cells['score']!r} is not a number ({split} of the release)"
            raise InputError(f"{problem}: download it again") from None
    return "\t".join(cells.values())


def write_sentences(sentences: Iterator[str], folder: Path) -> int:
    """Write the sentences of a release into sentences.txt in a folder, and return their number."""
    count = 0
    with replacing_files(folder) as new:
        with open(new / "sentences.txt", "w", encoding="utf-8", newline="\n") as file:
            for sentence in sentences:
                count += 1
                file.write(f"{sentence}\n")
    return count
