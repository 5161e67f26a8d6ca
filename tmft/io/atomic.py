"""Small files in and out: JSON that is what it should be, writing without tearing."""

import errno
import glob
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from tmft.errors import InputError

try:
    import fcntl
except ImportError:  # on Windows there are no locks of this kind
    fcntl = None


def read_json(path: Path, kind: type = dict) -> dict | list:
    """A JSON object (or list) from a file; InputError if it is no such thing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON ({reason(error)}): restore the file") from None
    if not isinstance(content, kind):
        raise InputError(f"{path} holds a {type(content).__name__}: expected a {kind.__name__}")
    return content


def reason(error: BaseException) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def write_file(path: Path, content: str | Callable[[Path], None]) -> None:
    """Write a file so that a crash at any moment leaves the old one or the new one, never a torn one.

    content: the text, or a function that writes to the path it is given.
    Raises InputError if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(path.parent) as scratch:
            new = Path(scratch) / path.name
            new.write_text("" if callable(content) else content, encoding="utf-8", newline="\n")
            mode = new.stat().st_mode  # as the umask wants it; safetensors writes for the owner's eyes only
            if callable(content):
                content(new)
                new.chmod(mode)
            flush(new)
            os.replace(new, path)
            flush(path.parent)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot write {path} ({reason(error)}): check space and permissions") from None


def flush(path: Path) -> None:
    """A file, or the names in a folder, onto the disk itself."""
    if path.is_dir() and os.name != "posix":
        return  # Windows opens no folders
    file = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # some disks have no such thing for folders
            raise
    finally:
        os.close(file)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A with block in a folder that only one process can be in; a killed one leaves nothing behind.

    Raises InputError if another process is. Where a disk knows no locks, nobody is kept out.
    """
    place = os.open(folder, os.O_RDONLY) if fcntl else None
    try:
        if fcntl:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(place)
        raise InputError(
            f"another process is at work in {folder}: wait for it, or choose another name", "name"
        ) from None
    except OSError:
        pass
    try:
        yield
    finally:
        if fcntl:
            os.close(place)


def scratch_folder(beside: Path) -> tempfile.TemporaryDirectory:
    """A folder for what is being written, on the same disk as the place it is for; gone when it is closed.

    Its name says whose it is. Those of processes of this machine that were killed meanwhile are removed.
    """
    here = f".writing-{socket.gethostname()}-"
    for old in beside.glob(f"{glob.escape(here)}*-*"):
        owner = old.name.removeprefix(here).partition("-")[0]
        if owner.isdecimal() and not is_alive(int(owner)):
            shutil.rmtree(old, ignore_errors=True)
    return tempfile.TemporaryDirectory(dir=beside, prefix=f"{here}{os.getpid()}-")


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # sends nothing
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def check_writable(*paths: Path | None) -> None:
    """Raises InputError for a file that could not be written at the end of the work; None is no file."""
    for path in filter(None, paths):
        place = next(folder for folder in path.absolute().parents if folder.exists())
        if path.is_dir():
            raise InputError(f"cannot write {path}: it is a folder, name a file")
        if not (place.is_dir() and os.access(place, os.W_OK)):
            raise InputError(f"cannot write {path}: {place} is not a folder that can be written")
