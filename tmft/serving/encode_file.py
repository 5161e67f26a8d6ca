"""Embed a file of any size, by lines or by the rows of a table, in bounded memory.

The lines are embedded in blocks of BLOCK_SIZE, independently of each other. So the bytes of the result do not
depend on whether the run was interrupted, nor on how many processes took turns with the blocks. Until all are
there, each block is a file in the folder vectors.npy.parts, in which only one command works. Its name has the
number of the block and the digest of the text up to its end: a block whose file exists is not embedded again.
At the end the blocks are joined.

Next to the result, such as vectors.npy, a file vectors.npy.json records the model and the text, so that a
search can check that the embeddings belong to both. If the name of the result ends with .parquet, it is a
Parquet file, which has the record as well.

Embeddings are stored as float32, or with an embedding_precision that takes a quarter or a 32nd of the space:

    int8     (N, D) int8: each embedding is scaled so that its largest number is 127
    binary   (N, D / 8) uint8: the signs, eight in a byte, the first one in the highest bit; 1 is positive

Both keep the direction of an embedding, but not its length, so that they are compared by cosines.

Shapes: N lines, D dimensions of an embedding.
"""

import hashlib
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tmft.device import progress_bar
from tmft.errors import InputError
from tmft.io.atomic import folder_lock, write_file, writing
from tmft.io.distributed import Processes
from tmft.io.files import read_json, reading
from tmft.io.formatting import to_json
from tmft.io.tables import check_pyarrow, read_texts, read_texts_and_values, table_kind
from tmft.io.text import STDIN
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.embedding_identity import line_bytes, model_record, names_that_differ

