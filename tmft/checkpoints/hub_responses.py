"""Check the headers of the hub's answers before huggingface-hub makes paths of them, or waits as they say.

A server that is not the hub, such as a mirror named by HF_ENDPOINT or a proxy, could otherwise choose where
huggingface-hub writes on this machine: it joins the ETag and the commit of an answer to the path of its cache
without a look at them. An absolute path replaces the path of the cache.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tmft.errors import InputError, short_repr

MAX_WAIT = 20  # seconds that the hub may ask for before the next attempt
MAX_DOWNLOAD_SIZE = 100 * 2**30  # bytes of a file
COMMIT, DIGEST = r"[0-9a-f]{40}", r"[0-9a-f]{40,64}"
# Header that becomes a part of a path -> what it may be.
PATH_HEADERS = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": DIGEST, "X-Xet-Hash": DIGEST}

is_checking: ContextVar[bool] = ContextVar("is_checking", default=False)


@contextmanager
def checked_responses() -> Iterator[None]:
    """Check all answers that huggingface-hub gets during a with block in this thread, see check_headers.

    The check becomes a part of the HTTP clients that huggingface-hub makes, also of those of a factory that
    the program has set. Outside of the block and in other threads it does nothing.
    """
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http

    make_client = _http._GLOBAL_CLIENT_FACTORY
    if not isinstance(make_client, CheckingClientFactory):
        set_client_factory(CheckingClientFactory(make_client))
    token = is_checking.set(True)
    try:
        yield
    finally:
        is_checking.reset(token)


@dataclass(frozen=True)
class CheckingClientFactory:
    """Makes HTTP clients that call check_response for each response. make_client: makes other clients."""

    make_client: Callable[[], Any]

    def __call__(self) -> Any:
        """Return a client."""
        client = self.make_client()
        hooks = client.event_hooks
        client.event_hooks = hooks | {"response": [*hooks.get("response", ()), check_response]}
        return client


def check_response(response: Any) -> None:
    """Do the work of check_headers for a response of the HTTP library, inside of checked_responses."""
    if is_checking.get():
        check_headers(response.headers, response.request.method)


def check_headers(headers: Mapping[str, str], method: str) -> None:
    """Raise InputError for headers that would lead huggingface-hub out of its cache, or make it wait long.

    headers: of a response; names are case-insensitive. method: of the request. The ETag is used only if it
    comes with a commit in the answer to a HEAD request, and without an X-Linked-Etag.
    """
    patterns = dict(PATH_HEADERS)
    if method == "HEAD" and "X-Repo-Commit" in headers and not headers.get("X-Linked-Etag"):
        patterns["ETag"] = DIGEST
    for name, pattern in patterns.items():
        value = headers.get(name)
        value = value.lstrip("W/").strip('"') if value and name.lower().endswith("etag") else value
        if value and not re.fullmatch(pattern, value):
            raise InputError(
                f"the answer of the hub has {name} {short_repr(value)}, which is no digest: refused; check "
                "HF_ENDPOINT and the proxy"
            )
    sizes = [headers.get(name, "") for name in ("X-Linked-Size", "Content-Length")]
    if any(size.isdecimal() and (len(size) > 15 or int(size) > MAX_DOWNLOAD_SIZE) for size in sizes):
        raise InputError(
            f"the answer of the hub claims a file of {short_repr(max(sizes, key=len))} bytes: refused; check "
            "HF_ENDPOINT and the proxy"
        )
    rate_limit = headers.get("RateLimit", "")  # such as "api";r=0;t=55: no request is left for 55 seconds
    waits = re.findall(r";\s*t=(\d+)", rate_limit) if re.search(r";\s*r=0\b", rate_limit) else []
    waits.append(headers.get("Retry-After", "").strip())
    too_long = [wait for wait in waits if wait.isdecimal() and (len(wait) > 6 or int(wait) > MAX_WAIT)]
    if too_long:
        raise InputError(f"the hub asks to wait for {too_long[0][:20]} seconds: try again after that time")
