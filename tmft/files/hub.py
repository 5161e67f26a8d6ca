"""The model hub: download the files of a checkpoint into huggingface-hub's cache."""

from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tmft.errors import InputError
from tmft.files.weights import TOKENIZER_FILES, WEIGHT_FILES, one_line, read_index

SENTENCE_FILES = ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json")


def download(hub_id: str, weights: bool) -> Path:
    """Fetch the needed files of `owner/name[@revision]` into huggingface-hub's cache -> the folder there."""
    repository, _, revision = hub_id.partition("@")
    revision = revision or None

    def fetch(name: str) -> Path | None:
        """The local path of one file, or None if it is not to be had."""
        try:
            return Path(hf_hub_download(repository, name, revision=revision))
        except EntryNotFoundError:  # also when it is not in the cache and the hub is out of reach
            return None
        except GatedRepoError:
            raise InputError(f"{hub_id} is gated: accept its terms on the hub, then set HF_TOKEN") from None
        except RepositoryNotFoundError:
            raise InputError(
                f"no folder {hub_id}, and no such checkpoint on the hub: check the spelling, "
                "or set HF_TOKEN if it is private"
            ) from None
        except RevisionNotFoundError:
            raise InputError(
                f"{repository} has no revision {revision!r} on the hub: check the part after @"
            ) from None
        except HFValidationError:
            raise InputError(
                f"no folder {hub_id}, and it is not a hub id: write owner/name or an existing folder"
            ) from None
        except (HfHubHTTPError, OSError) as error:
            raise InputError(
                f"{hub_id}: the hub did not answer as expected ({one_line(error)}): try again later"
            ) from None

    config = fetch("config.json")
    if config is None:
        raise InputError(
            f"no folder {hub_id}, and its config.json is neither in the cache nor to be had from the hub: "
            "check the name and the network (HF_HUB_OFFLINE forbids downloads)"
        )
    revision = config.parent.name  # the commit, so that all files are of one version
    for name in TOKENIZER_FILES + SENTENCE_FILES:
        fetch(name)
    if weights:
        found = next((name for name in WEIGHT_FILES if fetch(name)), None)
        if found is None:
            raise InputError(
                f"no weights for {hub_id} on the hub or in the cache: expected {', '.join(WEIGHT_FILES)}"
            )
        if found.endswith(".index.json"):
            for shard in read_index(config.parent / found):
                fetch(shard)
    return config.parent
