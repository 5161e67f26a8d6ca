"""Find the folder of a checkpoint: a local folder, or a hub id that is downloaded by huggingface-hub."""

import logging
import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tmft.checkpoints.blob_digest import blob_path, check_intact, is_intact
from tmft.checkpoints.hub_responses import checked_responses
from tmft.checkpoints.known_checkpoints import KNOWN_CHECKPOINTS
from tmft.checkpoints.st_folder import ST_CONFIG_FILES, module_files
from tmft.checkpoints.st_modules import is_static_model, transformer_folder
from tmft.checkpoints.tokenizer_config import CONFIG_FILES
from tmft.checkpoints.tokenizer_kinds import KIND_FILES
from tmft.checkpoints.weights import WEIGHT_FILES, find_weight_file, read_index
from tmft.errors import InputError, describe_error, did_you_mean
from tmft.io.files import is_file

HUB_TIMEOUT = 4.0  # seconds within which the hub has to answer


def resolve_checkpoint(checkpoint: str | os.PathLike[str], weights: bool = True) -> Path:
    """Return the local folder of a checkpoint; a hub id is downloaded first, if it is not in the cache.

    checkpoint: a folder, or a hub id with an optional @revision. Only the files that tmft needs are
    downloaded: the configuration, the tokenizer and the weights in one format.
    weights: False if only the configuration and the tokenizer are needed; weights are then not downloaded.
    The cache, the access token and the offline mode are those of huggingface-hub (the environment variables
    HF_HOME, HF_TOKEN and HF_HUB_OFFLINE).
    Raises InputError if there is no such folder or hub id, if the hub does not answer and the files are not
    in the cache, if the folder may not be entered, or if the checkpoint has no configuration or weights.
    """
    try:
        return find_or_download(checkpoint, weights)
    except OSError as error:  # also a name that is too long, and a circle of links
        problem = error.strerror or describe_error(error)
        raise InputError(
            f"{str(checkpoint)[:200]} cannot be opened ({problem}): check the path, and the permissions "
            "of its folders"
        ) from None


def find_or_download(checkpoint: str | os.PathLike[str], weights: bool) -> Path:
    """Do the work of resolve_checkpoint. The parameters are those of resolve_checkpoint.

    Raises OSError if a folder may not be entered, and InputError as resolve_checkpoint does.
    """
    try:
        folder = Path(checkpoint).expanduser()
    except RuntimeError:
        raise InputError(f"{checkpoint}: there is no such user on this machine, check the path") from None
    if not folder.is_dir():
        if folder.exists():
            raise InputError(
                f"{checkpoint} is a file: name the folder that holds config.json and the weights"
            )
        if not is_hub_id(str(checkpoint)):
            siblings = map(str, folder.parent.glob("*/"))
            raise InputError(f"no folder {checkpoint}: check the path{did_you_mean(str(folder), siblings)}")
        folder = download_checkpoint(str(checkpoint), weights)
    encoder_folder = transformer_folder(folder)
    if not (is_static_model(folder) or is_file(encoder_folder / "config.json")):
        raise InputError(f"no config.json in {checkpoint}: this is not a checkpoint folder")
    if weights or is_static_model(folder):
        for path in stored_weights(find_weight_file(encoder_folder, str(checkpoint))):
            check_intact(path)  # read once: of a hub id, they were compared when they were downloaded
    return folder


def stored_weights(path: Path) -> list[Path]:
    """Return the files that hold the weights of a checkpoint.

    path: a file with all weights, which is returned alone; or the index of a checkpoint whose weights are
    divided among several files (shards), which lists them. Shards that are absent are left out.
    """
    if not path.name.endswith(".index.json"):
        return [path]
    return [shard for name in read_index(path) if is_file(shard := path.parent / name)]


def is_hub_id(name: str) -> bool:
    """Return whether a name may be a hub id, [owner/]name[@revision], and not a path to a local folder.

    A name is taken for a path if its first part is an existing folder, "runs" or "data".
    """
    owner = name.partition("/")[0]
    is_local = owner in ("runs", "data") or (owner != name and Path(owner).is_dir())
    return re.fullmatch(r"(\w[\w.-]*/)?\w[\w.-]*(@.+)?", name) is not None and not is_local


