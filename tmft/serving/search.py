"""Find the texts of a corpus, or the lines of a file, whose embeddings are nearest to that of a query."""

import hashlib
import heapq
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import NamedTuple, get_type_hints

import numpy as np
from torch import Tensor

from tmft.device import progress_bar
from tmft.embedding.prompts import (
    DOCUMENT_PROMPT_NAMES,
    QUERY_PROMPT_NAMES,
    choose_prompt,
    first_prompt_name,
)
from tmft.errors import MAX_COUNT, InputError, check_range, short_repr
from tmft.io.arguments import check_arguments
from tmft.io.files import is_file, read_json, reading
from tmft.io.tables import read_texts
from tmft.sentence_encoder import SentenceEncoder, check_finite_embeddings
from tmft.serving.embedding_identity import line_bytes, model_record, names_that_differ
from tmft.serving.encode_file import (
    batched,
    check_embedding_precision,
    is_parquet,
    metadata_path,
    to_precision,
)
from tmft.tokenizer import check_sentences


def retrieval_prompts(
    model: SentenceEncoder, query_prompt: str | None = None, document_prompt: str | None = None
) -> tuple[str, str]:
    """Return the prompts of a query and of the documents that are searched for it: those given, if not None.

    Otherwise they are those of `SentenceEncoder.encode_query` and `encode_document`, if the model has a
    prompt for one of the two, and else its default prompt.
    """
    prompts, default_name = model.prompts, model.default_prompt_name
    names = [first_prompt_name(prompts, known) for known in (QUERY_PROMPT_NAMES, DOCUMENT_PROMPT_NAMES)]
    query, document = (choose_prompt(prompts, default_name, name) for name in names)
    if not (query or document):
        query = document = choose_prompt(prompts, default_name)
    return query if query_prompt is None else query_prompt, (
        document if document_prompt is None else document_prompt
    )


class SearchHit(NamedTuple):
    """A text that a search has found.

    score: its similarity to the query. text: the text. corpus_id: its index in the corpus, the first one if
    the corpus has the text several times.
    """

    score: float
    text: str
    corpus_id: int


def search(
    model: str | PathLike[str] | SentenceEncoder,
    queries: str | Iterable[str],
    corpus: Iterable[str],
    top_k: int = 10,
    corpus_embeddings: np.ndarray | Tensor | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    show_progress_bar: bool = False,
) -> list[list[SearchHit]]:
    """Return for each query the texts of a corpus that are most similar to it, the most similar one first.

    A hit has a score, a text and a corpus_id, its index in the corpus. Equal texts are found once, and empty
    ones not at all.
    model: a hub id, a folder, or a SentenceEncoder. Its similarity function ranks the texts.
    queries: a list of texts; a single text is a list of one.
    corpus: the texts that are searched.
    top_k: how many texts to return for each query.
    corpus_embeddings: the embeddings of the corpus, (N, D), if they were computed before, as by
        model.encode_document(corpus); None embeds the corpus in each call.
    query_prompt, document_prompt: the prompts of the queries and of the corpus; None: those that the model
        has for queries and documents or, if it has neither, its default prompt for both.
    show_progress_bar: show the progress on stderr.
    Raises InputError for an argument of a wrong type or out of range and for corpus_embeddings of another
    shape, and TypeError if queries or corpus have something else than strings.

    Example:

    >>> from tmft import search
    >>> corpus = ["Dogs sleep.", "A man plays a guitar.", "It is cold."]
    >>> [hits] = search("data/tiny", "Someone makes music.", corpus, top_k=2)
    >>> hits[0].text, hits[0].corpus_id, round(hits[0].score, 2)
    ('A man plays a guitar.', 1, 0.5)
    """
    given = {name: value for name, value in locals().items() if name not in ("queries", "corpus")}
    check_arguments(given, get_type_hints(search))
    check_range("top_k", top_k, 1, MAX_COUNT)
    queries = check_sentences([queries] if isinstance(queries, str) else queries)
    corpus = check_sentences(corpus)
    if not isinstance(model, SentenceEncoder):
        model = SentenceEncoder.from_pretrained(model)
    read_embeddings = None
    if corpus_embeddings is not None:
        shape, expected = tuple(corpus_embeddings.shape), (len(corpus), model.dimensions)
        if shape != expected:
            raise InputError(
                f"corpus_embeddings have the shape {shape}: give those of the corpus, {expected}",
                "corpus_embeddings",
            )
        check_finite_embeddings(corpus_embeddings, corpus)
        read_embeddings = lambda start, texts: corpus_embeddings[start : start + len(texts)]  # noqa: E731
    prompts = retrieval_prompts(model, query_prompt, document_prompt)
    return search_blocks(model, queries, corpus, top_k, prompts, read_embeddings, show_progress_bar)


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
    prompts = retrieval_prompts(model, query_prompt, document_prompt)
    saved = SavedVectors(vectors, model, prompts[1]) if vectors else None
    read_embeddings = saved.read if saved else None
    lines = read_texts(path, column)
    [hits] = search_blocks(model, [query], lines, count, prompts, read_embeddings, show_progress_bar=True)
    if saved:
        saved.check(path)
    if not hits:
        raise InputError(f"{path} has no text: give a file with a sentence per line")
    return [(hit.score, hit.text) for hit in hits]


