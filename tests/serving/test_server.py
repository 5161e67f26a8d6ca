"""`tmft serve` answers as OpenAI's API does, and refuses bad requests, as docs/serving.md says."""

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest
from conftest import ROOT, SENTENCES, assert_same_embeddings, tiny_model

from tmft.cli import serve_command as serve
from tmft.embedding.modules import Dense, Normalize
from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder

PAGE = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
[CLIENT] = re.findall(r"```python\n(from openai.*?)```", PAGE, re.DOTALL)
TOKEN_IDS = (
    "input has numbers, which are token ids of the client's own tokenizer and no text of this model: send"
)
SECONDS_TO_START = 90  # on a busy machine; three processes import torch


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("http") / "model"
    tiny_model().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def url(model_folder):
    """The address of the server with a tiny model, which ends with the module."""
    if find_spec("litserve") is None:
        pytest.skip("litserve is not installed")
    if not hasattr(os, "killpg"):
        pytest.skip("this system has no process groups, by which the test ends the server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    log_file = model_folder.with_name("log")
    with open(log_file, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tmft", "serve", model_folder, "--port", str(port)],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + SECONDS_TO_START
        while not is_healthy(f"http://127.0.0.1:{port}"):
            assert process.poll() is None and time.monotonic() < end, log_file.read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            assert process.wait(timeout=20) == 0
        finally:
            assert not stop_group(process.pid), "a process of the server has not ended by itself"
        assert "Traceback" not in log_file.read_text()


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10) as response:
            return response.read() == b"ok"
    except OSError:
        return False


def stop_group(group: int) -> bool:
    """End what is left of a process group after five seconds; return whether anything was left."""
    end = time.monotonic() + 5
    try:
        while time.monotonic() < end:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def test_the_log_says_ready_when_the_model_answers(url, model_folder):
    """uvicorn alone says that it runs when it has the port, which may be a minute before."""
    assert f"Ready: {url}/v1/embeddings (Ctrl+C ends it)\n" in model_folder.with_name("log").read_text()


def ask(url: str, request: dict | bytes) -> tuple[int, dict]:
    """Return the status and the content of the answer. request: JSON, or its bytes."""
    body = request if isinstance(request, bytes) else json.dumps({"model": "tmft"} | request).encode()
    message = urllib.request.Request(f"{url}/v1/embeddings", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(message, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def embeddings(url: str, **request) -> np.ndarray:
    status, answer = ask(url, request)
    assert status == 200 and answer["object"] == "list" and answer["model"] == "tmft"
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    return np.array([item["embedding"] for item in answer["data"]])


def test_the_embeddings_are_those_of_encode(url, model_folder):
    model, long_text = SentenceEncoder.from_pretrained(model_folder), "music " * 200
    expected = model.encode(SENTENCES)
    assert_same_embeddings(embeddings(url, input=SENTENCES), expected)
    assert_same_embeddings(embeddings(url, input=SENTENCES[0]), expected[:1])
    assert_same_embeddings(embeddings(url, input=long_text), model.encode([long_text]))  # truncated
    assert_same_embeddings(embeddings(url, input=SENTENCES, dimensions=5), expected[:, :5])
    assert_same_embeddings(embeddings(url, input=SENTENCES, encoding_format=None), expected)
    _, answer = ask(url, {"input": SENTENCES, "encoding_format": "base64"})
    vectors = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in answer["data"]]
    assert_same_embeddings(np.stack(vectors), expected)
    num_tokens = sum(map(len, model.tokenize(SENTENCES)))
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def test_requests_of_several_clients_at_once_get_their_own_embeddings(url, model_folder):
    expected = SentenceEncoder.from_pretrained(model_folder).encode(SENTENCES)
    slices = [slice(first, first + count) for first in range(4) for count in (1, 2, 5)] * 3
    with ThreadPoolExecutor(12) as clients:
        answers = clients.map(lambda part: embeddings(url, input=SENTENCES[part], dimensions=7), slices)
        for part, answer in zip(slices, answers, strict=True):
            assert_same_embeddings(answer, expected[part, :7])


def test_embeddings_of_length_1_keep_this_length_when_they_have_fewer_dimensions(model_folder):
    """As the clients of OpenAI expect; embeddings of other lengths keep their numbers."""
    server = pytest.importorskip("tmft.serving.server", reason="litserve is not installed")
    for modules in ([], [Normalize()], [Normalize(), Dense(24, 24)]):
        model = tiny_model()
        model.head_modules.extend(modules)
        embedder = server.EmbeddingAPI(lambda model=model: model)
        embedder.setup("cpu")
        requests = [
            server.NullFormatRequest(model="tmft", input=SENTENCES, dimensions=dimensions)
            for dimensions in (7, None, 24)
        ]
        found = [answer["embeddings"] for answer in embedder.predict(requests)]
        expected = model.encode(SENTENCES)
        assert_same_embeddings(found[1], expected)
        assert_same_embeddings(found[2], expected)
        cut = expected[:, :7]
        if len(modules) == 1:
            cut = cut / np.linalg.norm(cut, axis=1, keepdims=True)
        assert_same_embeddings(found[0], cut)


# What is asked, and a part of the sentence that says what is wrong.
BAD_REQUESTS = {
    "an empty list": ({"input": []}, "input has 0 texts: give 1 to 2048"),
    "10,000 texts": ({"input": ["music"] * 10_000}, "input has 10000 texts: give 1 to 2048"),
    "a number": ({"input": 5}, "input: Input should be a valid list"),
    "token ids of a text": ({"input": [1, 2]}, TOKEN_IDS),
    "token ids": ({"input": [[1, 2], [3]]}, TOKEN_IDS),
    "nothing in a list": ({"input": ["music", None]}, "input: Input should be a valid"),
    "no input": ({}, "input: Field required"),
    "half a character": (b'{"model": "tmft", "input": "\\ud800"}', "half a character (a surrogate)"),
    "no dimensions": ({"input": "music", "dimensions": 0}, "dimensions is 0: give 1 to 24"),
    "too many dimensions": ({"input": "music", "dimensions": 25}, "dimensions is 25: give 1 to 24"),
    "another format": ({"input": "music", "encoding_format": "hex"}, "'float' or 'base64'"),
    "no JSON": (b'{"input": ', "JSON decode error"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_is_refused_in_a_sentence_and_the_server_lives_on(name, url):
    request, part = BAD_REQUESTS[name]
    status, answer = ask(url, request)
    message = answer["error"]["message"]
    assert status == 400 and part in message and len(message) < 400
    assert embeddings(url, input="music").shape == (1, 24)


def test_a_request_that_is_too_large_is_refused(url):
    status, answer = ask(url, {"input": "a" * 20_000_000})
    assert (status, answer) == (413, {"error": {"message": "Payload too large"}})
    assert embeddings(url, input="music").shape == (1, 24)


def test_a_server_with_too_many_clients_refuses_the_next_one(url):
    host, _, port = url.removeprefix("http://").partition(":")
    clients = [socket.create_connection((host, int(port))) for _ in range(128)]
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(f"{url}/v1/models", timeout=60)
    for client in clients:
        client.close()
    assert embeddings(url, input="music").shape == (1, 24)


def test_the_list_of_models_has_the_one_that_is_served(url, model_folder):
    """By the name of its folder: where it lies is nobody's business."""
    before = time.time()
    with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as response:
        answer = json.load(response)
    [model] = answer["data"]
    assert answer["object"] == "list" and 0 < before - model.pop("created") < 3600
    assert model == {"id": model_folder.name, "object": "model", "owned_by": "tmft"}


def test_what_cannot_be_served_is_said_in_one_line(url, model_folder, capsys, monkeypatch):
    port = url.rpartition(":")[2]
    with pytest.raises(InputError, match=f"port {port} of 127.0.0.1: Address already in use, choose another"):
        serve.main([str(model_folder), "--port", port])
    with pytest.raises(InputError, match="port 80: choose 1024 to 65535"):
        serve.main([str(model_folder), "--port", "80"])
    monkeypatch.setitem(sys.modules, "litserve", None)
    monkeypatch.delitem(sys.modules, "tmft.serving.server")
    with pytest.raises(InputError, match="^this command needs litserve: pip install"):
        serve.main([str(model_folder)])


def test_the_client_of_the_page_gets_two_embeddings(url, capsys):
    if find_spec("openai") is None:
        pytest.skip("openai is not installed")
    names = {}
    exec(compile(CLIENT.replace("http://127.0.0.1:8000", url), "docs/serving.md", "exec"), names)
    names["client"].close()
    assert capsys.readouterr().out == "2 24\n"
