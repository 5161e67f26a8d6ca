"""Where a checkpoint is: a folder, or a hub id, against a hub of our own; huggingface-hub is the real one."""

import hashlib
import json
import socket
import subprocess
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import (
    ROOT,
    SENTENCES,
    VOCABULARY,
    move_first_module,
    stored_weights,
    tiny_model,
    tiny_static_model,
)
from processes import run_forked
from test_weights import to_bin, to_shards

from tmft.checkpoints.hub import HubRepository, is_hub_id
from tmft.checkpoints.model_folder import ModelFolder
from tmft.embedding.modules import Dense, Normalize
from tmft.embedding.token_weights import TokenWeights
from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "someone/tiny-electra"
OF_THE_ORGANIZATION = "sentence-transformers/tiny-minilm"
GATED, EMPTY = "someone/gated", "someone/empty"
NOBODY = "http://127.0.0.1:9"  # nothing listens there


# ------------------------------------------------------------------------------- folders


@pytest.fixture
def no_hub(monkeypatch):
    """A hub that must not be asked."""

    def fetch(repository, name):
        raise AssertionError(f"the hub was asked for {name} of {repository.hub_id}")

    monkeypatch.setattr(HubRepository, "fetch", fetch)


def test_a_model_that_comes_with_the_package_is_found_from_everywhere(tmp_path, monkeypatch, no_hub):
    monkeypatch.chdir(tmp_path)
    assert ModelFolder.open("data/tiny").path.samefile(ROOT / "data/tiny")
    (tmp_path / "data/tiny").mkdir(parents=True)
    with pytest.raises(InputError, match="no config.json in data/tiny"):
        ModelFolder.open("data/tiny")  # a folder of the user comes first


def test_a_file_is_no_folder(tiny_folder, no_hub):
    with pytest.raises(InputError, match="is a file: name the folder"):
        ModelFolder.open(tiny_folder / "model.safetensors")


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The current folder, with one run in runs/ and a folder of models."""
    for name in ("runs/stsb-layer9", "models/electra"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


PATHS = ["runs/absent", "models/absent", "./absent", "../absent", "a/b/c", "~/absent", "with space/absent"]


@pytest.mark.parametrize("path", PATHS)
def test_a_missing_path_is_refused_without_a_request_to_the_hub(path, here, no_hub):
    assert not is_hub_id(path)
    with pytest.raises(InputError, match=f"^no folder {path}: check the path") as error:
        ModelFolder.open(path)
    assert "\n" not in str(error.value)


def test_the_nearest_folder_is_named(here, no_hub):
    for path, nearest in {"runs/stsb-layer8": "runs/stsb-layer9", "models/elektra": "models/electra"}.items():
        with pytest.raises(InputError, match=f"; did you mean {here / nearest}\\?$"):
            ModelFolder.open(here / path)


# --------------------------------------------------------------------------------------------- out of reach


@pytest.mark.parametrize(
    ("where", "nearest"),
    [
        ("google/electra-base-discriminater@v2", "; did you mean google/electra-base-discriminator?"),
        ("bert-base-cased", "check the name"),
    ],
)
def test_offline_a_misspelt_hub_id_names_the_nearest(where, nearest):
    """One that is spelled as a known one is only not here."""
    with pytest.raises(InputError, match="not in the cache; HF_HUB_OFFLINE forbids downloads") as error:
        ModelFolder.open(where)
    assert str(error.value).endswith(nearest)


# -------------------------------------------------------------------------------------------------- the hub


def digest(content: bytes, name: str) -> str:
    """The name of a file in the cache: SHA-256 of weights, and of other files git's SHA-1."""
    if name.endswith((".safetensors", ".bin")):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(BaseHTTPRequestHandler):
    """GET and HEAD of /owner/name/resolve/revision/file, the part of the hub that downloads need."""

    folder: Path
    requests: list[str]
    status: int  # of every answer, if it is not 200

    def do_GET(self):
        self.answer(body=True)

    def do_HEAD(self):
        self.answer(body=False)

    def answer(self, body: bool):
        self.requests.append(f"{self.command} {self.path}")
        repository, _, rest = self.path.lstrip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        if self.status != 200:
            return self.refuse(self.status, "")
        path = self.folder / name
        if repository == EMPTY:
            return self.refuse(404, "EntryNotFound")
        if repository == GATED:
            return self.refuse(403, "GatedRepo")
        if repository not in (REPOSITORY, OF_THE_ORGANIZATION):
            return self.refuse(404, "RepoNotFound")
        if revision not in ("main", "v2", COMMIT):
            return self.refuse(404, "RevisionNotFound")
        if not path.is_file():
            return self.refuse(404, "EntryNotFound")
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{digest(content, name)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def refuse(self, status: int, code: str):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        if code == "EntryNotFound":
            self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()

    def log_message(self, *args):
        pass


def hub_model(folder: Path | None = None) -> SentenceEncoder:
    """A model with modules of its own, which the hub has to give, too; saved into the folder."""
    model = tiny_model()
    torch.manual_seed(1)
    model.head_modules = torch.nn.Sequential(Dense(24, 8, activation="Tanh"), Normalize())
    if folder:
        model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def embedding() -> list[float]:
    """What load prints where all went well."""
    return hub_model().encode(SENTENCES[:1])[0, :4].tolist()


def assert_prints(answer: subprocess.CompletedProcess, embedding: list[float]) -> None:
    """Up to rounding: another process may sum in another order."""
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == pytest.approx(embedding, abs=1e-5)


@pytest.fixture
def hub(tmp_path, start_server):
    """-> the address of a hub that has one repository, and its handler"""
    folder = tmp_path / "repository"
    hub_model(folder)
    handler = type("ThisHub", (Hub,), {"folder": folder, "requests": [], "status": 200})
    return start_server(handler), handler


def load(
    where: str,
    endpoint: str,
    cache: Path,
    offline: bool = False,
    arguments: str = "",
    shown: str = f"model.encode({SENTENCES[:1]!r})[0, :4].tolist()",
) -> subprocess.CompletedProcess:
    """Load `where` and print an embedding, in a process of its own: huggingface-hub reads settings once."""
    program = (
        "from tmft.cli.parser import run_command\nfrom tmft import SentenceEncoder\ndef main():\n"
        f"    model = SentenceEncoder.from_pretrained({where!r}{arguments})\n"
        f"    print({shown})\nrun_command(main)\n"
    )
    environment = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache / "cache"),
        "HF_HUB_DOWNLOAD_TIMEOUT": "2",
        "HF_HUB_ETAG_TIMEOUT": "2",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PYTHONPATH": str(ROOT),
        "PATH": "/usr/bin:/bin",
    }
    environment |= {"HF_HUB_OFFLINE": "1"} if offline else {}
    file = cache / "load.py"
    file.write_text(program, encoding="utf-8")
    return run_forked([file], [environment], timeout=60)


