"""A release is downloaded, checked and unpacked; any answer of a server is one line, and no file changes."""

import gzip
import socketserver
import time
import zipfile
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from test_releases import FORMS, write

import tmft.datasets.download
import tmft.datasets.readers
from tmft.data import SPLITS, read_examples
from tmft.datasets.download import download_dataset
from tmft.datasets.readers import SHA256
from tmft.datasets.releases import RELEASES
from tmft.datasets.task_lookup import get_task
from tmft.errors import InputError


@pytest.fixture(autouse=True)
def online(monkeypatch):
    """Downloads of these tests come from this machine, so HF_HUB_OFFLINE must not forbid them."""
    monkeypatch.setattr(tmft.datasets.download, "is_offline", lambda: False)


@pytest.fixture
def served(tmp_path) -> Path:
    """Three releases: STS benchmark as sbert.net has it, SICK in a zip with other files, and SST-5."""
    files = FORMS["STS benchmark, sbert.net"][1] | FORMS["SST-5"][1]
    folder = write(
        tmp_path / "served", {name.replace("a.tsv", "stsb.tsv"): text for name, text in files.items()}
    )
    with zipfile.ZipFile(folder / "SICK.zip", "w") as archive:
        archive.writestr("SICK/readme.txt", "read me")
        archive.writestr("SICK/SICK.txt", FORMS["SICK, one file"][1]["SICK.txt"])
    return folder


@pytest.fixture
def server(served, start_server):
    """Serve the releases; for /half/NAME, close the connection after half of the file."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            path = served / Path(self.path).name
            if not path.is_file():
                return self.send_error(404)
            content = path.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if self.path.startswith("/half") else content)

        def log_message(self, *args):
            pass

    return start_server(Handler)


@pytest.fixture
def any_size(monkeypatch):
    """Switch off the check of the number of examples: the releases are imitated with a few."""
    for name in ("stsb", "sick", "sst5"):
        monkeypatch.setitem(RELEASES, name, replace(RELEASES[name], sizes={}))


def test_one_file_and_an_archive_are_downloaded_and_read_by_their_tasks(server, any_size, tmp_path):
    for name, file, task, label in [("stsb", "stsb.tsv.gz", "stsb", 5.0), ("sick", "SICK.zip", "sicke", 1)]:
        output = download_dataset(name, f"{server}/{file}", tmp_path / "data")
        assert output == f"wrote {tmp_path / 'data' / name} (train 1, dev 1, test 1 pairs)"
        row = get_task(task, data_root=str(tmp_path / "data"))
        assert [read_examples(row, split).labels for split in SPLITS] == [[label]] * 3


def test_several_files_are_downloaded_from_their_addresses_and_checked(
    server, any_size, tmp_path, monkeypatch
):
    urls = tuple(f"{server}/{url.rpartition('/')[2]}" for url in RELEASES["sst5"].urls)
    monkeypatch.setitem(RELEASES, "sst5", replace(RELEASES["sst5"], urls=urls))
    with pytest.raises(InputError, match=r"stsa.fine.train is not the published stsa.fine.train \(SHA-256"):
        download_dataset("sst5", None, tmp_path / "data")
    for split in SPLITS:
        monkeypatch.delitem(SHA256, f"stsa.fine.{split}")
    assert "(train 2, dev 2, test 2 texts)" in download_dataset("sst5", None, tmp_path / "data")


# ------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("half/stsb.tsv.gz", "cannot download .*/half/.*: check the network, .*tmft data stsb"),
        ("absent", "cannot download .*/absent .*: check the network"),
        ("stsb.tsv.gz", "train has 1 pairs instead of 5749 .*: the release changed"),
    ],
)
def test_a_release_that_does_not_arrive_whole_is_one_line_and_changes_no_file(
    source, message, server, tmp_path
):
    old = tmp_path / "data" / "stsb" / "train.tsv"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    with pytest.raises(InputError, match=message) as error:
        download_dataset("stsb", f"{server}/{source}", tmp_path / "data")
    assert "\n" not in str(error.value)
    assert old.read_text() == "old" and [path.name for path in (tmp_path / "data").iterdir()] == ["stsb"]


LINE = b"HTTP/1.1 200 OK\r\n"
ANSWERS = {  # what a server sends -> what the message says
    "nothing": (b"", "Remote end closed connection without response"),
    "part of a chunk": (LINE + b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\nff\r\nabc", "IncompleteRead"),
    "a part": (LINE + b"Content-Length: 99\r\n\r\nabc", "3 of 99 bytes arrived"),
    "a length that is no number": (LINE + b"Content-Length: x\r\n\r\nabc", "invalid literal"),
    "a circle": (b"HTTP/1.1 302 Found\r\nLocation: /stsbenchmark.tsv.gz\r\n\r\n", "infinite loop"),
}


@pytest.fixture
def answer(start_server):
    """A function that starts a server, which sends the same bytes to every request, and returns its URL."""

    def start(content: bytes) -> str:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                self.request.recv(1 << 16)
                with suppress(OSError):  # the client has read enough
                    self.request.sendall(content)

        return start_server(Handler, socketserver.TCPServer)

    return start


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_server_that_answers_anything_is_one_line_at_once(kind, answer, tmp_path):
    content, message = ANSWERS[kind]
    start = time.perf_counter()
    with pytest.raises(InputError, match=f"cannot download .*{message}.*: check the network, or") as error:
        download_dataset("stsb", f"{answer(content)}/stsbenchmark.tsv.gz", tmp_path / "data")
    assert str(error.value).isprintable() and len(str(error.value)) < 600
    assert time.perf_counter() - start < 5 and not (tmp_path / "data").exists()


def test_nothing_is_downloaded_offline_or_without_an_address(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no address is known for glue: download it yourself"):
        download_dataset("glue", None, tmp_path)
    monkeypatch.setattr(tmft.datasets.download, "is_offline", lambda: True)
    monkeypatch.setattr(tmft.datasets.download, "download", None)  # would be called
    with pytest.raises(InputError, match="HF_HUB_OFFLINE forbids downloads, such as http.*: download"):
        download_dataset("stsb", root=tmp_path)
    assert not list(tmp_path.iterdir())


def test_distinct_sentences_are_written_or_nothing(tmp_path):
    text = b"sentence1\tsentence2\n" + b"a\tb\n" * 999
    (tmp_path / "n.tsv.gz").write_bytes(gzip.compress(text))
    output = download_dataset("nli", str(tmp_path / "n.tsv.gz"), tmp_path)
    assert output == f"wrote {tmp_path / 'nli' / 'sentences.txt'} (2 sentences)"
    assert (tmp_path / "nli" / "sentences.txt").read_text() == "a\nb\n"
    (tmp_path / "n.tsv.gz").write_bytes(gzip.compress(text)[:-20])
    with pytest.raises(InputError, match="n.tsv.gz cannot be read"):
        download_dataset("nli", str(tmp_path / "n.tsv.gz"), tmp_path / "new")
    assert not (tmp_path / "new").exists() or not list((tmp_path / "new").iterdir())
