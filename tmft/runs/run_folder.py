"""The folder of a run: reserve and lock it, compare settings and files.

A folder with a result.json holds a finished run; tmft/runs/result_json.py reads that file.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from tmft.data import Examples
from tmft.errors import InputError, describe_error, sanitize
from tmft.io.atomic import check_output_folder, folder_lock
from tmft.io.distributed import Processes
from tmft.io.files import is_file, is_plain_name
from tmft.runs.result_json import RESULT_FILE, read_result, to_json_types
from tmft.training.checkpointing import STATE_FILE, TrainingCheckpoint

# The digests of the files that a run reads, such as {"data": {"train": digest}, "checkpoint": {"config.json":
# digest}}. A split is called "stsb/train" if there are several tasks; pre-training has the group "text" in
# place of "data". A copy of a checkpoint is the same checkpoint.
Digests = dict[str, dict[str, str]]


# ------------------------------------------------------------------------------------ before the run begins


def check_run_name(name: str | None) -> None:
    """Raise InputError if the name of a run cannot be the name of a single folder."""
    if name is not None and (name.startswith(".") or not is_plain_name(name)):
        raise InputError(f"run_name {name!r}: use letters and digits, not a path", "run_name")


def reserve_folder(
    folder: Path, ckpt: str | None, settings: dict[str, Any], reserved: dict[Path, str | None]
) -> None:
    """Check that a run may write to a folder, and add it to `reserved`, {lower-case folder: checkpoint}.

    Many file systems ignore the case of names.
    """
    key = Path(str(folder).casefold())
    if key in reserved:
        raise InputError(
            f"{reserved[key]} and {ckpt} would both write {folder}: run each of them alone, with run_name",
            "run_name",
        )
    check_output_folder(folder, inputs=[ckpt, settings.get("init_from")])
    has_result(folder, settings)
    reserved[key] = ckpt


@contextmanager
def open_run_folder(
    folder: Path, settings: dict[str, Any], digests: Digests, processes: Processes
) -> Iterator[TrainingCheckpoint | None]:
    """Create and lock the folder of a run during a with block, and open its training checkpoint.

    The checkpoint holds the state of an interrupted run, if there is one, and is removed after the block
    unless an error is raised there. It is None if the run is finished: then there is nothing to do. Folders
    that were created for nothing are removed. Rank 0 looks into its folder: that of a process on another
    machine may have no result.
    """
    is_main = processes.rank == 0
    created = [path for path in (folder, *folder.parents) if is_main and not os.path.exists(path)]
    if is_main:
        make_folder(folder)
    with folder_lock(folder) if is_main else nullcontext():
        if processes.broadcast_object(is_main and has_result(folder, settings, digests)):
            if is_main:
                print(f"{folder}: already finished, kept")
            yield None
            return
        check_same_on_all_processes(digests, processes)
        checkpoint = TrainingCheckpoint(folder / STATE_FILE, to_json_types(settings), processes, digests)
        if checkpoint.content:
            check_same_run(folder, "an unfinished", checkpoint.content, settings, digests)
            print(f"\n{folder}: resuming the interrupted run")
        try:
            with checkpoint:
                yield checkpoint
                checkpoint.remove()
        finally:
            with suppress(OSError):  # they are not empty, unless the run could not begin
                for path in created:
                    path.rmdir()


def make_folder(folder: Path) -> None:
    """Create a folder. Raises InputError, before any work, if its files could not be written or replaced."""
    check_output_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(
            f"cannot write into {folder} ({describe_error(error)}): check space and permissions"
        ) from None


# ------------------------------------------------------------------ is it the run that is already there?


def has_result(folder: Path, settings: dict[str, Any], digests: Digests | None = None) -> bool:
    """Return whether a folder holds a finished run, after comparing its settings and the files it read."""
    if not is_file(folder / RESULT_FILE):
        return False
    check_same_run(folder, "a finished", read_result(folder), settings, digests)
    with suppress(OSError):
        (folder / STATE_FILE).unlink(missing_ok=True)
    return True


def check_same_run(
    folder: Path, kind: str, before: dict[str, Any], settings: dict[str, Any], digests: Digests | None
) -> None:
    """Raise InputError if the run in a folder, "a finished" or "an unfinished" one, is another one.

    before: its "settings" and "digests".
    """
    old_settings = before.get("settings", {})
    if key := first_difference(old_settings, settings):
        old_value, value = (sanitize(str(values.get(key)), 400) for values in (old_settings, settings))
        problem = f" with {key} {old_value}, not {value}: "
    elif change := first_change(before.get("digests", {}), digests or {}):
        problem = f", but since then {change}: restore it, "
    else:
        return
    raise InputError(
        f"{folder} holds {kind} run{problem}choose another run_name or output_dir, or remove the folder",
        "run_name",
        "output_dir",
    )


def first_difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Return the name of the first setting in `now` that has another value in `before`; None if all agree.

    Two paths to the same folder count as the same checkpoint.
    """
    for key, value in to_json_types(now).items():
        old_value = before.get(key)
        if key == "ckpt" and isinstance(old_value, str) and value:
            old_value, value = (
                os.path.realpath(name) if os.path.isdir(name) else name for name in (old_value, value)
            )
        if old_value != value:
            return key
    return None


def first_change(before: Digests, now: Digests) -> str:
    """Return which file of the groups of `now` is the first that differs, was added or was removed, or ""."""
    for group, digests in now.items():
        old_digests = before.get(group, {})
        for name in {**digests, **old_digests}:
            if name not in old_digests:
                return f"{group} {name} was added"
            if name not in digests:
                return f"{group} {name} was removed"
            if digests[name] != old_digests[name]:
                return f"the content of {group} {name} has changed"
    return ""


def data_digests(data: dict[str, dict[str, Examples]]) -> dict[str, str]:
    """Return the digest of each split. data: as read_all_splits returns it."""
    return {
        "/".join(filter(None, [task, split])): examples.digest
        for task, splits in data.items()
        for split, examples in splits.items()
    }


def check_same_on_all_processes(digests: Digests, processes: Processes) -> None:
    """Raise InputError if the processes, perhaps on several machines, read different files."""
    groups = digests.items()
    named = {f"{group} {name}": digest for group, files in groups for name, digest in files.items()}
    processes.check_same_files(named)