T = TypeVar("T")
BLOCK_SIZE = 1024  # lines that are embedded together
GROUP_BLOCKS = 16  # blocks that are a group of rows of a Parquet file, which is written at once
MODEL_FILE = "model.json"  # in the folder of the blocks: the record of the model that embeds them
EMBEDDING_COLUMN = "embedding"  # of a Parquet file that encode_file writes
EMPTY_LINE = "."  # text that is embedded for an empty line, so that row i is always line i
EMBEDDING_PRECISIONS = ("float32", "int8", "binary")


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
    embedding_precision: how they are stored, an entry of EMBEDDING_PRECISIONS.
    Returns N, and the number of lines of this process that an interrupted run had already embedded.
    Raises InputError if there are blocks of another model or text, if an embedding is not finite, or if
    nothing can be written.
    """
    check_output(out, column, keep_columns, embedding_precision)
    check_embedding_precision(model, embedding_precision)
    if path == STDIN and processes.world_size > 1:
        raise InputError("standard input cannot be shared by several processes: name a file")
    total = None
    if path != STDIN:  # which can be read only once; a mistake in a file is found before anything is embedded
        total = sum(1 for _ in read_texts_and_values(path, column, keep_columns))
    record = model_record(model)
    processes.check_same_files(record)
    processes.check_shared_folder(out.parent)  # the main process reads what all of them have embedded
    with blocks_folder(out.with_name(f"{out.name}.parts"), record, processes) as folder:
        # number of a block that an interrupted run has embedded -> its file
        found = {int(file.name.partition("-")[0]): file for file in folder.glob("*-*.npy")}
        text, count, num_resumed, blocks = hashlib.sha256(), 0, 0, []
        with progress_bar(total, "lines", desc="encode") as bar:
            for number, lines in enumerate(batched(read_texts(path, column))):
                text.update(b"".join(map(line_bytes, lines)))
                block = folder / f"{number:08}-{text.hexdigest()}.npy"
                before = found.pop(number, None)
                if before not in (None, block):
                    raise resume_error(folder, "text")
                if number % processes.world_size == processes.rank:
                    if before:
                        num_resumed += len(lines)
                    else:
                        texts = [line if line.strip() else EMPTY_LINE for line in lines]
                        write_block(block, np.asarray(model.encode(texts)), processes.rank)
                blocks.append(block)
                count += len(lines)
                bar.update(len(lines))
        if found:
            raise resume_error(folder, "text")
        processes.check_same_files({"text": text.hexdigest()})  # once all of them have come so far
        if processes.rank == 0:
            settings = {"model": record, "text": text.hexdigest(), "lines": count}
            if embedding_precision != "float32":
                settings["embedding_precision"] = embedding_precision
            vectors = hashlib.sha256()
            stored = join_blocks(blocks, embedding_precision, vectors)
            if is_parquet(out):
                table = settings, path, column, keep_columns
                write_file(out, partial(write_parquet, stored, model.dimensions, *table))
            else:
                write_file(out, partial(write_npy, stored, count, model.dimensions, embedding_precision))
            write_file(metadata_path(out), to_json(settings | {"vectors": vectors.hexdigest()}))
            for block in blocks:
                block.unlink(missing_ok=True)
        processes.barrier()
    return count, num_resumed


def check_output(out: Path, column: str | None, keep_columns: Sequence[str], precision: str) -> None:
    """Raise InputError if no file of this name can have the embeddings and the columns that are kept."""
    if out.suffix.lower() not in ("", ".npy", ".parquet"):  # such as .csv, which the file would not be
        raise InputError(f"out {out}: embeddings are written as .npy or .parquet: end the name so", "out")
    if keep_columns and (column is None or not is_parquet(out)):
        problem = "keep_columns are written only from a table into a Parquet file"
        remedy = "name the column of the texts with `column`, and an `out` that ends with .parquet"
        raise InputError(f"{problem}: {remedy}", "keep_columns", "column", "out")
    for name in keep_columns:
        if name == EMBEDDING_COLUMN or keep_columns.count(name) > 1:
            raise InputError(f"keep_columns: two columns would be named {name!r}: rename one", "keep_columns")
    if is_parquet(out):
        if precision != "float32":
            problem = f"embedding_precision {precision}: a Parquet file has float32 embeddings"
            raise InputError(f"{problem}: name an `out` that ends with .npy", "embedding_precision", "out")
        check_pyarrow(out)


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


def is_parquet(path: Path) -> bool:
    """Return whether a file of embeddings is a Parquet file by its name."""
    return path.suffix.lower() == ".parquet"


def metadata_path(vectors: Path) -> Path:
    """Return the path of the JSON file that records which model and text embeddings are from."""
    return vectors.parent / f"{vectors.name}.json"  # "." has no name, and is refused elsewhere


def batched(lines: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of BLOCK_SIZE lines; the last list may be shorter."""
    lines = iter(lines)
    while block := list(islice(lines, BLOCK_SIZE)):
        yield block


# --------------------------------------------------------------------------------------------------- blocks


@contextmanager
def blocks_folder(folder: Path, record: dict[str, Any], processes: Processes) -> Iterator[Path]:
    """Make the folder of the blocks, and keep other commands out of it until the result is complete.

    At the end it is removed, unless there are blocks in it. Raises InputError if there are at the beginning
    those of a model with another record.
    """
    if processes.rank == 0:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
    lock = folder_lock(folder, "write to another file with `out`", "out")
    with lock if processes.rank == 0 else nullcontext():
        try:
            if processes.rank == 0:
                if not any(folder.glob("*-*.npy")):
                    write_file(folder / MODEL_FILE, to_json(record))
                elif names := names_that_differ(read_json(folder / MODEL_FILE), record):
                    raise resume_error(folder, f"model ({', '.join(names)})")
            processes.barrier()
            yield folder
        finally:
            if processes.rank == 0 and not any(folder.glob("*-*.npy")):
                with suppress(OSError):
                    for file in (folder / MODEL_FILE, *folder.glob("new-*")):
                        file.unlink(missing_ok=True)
                    folder.rmdir()


def resume_error(folder: Path, what: str) -> InputError:
    """Return the error about a folder of blocks that were not made from this model or this text."""
    problem = f"{folder} has embeddings of another {what}, from a command that was interrupted"
    return InputError(f"{problem}: remove it, or write to another file with `out`", "out")


