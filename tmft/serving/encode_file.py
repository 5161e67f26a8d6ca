"""Embed a file of any size, by lines or by the rows of a table, in bounded memory.

The lines are embedded in blocks of BLOCK_SIZE, independently of each other. So the bytes of the result do not
depend on whether the run was interrupted, nor on how many processes took turns with the blocks. Until all are
there, each block is a file in the folder vectors.npy.parts, in which only one command works. Its name is a
digest of the model and of its lines: a block whose file exists is not embedded again, and if the model or the
text has changed, the blocks have other names. At the end the blocks are joined.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from tmft.device import progress_bar
from tmft.errors import InputError
from tmft.io.atomic import folder_lock, write_file, writing
from tmft.io.distributed import Processes
from tmft.io.files import digest, reading
from tmft.io.tables import read_texts
from tmft.io.text import STDIN
from tmft.sentence_encoder import SentenceEncoder

T = TypeVar("T")
BLOCK_SIZE = 1024  # lines that are embedded together
EMPTY_LINE = "."  # text that is embedded for an empty line, so that row i is always line i


def encode_file(
    model: SentenceEncoder, path: Path, out: Path, processes: Processes, column: str | None = None
) -> tuple[int, int]:
    """Embed the lines of a file and write a .npy file, (N, D) float32; row i is the embedding of line i.

    path: a text file, also .gz or .xz; "-" is standard input, which only a single process can read.
    column: name of a column of a table (tmft/io/tables.py), whose rows are embedded in place of lines.
    processes: each of them embeds a part of the lines.
    Returns N, and the number of lines of this process that an interrupted run had already embedded.
    Raises InputError if an embedding is not finite, or if nothing can be written.
    """
    if out.suffix.lower() not in ("", ".npy"):  # such as .csv, which the file would not be
        raise InputError(f"out {out}: embeddings are written as .npy: end the name so", "out")
    if path == STDIN and processes.world_size > 1:
        raise InputError("standard input cannot be shared by several processes: name a file")
    total = None
    if path != STDIN:  # which can be read only once; a mistake in a file is found before anything is embedded
        total = sum(1 for _ in read_texts(path, column))
    name = model_digest(model)
    processes.check_same_files({"model": name})
    processes.check_shared_folder(out.parent)  # the main process reads what all of them have embedded
    with blocks_folder(out, processes) as folder:
        blocks: list[Path] = []
        count = num_resumed = 0
        with progress_bar(total, "lines", desc="encode") as bar:
            for number, lines in enumerate(batched(read_texts(path, column))):
                block = folder / f"{digest(json.dumps([name, lines]))}.npy"
                if number % processes.world_size == processes.rank:
                    if block.exists():
                        num_resumed += len(lines)
                    else:
                        texts = [line if line.strip() else EMPTY_LINE for line in lines]
                        write_file(block, partial(np.save, arr=np.asarray(model.encode(texts), "<f4")))
                blocks.append(block)
                count += len(lines)
                bar.update(len(lines))
        processes.check_same_files({"text": digest(" ".join(block.name for block in blocks))})
        if processes.rank == 0:  # all of them have come so far
            write_file(out, partial(join_blocks, blocks, (count, model.dimensions)))
            for file in folder.glob("*.npy"):  # also those of another model or text
                file.unlink()
        processes.barrier()
    return count, num_resumed


def batched(lines: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of BLOCK_SIZE lines; the last list may be shorter."""
    lines = iter(lines)
    while block := list(islice(lines, BLOCK_SIZE)):
        yield block


@contextmanager
def blocks_folder(out: Path, processes: Processes) -> Iterator[Path]:
    """Make the folder of the blocks, and keep other commands out of it until the result is complete.

    At the end it is removed, unless there are blocks in it.
    """
    folder = out.with_name(f"{out.name}.parts")
    lock: AbstractContextManager[None] = nullcontext()
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
                with suppress(OSError):  # it is not empty
                    folder.rmdir()


def join_blocks(blocks: list[Path], shape: tuple[int, int], out: Path) -> None:
    """Write a .npy file: its header, followed by the embeddings of all blocks. shape: (N, D)."""
    with open(out, "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            with reading(block, "remove it, and give the command again"):
                embeddings = np.load(block, allow_pickle=False)
            file.write(embeddings.data)


def model_digest(model: SentenceEncoder) -> str:
    """Return a digest of everything in a model that its embeddings depend on.

    Two models with equal digests give equal embeddings, up to the last digits, in which devices differ. The
    folder or hub id of the model is not part of it: a copy is the same model, and the same folder may get
    other weights.
    """
    encoder, tokenizer, weights = model.encoder, model.tokenizer, model.token_weights
    settings = {
        "encoder": [type(encoder).__name__, asdict(encoder.config), len(encoder.layers)],
        "pooling": [model.layers, model.pooling, model.include_prompt],
        "modules": [[type(module).__name__, module.config] for module in model.head_modules],
        "texts": [model.prompt, model.max_length, model.dimensions],
        "arithmetic": [str(model.dtype), model.reproducible],
        "tokenizer": [tokenizer.backend.to_str(), tokenizer.special_tokens, tokenizer.add_special_tokens],
        "token_weights": None if weights is None else [weights.prefix_length, weights.suffix_length],
    }
    result = hashlib.sha256(json.dumps(settings).encode())
    tensors = model.state_dict() | ({} if weights is None else {"token_weights": weights.table})
    for name, tensor in tensors.items():
        result.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().contiguous()
        result.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return result.hexdigest()
