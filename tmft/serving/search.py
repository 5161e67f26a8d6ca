"""Find the lines of a file whose embeddings are nearest to that of a query."""

import hashlib
import heapq
from pathlib import Path

import numpy as np

from tmft.device import progress_bar
from tmft.embedding.prompts import (
    DOCUMENT_PROMPT_NAMES,
    QUERY_PROMPT_NAMES,
    choose_prompt,
    first_prompt_name,
)
from tmft.errors import InputError, short_repr
from tmft.io.files import is_file, read_json, reading
from tmft.io.tables import read_texts
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.embedding_identity import LineDigest, model_record, names_that_differ
from tmft.serving.encode_file import (
    STORED_TYPES,
    batched,
    check_embedding_precision,
    from_precision,
    is_parquet,
    metadata_path,
    stored_width,
)


def retrieval_prompts(prompts: dict[str, str], default_prompt_name: str | None) -> tuple[str, str]:
    """Return the prompts of a query and of the documents that are searched for it.

    They are those of `SentenceEncoder.encode_query` and `encode_document`, if there is a prompt for one of
    the two. Otherwise both are the default prompt.
    """
    names = [first_prompt_name(prompts, known) for known in (QUERY_PROMPT_NAMES, DOCUMENT_PROMPT_NAMES)]
    query, document = (choose_prompt(prompts, default_prompt_name, name) for name in names)
    default = choose_prompt(prompts, default_prompt_name)
    return (query, document) if query or document else (default, default)


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
    `retrieval_prompts`.
    column: name of a column of a table (tmft/io/tables.py), whose rows are searched in place of lines.
    Returns [(similarity, line)], the highest similarity first, by the similarity function of the model.
    Raises InputError if the file has no text, if an embedding is not finite, or if the vectors belong to
    another model, prompt or text.
    """
    prompts = zip(
        (query_prompt, document_prompt),
        retrieval_prompts(model.prompts, model.default_prompt_name),
        strict=True,
    )
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

    path: the .npy file, which is memory-mapped. Rounded embeddings are compared with a query that is not.
    """

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
        names = names_that_differ(record, model_record(model, prompt))
        if "prompt" in names and "prompt" in record:
            both = f"prompt {short_repr(record['prompt'])} instead of {short_repr(prompt)}"
            names[names.index("prompt")] = both
        if names:
            problem = f"vectors {path}: they were made with another model ({', '.join(names)})"
            raise InputError(f"{problem}: give the same model and options, or encode again", "vectors")
        with reading(f"vectors {path}", "encode again"):
            if not is_file(path):  # to open a pipe would wait for its other end
                raise FileNotFoundError("there is no such file")
            self.embeddings = np.load(path, mmap_mode="r", allow_pickle=False)
            self.precision = self.metadata.get("embedding_precision", "float32")
            if not isinstance(self.precision, str) or self.precision not in STORED_TYPES:
                raise ValueError(f"their embedding_precision is {short_repr(self.precision)}")
        shape: tuple[int, ...] = getattr(self.embeddings, "shape", ())
        dtype = getattr(self.embeddings, "dtype", None)
        check_embedding_precision(model, self.precision)
        width, expected = stored_width(model.dimensions, self.precision), STORED_TYPES[self.precision]
        if len(shape) != 2 or shape[1] != width or dtype != expected:
            problem = f"vectors {path}: they are {shape} {dtype}, expected (N, {width}) {expected}"
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
        return from_precision(block, self.precision)

    def check(self, path: Path, text: LineDigest) -> None:
        """Raise InputError unless the embeddings that were read are unchanged and those of this text."""
        if text.num_lines != len(self.embeddings) or text.hexdigest != self.metadata.get("text"):
            raise self.text_error(f"they belong to another text than {path}, or to an earlier version of it")
        if self.hash.hexdigest() != self.metadata.get("vectors"):
            raise InputError(f"vectors {self.path}: the file was changed or damaged: encode again", "vectors")

    def text_error(self, problem: str) -> InputError:
        """Return the error about a text that does not go with the embeddings."""
        return InputError(f"vectors {self.path}: {problem}: encode again, or name their text", "vectors")
