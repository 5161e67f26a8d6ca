"""Hub ids, against a hub of our own on the loopback interface; huggingface-hub itself is the real one."""

import hashlib
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from conftest import SENTENCES, tiny_model
from safetensors.torch import load_file

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "someone/tiny-electra"
GATED = "someone/gated"
ROOT = Path(__file__).resolve().parent.parent.parent


class Hub(BaseHTTPRequestHandler):
    """GET and HEAD of /owner/name/resolve/revision/file, the part of the hub that downloads need."""

    folder: Path
    requests: list[str]

    def do_GET(self):
        self.answer(body=True)

    def do_HEAD(self):
        self.answer(body=False)

    def answer(self, body: bool):
        self.requests.append(f"{self.command} {self.path}")
        repository, _, rest = self.path.lstrip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        path = self.folder / name
        if repository == GATED:
            return self.refuse(403, "GatedRepo")
        if repository != REPOSITORY:
            return self.refuse(404, "RepoNotFound")
        if revision not in ("main", "v2", COMMIT):
            return self.refuse(404, "RevisionNotFound")
        if not path.is_file():
            return self.refuse(404, "EntryNotFound")
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def refuse(self, status: int, code: str):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        if code in ("EntryNotFound",):
            self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    tiny_model().save(folder)
    handler = type("ThisHub", (Hub,), {"folder": folder, "requests": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    server.server_close()


def load(
    where: str, endpoint: str, cache: Path, offline: bool = False, arguments: str = ""
) -> subprocess.CompletedProcess:
    """Load `where` and print an embedding, in a process of its own: huggingface-hub reads settings once."""
    program = (
        "from tmft.errors import run_command\nfrom tmft import SentenceEncoder\ndef main():\n"
        f"    model = SentenceEncoder.load({where!r}{arguments})\n"
        f"    print(model.encode({SENTENCES[:1]!r})[0, :4].tolist())\nrun_command(main)\n"
    )
    environment = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache),
        "PYTHONPATH": str(ROOT),
        "PATH": "/usr/bin:/bin",
    }
    environment |= {"HF_HUB_OFFLINE": "1"} if offline else {}
    environment |= {
        "HF_HUB_DOWNLOAD_TIMEOUT": "2",
        "HF_HUB_ETAG_TIMEOUT": "2",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)


def test_a_hub_id_is_downloaded_once_and_then_works_offline(hub, tmp_path):
    endpoint, handler = hub
    first = load(REPOSITORY, endpoint, tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.strip() == str(tiny_model().encode(SENTENCES[:1])[0, :4].tolist())

    handler.requests.clear()
    offline = load(REPOSITORY, endpoint, tmp_path, offline=True)
    assert offline.stdout == first.stdout and handler.requests == []


def test_a_folder_is_loaded_without_importing_huggingface_hub(hub):
    _, handler = hub
    program = (
        f"import sys, tmft; tmft.SentenceEncoder.load({str(handler.folder)!r})\n"
        "print('huggingface_hub' in sys.modules)"
    )
    line = [sys.executable, "-c", program]
    assert subprocess.check_output(line, cwd=ROOT, text=True) == "False\n"


def test_a_revision_is_asked_for(hub, tmp_path):
    endpoint, handler = hub
    handler.requests.clear()
    assert load(f"{REPOSITORY}@v2", endpoint, tmp_path).returncode == 0
    assert f"HEAD /{REPOSITORY}/resolve/v2/config.json" in handler.requests
    assert not any("/resolve/main/" in request for request in handler.requests)


def test_without_weights_only_the_small_files_are_fetched(hub, tmp_path):
    endpoint, handler = hub
    handler.requests.clear()
    assert load(REPOSITORY, endpoint, tmp_path, arguments=", init='random'").returncode == 0
    assert not any("model.safetensors" in request for request in handler.requests)


def test_a_repository_with_only_a_bin(hub, tmp_path):

    endpoint, handler = hub
    safe = handler.folder / "model.safetensors"
    torch.save(load_file(safe), handler.folder / "pytorch_model.bin")
    safe.rename(safe.with_suffix(".away"))
    try:
        answer = load(REPOSITORY, endpoint, tmp_path)
    finally:
        safe.with_suffix(".away").rename(safe)
        (handler.folder / "pytorch_model.bin").unlink()
    assert answer.stdout.strip() == str(tiny_model().encode(SENTENCES[:1])[0, :4].tolist()), answer.stderr


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("someone/absent", "no folder someone/absent, and no such checkpoint on the hub"),
        (f"{REPOSITORY}@v3", f"{REPOSITORY} has no revision 'v3' on the hub"),
        (GATED, f"{GATED} is gated: accept its terms"),
        ("a/b/c", "no folder a/b/c, and it is not a hub id"),
        ("../nowhere", "no folder ../nowhere, and it is not a hub id"),
    ],
)
def test_what_the_hub_refuses_is_one_clear_line(where, message, hub, tmp_path):
    answer = load(where, hub[0], tmp_path)
    assert answer.returncode == 2 and message in answer.stderr and "Traceback" not in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1, answer.stderr


@pytest.mark.parametrize("offline", [True, False])
def test_no_network_is_one_clear_line(offline, tmp_path):
    """After huggingface-hub's own lines on its retries, when it may try (that takes half a minute)."""
    answer = load(REPOSITORY, "http://127.0.0.1:9", tmp_path, offline)  # nothing listens there
    lines = answer.stderr.strip().splitlines()
    assert answer.returncode == 2 and "neither in the cache nor to be had from the hub" in lines[-1]
    assert (
        (len(lines) == 1) if offline else all("Retrying" in line or "refused" in line for line in lines[:-1])
    )
