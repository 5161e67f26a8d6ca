"""Embed a file of any size, line by line, in bounded memory; find the lines nearest to a query.

Lines are embedded in blocks, and each block on its own, so that an interrupted run, or one that is shared by
several processes, gives the same bytes as an uninterrupted run of one process. Each process appends the
embeddings of whole blocks to a part file. A part file that is there at the start is resumed; at the end the
part files are concatenated.

Shapes: N lines, D dimensions of an embedding.
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
from tmft.io.atomic import error_text, folder_lock, read_json, write_file
from tmft.io.text import STDIN, read_lines
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.quantization import encode_precision

BLOCK_SIZE = 1024  # lines that are embedded together
EMPTY_LINE = "."  # an empty line is embedded as this text, so that line i stays row i


def encode_file(model: SentenceEncoder, path: Path, out: Path, processes: Processes) -> tuple[int, int]:
    """Embed the lines of a file and write a .npy file of (N, D) float32; row i is the embedding of line i.

    path: a text file, also .gz or .xz; - is standard input, which one process reads from its beginning.
    out: the .npy file to write. processes: each of them embeds a part of the lines.
    Returns N, and how many of the N lines an interrupted run had embedded before.
    Raises InputError if a part file belongs to another model or text, or if nothing can be written.
    """
    rank, world_size = processes.rank, processes.world_size
    if path == STDIN and world_size > 1:
        raise InputError("standard input cannot be shared by several processes: name a file")
    count = None if path == STDIN else sum(1 for _ in read_lines(path))
    blocks = -(-(count or 0) // BLOCK_SIZE)
    begin, end = 0, count  # lines of this process
    if count is not None:
        begin, end = (min(count, blocks * n // world_size * BLOCK_SIZE) for n in (rank, rank + 1))
    model_settings = [model.source, model.dimensions, model.pooling, model.max_length, model.prompt]
    model_settings.append(encode_precision(model))
    file_version = [] if path == STDIN else [path.stat().st_size, path.stat().st_mtime_ns]
    settings = {"model": model_settings, "text": [str(path.absolute()), *file_version], "lines": count}
    names = [f"{out.name}.part-{n}-of-{world_size}" for n in range(world_size)]
    parts = [PartFile(out.with_name(name), settings, model.dimensions) for name in names]
    part = parts[rank]
    part.create()
    with folder_lock(part.path):
        num_resumed = part.resume()
        lines = islice(read_lines(path), begin + num_resumed, end)
        total = None if end is None else end - begin
        with progress_bar(total, "lines", initial=num_resumed, desc="encode") as bar:
            for block in batched(lines):
                part.append(model.encode([line if line.strip() else EMPTY_LINE for line in block]))
                bar.update(len(block))
    num_embedded = part.num_embeddings
    processes.barrier()
    if rank == 0:
        write_file(out, lambda new: concatenate_parts(parts, new))
        for part in parts:
            part.remove()
    processes.barrier()
    return num_embedded if count is None else count, num_resumed


def batched(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines in lists of up to BLOCK_SIZE."""
    lines = iter(lines)
    while block := list(islice(lines, BLOCK_SIZE)):
        yield block


@dataclass
class PartFile:
    """Embeddings in float32, one after the other without a header, and a JSON file with what they depend on.

    settings: the model, the text and the number of its lines. width: D.
    """

    path: Path
    settings: dict
    width: int

    @property
    def metadata_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.json")

    @property
    def num_embeddings(self) -> int:
        return self.path.stat().st_size // (4 * self.width)

    def create(self) -> None:
        """Create an empty file if there is none."""
        if not self.path.is_file():
            write_file(self.path, "")

    def resume(self) -> int:
        """Cut the file after its last whole block, and return how many embeddings are left in it."""
        if not self.metadata_path.is_file():
            os.truncate(self.path, 0)
            write_file(self.metadata_path, json.dumps(self.settings, indent=2) + "\n")
        elif read_json(self.metadata_path) != self.settings:
            problem = f"{self.path} belongs to another model or text, or to an earlier version of this text"
            raise InputError(f"{problem}: remove it, or write to another file with out", "out")
        count = self.num_embeddings
        if count != self.settings.get("lines"):  # the last block may be incomplete
            count = count // BLOCK_SIZE * BLOCK_SIZE
        os.truncate(self.path, count * 4 * self.width)
        return count

    def append(self, embeddings: np.ndarray) -> None:
        """Append embeddings, (lines, D)."""
        try:
            with open(self.path, "ab") as file:
                file.write(np.ascontiguousarray(embeddings, dtype="<f4").data)
        except OSError as error:
            problem = f"cannot write {self.path} ({error_text(error)}): check space and permissions"
            raise InputError(f"{problem}; the same command resumes there") from None

    def remove(self) -> None:
        """Remove both files."""
        self.path.unlink()
        self.metadata_path.unlink()


def concatenate_parts(parts: list[PartFile], out: Path) -> None:
    """Write a .npy file: the header, then the contents of the part files in order."""
    shape = sum(part.num_embeddings for part in parts), parts[0].width
    with open(out, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for part in parts:
            with open(part.path, "rb") as source:
                while block := source.read(1 << 24):
                    file.write(block)


def nearest_lines(model: SentenceEncoder, query: str, path: Path, count: int = 10) -> list[tuple[float, str]]:
    """Find the lines of a file whose embeddings have the highest cosine similarity to that of the query.

    path: a text file, also .gz or .xz. count: number of lines to return. Equal lines are returned once.
    Returns (cosine, line) pairs, the highest cosine first. Raises InputError if the file has no text.
    """
    u, best, seen = model.encode([query]), [], set()
    with progress_bar(None, "lines", desc="encode") as bar:
        for block in batched(read_lines(path)):
            texts = [line for line in dict.fromkeys(block) if line.strip() and line not in seen]
            if texts:
                cosines = model.similarity(u, model.encode(texts))[0].tolist()
                best = heapq.nlargest(count, [*best, *zip(cosines, texts, strict=True)])
                seen = {line for _, line in best}
            bar.update(len(block))
    if not best:
        raise InputError(f"{path} has no text: give a file with a sentence per line")
    return best
