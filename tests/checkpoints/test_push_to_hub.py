"""A folder to the hub, against a hub of our own that keeps what it gets; huggingface-hub is the real one."""

import base64
import json
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, SENTENCES, tiny_model
from processes import run_forked

from tmft.sentence_encoder import SentenceEncoder

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_right"

pytestmark = pytest.mark.slow


class Hub(BaseHTTPRequestHandler):
    """What an upload needs: whoami, repositories made, looked up, changed and removed, files in one commit.

    repositories: name -> {"private": ..., "files": {path: bytes}}; broken: a part of the path of requests
    that are cut off; refused: such a part -> the status that they are answered with.
    """

    repositories: dict
    requests: list
    broken: str
    refused: dict
    answers: dict  # a part of the path of requests -> the JSON that they are answered with
    large: dict  # sha256 -> bytes
    cards: list  # what stands at the head of each model card

    def handle_any(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        self.requests.append(f"{self.command} {self.path}")
        if self.broken and self.broken in self.path:
            self.close_connection = True
            return self.connection.close()
        for part, status in self.refused.items():
            if part in self.path:
                return self.say(status, {"error": "no"})
        for part, content in self.answers.items():
            if part in self.path:
                return self.say(200, content)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" and "/large/" not in self.path:
            return self.say(401, {"error": "Invalid username or password."})
        path = self.path.split("?")[0]
        if path == "/api/whoami-v2":
            return self.say(200, {"name": "me", "type": "user", "orgs": []})
        if path.startswith("/large/"):
            self.large[path.removeprefix("/large/")] = body
            return self.say(200, {})
        output = json.loads(body) if body.startswith(b"{") and b"\n" not in body.strip() else {}
        if path == "/api/validate-yaml":
            self.cards.append(yaml.safe_load(output["content"].split("---")[1]))
            return self.say(200, {"errors": [], "warnings": []})
        if path == "/api/repos/create":
            name = f"{output.get('organization') or 'me'}/{output['name']}"
            if name in self.repositories:
                return self.say(409, {"error": "You already created this model repo"})
            private = output.get("private", output.get("visibility") == "private")
            self.repositories[name] = {"private": private, "files": {}}
            if self.broken == "answer to create":
                self.close_connection = True
                return self.connection.close()
            return self.say(200, {"url": f"http://{self.headers['Host']}/{name}", "name": name, "id": name})
        if path == "/api/repos/delete":
            del self.repositories[f"{output.get('organization') or 'me'}/{output['name']}"]
            return self.say(200, {})
        name = "/".join(path.removeprefix("/api/models/").lstrip("/").split("/")[:2]).removesuffix(".git")
        repository = self.repositories.get(name)
        if repository is None:
            return self.say(404, {"error": "Repository not found"}, "RepoNotFound")
        if "/preupload/" in path:
            files = [
                {"path": file["path"], "uploadMode": "lfs" if file["size"] > 20000 else "regular"}
                | {"shouldIgnore": False, "oid": None}
                for file in output["files"]
            ]
            return self.say(200, {"files": files, "commitOid": COMMIT})
        if path.endswith("/info/lfs/objects/batch"):
            here = f"http://{self.headers['Host']}/large/"
            objects = [
                {
                    "oid": entry["oid"],
                    "size": entry["size"],
                    "actions": {"upload": {"href": here + entry["oid"]}},
                }
                for entry in output["objects"]
            ]
            return self.say(200, {"transfer": "basic", "objects": objects})
        if "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    repository["files"][value["path"]] = base64.b64decode(value["content"])
                if line["key"] == "lfsFile":
                    repository["files"][value["path"]] = self.large[value["oid"]]
            answer = {
                "commitUrl": f"http://{self.headers['Host']}/{name}/commit/{COMMIT}",
                "commitOid": COMMIT,
            }
            return self.say(200, answer | {"hookOutput": ""})
        if path.endswith("/settings"):
            repository["private"] = output.get("private", output.get("visibility") == "private")
            return self.say(200, output)
        if path == f"/api/models/{name}":
            return self.say(200, {"id": name, "modelId": name, "private": repository["private"], "tags": []})
        return self.say(404, {"error": path}, "EntryNotFound")

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any

    def say(self, status: int, content: dict, code: str = ""):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def hub():
    state = {
        "repositories": {},
        "requests": [],
        "broken": "",
        "refused": {},
        "answers": {},
        "large": {},
        "cards": [],
    }
    handler = type("ThisHub", (Hub,), state)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    handler.address = f"http://127.0.0.1:{server.server_port}"
    yield handler
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny_model().save_pretrained(folder)
    return folder


def push(folder: Path, name: str, hub, cache: Path, public=False, token=TOKEN, whole=False, upload=""):
    """Upload in a process of its own, as huggingface-hub reads its settings once.

    whole: with the command export. upload: an expression, which is printed; "": upload the folder.
    """
    upload = upload or f"push_to_hub(Path({str(folder)!r}), resolve_repo_id({name!r}), {public})"
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom tmft.cli.parser import run_command\n"
        "time.sleep = lambda seconds: None\n"  # huggingface-hub waits 1, 2, 4, 8 and 8 seconds to try again
        "from tmft.checkpoints.push_to_hub import push_to_hub, resolve_repo_id\n"
        "from tmft import SentenceEncoder\ndef main():\n"
        f"    print({upload})\nrun_command(main)\n"
    )
    environment = {
        "HF_ENDPOINT": hub if isinstance(hub, str) else hub.address,
        "HF_HOME": str(cache / "cache"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PYTHONPATH": str(ROOT),
        "PATH": "/usr/bin:/bin",
    }
    environment |= {"HF_TOKEN": token} if token else {}
    file = cache / "push.py"
    file.write_text(program, encoding="utf-8")
    words = [ROOT / "tmft/__main__.py", "export", folder, "--push-to-hub", name] if whole else [file]
    return run_forked(words, [environment], timeout=300)


def one_line(answer: subprocess.CompletedProcess) -> str:
    """What is said of a failure."""
    assert answer.returncode == 2, answer.stderr
    assert answer.stdout == ""
    [output] = answer.stderr.strip().splitlines()
    return output


@pytest.mark.parametrize("public", [False, True])
def test_a_folder_is_uploaded_whole(public, folder, hub, tmp_path):
    answer = push(folder, "me/tiny", hub, tmp_path, public)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == f"{hub.address}/me/tiny"
    there = hub.repositories["me/tiny"]
    assert there["private"] is not public
    here = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {name: there["files"].get(name) for name in here} == here
    commits = [request for request in hub.requests if "/commit/" in request]
    assert len(commits) == 1
    assert {card["library_name"] for card in hub.cards} == {"sentence-transformers"}
    settings = [n for n, request in enumerate(hub.requests) if request.endswith("/settings")]
    assert settings == ([len(hub.requests) - 1] if public else [])  # public last


@pytest.mark.parametrize("public", [None, True, False])  # None: the command
def test_what_is_uploaded_opens_again_and_its_card_names_it(public, folder, hub, tmp_path):
    private = "" if public is False else f", private={not public}"
    upload = f"SentenceEncoder.from_pretrained({str(folder)!r}).push_to_hub('tiny'{private})"
    answer = push(folder, "tiny", hub, tmp_path, whole=public is None, upload=upload)
    assert answer.returncode == 0, answer.stderr
    said = f"uploaded to {hub.address}/me/tiny" if public is None else f"{hub.address}/me/tiny"
    assert answer.stdout.splitlines()[-1] == said
    assert hub.repositories["me/tiny"]["private"] is not bool(public)
    for name, content in hub.repositories["me/tiny"]["files"].items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(content)
    there = SentenceEncoder.from_pretrained(tmp_path / "copy")
    assert (there.encode(SENTENCES) == tiny_model().encode(SENTENCES)).all()
    assert 'SentenceTransformer("me/tiny")' in (tmp_path / "copy" / "README.md").read_text()
    assert "result.json" not in hub.repositories["me/tiny"]["files"]  # which has paths of this machine


REFUSALS = {
    "no token": ({"token": None}, {}, "no token for the hub: set HF_TOKEN"),
    "a refused token": ({"token": "hf_wrong"}, {}, "the hub refused the token: set HF_TOKEN to a valid"),
    "a name of others": ({}, {"/api/repos/create": 403}, "the token has no write access to me/tiny: use one"),
    "a strange name": ({"name": "me/tiny/more"}, {}, "push_to_hub me/tiny/more: write NAME or OWNER/NAME"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_refused_is_one_line_and_leaves_nothing(case, folder, hub, tmp_path):
    options, hub.refused, words = REFUSALS[case]
    answer = push(folder, hub=hub, cache=tmp_path, **{"name": "me/tiny"} | options)
    assert words.replace("push_to_hub", "--push-to-hub") in one_line(answer)
    assert hub.repositories == {}


ODD_ANSWERS = [{}, [], None, "me", {"name": 5}, {"name": ["me"]}, {"name": "../me"}, {"name": ""}]


@pytest.mark.parametrize("content", ODD_ANSWERS)
def test_a_hub_that_does_not_say_whose_the_token_is_is_one_line(content, folder, hub, tmp_path):
    hub.answers = {"/api/whoami": content}
    output = one_line(push(folder, "tiny", hub, tmp_path))
    assert "the hub does not say whose the token is (it answers " in output
    assert hub.repositories == {}


@pytest.mark.parametrize("part", ["/api/repos/create", "/preupload/", "/commit/", "/info/lfs/objects/batch"])
@pytest.mark.parametrize("content", [[], {}])
def test_an_odd_answer_to_an_upload_is_one_line(part, content, folder, hub, tmp_path):
    hub.answers = {part: content}
    assert "me/tiny" in one_line(push(folder, "me/tiny", hub, tmp_path, public=True))


def test_a_name_that_is_there_is_left_as_it_is(folder, hub, tmp_path):
    hub.repositories["me/tiny"] = {"private": True, "files": {"README.md": b"mine"}}
    assert "me/tiny exists on the hub already: choose another name" in one_line(
        push(folder, "me/tiny", hub, tmp_path)
    )
    assert hub.repositories["me/tiny"] == {"private": True, "files": {"README.md": b"mine"}}


@pytest.mark.parametrize("where", ["/large/", "/commit/", "/preupload/"])
def test_a_connection_that_is_lost_leaves_nothing(where, folder, hub, tmp_path):
    hub.broken = where
    answer = push(folder, "me/tiny", hub, tmp_path, public=True)
    assert "the upload of me/tiny failed (" in one_line(answer)
    assert hub.repositories == {}


def test_a_connection_that_is_lost_while_the_repository_is_made_says_so(folder, hub, tmp_path):
    hub.broken = "answer to create"
    output = one_line(push(folder, "me/tiny", hub, tmp_path, public=True))
    assert "the upload of me/tiny failed (" in output
    assert output.endswith(
        "; the private repository me/tiny may be left, without files: remove it on the hub"
    )
    assert hub.repositories == {"me/tiny": {"private": True, "files": {}}}


def test_what_cannot_be_removed_is_private_and_named(folder, hub, tmp_path):
    hub.refused = {"/commit/": 500, "/api/repos/delete": 403}
    output = one_line(push(folder, "me/tiny", hub, tmp_path, public=True))
    assert "the hub did not accept me/tiny" in output
    assert "the private repository me/tiny is left: remove it on the hub" in output
    assert hub.repositories == {"me/tiny": {"private": True, "files": {}}}


def test_what_cannot_be_made_public_is_whole_and_private(folder, hub, tmp_path):
    hub.refused = {"/settings": 403}
    output = one_line(push(folder, "me/tiny", hub, tmp_path, public=True))
    assert "the upload is complete, but the repository is private" in output
    assert (
        hub.repositories["me/tiny"]["private"] and "model.safetensors" in hub.repositories["me/tiny"]["files"]
    )


def test_without_a_network_it_is_one_line_within_seconds(folder, tmp_path):
    start = time.monotonic()
    output = one_line(push(folder, "me/tiny", "http://127.0.0.1:9", tmp_path))
    assert "the hub does not answer: check the network" in output
    assert time.monotonic() - start < 15