def download_checkpoint(hub_id: str, weights: bool) -> Path:
    """Download the needed files of a hub id into the cache of huggingface-hub, and return their folder.

    hub_id: owner/name[@revision]. weights: whether to download the weights. Files in the cache are not
    downloaded again, unless their content does not have the digest that they are named after. If the hub is
    not reachable, only files in the cache are used.
    Raises InputError if the hub id does not exist, or if needed files cannot be downloaded.
    """
    from huggingface_hub import (  # imported here, because it takes 0.1 s and local folders do not need it
        errors,
        hf_hub_download,
    )

    repository, _, revision_name = hub_id.partition("@")
    revision = revision_name or None
    problem = unreachable_reason(repository, revision)
    online = not problem

    def download(name: str, again: bool = False) -> Path:
        """Return the local path of one file. again: download it even if it is in the cache."""
        with checked_responses(), quiet_hub():
            return Path(
                hf_hub_download(
                    repository, name, revision=revision, local_files_only=not online, force_download=again
                )
            )

    def fetch(name: str) -> Path | None:
        """Return the local path of one file; None if it does not exist, or is neither online nor cached."""
        try:
            path = download(name)
            if online and not is_intact(path):
                path = download(name, again=True)
                if not is_intact(path):
                    if (blob := blob_path(path)) is not None:
                        blob.unlink()
                    raise InputError(
                        f"{hub_id}: {name} was downloaded twice, and both times its content did not have the "
                        "digest that the hub names: try again later"
                    )
            check_intact(path)
            return path
        except InputError:
            raise
        except errors.LocalEntryNotFoundError as error:  # a kind of EntryNotFoundError
            if online:
                raise answer_error(error.__cause__ or error) from None
            return None
        except errors.EntryNotFoundError:
            return None
        except errors.GatedRepoError:
            raise InputError(f"{hub_id} is gated: accept its terms on the hub, then set HF_TOKEN") from None
        except errors.RepositoryNotFoundError:
            raise InputError(
                f"no folder {hub_id}, and no such checkpoint on the hub: check the spelling, "
                f"or set HF_TOKEN if it is private{did_you_mean(repository, KNOWN_CHECKPOINTS)}"
            ) from None
        except errors.RevisionNotFoundError:
            raise InputError(
                f"{repository} has no revision {revision!r} on the hub: check the part after @"
            ) from None
        except errors.HFValidationError:
            raise InputError(
                f"no folder {hub_id}, and it is not a hub id: write owner/name or an existing folder"
            ) from None
        except Exception as error:  # its type depends on the HTTP library that huggingface-hub uses
            raise answer_error(error) from None

    def answer_error(error: BaseException) -> InputError:
        return InputError(
            f"{hub_id}: the hub did not answer as expected ({describe_error(error)}): try again later"
        )

    first = fetch("config.json") or fetch("modules.json")  # config.json may be in a subfolder
    if first is None and online:
        raise InputError(
            f"{hub_id} has no config.json on the hub: name a checkpoint of transformers or "
            "sentence-transformers"
        )
    if first is None:
        raise InputError(
            f"no folder {hub_id}, and its config.json is not in the cache; {problem}"
            f"{did_you_mean(repository, KNOWN_CHECKPOINTS)}"
        )
    folder = first.parent
    revision = folder.name  # the commit, so that all files are from the same one
    for name in ST_CONFIG_FILES:
        fetch(name)
    for name in module_files(folder):
        fetch(name)
    subfolder = transformer_folder(folder).relative_to(folder)
    for name in ("config.json", "sentence_bert_config.json", *CONFIG_FILES):
        fetch(str(subfolder / name))
    if fetch(str(subfolder / "tokenizer.json")) is None:
        for name in KIND_FILES:
            fetch(str(subfolder / name))
    if weights or is_static_model(folder):
        weight_file = next((name for name in WEIGHT_FILES if fetch(str(subfolder / name))), None)
        if weight_file is None:
            where = "on the hub" if online else f"in the cache, and {problem}"
            raise InputError(f"no weights of {hub_id} {where}; expected one of {', '.join(WEIGHT_FILES)}")
        if weight_file.endswith(".index.json"):
            for shard in read_index(folder / subfolder / weight_file):
                fetch(str(subfolder / shard))
    return folder


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids downloads."""
    from huggingface_hub import constants

    return constants.is_offline_mode()


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Silence the lines that huggingface-hub prints for each attempt; the last error is raised anyway."""
    from huggingface_hub.utils import logging as hub_logging

    verbosity = hub_logging.get_verbosity()
    hub_logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hub_logging.set_verbosity(verbosity)


def unreachable_reason(repository: str, revision: str | None) -> str:
    """Return why nothing can be downloaded, as a clause with a remedy; "" if the hub can be used.

    The hub has to answer within HUB_TIMEOUT seconds, and with another status than that of an error of its own
    (500 and above). Without this check, huggingface-hub would try every file several times on a machine
    without network. The request is made in a thread, because the timeout of a request does not bound the DNS
    lookup.
    repository, revision: a repository on the hub, and one of its revisions; None is the main branch.
    """
    from huggingface_hub import errors, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session

    if is_offline():
        return "HF_HUB_OFFLINE forbids downloads: unset it, or check the name"
    try:
        url = hf_hub_url(repository, "config.json", revision=revision)
    except errors.HFValidationError:
        return ""  # hf_hub_download raises it again, and its message is handled there
    statuses = []

    def request() -> None:
        try:
            response = get_session().head(url, headers=build_hf_headers(), timeout=HUB_TIMEOUT)
            statuses.append(response.status_code)
        except Exception as error:  # its type depends on the HTTP library that huggingface-hub uses
            logging.getLogger("tmft").debug("%s: %s", url, error)

    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(HUB_TIMEOUT)
    if not statuses:
        return "the hub does not answer: check the network and the name"
    return f"the hub answers with an error ({statuses[0]}): try again later" if statuses[0] >= 500 else ""
