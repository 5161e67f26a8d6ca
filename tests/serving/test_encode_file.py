"""A file of embeddings: row i is line i; the same bytes after an interruption or in several processes."""

import gzip
import io
import lzma
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT, SENTENCES, tiny_model

import tmft.serving.encode_file as encoding
from tmft.cli import encode, search
from tmft.distributed import Processes, single_process
from tmft.errors import InputError
from tmft.io.atomic import folder_lock
from tmft.serving.encode_file import PartFile, encode_file, nearest_lines

ALONE = single_process(torch.device("cpu"))
LINES = [*SENTENCES, "", "a cat", "   ", *(f"a {word} eats" for word in "man woman dog cat".split() * 4)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(encoding, "BLOCK_SIZE", 5)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def test_row_i_is_line_i(text, tmp_path):
    model = tiny_model()
    assert encode_file(model, text, tmp_path / "x.npy", ALONE) == (len(LINES), 0)
    found = np.load(tmp_path / "x.npy")
    assert found.dtype == np.float32 and found.shape == (len(LINES), 24)
    expected = model.encode([line if line.strip() else "." for line in LINES])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "x.npy"}  # no part is left
    assert np.load(tmp_path / "x.npy", mmap_mode="r").shape == (len(LINES), 24)


@pytest.mark.parametrize("after", [0, 1, 2, 4])
def test_an_interrupted_run_resumes_with_the_same_bytes(after, text, tmp_path, monkeypatch):
    """Stopped while a block is written: a part of it is there."""
    model = tiny_model()
    encode_file(model, text, tmp_path / "whole.npy", ALONE)
    append = PartFile.append

    def interrupted(self, embeddings):
        if self.num_embeddings == 5 * after:
            append(self, embeddings[:2])
            with open(self.path, "ab") as file:
                file.write(b"abc")
            raise KeyboardInterrupt
        append(self, embeddings)

    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(PartFile, "append", interrupted)
        encode_file(model, text, tmp_path / "x.npy", ALONE)
    assert not (tmp_path / "x.npy").exists()
    read = []
    monkeypatch.setattr(model, "encode", lambda lines: read.extend(lines) or type(model).encode(model, lines))
    assert encode_file(model, text, tmp_path / "x.npy", ALONE) == (len(LINES), 5 * after)
    assert len(read) == len(LINES) - 5 * after
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_a_part_file_of_another_text_or_model_is_refused(text, tmp_path):
    part = PartFile(tmp_path / "x.npy.part-0-of-1", {"model": "other"}, 24)
    part.create()
    part.resume()
    with folder_lock(part.path), pytest.raises(InputError, match="another process is working in"):
        encode_file(tiny_model(), text, tmp_path / "x.npy", ALONE)
    with pytest.raises(InputError, match="belongs to another model or text, .*: remove it, or write to"):
        encode_file(tiny_model(), text, tmp_path / "x.npy", ALONE)


def test_a_text_that_was_changed_meanwhile_is_refused(text, tmp_path, monkeypatch):
    def interrupted(self, embeddings):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PartFile, "append", interrupted)
        encode_file(tiny_model(), text, tmp_path / "x.npy", ALONE)
    text.write_text(text.read_text(encoding="utf-8").replace("cat", "dog"), encoding="utf-8")
    with pytest.raises(InputError, match="belongs to another model or text, .*: remove it, or write to"):
        encode_file(tiny_model(), text, tmp_path / "x.npy", ALONE)


@pytest.mark.parametrize("kind", ["gz", "xz", "crlf"])
def test_other_forms_of_the_text(kind, text, tmp_path):
    model = tiny_model()
    encode_file(model, text, tmp_path / "plain.npy", ALONE)
    content = text.read_bytes()
    path = tmp_path / f"text.{kind}"
    if kind == "crlf":
        path.write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    else:
        path.write_bytes({"gz": gzip, "xz": lzma}[kind].compress(content))
    encode_file(model, path, tmp_path / "x.npy", ALONE)
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "plain.npy").read_bytes()


