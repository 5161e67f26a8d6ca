"""The files that a run depends on, known by digests of their content.

The digests are stored in result.json and, while the run is unfinished, in state.pt. They are nested, such as

    {"data": {"train": digest, "dev": ..., "test": ...}, "checkpoint": {"model.safetensors": ..., ...}}

with "stsb/train" for a split of one of several tasks, and "text" with the names of the files in place of
"data" for pre-training. Names of folders are no part of them: a copy of a checkpoint is the same checkpoint.
"""

from pathlib import Path

from tmft.data import Examples
from tmft.distributed import Processes
from tmft.errors import InputError
from tmft.io.digest import file_digest
from tmft.io.files import is_file

Digests = dict[str, dict[str, str]]


def data_digests(data: dict[str, dict[str, Examples]]) -> dict[str, str]:
    """Return the digest of each split. data: as read_all_splits returns it."""
    return {
        "/".join(filter(None, [task, split])): examples.digest
        for task, splits in data.items()
        for split, examples in splits.items()
    }


def text_digests(paths: tuple[Path, ...]) -> dict[str, str]:
    """Return the digests of the text files `paths`; a pipe, which can be read only once, has none."""
    return {str(path): file_digest(path) for path in paths if is_file(path)}


def check_same_on_all_processes(digests: Digests, processes: Processes) -> None:
    """Raise InputError if the processes, perhaps on several machines, read different files.

    digests: those of this process. processes: all of them have to call this function.
    """
    groups = digests.items()
    named = {f"{group} {name}": digest for group, files in groups for name, digest in files.items()}
    processes.check_same_files(named)


def check_same_inputs(folder: Path, kind: str, before: Digests, now: Digests) -> None:
    """Raise InputError if the run in a folder, "a finished" or "an unfinished" one, read other files."""
    if change := first_change(before, now):
        raise InputError(
            f"{folder} holds {kind} run, but since then {change}: "
            "restore it, choose another run_name, or remove the folder",
            "run_name",
        )


def first_change(before: Digests, now: Digests) -> str:
    """Describe the first file that differs, was added or was removed, among the groups of `now`; else ""."""
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
