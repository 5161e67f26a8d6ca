"""HubRepository: the files of a repository on the hub, which huggingface-hub downloads into its cache."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tmft.errors import InputError, describe_error, did_you_mean

DEFAULT_OWNER = "sentence-transformers"  # of names without an owner that the hub does not know
HUB_TIMEOUT = 4.0  # seconds within which the hub has to answer
# Checkpoints that tmft knows by name, to suggest the one that a user probably meant.
KNOWN_CHECKPOINTS = (
    *("bert-base-cased", "bert-large-cased", "google-bert/bert-base-cased", "google-bert/bert-base-uncased"),
    *("google/bert_uncased_L-2_H-128_A-2", "google/bert_uncased_L-4_H-256_A-4"),
    *("google/bert_uncased_L-4_H-512_A-8", "google/bert_uncased_L-8_H-512_A-8"),
    *(
        f"google/electra-{size}-{part}"
        for size in ("small", "base", "large")
        for part in ("discriminator", "generator")
    ),
    *(f"microsoft/deberta-v3-{size}" for size in ("small", "base", "large")),
    *("klue/bert-base", "monologg/koelectra-base-v3-discriminator", "monologg/koelectra-base-v3-generator"),
    *("google-bert/bert-base-german-cased", "deepset/gelectra-base", "deepset/gelectra-base-generator"),
    *("dccuchile/bert-base-spanish-wwm-cased", "mrm8488/electricidad-base-discriminator"),
    *("mrm8488/electricidad-base-generator", "sentence-transformers/all-MiniLM-L6-v2"),
)


def is_hub_id(name: str) -> bool:
    """Return whether a name may be a hub id, [owner/]name[@revision], and not a path to a local folder.

    A name is taken for a path if its first part is an existing folder, "runs" or "data".
    """
    owner = name.partition("/")[0]
    is_local = owner in ("runs", "data") or (owner != name and Path(owner).is_dir())
    return re.fullmatch(r"(\w[\w.-]*/)?\w[\w.-]*(@.+)?", name) is not None and not is_local


class UnknownCheckpoint(InputError):
    """There is no such checkpoint, neither on the hub nor in the cache."""


class HubRepository:
    """A repository on the hub, whose files are downloaded when asked for, unless they are in the cache.

    The cache, the access token and the offline mode are those of huggingface-hub (the environment variables
    HF_HOME, HF_TOKEN and HF_HUB_OFFLINE).

    hub_id: [owner/]name[@revision]. problem: why nothing can be downloaded, as a clause with a remedy; "" if
    the hub can be used; None: ask the hub.
    """

    def __init__(self, hub_id: str, problem: str | None = None):
        self.hub_id = hub_id
        self.repository, _, revision = hub_id.partition("@")
        self.revision = revision or None
        self.problem = unreachable_reason(self.repository, self.revision) if problem is None else problem

    @classmethod
    def find(cls, hub_id: str) -> tuple["HubRepository", Path]:
        """Return the repository of a hub id and its folder in the cache, as `open` does.

        A name without an owner that is not found, such as all-MiniLM-L6-v2, is also looked for among the
        models of sentence-transformers.
        """
        repository = cls(hub_id)
        try:
            return repository, repository.open()
        except UnknownCheckpoint as error:
            if "/" in repository.repository:
                raise
            repository = cls(f"{DEFAULT_OWNER}/{hub_id}", repository.problem)
            try:
                return repository, repository.open()
            except UnknownCheckpoint:
                raise error from None

    def open(self) -> Path:
        """Return the folder in the cache that holds the files of this revision; all are then of one commit.

        Raises InputError if there is no such repository or revision, or if it has no config.json.
        """
        first = self.fetch("config.json") or self.fetch("modules.json")  # config.json may be in a subfolder
        if first is None and not self.problem:
            raise InputError(
                f"{self.hub_id} has no config.json on the hub: name a checkpoint of transformers or "
                "sentence-transformers"
            )
        if first is None:
            is_known = self.repository in KNOWN_CHECKPOINTS  # it is typed rightly, only not here
            suggestion = "" if is_known else did_you_mean(self.repository, KNOWN_CHECKPOINTS)
            absent = f"no folder {self.hub_id}, and its config.json is not in the cache"
            raise UnknownCheckpoint(f"{absent}; {self.problem}{suggestion}")
        self.revision = first.parent.name  # the commit
        return first.parent

    def fetch(self, file_name: str) -> Path | None:
        """Return the local path of a file; None if it does not exist, or is neither online nor cached."""
        # imported here: it takes 0.1 s, and local folders do not need it
        from huggingface_hub import errors, hf_hub_download

        try:
            with silence_hub():
                download = partial(hf_hub_download, self.repository, revision=self.revision)
                return Path(download(file_name, local_files_only=bool(self.problem)))
        except errors.EntryNotFoundError as error:
            if self.problem or not isinstance(error, errors.LocalEntryNotFoundError):
                return None
            problem = unexpected_answer(self.hub_id, error.__cause__ or error)
        except errors.GatedRepoError:
            problem = f"{self.hub_id} is gated: accept its terms on the hub, then set HF_TOKEN"
        except errors.RepositoryNotFoundError:
            raise UnknownCheckpoint(
                f"no folder {self.hub_id}, and no such checkpoint on the hub: check the spelling, "
                f"or set HF_TOKEN if it is private{did_you_mean(self.repository, KNOWN_CHECKPOINTS)}"
            ) from None
        except errors.RevisionNotFoundError:
            problem = f"{self.repository} has no revision {self.revision!r} on the hub: check what is after @"
        except errors.HFValidationError:
            problem = (
                f"no folder {self.hub_id}, and it is not a hub id: write owner/name or an existing folder"
            )
        except Exception as error:  # its type depends on the HTTP library that huggingface-hub uses
            problem = unexpected_answer(self.hub_id, error)
        raise InputError(problem)


def unexpected_answer(hub_id: str, error: BaseException) -> str:
    """Return the message for an answer of the hub that huggingface-hub cannot use."""
    return f"{hub_id}: the hub did not answer as expected ({describe_error(error)}): try again later"


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids downloads."""
    from huggingface_hub import constants

    return constants.is_offline_mode()


@contextmanager
def silence_hub() -> Iterator[None]:
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
    without network.
    repository, revision: a repository on the hub, and one of its revisions; None is the main branch.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session

    if is_offline():
        return "HF_HUB_OFFLINE forbids downloads: unset it, or check the name"
    try:
        url = hf_hub_url(repository, "config.json", revision=revision)
        status = get_session().head(url, headers=build_hf_headers(), timeout=HUB_TIMEOUT).status_code
    except Exception:  # its type depends on the HTTP library that huggingface-hub uses
        return "the hub does not answer: check the network and the name"
    return f"the hub answers with an error ({status}): try again later" if status >= 500 else ""