def write_block(path: Path, embeddings: np.ndarray, rank: int) -> None:
    """Write the embeddings of a block, (lines, D): a crash at any moment leaves the whole file, or none."""
    new = path.with_name(f"new-{rank}")
    with writing(path):
        new.unlink(missing_ok=True)
        with open(new, "xb") as file:
            np.save(file, np.asarray(embeddings, "<f4"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)


def join_blocks(blocks: list[Path], precision: str, vectors: "hashlib._Hash") -> Iterator[np.ndarray]:
    """Yield the embeddings of all blocks, (lines, D), as they are stored, and hash their bytes."""
    for block in blocks:
        with reading(block, "remove it, and give the command again"):
            embeddings = np.load(block, allow_pickle=False)
        stored = to_precision(embeddings, precision)
        vectors.update(stored.data)
        yield stored


# --------------------------------------------------------------------------------------------------- results


def to_precision(embeddings: np.ndarray, precision: str) -> np.ndarray:
    """Convert embeddings, (N, D) float32, to the numbers that a file stores."""
    if precision == "binary":
        return np.packbits(embeddings > 0, axis=1)
    if precision == "int8":
        largest = np.abs(embeddings).max(axis=1, keepdims=True, initial=np.finfo(np.float32).tiny)
        return np.round(embeddings / largest * 127).astype(np.int8)
    return embeddings


def write_npy(blocks: Iterator[np.ndarray], count: int, dimensions: int, precision: str, out: Path) -> None:
    """Write a .npy file: its header, followed by the embeddings of all blocks."""
    row = to_precision(np.zeros((1, dimensions), "<f4"), precision)
    shape = count, row.shape[1]
    with open(out, "wb") as file:
        header = {"descr": row.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.writelines(block.data for block in blocks)


def write_parquet(
    blocks: Iterator[np.ndarray],
    dimensions: int,
    settings: dict[str, Any],
    path: Path,
    column: str | None,
    keep_columns: Sequence[str],
    out: Path,
) -> None:
    """Write a Parquet file with the embeddings of all blocks in a column, after the columns that are kept.

    settings: the record of the model and the text, which is written into the file as JSON under the name
    tmft. path, column, keep_columns: see encode_file; kept columns of a Parquet file keep their types, all
    others are texts.
    """
    import pyarrow
    import pyarrow.parquet

    def kept_values() -> Iterator[list[Any]]:
        text = hashlib.sha256()
        for line, values in read_texts_and_values(path, column, keep_columns):
            text.update(line_bytes(line))
            yield values
        if text.hexdigest() != settings["text"]:
            problem = f"{path} was changed while it was read"
            raise InputError(f"{problem}: give the command again when it is complete")

    rows = kept_values() if keep_columns else iter(())
    types = [pyarrow.string()] * len(keep_columns)
    if keep_columns and table_kind(path) == ".parquet":
        types = [pyarrow.parquet.read_schema(path).field(name).type for name in keep_columns]
    embedding = EMBEDDING_COLUMN, pyarrow.list_(pyarrow.float32(), dimensions)
    fields = [*zip(keep_columns, types, strict=True), embedding]
    schema = pyarrow.schema(fields, metadata={"tmft": to_json(settings)})
    with pyarrow.parquet.ParquetWriter(out, schema) as writer:
        while group := list(islice(blocks, GROUP_BLOCKS)):
            numbers = pyarrow.array(np.concatenate(group).reshape(-1))
            embeddings = pyarrow.FixedSizeListArray.from_arrays(numbers, dimensions)
            columns = zip(*islice(rows, len(embeddings)), strict=True)
            kept = [pyarrow.array(values, kind) for values, kind in zip(columns, types, strict=True)]
            writer.write_table(pyarrow.table([*kept, embeddings], schema=schema))
    deque(rows, maxlen=0)  # at its end a text is noticed that has more lines by now
