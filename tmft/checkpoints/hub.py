"""Where a checkpoint is: a folder, or a hub id whose files are fetched into huggingface-hub's cache."""

import logging
import os
import re
import threading
from pathlib import Path

from tmft.checkpoints.known_checkpoints import KNOWN
from tmft.checkpoints.st_folder import SENTENCE_FILES, module_files
from tmft.checkpoints.st_modules import home_of, is_static
from tmft.checkpoints.tokenizers import TOKENIZER_FILES
from tmft.checkpoints.weights import WEIGHT_FILES, read_index, weight_file
from tmft.errors import InputError, did_you_mean
from tmft.io.atomic import reason

PATIENCE = 4.0  # seconds for the first answer


def find(where: str | os.PathLike, weights: bool = True) -> Path:
    """The folder of a checkpoint: `where` itself, or the local copy of a hub id with an optional @revision.

    Only the files that are needed are downloaded: config, tokenizer, and one set of weights, unless
    weights=False. Cache, tokens and offline mode are huggingface-hub's (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE).
    Raises InputError if there is no such folder or hub id, no answer, or no config or weights in it.
    """
    try:
        folder = Path(where).expanduser()
    except RuntimeError:
        raise InputError(f"{where}: there is no such user here") from None
    if not folder.is_dir():
        if folder.exists():
            raise InputError(f"{where} is a file: name the folder that holds config.json and the weights")
        if not is_hub_id(str(where)):
            beside = map(str, folder.parent.glob("*/"))
            raise InputError(f"no folder {where}: check the path{did_you_mean(str(folder), beside)}")
        folder = download(str(where), weights)
    home = home_of(folder)
    if not (is_static(folder) or (home / "config.json").is_file()):
        raise InputError(f"no config.json in {where}: this is not a checkpoint folder")
    if weights or is_static(folder):
        weight_file(home, where)
    return folder


def is_hub_id(where: str) -> bool:
    """Whether this may be name[@revision] or owner/name[@revision], and is no path into a folder here."""
    owner = where.partition("/")[0]
    ours = owner in ("runs", "data") or (owner != where and Path(owner).is_dir())
    return re.fullmatch(r"(\w[\w.-]*/)?\w[\w.-]*(@.+)?", where) is not None and not ours


def download(hub_id: str, weights: bool) -> Path:
    """Fetch the needed files of `owner/name[@revision]` into huggingface-hub's cache -> the folder there."""
    from huggingface_hub import (  # only now: it costs 0.1 s, and a folder needs none of it
        errors,
        hf_hub_download,
    )

    repository, _, revision = hub_id.partition("@")
    revision = revision or None
    online = answers(repository, revision)  # else what is in the cache must do

    def fetch(name: str) -> Path | None:
        """The local path of one file, or None if it is not to be had."""
        try:
            return Path(hf_hub_download(repository, name, revision=revision, local_files_only=not online))
        except errors.EntryNotFoundError:  # also when it is not in the cache and the hub is out of reach
            return None
        except errors.GatedRepoError:
            raise InputError(f"{hub_id} is gated: accept its terms on the hub, then set HF_TOKEN") from None
        except errors.RepositoryNotFoundError:
            raise InputError(
                f"no folder {hub_id}, and no such checkpoint on the hub: check the spelling, "
                f"or set HF_TOKEN if it is private{did_you_mean(hub_id, KNOWN)}"
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
                f"{hub_id}: the hub did not answer as expected ({reason(error)}): try again later"
            ) from None

    first = fetch("config.json") or fetch("modules.json")  # which says where the rest is
    if first is None:
        raise InputError(
            f"no folder {hub_id}, and its config.json is neither in the cache nor to be had from the hub: "
            f"check the name and the network (HF_HUB_OFFLINE forbids downloads){did_you_mean(hub_id, KNOWN)}"
        )
    folder = first.parent
    revision = folder.name  # the commit, so that all files are of one version
    for name in SENTENCE_FILES:
        fetch(name)
    for name in module_files(folder):
        fetch(name)
    home = home_of(folder).relative_to(folder)
    for name in ("config.json", "sentence_bert_config.json", *TOKENIZER_FILES):
        fetch(str(home / name))
    if weights or is_static(folder):
        found = next((name for name in WEIGHT_FILES if fetch(str(home / name))), None)
        if found is None:
            raise InputError(
                f"no weights for {hub_id} on the hub or in the cache: expected {', '.join(WEIGHT_FILES)}"
            )
        if found.endswith(".index.json"):
            for shard in read_index(folder / home / found):
                fetch(str(home / shard))
    return folder


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids downloads."""
    from huggingface_hub import constants

    return constants.is_offline_mode()


def answers(repository: str, revision: str | None) -> bool:
    """Whether the hub answers at all, whatever it says, within PATIENCE; asked once, for the config.

    huggingface-hub asks for every file, several times where there is no network, and finding an address may
    take long: so this waits for a thread that may go on alone.
    """
    from huggingface_hub import errors, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session

    if is_offline():
        return False
    try:
        url = hf_hub_url(repository, "config.json", revision=revision)
    except errors.HFValidationError:
        return True  # hf_hub_download finds the words for it
    told = threading.Event()

    def ask() -> None:
        try:
            get_session().head(url, headers=build_hf_headers(), timeout=PATIENCE)
            told.set()
        except Exception as error:  # of whichever library huggingface-hub makes its requests with
            logging.getLogger("tmft").debug("%s: %s", url, error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return told.is_set()
