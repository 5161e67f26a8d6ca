"""A folder to the hub, whole or not at all: one commit into a new private repository, which is made public
last, if it is to be, and removed again if anything went wrong."""

import sys
from collections.abc import Callable
from pathlib import Path

from tmft.checkpoints.hub import answers
from tmft.errors import InputError
from tmft.io.atomic import reason


def check_upload(name: str) -> str:
    """The full name, owner/name, of a repository that this user may make. Raises InputError, before any work,
    if there is no network, no token, one that the hub refuses, no such name, or a repository of this name."""
    from huggingface_hub import HfApi, errors, get_token
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except errors.HFValidationError:
        raise InputError(f"push_to_hub {name}: write name or owner/name", "push_to_hub") from None
    if not get_token():
        raise InputError("no token for the hub: set HF_TOKEN to one that may write, or run hf auth login")
    if not answers(name, None):
        raise InputError("the hub does not answer: check the network (HF_HUB_OFFLINE forbids it)")
    api = HfApi()
    user = told(api.whoami, name)["name"]
    name = name if "/" in name else f"{user}/{name}"
    if told(lambda: api.repo_exists(name), name):
        raise InputError(f"{name} is on the hub already: choose another name", "push_to_hub")
    return name


def upload(folder: Path, name: str, public: bool = False) -> str:
    """Put a folder on the hub as owner/name -> its address. Raises InputError if anything goes wrong; then
    nothing of it is public, and nothing is left, or a private repository that is named."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    api, after = HfApi(), ""
    told(lambda: api.create_repo(name, private=True), name)
    try:
        said = {"repo_id": name, "folder_path": folder, "commit_message": "Upload with tmft"}
        told(lambda: api.upload_folder(**said), name)
        if public:
            after = ", what is there is whole and private"
            told(lambda: api.update_repo_settings(name, private=False), name)
    except BaseException as error:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # there may be a bar on this line
        try:
            after = after or told(lambda: api.delete_repo(name), name) or ""
        except InputError:
            after = f", the private {name} is left: remove it there"
        if after and isinstance(error, InputError):
            raise InputError(f"{error}{after}") from None
        raise
    return f"{api.endpoint}/{name}"


def told(ask: Callable, name: str):
    """What the hub says. Raises InputError in place of what huggingface-hub may raise."""
    from huggingface_hub import errors
    from huggingface_hub.utils import logging as remarks

    before = remarks.get_verbosity()
    remarks.set_verbosity_error()  # or it prints a line for each time that it tries again
    try:
        return ask()
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        known = {
            401: "the hub refused the token: set HF_TOKEN to a valid one, or run hf auth login",
            403: f"the token may not write {name}: take one that may, or a name of your own",
            409: f"{name} is on the hub already: choose another name",
        }
        words = known.get(status, f"the hub did not take {name} ({reason(error)}): try again later")
        raise InputError(words) from None
    except Exception as error:  # of whichever library huggingface-hub makes its requests with
        raise InputError(f"the upload of {name} failed ({reason(error)}): try again later") from None
    finally:
        remarks.set_verbosity(before)
