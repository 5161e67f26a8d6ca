"""The lines of a file of any size -> one .npy file of embeddings, in bounded memory; and the nearest lines.

Lines are embedded in blocks, each on its own, so that a run that was stopped, or is shared by several
processes, gives the bytes of one that was not. Each process writes whole blocks of rows into a part file.
What is there when it starts is not embedded again; in the end the parts become the result.
"""

import heapq
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from tmft.device import progress_bar
from tmft.distributed import Processes
from tmft.errors import InputError
from tmft.io.atomic import locked, read_json, reason, write_file
from tmft.io.text import STDIN, read_lines
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.quantization import precision_of

BLOCK = 1024  # lines
EMPTY = "."  # what a line without a word is read as: it has a row, too


def encode_file(model: SentenceEncoder, path: Path, out: Path, processes: Processes) -> tuple[int, int]:
    """Write out, a .npy of (N, D) float32, row i for line i of path -> N, and how many were there before.

    path: text, .gz, .xz, or - for standard input, which one process reads, from its beginning. Raises
    InputError if a part file is of another model or text, or if nothing can be written.
    """
    rank, world_size = processes.rank, processes.world_size
    if path == STDIN and world_size > 1:
        raise InputError("standard input cannot be shared by processes: name a file", "encode")
    count = None if path == STDIN else sum(1 for _ in read_lines(path))
    blocks = -(-(count or 0) // BLOCK)
    begin, end = 0, count
    if count is not None:
        begin, end = (min(count, blocks * n // world_size * BLOCK) for n in (rank, rank + 1))
    of_model = [model.source, model.dimensions, model.pooling, model.max_length, model.prompt]
    of_model.append(precision_of(model))
    text = [] if path == STDIN else [path.stat().st_size, path.stat().st_mtime_ns]
    settings = {"model": of_model, "text": [str(path.absolute()), *text], "lines": count}
    names = [f"{out.name}.part-{n}-of-{world_size}" for n in range(world_size)]
    parts = [Part(out.with_name(name), settings, model.dimensions) for name in names]
    part = parts[rank]
    part.make()
    with locked(part.path):
        before = part.open()
        lines = islice(read_lines(path), begin + before, end)
        total = None if end is None else end - begin
        with progress_bar(total, "lines", initial=before, desc="encode") as bar:
            for block in blocks_of(lines):
                part.append(model.encode([line if line.strip() else EMPTY for line in block]))
                bar.update(len(block))
    rows = part.rows
    processes.barrier()
    if rank == 0:
        write_file(out, lambda new: join(parts, new))
        for part in parts:
            part.remove()
    processes.barrier()
    return rows if count is None else count, before


def blocks_of(lines: Iterable[str]) -> Iterator[list[str]]:
    """Up to BLOCK lines at a time."""
    lines = iter(lines)
    while block := list(islice(lines, BLOCK)):
        yield block


@dataclass
class Part:
    """Rows of float32 end to end in a file, and beside it a file that says of what they are."""

    path: Path
    settings: dict
    width: int

    @property
    def about(self) -> Path:
        return self.path.with_name(f"{self.path.name}.json")

    @property
    def rows(self) -> int:
        return self.path.stat().st_size // (4 * self.width)

    def make(self) -> None:
        """The file, empty, if it is not there."""
        if not self.path.is_file():
            write_file(self.path, "")

    def open(self) -> int:
        """Take up the whole blocks that are there -> their rows."""
        if not self.about.is_file():
            os.truncate(self.path, 0)
            write_file(self.about, json.dumps(self.settings, indent=2) + "\n")
        elif read_json(self.about) != self.settings:
            what = f"{self.path} is of another model or text, or of an earlier state of this one"
            raise InputError(f"{what}: remove it, or name another file", "out")
        rows = self.rows if self.rows == self.settings.get("lines") else self.rows // BLOCK * BLOCK
        os.truncate(self.path, rows * 4 * self.width)
        return rows

    def append(self, rows: np.ndarray) -> None:
        try:
            with open(self.path, "ab") as file:
                file.write(np.ascontiguousarray(rows, dtype="<f4").data)
        except OSError as error:
            what = f"cannot write {self.path} ({reason(error)}): check space and permissions"
            raise InputError(f"{what}; the same command goes on from there") from None

    def remove(self) -> None:
        self.path.unlink()
        self.about.unlink()


def join(parts: list[Part], out: Path) -> None:
    """Parts one after the other, with the heading of a .npy file before them."""
    rows, width = sum(part.rows for part in parts), parts[0].width
    with open(out, "wb") as file:
        heading = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
        np.lib.format.write_array_header_1_0(file, heading)
        for part in parts:
            with open(part.path, "rb") as source:
                while block := source.read(1 << 24):
                    file.write(block)


def neighbours(model: SentenceEncoder, query: str, path: Path, count: int = 10) -> list[tuple[float, str]]:
    """The lines of a file whose embeddings have the highest cosine with that of the query: (cosine, line),
    highest first; of equal lines the first one."""
    u, best, seen = model.encode([query]), [], set()
    with progress_bar(None, "lines", desc="encode") as bar:
        for block in blocks_of(read_lines(path)):
            texts = [line for line in dict.fromkeys(block) if line.strip() and line not in seen]
            if texts:
                cosines = model.similarity(u, model.encode(texts))[0].tolist()
                best = heapq.nlargest(count, [*best, *zip(cosines, texts, strict=True)])
                seen = {line for _, line in best}
            bar.update(len(block))
    if not best:
        raise InputError(f"{path} has no text: name a file with a sentence per line")
    return best
