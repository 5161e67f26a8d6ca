"""Lines of plain text, one by one: .gz and .xz are decompressed while they are read, - is standard input."""

import gzip
import lzma
import sys
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TextIO

from tmft.errors import InputError
from tmft.io.atomic import reason

LONGEST = 1 << 24  # letters of a line: a few KB of a compressed file may hold gigabytes of one
OPEN = {".gz": gzip.open, ".xz": lzma.open}
STDIN = Path("-")


def read_lines(path: Path) -> Iterator[str]:
    """Every line of a file, empty ones too, without what ends it: a newline, perhaps with \\r before it.

    Raises InputError if the file is missing, damaged, or no text in UTF-8.
    """
    if path.is_char_device() or path.is_block_device():
        raise InputError(
            f"{path} is a device, which may have no end: name a text file, or - for standard input"
        )
    try:
        if path == STDIN:
            sys.stdin.reconfigure(encoding="utf-8", newline="\n")
            opened = nullcontext(sys.stdin)
        else:
            opened = OPEN.get(path.suffix, open)(path, "rt", encoding="utf-8-sig", newline="\n")
        with opened as lines:
            for line in bounded(lines, path):
                if "\0" in line:
                    raise InputError(f"{path} is not plain text: it has zero bytes; name a text file")
                yield line.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        what = f"{path} is not text in UTF-8 ({reason(error)})"
        raise InputError(f"{what}: convert it, or name another") from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({reason(error)}): check the name and the file") from None


def bounded(lines: TextIO, path: Path) -> Iterator[str]:
    """The lines of an open file. Raises InputError at one that has no end in sight."""
    for line in iter(partial(lines.readline, LONGEST), ""):
        if len(line) == LONGEST:
            raise InputError(
                f"{path} has a line of {LONGEST:,} letters or more: name a text with shorter lines"
            )
        yield line
