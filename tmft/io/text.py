"""Read text files line by line. Files .gz and .xz are decompressed; "-" stands for standard input."""

import codecs
import gzip
import io
import lzma
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TextIO

from tmft.errors import InputError
from tmft.io.files import reading

MAX_LINE_LENGTH = 1 << 24  # characters; a few KB of a compressed file may become a line of gigabytes
OPENERS: dict[str, Callable[..., TextIO]] = {".gz": gzip.open, ".xz": lzma.open}
STDIN = Path("-")
UTF8 = "utf-8-sig"  # with or without a byte-order mark


def read_lines(path: Path, encoding: str = "") -> Iterator[str]:
    """Yield every line of a text file without its line end ("\\n" or "\\r\\n"), empty lines included.

    path: the file; "-" means standard input. encoding: of the file, if the user can choose it; else UTF-8.
    Raises InputError if the file is missing or damaged, is not text in UTF-8, or has a line that is too long.
    """
    if path.is_char_device() or path.is_block_device():
        raise InputError(
            f"{path} is a device, which may have no end: name a text file, or - for standard input"
        )
    with text_errors(path, encoding):
        if path == STDIN:
            if sys.stdin is None:
                raise InputError("standard input is closed: name a text file")
            if isinstance(sys.stdin, io.TextIOWrapper):  # a notebook replaces it by another class
                sys.stdin.reconfigure(encoding="utf-8", newline="\n")
            file = nullcontext(sys.stdin)
        else:
            file = OPENERS.get(path.suffix, open)(path, "rt", encoding=encoding or UTF8, newline="\n")
        with file as lines:
            for line in bounded_lines(lines, path):
                if "\0" in line:
                    raise InputError(f"{path} is not plain text: it has zero bytes; name a text file")
                yield line.removesuffix("\n").removesuffix("\r")


@contextmanager
def text_errors(path: Path, encoding: str = "") -> Iterator[None]:
    """Turn the errors of reading a text file, which may be compressed, into an InputError.

    encoding: of the text, if the user can choose it; else it is UTF-8. The message about another one guesses
    which it is.
    """
    with reading(path, "check the name and the file"):
        try:
            yield
        except UnicodeDecodeError as error:
            guess = f"byte 0x{error.object[error.start]:02x}; perhaps it is Latin-1 or Windows-1252"
            if error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                guess = "it begins like UTF-16"
            name = "UTF-8" if encoding in ("", UTF8) else encoding
            remedy = "name its `encoding`, such as cp1252" if encoding else "save it as UTF-8"
            raise InputError(f"{path} is not text in {name} ({guess}): {remedy}", "encoding") from None


def bounded_lines(file: TextIO, path: Path) -> Iterator[str]:
    """Yield the lines of an open file, with their line ends.

    path: its path, for the message. Raises InputError at a line of MAX_LINE_LENGTH characters or more.
    """
    for line in iter(partial(file.readline, MAX_LINE_LENGTH), ""):
        if len(line) == MAX_LINE_LENGTH:
            raise InputError(
                f"{path} has a line of {MAX_LINE_LENGTH:,} characters or more: name a text with shorter lines"
            )
        yield line
