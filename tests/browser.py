"""A headless Chromium, driven through a pipe with the DevTools protocol, for tests of pages.

    with Browser() as browser:
        browser.open(path, width=360)
        browser.evaluate("document.title")

The protocol is JSON with a zero byte after each message, on the file descriptors 3 (to the browser) and 4
(from it). Source: https://chromedevtools.github.io/devtools-protocol/.
"""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

TIMEOUT = 120  # seconds for an answer: the machine may be busy
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> str:
    """Return the path of a Chromium; skip the test if there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    return found


class Browser:
    """A browser with one page, without a network but this machine."""

    def __init__(self):
        executable = find_browser()
        self.profile = tempfile.mkdtemp(prefix="tmft-chromium-")
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()
        command = [executable, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={self.profile}"]
        command += ["--disable-background-networking"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]

        def connect() -> None:
            # Duplicates first: one of the ends may itself be 3 or 4.
            a, b = os.dup(to_browser), os.dup(from_browser)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            command, preexec_fn=connect, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.number, self.session, self.last_event = b"", 0, None, None

    def __enter__(self) -> "Browser":
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        return self

    def __exit__(self, *unused) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.read_end)
        os.close(self.write_end)
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method: str, **parameters) -> dict:
        """Send a command and return its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.last_event = answer.get("method")

    def receive(self) -> dict:
        """Return the next message of the browser."""
        deadline = time.monotonic() + TIMEOUT
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read_end], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self.read_end, 2**20) if ready else b""
            if not data:
                raise TimeoutError("the browser does not answer")
            self.buffer += data
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def open(self, page: Path | str, width: int = 1280) -> None:
        """Open a file or a URL. width: of the window."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.last_event = None
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while self.last_event != "Page.loadEventFired":
            self.last_event = self.receive().get("method")

    def evaluate(self, expression: str) -> object:
        """Return the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 60) -> None:
        """Wait until a JavaScript expression is true in the page."""
        end = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < end, (condition, self.evaluate("document.body.innerText"))
            time.sleep(0.05)
