"""Embed a file of any size, by lines or by the rows of a table, in bounded memory; find the nearest lines.

The lines are embedded in blocks of BLOCK_SIZE, independently of each other. So the bytes of the result do not
depend on whether the run was interrupted, nor on how many processes shared the lines. Each process appends
the embeddings of its blocks to a part file. If the part file exists at the start, it is resumed. At the end
the part files are concatenated.

The part files are in a folder that only the user can enter. Next to the result, such as vectors.npy, a file
vectors.npy.json records the model and the text, so that a search can check that the embeddings belong to
both. If the name of the result ends with .parquet, it is a Parquet file, which has the record as well.

Shapes: N lines, D dimensions of an embedding.
"""

import hashlib
import heapq
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tmft.device import progress_bar
from tmft.distributed import Processes
from tmft.errors import InputError, describe_error, short_repr
from tmft.io.atomic import check_writable, folder_lock, private_folder, read_json, write_file
from tmft.io.files import is_file
from tmft.io.tables import check_pyarrow, read_columns, read_parquet, read_texts, table_kind
from tmft.io.text import STDIN
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.embedding_identity import LineDigest, different_settings, model_record

BLOCK_SIZE = 1024  # lines that are embedded together
PARQUET_ROWS = 1 << 14  # rows of a group, which is written at once
EMBEDDING_COLUMN = "embedding"  # of a Parquet file that encode_file writes
EMPTY_LINE = "."  # text that is embedded for an empty line, so that row i is always line i
PART_FLAGS = getattr(os, "O_NOFOLLOW", 0)  # flag for os.open, which Windows does not have


