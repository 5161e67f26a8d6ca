"""Write files atomically, say beforehand what cannot be written, and lock a folder."""

import errno
import glob
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from safetensors import SafetensorError

from tmft.errors import InputError, describe_error

try:
    import fcntl
except ImportError:  # Windows: no locks, no folders that can be opened, and no question about a process
    fcntl = None  # type: ignore[assignment]  # there is no type for a module or None

# Names of files that belong to a model, a run or a data set.
INPUT_NAMES = (
    *("*.safetensors", "*.bin", "*.pt", "*.model", "*.npz", "*.md", "*.tsv", "*.csv", "*.txt"),
    *("result.json", "tmft.json", "modules.json", "vocab.json"),
    *("*config*.json", "*token*.json", "*_map.json", "*.index.json"),
)
# Files of a model folder without which no library opens it.
WRITTEN_LAST = ("modules.json", "config.json")
WRITING = ".writing-"  # what the names of temporary folders begin with


def write_file(path: Path, content: str | Callable[[Path], None]) -> None:
    """Write a file atomically: a crash at any moment leaves either the old file or the new one.

    content: the text, or a function that writes a file at the path it is called with.
    The new file is made in a folder that only this user can enter, and moved to its place when complete.
    Raises InputError if the file cannot be written, or if something else than a regular file is there.
    """
    check_regular(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_sibling(path.parent) as temporary_folder:
            new = Path(temporary_folder) / path.name
            new.write_text("" if callable(content) else content, encoding="utf-8", newline="\n")
            mode = new.stat().st_mode  # set by the umask; safetensors lets only the owner read its files
            if callable(content):
                content(new)
                new.chmod(mode)
            fsync(new)
            os.replace(new, path)
            fsync(path.parent)


@contextmanager
def replacing_files(folder: Path, stale: Iterable[str] = ()) -> Iterator[Path]:
    """Yield a temporary folder whose files replace those of `folder` all at once, at the end of the block.

    A new folder is either complete or not there, at any moment. Of an existing one, the old files are removed
    before the new ones come, WRITTEN_LAST at the end: if the process is killed in between, files are missing,
    but old and new ones are never taken for one model. A reader that looks at the folder before and after it
    reads knows whether the files belong together. stale: names of files that are removed from `folder` if the
    temporary folder has none of that name. If the block raises an error, nothing is replaced.
    """
    with writing(folder):
        if not folder.exists():
            folder.absolute().parent.mkdir(parents=True, exist_ok=True)
            with temporary_sibling(folder.absolute().parent) as temporary_folder:
                new_folder = Path(temporary_folder) / folder.name
                new_folder.mkdir()  # with the rights that the umask gives
                yield new_folder
                os.replace(new_folder, folder)
                fsync(folder.absolute().parent)
            return
        with temporary_sibling(folder) as temporary_folder:
            new_folder = Path(temporary_folder)
            yield new_folder
            names = [path.relative_to(new_folder) for path in new_folder.rglob("*") if path.is_file()]
            for name in names:
                check_regular(folder / name)
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
            names.sort(key=lambda name: WRITTEN_LAST.index(str(name)) if str(name) in WRITTEN_LAST else -1)
            for name in [*reversed(names), *map(Path, stale)]:
                (folder / name).unlink(missing_ok=True)
            for name in names:
                os.replace(new_folder / name, folder / name)
            for path in {(folder / name).parent for name in names}:
                fsync(path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of a block that writes a file or folder into one InputError that names it."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"cannot write {path} ({describe_error(error)}): check space and permissions"
        ) from None


def fsync(path: Path) -> None:
    """Wait until the content of a file, or the list of names in a folder, is on the disk."""
    if path.is_dir() and fcntl is None:
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
def folder_lock(folder: Path, remedy: str = "choose another name", parameter: str = "name") -> Iterator[None]:
    """Lock a folder during a with block, so that no other process enters such a block for it.

    The lock ends with the process, also if the process is killed. Raises InputError if another process holds
    the lock, or has just removed the folder. On Windows and on file systems without locks there is no lock,
    and no error. remedy, parameter: what the user can do, and the parameter that it is about.
    """
    if fcntl is None:
        yield
        return
    problem = f"another process is working in {folder}: wait for it, or {remedy}"
    is_busy = InputError(problem, parameter)
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        raise is_busy from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise is_busy from None
        except OSError:  # a file system without locks
            pass
        try:
            is_same = os.path.samestat(os.fstat(descriptor), folder.stat())
        except OSError:
            is_same = False
        if not is_same:
            raise is_busy
        yield
    finally:
        os.close(descriptor)


def temporary_sibling(folder: Path) -> tempfile.TemporaryDirectory:
    """Return a new temporary folder inside `folder`; a file in it can be moved to `folder` atomically.

    The temporary folder is removed at the end of a with block. Its name contains the name of the machine and
    the process id: temporary folders that killed processes of this machine have left are removed here,
    except on Windows.
    """
    prefix = f"{WRITING}{socket.gethostname()}-"
    for old in folder.glob(f"{glob.escape(prefix)}*-*"):
        process_id = old.name.removeprefix(prefix).partition("-")[0]
        if process_id.isdecimal() and not is_alive(int(process_id)):
            shutil.rmtree(old, ignore_errors=True)
    # NFS and FUSE keep a removed file as long as it is open, as weights that are mapped into memory are: the
    # folder then stays until a later process removes it.
    prefix = f"{prefix}{os.getpid()}-"
    return tempfile.TemporaryDirectory(dir=folder, prefix=prefix, ignore_cleanup_errors=True)


def is_alive(process_id: int) -> bool:
    """Return whether a process with this id is running on this machine; on Windows always True.

    Windows has no signal that only asks: there os.kill(process_id, 0) sends Ctrl-C.
    """
    if fcntl is not None:
        try:
            os.kill(process_id, 0)  # signal 0 is not delivered; the call only checks
        except ProcessLookupError:
            return False
        except PermissionError:  # the process exists and belongs to another user
            pass
    return True


def check_regular(path: Path) -> None:
    """Raise InputError if something else than a regular file is at a path that is to be written.

    To write there would replace a device, a pipe or a link by a file. Folders may be symbolic links.
    """
    with suppress(OSError):  # it does not exist, or cannot be reached, which is reported when it is written
        if not stat.S_ISREG(path.lstat().st_mode):
            raise InputError(f"cannot write {path}: it is a folder, link, pipe or device, name a file")


def check_writable(*paths: Path | None, inputs: Iterable[Path | str | None] = ()) -> None:
    """Raise InputError if one of the files `paths` could not be written at the end of the work; skip None.

    inputs: files and folders that the work reads. A file that would be replaced must not be one of them, also
    under another name (a hard link), nor a file of a model, a run or a data set in one of the folders.
    """
    for path in filter(None, paths):
        check_regular(path)
        check_place(path, path.absolute().parent)
        is_of_a_folder = any(fnmatch(path.name.lower(), pattern) for pattern in INPUT_NAMES)
        places = [path, *(path.absolute().parents if is_of_a_folder else ())]
        check_no_input(path, places if path.exists() else [], inputs)


def check_output_folder(
    folder: Path | None, inputs: Iterable[Path | str | None] = (), is_new: bool = False
) -> None:
    """Raise InputError if files could not be written into a folder at the end of the work; None is skipped.

    An output has a folder of its own, which need not exist: not the current folder, nor one above it, where
    its files would be among others of the user. inputs: files and folders that the work reads; the folder
    must not be one of them. is_new: whether nothing may be there yet.
    """
    if folder is None:
        return
    if Path.cwd().is_relative_to(os.path.realpath(folder)):
        problem = f"cannot write into {folder}: the current folder is in it, or is this folder"
        raise InputError(f"{problem}; name a folder of its own")
    if is_new and os.path.lexists(folder):  # also a symbolic link that leads nowhere
        raise InputError(f"{folder} exists already: name a new folder")
    check_place(folder, folder.absolute())
    check_no_input(folder, [folder], inputs)


def check_place(path: Path, folder: Path) -> None:
    """Raise InputError if `path` could not be written into a folder, or into a new one of this name."""
    place = next(one for one in (folder, *folder.parents) if os.path.exists(one))
    if not (place.is_dir() and os.access(place, os.W_OK)):
        raise InputError(f"cannot write {path}: {place} is not a folder that can be written")


def check_no_input(path: Path, places: Iterable[Path], inputs: Iterable[Path | str | None]) -> None:
    """Raise InputError if one of some places, the path or folders that it is in, is one of the inputs."""
    for source in inputs:
        for place in places:
            with suppress(OSError, ValueError):  # one does not exist, or is no path, such as a hub id
                if source is not None and place.samefile(source):
                    raise InputError(f"cannot write {path}: the command reads {source}, name another place")
