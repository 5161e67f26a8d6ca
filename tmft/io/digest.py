"""Digests of the content of files, which show whether a file has changed."""

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tmft.errors import InputError, describe_error

BLOCK_SIZE = 2**20  # bytes that are read at a time
MAX_BLOCKS = 64  # larger files are not read whole
DIGEST_LENGTH = 32  # hexadecimal digits


def file_digest(path: Path, max_blocks: int | None = MAX_BLOCKS) -> str:
    """Return a digest of the content of a file, DIGEST_LENGTH hexadecimal digits.

    max_blocks: of a file with more blocks of 1 MB, only this number of them is read, spread evenly from the
    first one to the last one; this finds every change of the size, and a training step, but not always the
    change of a single line. None: every file is read whole. Raises InputError if the file cannot be read.
    """
    try:
        state = path.stat()
        return cached_digest(path.absolute(), state.st_size, state.st_mtime_ns, max_blocks)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({describe_error(error)}): check the file") from None


@cache  # the runs of a sweep start from the same files
def cached_digest(path: Path, size: int, modified: int, max_blocks: int | None) -> str:
    """Return the digest of a file, as `file_digest` does, and remember it.

    size: of the file, in bytes. modified: its time, so that a changed file is read again. max_blocks: see
    `file_digest`.
    """
    num_blocks = -(-size // BLOCK_SIZE)
    sha = hashlib.sha256(str(size).encode())
    if max_blocks is None or num_blocks <= max_blocks:
        starts = None
    else:
        starts = [(size - BLOCK_SIZE) * n // (max_blocks - 1) for n in range(max_blocks)]
    for block in read_blocks(path, starts):
        sha.update(block)
    return sha.hexdigest()[:DIGEST_LENGTH]


def read_blocks(path: Path, starts: list[int] | None = None) -> Iterator[bytes]:
    """Yield the content of a file in blocks of BLOCK_SIZE bytes.

    starts: the positions, in bytes, at which the blocks begin; None: all blocks, one after the other. Raises
    OSError if the file cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        if starts is None:
            while block := file.read(BLOCK_SIZE):
                yield block
        else:
            for start in starts:
                file.seek(start)
                yield file.read(BLOCK_SIZE)
