"""Upload a folder to a new repository on the Hugging Face Hub, completely or not at all.

The folder is uploaded in one commit to a private repository. Only after that is the repository made public,
if this was requested. If anything goes wrong, the repository is deleted again.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tmft.checkpoints.hub import silence_hub, unreachable_reason
from tmft.errors import InputError, describe_error, short_repr
from tmft.io.files import is_plain_name


def resolve_repo_id(name: str) -> str:
    """Return the full name, owner/name, of a new repository, after checking that it can be created."""
    from huggingface_hub import HfApi, errors, get_token
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except errors.HFValidationError:
        raise InputError(f"push_to_hub {name}: write NAME or OWNER/NAME", "push_to_hub") from None
    if not get_token():
        raise InputError(
            "no token for the hub: set HF_TOKEN to a token with write access, or run hf auth login"
        )
    if problem := unreachable_reason(name, None):
        raise InputError(f"{name} cannot be uploaded; {problem}")
    api = HfApi()
    account = call_hub(api.whoami, name)
    user = account.get("name") if isinstance(account, dict) else None
    if not (isinstance(user, str) and is_plain_name(user)):
        raise InputError(
            f"the hub does not say whose the token is (it answers {short_repr(account)}): check HF_ENDPOINT, "
            "or try again later"
        )
    name = name if "/" in name else f"{user}/{name}"
    if call_hub(lambda: api.repo_exists(name), name):
        raise InputError(f"{name} exists on the hub already: choose another name", "push_to_hub")
    return name


def push_to_hub(folder: Path, repo_id: str, public: bool = False) -> str:
    """Upload a folder to a new repository and return its URL.

    repo_id: owner/name, as returned by `resolve_repo_id`. public: whether to make the repository public after
    the upload. Raises InputError if anything goes wrong: nothing is public then, and either the repository
    has been deleted, or the message names the private repository that is left.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    api, what_is_left = HfApi(), ""
    try:
        call_hub(lambda: api.create_repo(repo_id, private=True), repo_id)
    except NoAnswer as error:  # the hub may have made it all the same
        left = f"the private repository {repo_id} may be left, without files: remove it on the hub"
        raise InputError(f"{error}; {left}") from None
    except KeyboardInterrupt:
        print(f"the private repository {repo_id} may be left on the hub, without files", file=sys.stderr)
        raise
    try:
        call_hub(
            lambda: api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message="Upload with tmft"),
            repo_id,
        )
        if public:
            what_is_left = "; the upload is complete, but the repository is private"
            call_hub(lambda: api.update_repo_settings(repo_id, private=False), repo_id)
    except BaseException as error:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # there may be a bar on this line
        try:
            if not what_is_left:
                call_hub(lambda: api.delete_repo(repo_id), repo_id)
        except InputError:
            what_is_left = f"; the private repository {repo_id} is left: remove it on the hub"
        if what_is_left and isinstance(error, InputError):
            raise InputError(f"{error}{what_is_left}") from None
        raise
    return f"{api.endpoint}/{repo_id}"


class NoAnswer(InputError):
    """The hub gave no answer, or one that does not say what it did."""


def call_hub(request: Callable[[], Any], repo_id: str) -> Any:
    """Call `request`, a function that asks the hub, and return its result."""
    from huggingface_hub import errors

    try:
        with silence_hub():
            return request()
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        messages: dict[int | None, str] = {
            401: "the hub refused the token: set HF_TOKEN to a valid token, or run hf auth login",
            403: f"the token has no write access to {repo_id}: use one that has, or another name",
            409: f"{repo_id} exists on the hub already: choose another name",
        }
        message = messages.get(
            status, f"the hub did not accept {repo_id} ({describe_error(error)}): try again later"
        )
        kind = InputError if status in messages else NoAnswer
        raise kind(message) from None
    except (
        Exception
    ) as error:  # of the HTTP library that huggingface-hub uses, which differs between versions
        raise NoAnswer(f"the upload of {repo_id} failed ({describe_error(error)}): try again later") from None