@pytest.mark.slow
def test_standard_input_and_two_processes_give_the_file(text, tmp_path, tiny_folder):
    """The command, with its own blocks: more lines than two of them."""
    text.write_text("\n".join(LINES * 120) + "\n", encoding="utf-8")
    for _ in range(2):  # the second time the file exists
        encode.main([str(tiny_folder), str(text), "--device", "cpu", "--out", str(tmp_path / "one.npy")])
    module = ["-m", "tmft", "encode", str(tiny_folder)]
    line = [sys.executable, *module, "-", "--device", "cpu", "--out", str(tmp_path / "in.npy")]
    done = subprocess.run(line, input=text.read_bytes(), capture_output=True, check=True, cwd=ROOT)
    assert f"wrote {tmp_path / 'in.npy'}: {len(LINES) * 120} x 24 float32".encode() in done.stdout
    options = ["encode", tiny_folder, text, "--device", "cpu", "--out", tmp_path / "two.npy"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tmft"]
    line = [sys.executable, *launcher, *map(str, options)]
    two = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert two.returncode == 0 and two.stdout.count("wrote") == 1, two.stderr
    one = np.load(tmp_path / "one.npy")
    for name in ("in", "two"):
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), one, atol=1e-5)
    assert not list(tmp_path.glob("*part*"))


def test_the_nearest_lines(text, capsys, tiny_folder):
    model = tiny_model()
    found = nearest_lines(model, "a cat", text, count=3)
    assert [line for _, line in found][0] == "a cat" and found[0][0] == pytest.approx(1, abs=1e-5)
    u, v = model.encode(["a cat"]), model.encode(sorted({line for line in LINES if line.strip()}))
    cosines = np.sort((v @ u[0]) / np.linalg.norm(v, axis=1) / np.linalg.norm(u))[::-1]
    assert [cosine for cosine, _ in found] == pytest.approx(cosines[:3].tolist(), abs=1e-5)
    search.main([str(tiny_folder), "a cat", "--corpus", str(text), "--device", "cpu"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10 and lines[0] == "1.0000  a cat"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\0b\n", "is not plain text: it has zero bytes; name a text file"),
        (b"\xff\xfe\n", "is not text in UTF-8"),
        (None, "cannot be read .*: check the name and the file"),
    ],
)
def test_what_is_no_text_is_one_line_and_leaves_nothing(content, message, tmp_path):
    if content is not None:
        (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        encode_file(tiny_model(), tmp_path / "x.txt", tmp_path / "x.npy", ALONE)
    assert not list(tmp_path.glob("x.npy*"))


@pytest.mark.parametrize(
    ("command", "more", "message"),
    [
        (encode, ["a.txt"], "the following arguments are required: --out; see --help"),
        (encode, ["--out", "x.npy"], "the following arguments are required: FILE; see --help"),
        (search, ["a"], "the following arguments are required: --corpus; see --help"),
        (search, ["--corpus", "a.txt"], "the following arguments are required: QUERY; see --help"),
    ],
)
def test_half_a_request_is_one_line(command, more, message, tiny_folder):
    with pytest.raises(InputError, match=message):
        command.main([str(tiny_folder), *more])


def test_standard_input_is_not_shared(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
    with pytest.raises(InputError, match="standard input cannot be shared by several processes: name a file"):
        encode_file(tiny_model(), encoding.STDIN, tmp_path / "x.npy", Processes(0, 2, torch.device("cpu")))


def test_a_full_disk_is_one_line_and_keeps_what_is_there(text, tmp_path, monkeypatch):
    part = PartFile(tmp_path / "x.npy.part-0-of-1", {"lines": None}, 24)
    part.create()
    part.resume()
    part.append(np.ones((5, 24)))

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(InputError, match="No space left on device.*; the same command resumes there"):
        part.append(np.ones((5, 24)))
    monkeypatch.undo()
    assert part.num_embeddings == 5
