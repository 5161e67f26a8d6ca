"""Compare downloaded files with their digest, which is their name in huggingface-hub's cache.

The cache stores the content of a file as models--OWNER--NAME/blobs/DIGEST, and snapshots/COMMIT/NAME is a
link to it. DIGEST is the SHA-256 of a large file (one in git LFS, such as the weights), and of others the
SHA-1 that git gives it; some mirrors name these by the plain SHA-1.

SHA-256 takes about 1.3 s per GB, so that a large file is read once: its size and time of change are then kept
in models--OWNER--NAME/.tmft/DIGEST, and it is read again only if they are others.
"""

import hashlib
import os
import re
from pathlib import Path

from tmft.errors import InputError
from tmft.io.atomic import write_file
from tmft.io.digest import read_blocks

REMEMBER_ABOVE = 1 << 20  # bytes: files up to this size are read each time


def blob_path(path: Path) -> Path | None:
    """Return the file in blobs/ that a file of huggingface-hub's cache is a link to; None for other files."""
    if not path.is_symlink():
        return None
    # One step only: the blob may be a link itself, to a store that several repositories share.
    blob = Path(os.path.normpath(path.parent.resolve() / os.readlink(path)))
    is_blob = blob.parent.name == "blobs" and re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", blob.name)
    return blob if is_blob else None


def is_intact(path: Path) -> bool:
    """Return whether a file of the cache has the digest that it is named after; True for other files.

    Raises OSError if the file cannot be read.
    """
    blob = blob_path(path)
    if blob is None:
        return True
    stat = blob.stat()
    record, content = blob.parent.parent / ".tmft" / blob.name, f"{stat.st_size} {stat.st_mtime_ns}\n"
    is_large = stat.st_size > REMEMBER_ABOVE
    if is_large and record.is_file() and record.read_text(encoding="utf-8", errors="replace") == content:
        return True
    if blob.name not in blob_digests(blob, stat.st_size, len(blob.name)):
        return False
    if is_large:
        try:
            write_file(record, content)
        except InputError:  # a cache that only others may write: the file is read again next time
            pass
    return True


def blob_digests(path: Path, size: int, length: int) -> list[str]:
    """Return the digests of a file with `length` hex digits, 40 or 64. size: of the file, in bytes."""
    hashes = [hashlib.sha256()] if length == 64 else [hashlib.sha1(b"blob %d\0" % size), hashlib.sha1()]
    for block in read_blocks(path):
        for one in hashes:
            one.update(block)
    return [one.hexdigest() for one in hashes]


def check_intact(path: Path) -> None:
    """Raise InputError if a file of the cache is damaged."""
    if not is_intact(path):
        raise InputError(
            f"{path} is damaged, its content does not have the digest that it is named after: remove "
            f"{blob_path(path)}, and the next run with a network downloads it again"
        )
