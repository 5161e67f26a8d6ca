"""Find the folder of a checkpoint: a local folder, or a hub id that is downloaded by huggingface-hub."""

import logging
import os
import re
import threading
from pathlib import Path

from tmft.checkpoints.known_checkpoints import KNOWN_CHECKPOINTS
from tmft.checkpoints.st_folder import ST_CONFIG_FILES, module_files
from tmft.checkpoints.st_modules import is_static_model, transformer_folder
from tmft.checkpoints.tokenizers import TOKENIZER_FILES
from tmft.checkpoints.weights import WEIGHT_FILES, find_weight_file, read_index
from tmft.errors import InputError, did_you_mean
from tmft.io.atomic import error_text

HUB_TIMEOUT = 4.0  # seconds within which the hub has to answer


def resolve_checkpoint(checkpoint: str | os.PathLike, weights: bool = True) -> Path:
    """Return the local folder of a checkpoint; a hub id is downloaded first, if it is not in the cache.

    checkpoint: a folder, or a hub id with an optional @revision. Only the files that tmft needs are
    downloaded: the configuration, the tokenizer and the weights in one format.
    weights: False if only the configuration and the tokenizer are needed; weights are then not downloaded.
    The cache, the access token and the offline mode are those of huggingface-hub (the environment variables
    HF_HOME, HF_TOKEN and HF_HUB_OFFLINE).
    Raises InputError if there is no such folder or hub id, if the hub does not answer and the files are not
    in the cache, or if the checkpoint has no configuration or weights.
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
    if not (is_static_model(folder) or (encoder_folder / "config.json").is_file()):
        raise InputError(f"no config.json in {checkpoint}: this is not a checkpoint folder")
    if weights or is_static_model(folder):
        find_weight_file(encoder_folder, checkpoint)
    return folder


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
    downloaded again. If the hub is not reachable, only files in the cache are used.
    Raises InputError if the hub id does not exist, or if needed files cannot be downloaded.
    """
    from huggingface_hub import (  # imported here, because it takes 0.1 s and local folders do not need it
        errors,
        hf_hub_download,
    )

    repository, _, revision = hub_id.partition("@")
    revision = revision or None
    online = hub_is_reachable(repository, revision)

    def fetch(name: str) -> Path | None:
        """Return the local path of one file; None if it does not exist, or is neither online nor cached."""
        try:
            return Path(hf_hub_download(repository, name, revision=revision, local_files_only=not online))
        except errors.EntryNotFoundError:  # also if it is not in the cache and the hub is not reachable
            return None
        except errors.GatedRepoError:
            raise InputError(f"{hub_id} is gated: accept its terms on the hub, then set HF_TOKEN") from None
        except errors.RepositoryNotFoundError:
            raise InputError(
                f"no folder {hub_id}, and no such checkpoint on the hub: check the spelling, "
                f"or set HF_TOKEN if it is private{did_you_mean(hub_id, KNOWN_CHECKPOINTS)}"
            ) from None
        except errors.RevisionNotFoundError:
            raise InputError(
                f"{repository} has no revision {revision!r} on the hub: check the part after @"
            ) from None
        except errors.HFValidationError:
            raise InputError(
                f"no folder {hub_id}, and it is not a hub id: write owner/name or an existing folder"
            ) from None
        except (errors.HfHubHTTPError, OSError) as error:
            raise InputError(
                f"{hub_id}: the hub did not answer as expected ({error_text(error)}): try again later"
            ) from None

    first = fetch("config.json") or fetch("modules.json")  # config.json may be in a subfolder
    if first is None:
        raise InputError(
            f"no folder {hub_id}, and its config.json is neither in the cache nor available from the hub: "
            "check the name and the network (HF_HUB_OFFLINE forbids downloads)"
            f"{did_you_mean(hub_id, KNOWN_CHECKPOINTS)}"
        )
    folder = first.parent
    revision = folder.name  # the commit, so that all files are from the same one
    for name in ST_CONFIG_FILES:
        fetch(name)
    for name in module_files(folder):
        fetch(name)
    subfolder = transformer_folder(folder).relative_to(folder)
    for name in ("config.json", "sentence_bert_config.json", *TOKENIZER_FILES):
        fetch(str(subfolder / name))
    if weights or is_static_model(folder):
        weight_file = next((name for name in WEIGHT_FILES if fetch(str(subfolder / name))), None)
        if weight_file is None:
            raise InputError(
                f"no weights for {hub_id} on the hub or in the cache: expected {', '.join(WEIGHT_FILES)}"
            )
        if weight_file.endswith(".index.json"):
            for shard in read_index(folder / subfolder / weight_file):
                fetch(str(subfolder / shard))
    return folder


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids downloads."""
    from huggingface_hub import constants

    return constants.is_offline_mode()


def hub_is_reachable(repository: str, revision: str | None) -> bool:
    """Return whether the hub answers a request within HUB_TIMEOUT seconds; an error status is an answer.

    repository, revision: what is going to be downloaded.
    Without this check, huggingface-hub would try every file several times on a machine without network. The
    request is made in a thread, because the timeout of a request does not bound the DNS lookup.
    """
    from huggingface_hub import errors, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session

    if is_offline():
        return False
    try:
        url = hf_hub_url(repository, "config.json", revision=revision)
    except errors.HFValidationError:
        return True  # hf_hub_download raises it again, and its message is handled there
    answered = threading.Event()

    def request() -> None:
        """Set `answered` if the hub answers."""
        try:
            get_session().head(url, headers=build_hf_headers(), timeout=HUB_TIMEOUT)
            answered.set()
        except Exception as error:  # its type depends on the HTTP library that huggingface-hub uses
            logging.getLogger("tmft").debug("%s: %s", url, error)

    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(HUB_TIMEOUT)
    return answered.is_set()
