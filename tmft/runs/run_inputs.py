"""The files that a run depends on, known by digests of their content.

The digests are stored in result.json and, while the run is unfinished, in state.pt. They are nested, such as

    {"data": {"train": digest, "dev": ..., "test": ...}, "checkpoint": {"model.safetensors": ..., ...}}

with "stsb/train" for a split of one of several tasks, and "text" with the names of the files in place of
"data" for pre-training. Names of folders are no part of them: a copy of a checkpoint is the same checkpoint.
"""

from pathlib import Path

from tmft.checkpoints.hub import stored_weights
from tmft.checkpoints.st_modules import list_modules, transformer_folder
from tmft.checkpoints.tokenizers import TOKENIZER_FILES
from tmft.checkpoints.weights import WEIGHT_FILES
from tmft.data import Examples
from tmft.distributed import Processes
from tmft.errors import InputError
from tmft.io.digest import file_digest
from tmft.io.files import is_file

CONFIG_FILES = {
    "config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tmft.json",
    *TOKENIZER_FILES,
}

Digests = dict[str, dict[str, str]]


def data_digests(data: dict[str, dict[str, Examples]]) -> dict[str, str]:
    """Return the digest of each split. data: as read_all_splits returns it."""
    return {
        "/".join(filter(None, [task, split])): examples.digest
        for task, splits in data.items()
        for split, examples in splits.items()
    }


def checkpoint_digests(folder: Path, weights: bool = True) -> dict[str, str]:
    """Return the digests of the files that are read of a checkpoint: {path relative to the folder: digest}.

    weights=False leaves out the weights, which are not read if they are replaced by random ones.
    """
    module_folders = [folder / path for _, path in list_modules(folder)]
    paths = set()
    for place in {folder, transformer_folder(folder), *module_folders}:
        paths |= {place / name for name in CONFIG_FILES}
        for path in [place / name for name in WEIGHT_FILES if weights and is_file(place / name)][:1]:
            paths |= {path, *stored_weights(path)}
    return {str(path.relative_to(folder)): file_digest(path) for path in sorted(paths) if is_file(path)}


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


def check_unchanged(folder: Path, before: dict[str, str], weights: bool) -> None:
    """Raise InputError if a checkpoint, which was loaded just now, has no longer the digests of before."""
    if change := first_change({"checkpoint": before}, {"checkpoint": checkpoint_digests(folder, weights)}):
        raise InputError(f"{change} while it was in use ({folder}): restore it, and repeat the command")


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
