"""Embed a file of any size, by lines or by the rows of a table, in bounded memory.

The lines are embedded in blocks of BLOCK_SIZE, independently of each other. So the bytes of the result do not
depend on whether the run was interrupted, nor on how many processes took turns with the blocks. Each process
appends its blocks to a part file. If the part file exists at the start, it is resumed. At the end the blocks
are joined.

The part files are in a folder in which only one command works. Next to the result, such as vectors.npy, a
file vectors.npy.json records the model and the text, so that a search can check that the embeddings belong
to both. If the name of the result ends with .parquet, it is a Parquet file, which has the record as well.

Embeddings are stored as float32, or with an embedding_precision that takes a quarter or a 32nd of the space:

    int8     (N, D) int8: each embedding is scaled so that its largest number is 127
    binary   (N, D / 8) uint8: the signs, eight in a byte, the first one in the highest bit; 1 is positive

Both keep the direction of an embedding, but not its length, so that they are compared by cosines.

Shapes: N lines, D dimensions of an embedding.
"""

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, TypeVar

import numpy as np

from tmft.device import progress_bar
from tmft.errors import InputError, describe_error
from tmft.io.atomic import check_regular, folder_lock, write_file, writing
from tmft.io.distributed import Processes
from tmft.io.files import reading
from tmft.io.tables import check_pyarrow, read_texts, read_texts_and_values, table_kind
from tmft.io.text import STDIN
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.embedding_identity import LineDigest, model_record, names_that_differ

T = TypeVar("T")
BLOCK_SIZE = 1024  # lines that are embedded together
GROUP_BLOCKS = 16  # blocks that are a group of rows of a Parquet file, which is written at once
EMBEDDING_COLUMN = "embedding"  # of a Parquet file that encode_file writes
EMPTY_LINE = "."  # text that is embedded for an empty line, so that row i is always line i
STORED_TYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "int8": np.dtype("i1"),
    "binary": np.dtype("u1"),
}


def encode_file(
    model: SentenceEncoder,
    path: Path,
    out: Path,
    processes: Processes,
    column: str | None = None,
    keep_columns: Sequence[str] = (),
    embedding_precision: str = "float32",
) -> tuple[int, int]:
    """Embed the lines of a file and write a .npy file, (N, D); row i is the embedding of line i.

    path: a text file, also .gz or .xz; "-" is standard input, which only a single process can read.
    out: the .npy file to write; the model and the text are recorded in <out>.json. A name that ends with
        .parquet becomes a Parquet file with a column, embedding, of lists of D float32.
    column: name of a column of a table (tmft/io/tables.py), whose rows are embedded in place of lines.
    keep_columns: names of columns of the table that are written into the Parquet file beside the embeddings.
    processes: each of them embeds a part of the lines.
    embedding_precision: how they are stored, "float32", "int8" or "binary".
    Returns N, and the number of lines of this process that an interrupted run had already embedded.
    Raises InputError if a part file belongs to another model or text, if the text changes while it is read,
    if an embedding is not finite, or if nothing can be written.
    """
    rank, world_size = processes.rank, processes.world_size
    if out.suffix.lower() not in ("", ".npy", ".parquet"):  # such as .csv, which the file would not be
        raise InputError(f"out {out}: embeddings are written as .npy or .parquet: end the name so", "out")
    check_keep_columns(out, column, keep_columns)
    check_embedding_precision(model, embedding_precision)
    if is_parquet(out) and embedding_precision != "float32":
        problem = f"embedding_precision {embedding_precision}: a Parquet file has float32 embeddings"
        raise InputError(f"{problem}: name an `out` that ends with .npy", "embedding_precision", "out")
    if path == STDIN and world_size > 1:
        raise InputError("standard input cannot be shared by several processes: name a file")
    if is_parquet(out):
        check_pyarrow(out)
    text = None
    if path != STDIN:  # which can be read only once; a mistake in a file is found before anything is embedded
        text = LineDigest()
        deque(text(row[0] for row in read_texts_and_values(path, column, keep_columns)), maxlen=0)
    record = model_record(model)
    processes.check_same_files(record | {"text": text.hexdigest if text else None})
    processes.check_shared_folder(out.parent)  # the main process reads what all of them have embedded
    with parts_folder(out.with_name(f"{out.name}.parts"), processes) as folder:
        names = [f"part-{n}-of-{world_size}" for n in range(world_size)]
        parts = [PartFile(folder / name, record, model.dimensions) for name in names]
        embedded = deque(parts[rank].resume())  # digests of the text up to the end of each block
        num_resumed, now = 0, LineDigest()
        with progress_bar(text.num_lines if text else None, "lines", desc="encode") as bar:
            for number, block in enumerate(batched(now(read_texts(path, column)))):
                if number % world_size == rank and embedded:
                    if embedded.popleft() != now.digest:
                        raise resume_error(folder, "text")
                    num_resumed += len(block)
                elif number % world_size == rank:
                    embeddings = model.encode([line if line.strip() else EMPTY_LINE for line in block])
                    parts[rank].append(np.asarray(embeddings), now.digest)
                bar.update(len(block))
        if embedded:
            raise resume_error(folder, "text")
        if text and text.digest != now.digest:
            raise text_changed_error(path)
        processes.barrier()
        if rank == 0:
            settings = {"model": record, "text": now.hexdigest, "lines": now.num_lines}
            if embedding_precision != "float32":
                settings["embedding_precision"] = embedding_precision
            vectors = hashlib.sha256()
            blocks = join_blocks(parts, now.num_lines, embedding_precision, vectors.update)
            shape = now.num_lines, stored_width(model.dimensions, embedding_precision)

            def write(new: Path) -> None:
                if not is_parquet(out):
                    write_npy(new, blocks, shape, STORED_TYPES[embedding_precision])
                else:
                    write_parquet(new, blocks, shape, settings, path, column, keep_columns)

            write_file(out, write)
            write_file(metadata_path(out), to_metadata(settings | {"vectors": vectors.hexdigest()}))
            for part in parts:
                part.path.unlink(missing_ok=True)
        processes.barrier()
    return now.num_lines, num_resumed