def search_blocks(
    model: SentenceEncoder,
    queries: list[str],
    corpus: Iterable[str],
    top_k: int,
    prompts: tuple[str, str],
    read_embeddings: Callable[[int, list[str]], np.ndarray | Tensor] | None,
    show_progress_bar: bool,
) -> list[list[SearchHit]]:
    """Return what `search` returns, reading a corpus of any length once and keeping one block of it.

    prompts: that of the queries and that of the corpus. read_embeddings(start, texts): the embeddings of N
    texts of the corpus from index `start` on, (N, D), called for all of them in order; None embeds them.
    The other parameters are those of `search`.
    """
    u = model.encode(queries, prompt=prompts[0])  # (Q, D)
    best: list[list[SearchHit]] = [[] for _ in queries]
    start, what = 0, "search" if read_embeddings else "encode"
    with progress_bar(None, "lines", show_progress_bar, desc=what) as bar:
        for block in batched(corpus):
            stored = read_embeddings(start, block) if read_embeddings else None
            found = [{hit.text for hit in hits} for hits in best]
            # distinct texts that are new to a query -> their indices in the block
            indices: dict[str, int] = {}
            for index, text in enumerate(block):
                if text.strip() and not all(text in texts for texts in found):
                    indices.setdefault(text, index)
            if texts := list(indices):
                v = model.encode(texts, prompt=prompts[1]) if stored is None else stored[[*indices.values()]]
                for query, row in enumerate(model.similarity(u, v)):  # (N,)
                    lowest = row.topk(min(top_k, len(row))).values[-1]
                    for n in (row >= lowest).nonzero().flatten().tolist():  # of equal ones the text decides
                        if texts[n] not in found[query]:
                            hit = SearchHit(row[n].item(), texts[n], start + indices[texts[n]])
                            best[query].append(hit)
                    best[query] = heapq.nlargest(top_k, best[query])
            start += len(block)
            bar.update(len(block))
    return best


class SavedVectors:
    """The embeddings that encode_file has written, read from the beginning to the end.

    path: the .npy file, which is memory-mapped. Rounded embeddings are compared with a query that is not.
    Raises InputError unless they are embeddings by this model, with this prompt.
    """

    def __init__(self, path: Path, model: SentenceEncoder, prompt: str):
        if is_parquet(path):
            raise InputError(f"vectors {path}: a search reads .npy: encode to such a file", "vectors")
        if not is_file(metadata_path(path)):
            problem = f"vectors {path}: {metadata_path(path)}, which encode writes beside it, is missing"
            raise InputError(f"{problem}: write both with encode", "vectors")
        with reading(f"vectors {path}", "encode again"):
            self.metadata = read_json(metadata_path(path))
            record = self.metadata.get("model", {})
            names = names_that_differ(record, model_record(model, prompt))
            if "prompt" in names and "prompt" in record:
                both = f"prompt {short_repr(record['prompt'])} instead of {short_repr(prompt)}"
                names[names.index("prompt")] = both
            if names:
                problem = f"vectors {path}: they were made with another model ({', '.join(names)})"
                raise InputError(f"{problem}: give the same model and options, or encode again", "vectors")
            self.embeddings = np.load(path, mmap_mode="r", allow_pickle=False)
            self.precision = self.metadata.get("embedding_precision", "float32")
            row = to_precision(np.zeros((1, model.dimensions), np.float32), self.precision)
            shape, dtype = self.embeddings.shape, self.embeddings.dtype
            if len(shape) != 2 or shape[1:] != row.shape[1:] or dtype != row.dtype:
                raise ValueError(f"they are {shape} {dtype}, expected (N, {row.shape[1]}) {row.dtype}")
        check_embedding_precision(model, self.precision)
        self.path, self.text, self.hash = path, hashlib.sha256(), hashlib.sha256()

    def read(self, start: int, lines: list[str]) -> np.ndarray:
        """Return the embeddings of N lines from index `start` on, (N, D) float32; they must all be there."""
        block = np.array(self.embeddings[start : start + len(lines)])
        if len(block) < len(lines):
            raise self.text_error("the text has more lines than there are embeddings")
        self.text.update(b"".join(map(line_bytes, lines)))
        self.hash.update(block.data)
        if self.precision == "binary":
            return np.unpackbits(block, axis=1).astype(np.float32) * 2 - 1  # the signs as 1 and -1
        return block.astype(np.float32)

    def check(self, path: Path) -> None:
        """Raise InputError unless the embeddings that were read are unchanged and those of the text, path."""
        if self.text.hexdigest() != self.metadata.get("text"):
            raise self.text_error(f"they belong to another text than {path}, or to an earlier version of it")
        if self.hash.hexdigest() != self.metadata.get("vectors"):
            raise InputError(f"vectors {self.path}: the file was changed or damaged: encode again", "vectors")

    def text_error(self, problem: str) -> InputError:
        """Return the error about a text that does not go with the embeddings."""
        return InputError(f"vectors {self.path}: {problem}: encode again, or name their text", "vectors")