def encode_file(
    model: SentenceEncoder,
    path: Path,
    out: Path,
    processes: Processes,
    column: str | None = None,
    keep_columns: Sequence[str] = (),
) -> tuple[int, int]:
    """Embed the lines of a file and write a .npy file, (N, D) float32; row i is the embedding of line i.

    path: a text file, also .gz or .xz; "-" is standard input, which only a single process can read.
    out: the .npy file to write; the model and the text are recorded in <out>.json. A name that ends with
        .parquet becomes a Parquet file with a column, embedding, of lists of D float32.
    column: name of a column of a table (tmft/io/tables.py), whose rows are embedded in place of lines.
    keep_columns: names of columns of the table that are written into the Parquet file beside the embeddings.
    processes: each of them embeds a part of the lines.
    Returns N, and the number of lines of this process that an interrupted run had already embedded.
    Raises InputError if a part file belongs to another model or text, if an embedding is not finite, or if
    nothing can be written.
    """
    rank, world_size = processes.rank, processes.world_size
    check_writable(out, metadata_path(out), inputs=[path])
    check_keep_columns(path, out, column, keep_columns)
    if is_parquet(out):
        check_pyarrow(out)
    if path == STDIN and world_size > 1:
        raise InputError("standard input cannot be shared by several processes: name a file")
    count, text_digest = None, None
    if path != STDIN:
        text = LineDigest()
        count = sum(1 for _ in text(read_texts(path, column)))
        text_digest = text.hexdigest
    blocks = -(-(count or 0) // BLOCK_SIZE)
    begin, end = 0, count  # this process embeds the lines from begin to end - 1
    if count is not None:
        begin, end = (min(count, blocks * n // world_size * BLOCK_SIZE) for n in (rank, rank + 1))
    record = model_record(model)
    settings = {"model": record, "text": text_digest, "lines": count}
    processes.check_same_files(record | {"text": text_digest})
    processes.check_shared_folder(out.parent)  # the main process reads what all of them have embedded
    folder = out.with_name(f"{out.name}.parts")
    private_folder(folder)
    parts = [
        PartFile(folder / f"part-{n}-of-{world_size}", settings, model.dimensions) for n in range(world_size)
    ]
    part = parts[rank]
    part.create()
    with folder_removed_if_empty(folder), folder_lock(part.path), removed_if_empty(part):
        num_resumed = part.resume()
        text = LineDigest()  # of standard input; a file has been read before
        lines = text(islice(read_texts(path, column), begin, end))
        part.check_text(lines, text, num_resumed)
        total = None if end is None else end - begin
        with progress_bar(total, "lines", initial=num_resumed, desc="encode") as bar:
            for block in batched(lines):
                embeddings = model.encode([line if line.strip() else EMPTY_LINE for line in block])
                part.append_digest(text)  # first: a digest without its block is cut off again
                part.append(np.asarray(embeddings))
                bar.update(len(block))
    num_embedded = part.num_embeddings
    processes.barrier()
    if rank == 0:
        vectors = hashlib.sha256()
        settings = settings | {"text": text_digest or text.hexdigest}
        if is_parquet(out):
            kept = KeptColumns(path, keep_columns)
            write_file(out, lambda new: parts_to_parquet(parts, new, vectors, settings, kept))
        else:
            write_file(out, lambda new: concatenate_parts(parts, new, vectors))
        written = {"lines": sum(part.num_embeddings for part in parts), "vectors": vectors.hexdigest()}
        write_file(metadata_path(out), to_metadata(settings | written))
        for part in parts:
            part.remove()
        with suppress(OSError):  # part files of another number of processes may be left
            folder.rmdir()
    processes.barrier()
    return num_embedded if count is None else count, num_resumed


@contextmanager
def folder_removed_if_empty(folder: Path) -> Iterator[None]:
    """Remove a folder if an error ends the with block and no files are left in it, such as other parts.

    The lock on a part has to be given up before: NFS and FUSE keep a removed file as long as it is open.
    """
    try:
        yield
    except InputError:
        with suppress(OSError):
            folder.rmdir()
        raise


@contextmanager
def removed_if_empty(part: "PartFile") -> Iterator[None]:
    """Remove a part file if an error ends the with block before anything was embedded."""
    try:
        yield
    except InputError:
        if part.num_embeddings == 0:
            part.remove()
        raise


def metadata_path(vectors: Path) -> Path:
    """Return the path of the JSON file that records from which model and text a .npy file was made.

    vectors: that file.
    """
    return vectors.with_name(f"{vectors.name}.json")


def to_metadata(settings: dict[str, Any]) -> str:
    """Return settings, which record the model and the text of embeddings, as the content of a JSON file."""
    return json.dumps(settings, indent=2) + "\n"


def batched(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of BLOCK_SIZE lines; the last list may be shorter."""
    lines = iter(lines)
    while block := list(islice(lines, BLOCK_SIZE)):
        yield block


@dataclass
class PartFile:
    """The embeddings of one process: float32 numbers without a header, and a JSON file with their settings.

    If the text is standard input, which cannot be read before it is embedded, a third file has a digest of
    the text up to the end of each block.

    path: the file of embeddings. settings: the model, the digest of the text and its number of lines; the
    last two are None for standard input. width: number of dimensions D of an embedding.
    """

    path: Path
    settings: dict[str, Any]
    width: int

    @property
    def metadata_path(self) -> Path:
        """The path of the JSON file."""
        return metadata_path(self.path)

    @property
    def digests_path(self) -> Path:
        """The file with the digests of the lines in this part."""
        return self.path.with_name(f"{self.path.name}.digests")

    @property
    def num_embeddings(self) -> int:
        """The number of embeddings in the file."""
        return self.path.stat().st_size // (4 * self.width)

    def create(self) -> None:
        """Create an empty file if the file does not exist."""
        self._write(self.path, b"")

    def resume(self) -> int:
        """Return the number of embeddings in the file that can be kept, those of whole blocks.

        The last block is not kept. Every block is on the disk before the next one is appended, but after a
        power failure the last one may be zeros, on file systems that store the size of a file before its
        content. Raises InputError if there are embeddings of another model or text.
        """
        count = self.num_embeddings
        if count != self.settings.get("lines"):  # the last block may be incomplete
            count = count // BLOCK_SIZE * BLOCK_SIZE
        if not is_file(self.metadata_path):
            count = 0
        elif count and (before := read_json(self.metadata_path)) != self.settings:
            old, new = before.get("model"), self.settings.get("model")
            names = []
            if isinstance(old, dict) and isinstance(new, dict):
                names = different_settings(old, new)
            other = f"another model ({', '.join(names)})" if names else "another text, or an earlier version"
            problem = f"{self.path.parent} has embeddings of {other}, from a command that was interrupted"
            raise InputError(f"{problem}: remove it, or write to another file with `out`", "out")
        if count == 0:
            write_file(self.metadata_path, to_metadata(self.settings))
        return max(0, count - 1) // BLOCK_SIZE * BLOCK_SIZE

    def check_text(self, lines: Iterator[str], text: LineDigest, count: int) -> None:
        """Skip the lines that are already embedded, and remove all embeddings after them.

        lines: all lines of this process, which pass through `text`. count: number of lines to skip, as
        `resume` returns it. Raises InputError, and removes nothing, if standard input has other lines than
        the interrupted run had.
        """
        for _ in islice(lines, count):
            pass
        if self.settings.get("text") is None:
            self._check_digests(text, count)
        self._truncate(self.path, count * 4 * self.width)

    def _check_digests(self, text: LineDigest, count: int) -> None:
        """Compare standard input with the interrupted run. text: the digest of its first `count` lines."""
        digests = self.digests_path.read_bytes() if is_file(self.digests_path) else b""
        num_blocks = -(-count // BLOCK_SIZE)
        if count and digests[32 * (num_blocks - 1) : 32 * num_blocks] != text.digest:
            problem = f"standard input has other lines than those that {self.path.parent} was made from"
            raise InputError(f"{problem}: remove it, or write to another file with `out`", "out")
        self._truncate(self.digests_path, 32 * num_blocks)

    def append(self, embeddings: np.ndarray) -> None:
        """Append embeddings, (number of lines, D). Raises InputError if they cannot be written."""
        self._write(self.path, np.ascontiguousarray(embeddings, dtype="<f4").data)

    def append_digest(self, text: LineDigest) -> None:
        """Append the digest of all lines so far, if the text is standard input."""
        if self.settings.get("text") is None:
            self._write(self.digests_path, text.digest)

    def _write(self, path: Path, content: bytes | memoryview) -> None:
        """Append to a file of this part, which is created if it does not exist, and wait for the disk."""
        try:
            with open(path, "ab", opener=open_part) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            problem = f"cannot write {path} ({describe_error(error)}): check space and permissions"
            raise InputError(f"{problem}; the same command resumes there") from None

    def _truncate(self, path: Path, size: int) -> None:
        self._write(path, b"")
        os.truncate(path, size)

    def remove(self) -> None:
        """Remove the files of this part."""
        for path in (self.path, self.metadata_path, self.digests_path):
            path.unlink(missing_ok=True)


def open_part(path: str, flags: int) -> int:
    """Open the part file at path for appending, without following a symbolic link.

    flags: those of os.open.
    """
    return os.open(path, flags | PART_FLAGS, 0o600)


def concatenate_parts(parts: list[PartFile], out: Path, digest: Any) -> None:
    """Write a .npy file: its header, followed by the embeddings of all part files in order.

    parts: the part files. out: the new file. digest: an object of hashlib, which is updated with the
    contents.
    """
    shape = sum(part.num_embeddings for part in parts), parts[0].width
    with open(out, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for part in parts:
            with open(part.path, "rb") as source:
                while block := source.read(1 << 24):
                    file.write(block)
                    digest.update(block)


def is_parquet(path: Path) -> bool:
    """Return whether a file of embeddings is a Parquet file by its name."""
    return path.suffix.lower() == ".parquet"


def check_keep_columns(path: Path, out: Path, column: str | None, names: Sequence[str]) -> None:
    """Read the columns that are to be kept, once.

    path, out, column, names: path, out, column and keep_columns of `encode_file`. Raises InputError if they
    cannot be read or written.
    """
    if not names:
        return
    if column is None or not is_parquet(out):
        problem = "keep_columns are written only from a table into a Parquet file"
        remedy = "name the column of the texts with `column`, and an `out` that ends with .parquet"
        raise InputError(f"{problem}: {remedy}", "keep_columns", "column", "out")
    for name in names:
        if name == EMBEDDING_COLUMN or names.count(name) > 1:
            raise InputError(f"keep_columns: two columns would be named {name!r}: rename one", "keep_columns")
    for _ in read_columns(path, names):
        pass


class KeptColumns:
    """Columns of a table that are written beside the embeddings; row i is that of embedding i.

    Those of a Parquet file keep their types, all others are texts. path: the table. names: of the columns.
    """

    path: Path
    names: list[str]
    types: list[Any]

    def __init__(self, path: Path, names: Sequence[str]):
        import pyarrow
        import pyarrow.parquet

        self.path, self.names = path, list(names)
        is_text = table_kind(path) != ".parquet"
        self.rows = (values for _, values in (read_columns if is_text else read_parquet)(path, self.names))
        self.types = [pyarrow.string()] * len(names)
        if names and not is_text:
            schema = pyarrow.parquet.read_schema(path)
            self.types = [schema.field(name).type for name in names]

    def read(self, count: int) -> list[Any]:
        """Return the values of the next `count` rows, an array of pyarrow for each column.

        Raises InputError if there are not so many rows.
        """
        import pyarrow

        if not self.names:
            return []
        rows = list(islice(self.rows, count))
        if len(rows) < count:
            raise InputError(f"{self.path} has fewer rows than before: encode it again")
        columns = zip(*rows, strict=True)
        return [pyarrow.array(values, kind) for values, kind in zip(columns, self.types, strict=True)]


def parts_to_parquet(
    parts: list[PartFile], out: Path, digest, record: dict[str, Any], kept: KeptColumns
) -> None:
    """Write a Parquet file with the embeddings of all part files in order, in the column embedding.

    parts: the part files. out: the new file. digest: an object of hashlib, which is updated with the
    embeddings. record: the model and the text, which are written into the file as JSON under the name tmft.
    kept: columns that come before the embeddings.
    """
    import pyarrow
    import pyarrow.parquet

    width = parts[0].width
    fields = [*zip(kept.names, kept.types, strict=True)]
    fields.append((EMBEDDING_COLUMN, pyarrow.list_(pyarrow.float32(), width)))
    schema = pyarrow.schema(fields, metadata={"tmft": to_metadata(record)})
    with pyarrow.parquet.ParquetWriter(out, schema) as writer:
        for part in parts:
            with open(part.path, "rb") as source:
                while block := source.read(4 * width * PARQUET_ROWS):
                    numbers = pyarrow.array(np.frombuffer(block, "<f4"))
                    column = pyarrow.FixedSizeListArray.from_arrays(numbers, width)
                    columns = [*kept.read(len(column)), column]
                    writer.write_table(pyarrow.table(columns, schema=schema))
                    digest.update(block)


def nearest_lines(
    model: SentenceEncoder,
    query: str,
    path: Path,
    count: int = 10,
    vectors: Path | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    column: str | None = None,
) -> list[tuple[float, str]]:
    """Return the lines of a file whose embeddings are most similar to the embedding of a query.

    path: a text file, also .gz or .xz. count: number of lines to return; equal lines count once.
    vectors: .npy file with the embeddings of these lines, written by `encode_file`; None embeds the lines.
    query_prompt, document_prompt: the prompts of the query and of the lines; None takes those of
    `SentenceEncoder.retrieval_prompts`.
    column: name of a column of a table (tmft/io/tables.py), whose rows are searched in place of lines.
    Returns [(similarity, line)], the highest similarity first, by the similarity function of the model.
    Raises InputError if the file has no text, if an embedding is not finite, or if the vectors belong to
    another model, prompt or text.
    """
    prompts = zip((query_prompt, document_prompt), model.retrieval_prompts, strict=True)
    query_prompt, document_prompt = (own if given is None else given for given, own in prompts)
    u = model.encode([query], prompt=query_prompt)
    best: list[tuple[float, str]] = []
    seen: set[str] = set()
    saved = SavedVectors(vectors, model, document_prompt) if vectors else None
    text = LineDigest()
    with progress_bar(None, "lines", desc="search" if saved else "encode") as bar:
        for block in batched(text(read_texts(path, column))):
            embeddings = saved.read(len(block)) if saved else None
            texts: dict[str, int] = {}  # distinct lines -> their indices in the block
            for index, line in enumerate(block):
                if line.strip() and line not in seen:
                    texts.setdefault(line, index)
            if texts:
                if embeddings is not None:
                    v = embeddings[list(texts.values())]
                else:
                    v = np.asarray(model.encode(list(texts), prompt=document_prompt))
                similarities = model.similarity(u, v)[0].tolist()
                best = heapq.nlargest(count, [*best, *zip(similarities, texts, strict=True)])
                seen = {line for _, line in best}
            bar.update(len(block))
    if saved:
        saved.check(path, text)
    if not best:
        raise InputError(f"{path} has no text: give a file with a sentence per line")
    return best


class SavedVectors:
    """The embeddings that encode_file has written, read from the beginning to the end.

    path: the .npy file, (N, D) float32, which is memory-mapped. model: the model that embeds the query.
    prompt: the prompt that the lines must have been embedded with.
    Raises InputError if the file is damaged or was made with another model or prompt.
    """

    path: Path
    num_read: int
    metadata: dict[str, Any]
    embeddings: Any

    def __init__(self, path: Path, model: SentenceEncoder, prompt: str):
        self.path, self.num_read, self.hash = path, 0, hashlib.sha256()
        if is_parquet(path):
            raise InputError(f"vectors {path}: a search reads .npy: encode to such a file", "vectors")
        if not is_file(metadata_path(path)):
            problem = f"vectors {path}: {metadata_path(path)}, which encode writes beside it, is missing"
            raise InputError(f"{problem}: write both with encode", "vectors")
        self.metadata = read_json(metadata_path(path))
        record = self.metadata.get("model")
        record = record if isinstance(record, dict) else {}
        names = different_settings(record, model_record(model, prompt))
        if "prompt" in names and "prompt" in record:
            both = f"prompt {short_repr(record['prompt'])} instead of {short_repr(prompt)}"
            names[names.index("prompt")] = both
        if names:
            problem = f"vectors {path}: they were made with another model ({', '.join(names)})"
            raise InputError(f"{problem}: give the same model and options, or encode again", "vectors")
        try:
            self.embeddings = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(
                f"vectors {path} cannot be read ({describe_error(error)}): encode again", "vectors"
            ) from None
        shape: tuple[int, ...] = getattr(self.embeddings, "shape", ())
        dtype = getattr(self.embeddings, "dtype", None)
        if len(shape) != 2 or shape[1] != model.dimensions or dtype != np.dtype("<f4"):
            problem = f"vectors {path}: they are {shape} {dtype}, expected (N, {model.dimensions}) float32"
            raise InputError(f"{problem}: encode again", "vectors")

    def read(self, count: int) -> np.ndarray:
        """Return the next embeddings, (count, D). Raises InputError if there are not so many."""
        block = np.array(self.embeddings[self.num_read : self.num_read + count])
        if len(block) < count:
            raise self.text_error("the text has more lines than there are embeddings")
        self.num_read += count
        self.hash.update(block.data)
        if not np.isfinite(block).all():
            problem = f"vectors {self.path}: they have values that are not finite"
            raise InputError(f"{problem}: encode again", "vectors")
        return block

    def check(self, path: Path, text: LineDigest) -> None:
        """Raise InputError unless the embeddings that were read are unchanged and those of this text.

        path: of the text, for the message. text: of all its lines.
        """
        if text.num_lines != len(self.embeddings) or text.hexdigest != self.metadata.get("text"):
            raise self.text_error(f"they belong to another text than {path}, or to an earlier version of it")
        if self.hash.hexdigest() != self.metadata.get("vectors"):
            raise InputError(f"vectors {self.path}: the file was changed or damaged: encode again", "vectors")

    def text_error(self, problem: str) -> InputError:
        """Return the error about a text that does not go with the embeddings.

        problem: what is wrong with it.
        """
        return InputError(f"vectors {self.path}: {problem}: encode again, or name their text", "vectors")