def check_embedding_precision(model: SentenceEncoder, precision: str) -> None:
    """Raise InputError if the embeddings of the model cannot be stored with this precision."""
    if precision == "float32":
        return
    if model.similarity_fn_name != "cosine":
        problem = f"embedding_precision {precision}: the model compares by {model.similarity_fn_name}"
        raise InputError(f"{problem}, which needs lengths: choose float32", "embedding_precision")
    if precision == "binary" and model.dimensions % 8:
        problem = f"embedding_precision binary: {model.dimensions} dimensions are no multiple of 8"
        raise InputError(f"{problem}: choose int8", "embedding_precision")


@contextmanager
def parts_folder(folder: Path, processes: Processes) -> Iterator[Path]:
    """Make the folder of the part files, and keep other commands out of it until the result is complete.

    At the end it is removed, unless there are part files in it, which can be resumed.
    """
    lock: AbstractContextManager = nullcontext()
    if processes.rank == 0:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        lock = folder_lock(folder, "write to another file with `out`", "out")
    with lock:
        processes.barrier()
        try:
            yield folder
        finally:
            if processes.rank == 0:
                with suppress(OSError):
                    folder.rmdir()


def metadata_path(vectors: Path) -> Path:
    """Return the path of the JSON file that records which model and text embeddings are from."""
    return vectors.parent / f"{vectors.name}.json"  # "." has no name, and is refused elsewhere


def to_metadata(settings: dict[str, Any]) -> str:
    """Return settings, which record the model and the text of embeddings, as the content of a JSON file."""
    return json.dumps(settings, indent=2) + "\n"