@pytest.mark.slow
def test_a_name_without_an_owner_is_also_that_of_a_model_of_sentence_transformers(hub, embedding, tmp_path):
    """With a revision, too, and from the cache; the card names its owner."""
    endpoint, handler = hub
    assert_prints(load("tiny-minilm@v2", endpoint, tmp_path), embedding)
    paths = [request.split()[1].removesuffix("/resolve/v2/config.json") for request in handler.requests]
    assert not any("/resolve/main/" in path for path in paths)
    assert paths[0] == "/tiny-minilm" and f"/{OF_THE_ORGANIZATION}" in paths
    start = time.monotonic()
    for where in (endpoint, NOBODY):
        assert_prints(load("tiny-minilm@v2", where, tmp_path, offline=where == endpoint), embedding)
    assert time.monotonic() - start < 15
    source = load("tiny-minilm@v2", endpoint, tmp_path, shown="model.source").stdout
    assert source == f"{OF_THE_ORGANIZATION}@v2\n"
    assert_one_line(load("tiny-minilm@v3", endpoint, tmp_path), f"{OF_THE_ORGANIZATION} has no revision 'v3'")


@pytest.mark.slow
def test_without_weights_only_the_small_files_are_fetched(hub, tmp_path):
    endpoint, handler = hub
    answer = load(REPOSITORY, endpoint, tmp_path, arguments=", init='random'")
    assert answer.returncode == 0, answer.stderr
    assert not any(request.endswith(f"/{COMMIT}/model.safetensors") for request in handler.requests)


# ------------------------------------------------------------------------------- every form of a repository


def table_below(folder: Path) -> SentenceEncoder:
    """A table of words with a Normalize; as sentence-transformers leaves it, without config.json."""
    model = tiny_static_model(modules=[Normalize()])
    model.save_pretrained(folder)
    for file in ("config.json", "tokenizer_config.json"):
        (folder / file).unlink()
    move_first_module(folder, "0_StaticEmbedding")
    return model


def transformer_below(folder: Path) -> SentenceEncoder:
    """With token weights and a Dense, and a limit beside the encoder."""
    model = hub_model()
    model.token_weights = TokenWeights(
        torch.rand(len(VOCABULARY), generator=torch.Generator().manual_seed(0))
    )
    model.max_length = 5
    model.save_pretrained(folder)
    move_first_module(folder, "0_Transformer")
    (folder / "0_Transformer/tokenizer_config.json").unlink()
    return model


def in_a_bin(folder: Path) -> SentenceEncoder:
    model = hub_model(folder)
    to_bin(folder, stored_weights(folder))
    return model


