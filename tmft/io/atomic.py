"""Reading JSON, writing files atomically, and a lock on a folder."""

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
except ImportError:  # Windows has no fcntl: no locks there
    fcntl = None


def read_json(path: Path, kind: type = dict) -> dict | list:
    """Read a JSON file whose top level is of the type `kind`, dict or list.

    Raises InputError if the file cannot be read, is not JSON, or holds another type.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error_text(error)}): restore the file") from None
    if not isinstance(content, kind):
        raise InputError(f"{path} holds a {type(content).__name__}: expected a {kind.__name__}")
    return content


def error_text(error: BaseException) -> str:
    """Return the message of an exception on one line of at most 200 characters, else its type."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def write_file(path: Path, content: str | Callable[[Path], None]) -> None:
    """Write a file atomically: a crash at any moment leaves either the old file or the new one.

    content: the text, or a function that writes a file at the path it is called with.
    Raises InputError if the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_sibling(path.parent) as temporary_folder:
            new = Path(temporary_folder) / path.name
            new.write_text("" if callable(content) else content, encoding="utf-8", newline="\n")
            mode = new.stat().st_mode  # as the umask has it; safetensors lets only the owner read its files
            if callable(content):
                content(new)
                new.chmod(mode)
            fsync(new)
            os.replace(new, path)
            fsync(path.parent)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot write {path} ({error_text(error)}): check space and permissions") from None


def fsync(path: Path) -> None:
    """Force a file, or the list of names in a folder, onto the disk."""
    if path.is_dir() and os.name != "posix":
        return  # Windows cannot open a folder
    file = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # some file systems cannot sync a folder
            raise
    finally:
        os.close(file)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder during a with block; the lock of a killed process disappears with it.

    Raises InputError if another process holds the lock. On a file system without locks it has no effect.
    """
    descriptor = os.open(folder, os.O_RDONLY) if fcntl else None
    try:
        if fcntl:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(
            f"another process is working in {folder}: wait for it, or choose another name", "name"
        ) from None
    except OSError:
        pass
    try:
        yield
    finally:
        if fcntl:
            os.close(descriptor)


def temporary_sibling(folder: Path) -> tempfile.TemporaryDirectory:
    """Create a temporary folder inside `folder`, from which a file can be moved into it atomically.

    It is removed when it is closed. Its name contains the host and the process id. Those that were left by
    killed processes of this machine are removed here.
    """
    prefix = f".writing-{socket.gethostname()}-"
    for old in folder.glob(f"{glob.escape(prefix)}*-*"):
        process_id = old.name.removeprefix(prefix).partition("-")[0]
        if process_id.isdecimal() and not is_alive(int(process_id)):
            shutil.rmtree(old, ignore_errors=True)
    return tempfile.TemporaryDirectory(dir=folder, prefix=f"{prefix}{os.getpid()}-")


def is_alive(process_id: int) -> bool:
    """Return whether a process with this id runs on this machine."""
    try:
        os.kill(process_id, 0)  # signal 0 is not delivered; the call only checks
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # the process exists and belongs to another user
        pass
    return True


def check_writable(*paths: Path | None) -> None:
    """Raise InputError if one of these files could not be written at the end of the work; None is skipped."""
    for path in filter(None, paths):
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        if path.is_dir():
            raise InputError(f"cannot write {path}: it is a folder, name a file")
        if not (folder.is_dir() and os.access(folder, os.W_OK)):
            raise InputError(f"cannot write {path}: {folder} is not a folder that can be written")