def batched(lines: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of BLOCK_SIZE lines; the last list may be shorter."""
    lines = iter(lines)
    while block := list(islice(lines, BLOCK_SIZE)):
        yield block


def resume_error(folder: Path, what: str) -> InputError:
    """Return the error about a folder of parts that were not made from this model or this text."""
    problem = f"{folder} has embeddings of another {what}, from a command that was interrupted"
    return InputError(f"{problem}: remove it, or write to another file with `out`", "out")


def text_changed_error(path: Path) -> InputError:
    """Return the error about a text of which two readings differ."""
    return InputError(f"{path} was changed while it was read: give the command again when it is complete")


@dataclass
class PartFile:
    """The embeddings of one process, as far as it has come.

    The file begins with a line of JSON, the record of the model. Then come the blocks: the number of lines,
    the digest of the text up to the end of the block, a checksum, and the embeddings, (lines, D) float32.
    """

    path: Path
    record: dict[str, Any]
    width: int  # D

    header = Struct("<I32s32s")

    def resume(self) -> list[bytes]:
        """Keep the complete and undamaged blocks of an interrupted run, and return their digests of the text.

        What follows them is cut off: the last block may be incomplete, or zeros after a power failure.
        """
        check_regular(self.path)  # to open a pipe would wait for its other end
        if not self.path.exists():
            return []
        with reading(self.path, "remove it"), open(self.path, "rb+") as file:
            before, kept, end = self.read_record(file), [], 0
            if before == self.record:
                end = file.tell()
                for digest, embeddings in self.read_blocks(file):
                    kept.append(digest)
                    end += self.header.size + len(embeddings)
            elif before:
                names = names_that_differ(before, self.record)
                raise resume_error(self.path.parent, f"model ({', '.join(names)})")
            file.truncate(end)
            return kept

    def read_record(self, file: BinaryIO) -> dict[str, Any]:
        """Read the first line of the file; {} if it is not complete."""
        line = file.readline()
        return dict(json.loads(line)) if line.endswith(b"\n") else {}

    def read_blocks(self, file: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
        """Yield (digest of the text, embeddings) of each block, up to the first one that is damaged."""
        while len(header := file.read(self.header.size)) == self.header.size:
            num_lines, digest, checksum = self.header.unpack(header)
            embeddings = file.read(4 * self.width * min(num_lines, BLOCK_SIZE))
            if len(embeddings) < 4 * self.width * num_lines or checksum != hash_block(digest, embeddings):
                return
            yield digest, embeddings

    def append(self, embeddings: np.ndarray, digest: bytes) -> None:
        """Append a block of embeddings, (number of lines, D), and wait until it is on the disk."""
        content = np.ascontiguousarray(embeddings, dtype="<f4").tobytes()
        header = self.header.pack(len(embeddings), digest, hash_block(digest, content))
        try:
            with open(self.path, "ab") as file:
                if file.tell() == 0:
                    header = json.dumps(self.record).encode() + b"\n" + header
                file.write(header + content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            problem = f"cannot write {self.path} ({describe_error(error)}): check space and permissions"
            raise InputError(f"{problem}; the same command resumes there") from None

    def read_embeddings(self) -> Iterator[bytes]:
        """Yield the embeddings of each block; there is no file if this process had none to embed."""
        if self.path.exists():
            with open(self.path, "rb") as file:
                self.read_record(file)
                for _, embeddings in self.read_blocks(file):
                    yield embeddings


def hash_block(text_digest: bytes, embeddings: bytes) -> bytes:
    """Return the checksum of a block in a part file."""
    return hashlib.sha256(text_digest + embeddings).digest()


def join_blocks(
    parts: list[PartFile], num_lines: int, precision: str, update: Callable[[bytes], None]
) -> Iterator[bytes]:
    """Yield the embeddings of all blocks, in the order of the text, as stored, and pass them to `update`.

    The processes took turns: block n is the next one of part n % len(parts).
    """
    num_bytes = 0
    for blocks in cycle([part.read_embeddings() for part in parts]):
        if (block := next(blocks, None)) is None:
            break
        num_bytes += len(block)
        stored = to_precision(np.frombuffer(block, "<f4").reshape(-1, parts[0].width), precision).tobytes()
        update(stored)
        yield stored
    if num_bytes != 4 * parts[0].width * num_lines:
        raise InputError(f"{parts[0].path.parent} was damaged meanwhile: give the command again")


def stored_width(dimensions: int, precision: str) -> int:
    """Return the number of columns of a file of embeddings."""
    return dimensions // 8 if precision == "binary" else dimensions


def to_precision(embeddings: np.ndarray, precision: str) -> np.ndarray:
    """Convert embeddings, (N, D) float32, to the numbers that a file stores."""
    if precision == "binary":
        return np.packbits(embeddings > 0, axis=1)
    if precision == "int8":
        largest = np.abs(embeddings).max(axis=1, keepdims=True, initial=np.finfo(np.float32).tiny)
        return np.round(embeddings / largest * 127).astype(np.int8)
    return embeddings


def from_precision(stored: np.ndarray, precision: str) -> np.ndarray:
    """Return what a file stores as (N, D) float32: int8 as it is, and the signs as 1 and -1."""
    if precision == "binary":
        return np.unpackbits(stored, axis=1).astype(np.float32) * 2 - 1
    return stored.astype(np.float32)


def write_npy(out: Path, blocks: Iterable[bytes], shape: tuple[int, int], dtype: np.dtype) -> None:
    """Write a .npy file: its header, followed by the embeddings of all blocks."""
    with open(out, "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": dtype.str, "fortran_order": False, "shape": shape}
        )
        file.writelines(blocks)


def is_parquet(path: Path) -> bool:
    """Return whether a file of embeddings is a Parquet file by its name."""
    return path.suffix.lower() == ".parquet"


def check_keep_columns(out: Path, column: str | None, names: Sequence[str]) -> None:
    """Raise InputError if columns are to be kept that cannot be written beside the embeddings."""
    if names and (column is None or not is_parquet(out)):
        problem = "keep_columns are written only from a table into a Parquet file"
        remedy = "name the column of the texts with `column`, and an `out` that ends with .parquet"
        raise InputError(f"{problem}: {remedy}", "keep_columns", "column", "out")
    for name in names:
        if name == EMBEDDING_COLUMN or names.count(name) > 1:
            raise InputError(f"keep_columns: two columns would be named {name!r}: rename one", "keep_columns")


def write_parquet(
    out: Path,
    blocks: Iterator[bytes],
    shape: tuple[int, int],
    record: dict[str, Any],
    path: Path,
    column: str | None,
    keep_columns: Sequence[str],
) -> None:
    """Write a Parquet file with the embeddings of all blocks in a column, after the columns that are kept.

    The record of the model and the text is written into the file as JSON under the name tmft. path, column,
    keep_columns: see encode_file; kept columns of a Parquet file keep their types, all others are texts.
    """
    import pyarrow
    import pyarrow.parquet

    rows = read_kept_rows(path, column, keep_columns, record["text"]) if keep_columns else iter(())
    types = [pyarrow.string()] * len(keep_columns)
    if keep_columns and table_kind(path) == ".parquet":
        types = [pyarrow.parquet.read_schema(path).field(name).type for name in keep_columns]
    embedding = EMBEDDING_COLUMN, pyarrow.list_(pyarrow.float32(), shape[1])
    fields = [*zip(keep_columns, types, strict=True), embedding]
    schema = pyarrow.schema(fields, metadata={"tmft": to_metadata(record)})
    with pyarrow.parquet.ParquetWriter(out, schema) as writer:
        while group := b"".join(islice(blocks, GROUP_BLOCKS)):
            numbers = pyarrow.array(np.frombuffer(group, "<f4"))
            embeddings = pyarrow.FixedSizeListArray.from_arrays(numbers, shape[1])
            columns = zip(*islice(rows, len(embeddings)), strict=True)
            kept = [pyarrow.array(values, kind) for values, kind in zip(columns, types, strict=True)]
            writer.write_table(pyarrow.table([*kept, embeddings], schema=schema))
    if any(True for _ in rows):
        raise text_changed_error(path)


def read_kept_rows(
    path: Path, column: str | None, keep_columns: Sequence[str], digest: str
) -> Iterator[list[Any]]:
    """Yield the values of the columns that are kept; at the end raise InputError if the texts were others."""
    text = LineDigest()
    for line, values in read_texts_and_values(path, column, keep_columns):
        text.update(line)
        yield values
    if text.hexdigest != digest:
        raise text_changed_error(path)
