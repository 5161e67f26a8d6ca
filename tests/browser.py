"""A headless Chromium, driven through a pipe with the DevTools protocol, for tests of pages.

    with Browser() as browser:
        browser.open(path, width=360, dark=True)
        browser.evaluate("document.title")

The protocol is JSON with a zero byte after each message, on the file descriptors 3 (to the browser) and 4
(from it). Source: https://chromedevtools.github.io/devtools-protocol/.
"""

import base64
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
    """A browser with one page. messages: what the page wrote to its console, and errors of its scripts."""

    def __init__(self):
        executable = find_browser()
        self.profile = tempfile.mkdtemp(prefix="tmft-chromium-")
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()
        command = [executable, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={self.profile}"]
        command += [
            "--disable-background-networking",
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
        ]  # no network

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
        self.buffer, self.number, self.messages, self.requests, self.session = b"", 0, [], [], None

    def __enter__(self) -> "Browser":
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *unused) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.read_end)
        os.close(self.write_end)
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method: str, **parameters) -> dict:
        """Send a command and return its result; events that come in between are kept."""
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
            self.keep(answer)

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

    def keep(self, event: dict) -> None:
        """Keep an event that a test may ask for."""
        method, parameters = event.get("method"), event.get("params", {})
        self.last_event = method
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.messages.append(json.dumps(parameters))
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def open(self, page: Path | str, width: int = 1280, dark: bool = False, script: bool = True) -> None:
        """Open a file or a URL. width: of the window. dark: of the theme. script: whether scripts run."""
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[theme])
        self.last_event = None
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while self.last_event != "Page.loadEventFired":
            self.keep(self.receive())

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

    def type(self, field: str, text: str) -> None:
        """Type a text into the field of a CSS selector, in place of what it has."""
        self.evaluate(f"document.querySelector({json.dumps(field)}).select()")
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press a key, such as "Tab"."""
        event = {"key": key, "code": key, "windowsVirtualKeyCode": {"Tab": 9, "ArrowDown": 40}[key]}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **event)

    def print_pdf(self, path: Path) -> None:
        """Write the page as PDF, as it is printed."""
        data = self.call("Page.printToPDF", printBackground=True)["data"]
        Path(path).write_bytes(base64.b64decode(data))