def in_shards_with_a_vocabulary(folder: Path) -> SentenceEncoder:
    hub_model(folder)
    to_shards(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return SentenceEncoder.from_pretrained(folder)


REPOSITORIES = {
    "a bin": in_a_bin,
    "shards with a vocabulary": in_shards_with_a_vocabulary,
    "a table below": table_below,
    "a transformer below": transformer_below,
}


@pytest.mark.slow
@pytest.mark.parametrize("form", REPOSITORIES)
def test_all_files_of_a_repository_are_downloaded_once_and_then_it_works_offline(form, hub, tmp_path):
    endpoint, handler = hub
    handler.folder = tmp_path / "other"
    expected = REPOSITORIES[form](handler.folder).encode(SENTENCES[:1])[0, :4].tolist()
    assert_prints(load(REPOSITORY, endpoint, tmp_path), expected)
    assert not any(".." in request for request in handler.requests)
    handler.requests.clear()
    assert_prints(load(REPOSITORY, endpoint, tmp_path, offline=True), expected)
    assert handler.requests == []
    start = time.monotonic()
    assert_prints(load(REPOSITORY, NOBODY, tmp_path), expected)
    assert time.monotonic() - start < 15


# -------------------------------------------------------------------------------------- what is refused


def assert_one_line(answer: subprocess.CompletedProcess, words: str) -> None:
    """The command is refused with one line that has these words."""
    assert answer.returncode == 2, answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1, answer.stderr
    assert words in answer.stderr


@pytest.mark.slow
def test_an_error_of_the_hub_is_one_line_and_the_cache_suffices(hub, embedding, tmp_path):
    endpoint, handler = hub
    handler.status = 503
    answer = load(REPOSITORY, endpoint, tmp_path)
    assert_one_line(answer, "not in the cache; the hub answers with an error (503): try again later")
    handler.status = 200
    load(REPOSITORY, endpoint, tmp_path)
    handler.status = 503
    assert_prints(load(REPOSITORY, endpoint, tmp_path), embedding)


REFUSED = {
    "no folder someone/absent, and no such checkpoint on the hub": "someone/absent",
    f"{REPOSITORY} has no revision 'v3' on the hub": f"{REPOSITORY}@v3",
    f"{GATED} is gated: accept its terms": GATED,
    f"{EMPTY} has no config.json on the hub": EMPTY,
    "no folder a--b/c, and it is not a hub id": "a--b/c",
}


@pytest.mark.slow
@pytest.mark.parametrize("words", REFUSED)
def test_what_the_hub_refuses_is_one_line(words, hub, tmp_path):
    assert_one_line(load(REFUSED[words], hub[0], tmp_path), words)


@pytest.fixture
def silent():
    """The address of a server that takes a call and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize(("server", "offline"), [("nobody", False), ("silent", False), ("silent", True)])
def test_no_network_is_one_clear_line_within_seconds(server, offline, silent, tmp_path):
    start = time.monotonic()
    answer = load(REPOSITORY, NOBODY if server == "nobody" else silent, tmp_path, offline)
    seconds = time.monotonic() - start
    assert_one_line(answer, "not in the cache; ")
    assert ("HF_HUB_OFFLINE" in answer.stderr) == offline
    assert ("the hub does not answer: check the network" in answer.stderr) != offline
    assert seconds < 15  # of which most is the start of Python; huggingface-hub alone tries for half a minute


# --------------------------------------------------------------------------------------------------- upload


class Account:
    """HfApi of the account "me": keeps the files that it gets; an upload may fail."""

    endpoint = "https://hub"
    repositories: dict
    failure: str

    def create_repo(self, repo_id: str, private: bool):
        name = repo_id if "/" in repo_id else f"me/{repo_id}"
        if name in self.repositories:
            raise ConnectionError("409 Client Error: Conflict\n\nYou already created this model repo")
        self.repositories[name] = {"private": private}
        return SimpleNamespace(repo_id=name)

    def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str):
        if self.failure:
            raise ConnectionError(self.failure)
        files = [path for path in folder_path.rglob("*") if path.is_file()]
        names = [path.relative_to(folder_path).as_posix() for path in files]
        self.repositories[repo_id] |= dict(zip(names, map(Path.read_bytes, files), strict=True))


def test_a_model_is_uploaded_to_a_new_private_repository_and_a_failure_is_one_line(monkeypatch, tmp_path):
    Account.repositories, Account.failure = {}, ""
    monkeypatch.setattr("huggingface_hub.HfApi", Account)
    model = tiny_model()
    assert model.push_to_hub("tiny") == "https://hub/me/tiny"
    assert model.push_to_hub("lab/tiny", private=False) == "https://hub/lab/tiny"
    files, public = Account.repositories["me/tiny"], Account.repositories["lab/tiny"]
    assert files["private"] is True and public["private"] is False
    assert b'SentenceTransformer("me/tiny")' in files["README.md"]
    model.save_pretrained(tmp_path / "saved")
    for name in ("model.safetensors", "config.json", "modules.json", "1_Pooling/config.json"):
        assert files[name] == (tmp_path / "saved" / name).read_bytes()
    with pytest.raises(
        InputError, match="^tiny cannot be created on the hub \\(409 .*repo\\): check the name,"
    ):
        model.push_to_hub("tiny")
    Account.failure = "connection lost"
    failed = r"^the repository me/new was created on the hub, but the upload failed \(connection lost\): "
    with pytest.raises(InputError, match=failed):
        model.push_to_hub("new")
