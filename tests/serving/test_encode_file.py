"""A file of embeddings: row i is line i; the same bytes after an interruption or in several processes."""

import gzip
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import ROOT, SENTENCES, tiny_model

import tmft.serving.encode_file as encoding
from tmft.cli import encode, search
from tmft.distributed import Processes, single_process
from tmft.embedding.modules import Dense
from tmft.embedding.token_weights import TokenWeights
from tmft.errors import InputError
from tmft.io.atomic import folder_lock
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.encode_file import PartFile, encode_file, metadata_path, nearest_lines

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
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"text.txt", "x.npy", "x.npy.json"}  # no part is left
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
    resumed = 5 * max(0, after - 1)  # the last block may not have been on the disk
    assert encode_file(model, text, tmp_path / "x.npy", ALONE) == (len(LINES), resumed)
    assert len(read) == len(LINES) - resumed
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


@pytest.mark.parametrize("from_stdin", [False, True])
def test_a_block_of_zeros_after_a_power_failure_is_embedded_again(from_stdin, text, tmp_path, monkeypatch):
    """The size of the file had reached the disk, but not the last block; the ones before it had."""
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size) or fsync(file))
    model, out = tiny_model(), tmp_path / "x.npy"
    encode_file(model, text, tmp_path / "whole.npy", ALONE)
    path = encoding.STDIN if from_stdin else text
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    interrupt(model, path, out, monkeypatch, num_blocks=2)
    part = tmp_path / "x.npy.parts/part-0-of-1"
    assert {5 * 4 * 24, 2 * 5 * 4 * 24} <= set(synced)
    content = part.read_bytes()
    part.write_bytes(content[: len(content) // 2] + bytes(len(content) // 2))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    encode_file(model, path, out, ALONE)
    assert out.read_bytes() == (tmp_path / "whole.npy").read_bytes()


def interrupt(model, path, out, monkeypatch, num_blocks=1):
    """Stop encode_file when it has written some blocks."""
    append = PartFile.append

    def interrupted(self, embeddings):
        if self.num_embeddings == 5 * num_blocks:
            raise KeyboardInterrupt
        append(self, embeddings)

    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(PartFile, "append", interrupted)
        encode_file(model, path, out, ALONE)


def test_a_part_file_that_another_process_writes_is_refused(text, tmp_path, monkeypatch):
    interrupt(tiny_model(), text, tmp_path / "x.npy", monkeypatch)
    with (
        folder_lock(tmp_path / "x.npy.parts/part-0-of-1"),
        pytest.raises(InputError, match="another process is working in"),
    ):
        encode_file(tiny_model(), text, tmp_path / "x.npy", ALONE)


def other_weights(model):
    model.encoder.embeddings.word.weight.data[5, 0] += 1e-3


def other_layers(model):
    del model.encoder.layers[-1]


def other_head(model):
    model.head_modules.append(Dense(24, 24))


def other_token_weights(model):
    model.token_weights = TokenWeights(torch.linspace(0.1, 1, model.encoder.config.vocab_size))


def other_config(model):
    model.encoder.config = replace(model.encoder.config, layer_norm_eps=1e-3)


CHANGES = {
    "weights": other_weights,
    "num_layers": other_layers,
    "modules": other_head,
    "token_weights": other_token_weights,
    "config": other_config,
    "layers": lambda model: setattr(model, "layers", (0, 1)),
    "prompt": lambda model: setattr(model, "prompt", "query: "),
    "pooling": lambda model: setattr(model, "pooling", "cls"),
    "max_length": lambda model: setattr(model, "max_length", 5),
    "precision": lambda model: model.bfloat16(),
    "dimensions": lambda model: model.truncate_dimensions(8),
    "tokenizer": lambda model: model.tokenizer.special_tokens.update(mask_token="[OTHER]"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_embeddings_of_another_model_are_not_resumed_and_not_searched(name, text, tmp_path, monkeypatch):
    """The path of the model is the same: its folder may have got other weights."""
    interrupt(tiny_model(), text, tmp_path / "x.npy", monkeypatch)
    encode_file(tiny_model(), text, tmp_path / "whole.npy", ALONE)
    other = tiny_model()
    CHANGES[name](other)
    message = rf"embeddings of another model \(.*{name}.*\), from .*: remove it, or write to another file"
    with pytest.raises(InputError, match=message):
        encode_file(other, text, tmp_path / "x.npy", ALONE)
    with pytest.raises(InputError, match=rf"made with another model \(.*{name}.*\): give the same model"):
        nearest_lines(other, "a cat", text, vectors=tmp_path / "whole.npy")


def test_a_copy_of_the_model_and_of_the_text_is_the_same(text, tmp_path, tiny_folder, monkeypatch):
    model = SentenceEncoder.from_pretrained(tiny_folder)
    interrupt(model, text, tmp_path / "x.npy", monkeypatch, num_blocks=2)
    shutil.copytree(tiny_folder, tmp_path / "copy")
    (tmp_path / "text.gz").write_bytes(gzip.compress(text.read_bytes()))
    copy = SentenceEncoder.from_pretrained(tmp_path / "copy")
    assert encode_file(copy, tmp_path / "text.gz", tmp_path / "x.npy", ALONE) == (len(LINES), 5)


def test_before_the_first_block_another_model_starts_anew(text, tmp_path, monkeypatch):
    interrupt(tiny_model(), text, tmp_path / "x.npy", monkeypatch, num_blocks=0)
    other = tiny_model()
    other_weights(other)
    assert encode_file(other, text, tmp_path / "x.npy", ALONE) == (len(LINES), 0)


def test_a_text_that_was_changed_meanwhile_is_refused(text, tmp_path, monkeypatch):
    """It has the same size and the same time."""
    interrupt(tiny_model(), text, tmp_path / "x.npy", monkeypatch)
    state = text.stat()
    text.write_text(text.read_text(encoding="utf-8").replace("cat", "dog"), encoding="utf-8")
    os.utime(text, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(InputError, match="has embeddings of another text, .*: remove it, or write to"):
        encode_file(tiny_model(), text, tmp_path / "x.npy", ALONE)


def test_standard_input_is_resumed_only_with_the_same_lines(text, tmp_path, monkeypatch):
    def give(content: bytes):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))

    content, model, out = text.read_bytes(), tiny_model(), tmp_path / "x.npy"
    encode_file(model, text, tmp_path / "whole.npy", ALONE)
    give(content)
    interrupt(model, encoding.STDIN, out, monkeypatch, num_blocks=2)
    part = tmp_path / "x.npy.parts/part-0-of-1"
    before = part.read_bytes()
    give(content.replace(b"man", b"cat", 1))
    with pytest.raises(InputError, match="standard input has other lines than those that .* was made from"):
        encode_file(model, encoding.STDIN, out, ALONE)
    assert part.read_bytes() == before
    give(content)
    assert encode_file(model, encoding.STDIN, out, ALONE) == (len(LINES), 5)
    assert out.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    files = [metadata_path(path).read_text() for path in (out, tmp_path / "whole.npy")]
    assert files[0] == files[1]


# -------------------------------------------------------------------------- outputs that would destroy a file


def make_output(kind, path, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    if kind == "symlink":
        path.symlink_to(tmp_path / "mine.txt")
    elif kind == "dangling symlink":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "hard link":
        path.hardlink_to(tmp_path / "text.txt")


@pytest.mark.parametrize("kind", ["symlink", "dangling symlink", "pipe", "hard link"])
@pytest.mark.parametrize("name", ["x.npy", "x.npy.json"])
def test_an_output_that_is_the_text_or_no_ordinary_file_is_refused(kind, name, text, tmp_path):
    content = text.read_bytes()
    make_output(kind, tmp_path / name, tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    problem = "the command reads this file" if kind == "hard link" else "it is a (symbolic link|pipe)"
    with pytest.raises(InputError, match=f"^cannot write {tmp_path / name}: {problem}, name "):
        encode_file(tiny_model(), text, tmp_path / "x.npy", ALONE)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert text.read_bytes() == content and (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / name).is_fifo() == (kind == "pipe")


def test_the_text_itself_is_no_output(text, tiny_folder):
    content = text.read_bytes()
    with pytest.raises(InputError, match="the command reads this file, name another one"):
        encode.main([str(tiny_folder), str(text), "--device", "cpu", "--out", str(text)])
    weights = tiny_folder / "model.safetensors"
    with pytest.raises(InputError, match="it is a file of .*, which the command reads; name another one"):
        encode.main([str(tiny_folder), str(text), "--device", "cpu", "--out", str(weights)])
    assert text.read_bytes() == content


@pytest.mark.parametrize("name", ["x.npy.parts", "x.npy.parts/part-0-of-1", "x.npy.parts/part-0-of-1.json"])
def test_nothing_is_written_through_a_symbolic_link_in_place_of_a_part(name, text, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(tmp_path / ("mine" if name == "x.npy.parts" else "mine.txt"))
    with pytest.raises(InputError, match="is no folder|it is a symbolic link|cannot write"):
        encode_file(tiny_model(), text, tmp_path / "x.npy", ALONE)
    assert (tmp_path / "mine.txt").read_text() == "mine" and not list((tmp_path / "mine").iterdir())


def test_only_the_user_can_enter_the_folder_of_the_parts(text, tmp_path, monkeypatch):
    interrupt(tiny_model(), text, tmp_path / "x.npy", monkeypatch)
    assert (tmp_path / "x.npy.parts").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give a folder away")
def test_the_folder_of_another_user_is_refused(text, tmp_path):
    (tmp_path / "x.npy.parts").mkdir()
    os.chown(tmp_path / "x.npy.parts", 12345, 12345)
    with pytest.raises(InputError, match="x.npy.parts belongs to another user: write to another place"):
        encode_file(tiny_model(), text, tmp_path / "x.npy", ALONE)


# ------------------------------------------------------------------------------------------ NaN and infinity


def overflowing_model():
    """A model with finite weights whose embeddings overflow."""
    model = tiny_model()
    model.head_modules.append(Dense(24, 24))
    model.head_modules[0].weight.data.fill_(3e38)
    return model


def test_embeddings_that_are_not_finite_are_never_written_or_ranked(text, tmp_path):
    model = overflowing_model()
    message = r"the embedding of sentence \d+ \('.*'\) has values that are not finite: choose another"
    for job in (
        lambda: model.encode(["a cat"]),
        lambda: model.embed_columns([["a cat"], ["a dog"]]),
        lambda: encode_file(model, text, tmp_path / "x.npy", ALONE),
        lambda: nearest_lines(model, "a cat", text),
    ):
        with pytest.raises(InputError, match=message):
            job()
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt"}


# ------------------------------------------------------------------------------------- texts, other commands


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


def test_a_search_reads_the_vectors_that_encode_wrote(text, tmp_path, monkeypatch, capsys, tiny_folder):
    model, vectors = tiny_model(), tmp_path / "x.npy"
    encode_file(model, text, vectors, ALONE)
    read = []
    embed = type(model).encode
    monkeypatch.setattr(model, "encode", lambda texts, **_: read.extend(texts) or embed(model, texts))
    found = nearest_lines(model, "a cat", text, vectors=vectors)
    assert read == ["a cat"]  # the query alone
    expected = nearest_lines(model, "a cat", text)
    assert [line for _, line in found] == [line for _, line in expected]
    np.testing.assert_allclose([c for c, _ in found], [c for c, _ in expected], atol=1e-6)
    words = [str(tiny_folder), "a cat", "--corpus", str(text), "--device", "cpu"]
    encode.main([str(tiny_folder), str(text), "--device", "cpu", "--out", str(vectors)])
    capsys.readouterr()
    search.main([*words, "--vectors", str(vectors)])
    assert capsys.readouterr().out.startswith("1.0000  a cat\n")


def with_prompts(folder) -> SentenceEncoder:
    model = tiny_model()
    model.prompts |= {"query": "two dogs: ", "document": "in the park ", "sts": "music "}
    model.save_pretrained(folder)
    return model


def test_a_search_uses_the_prompt_of_queries_and_that_of_documents(text, tmp_path):
    model = with_prompts(tmp_path / "model")
    found = nearest_lines(model, "a cat", text)
    expected = nearest_lines(model, "a cat", text, query_prompt="two dogs: ", document_prompt="in the park ")
    assert found == expected != nearest_lines(model, "a cat", text, query_prompt="", document_prompt="")
    u, v = model.encode_query("a cat"), model.encode_document(line := "a man eats")
    assert dict(map(reversed, nearest_lines(model, "a cat", text, 99)))[line] == pytest.approx(
        model.similarity(u, v).item(), abs=1e-6
    )
    model.prompts |= {"query": "", "document": ""}  # then both get the default prompt
    model.default_prompt_name = "sts"
    expected = nearest_lines(model, "a cat", text, query_prompt="music ", document_prompt="music ")
    assert nearest_lines(model, "a cat", text) == expected
    model.prompts["query"] = "two dogs: "  # then documents get none, as encode_document says
    expected = nearest_lines(model, "a cat", text, query_prompt="two dogs: ", document_prompt="")
    assert nearest_lines(model, "a cat", text) == expected


# Options of search -> the prompts of the query and of the lines.
PROMPT_OPTIONS = {
    (): ("two dogs: ", "in the park "),
    ("--prompt-name", "sts"): ("music ", "music "),
    ("--prompt", "a [X] b"): ("a [X] b", "a [X] b"),
    ("--query-prompt-name", "sts"): ("music ", "in the park "),
    ("--query-prompt", "[X]"): ("[X]", "in the park "),  # that is none
    ("--prompt-name", "document", "--query-prompt", "the [X]"): ("the [X]", "in the park "),
    ("--prompt", "a [X]", "--query-prompt-name", "query"): ("two dogs: ", "a [X]"),
}


@pytest.mark.parametrize("options", PROMPT_OPTIONS)
def test_the_prompts_of_a_search_can_be_chosen(options, text, tmp_path, capsys):
    model = with_prompts(tmp_path / "model")
    query_prompt, document_prompt = PROMPT_OPTIONS[options]
    words = [str(tmp_path / "model"), "a cat", "--corpus", str(text), "--device", "cpu"]
    search.main([*words, *options])
    expected = nearest_lines(model, "a cat", text, query_prompt=query_prompt, document_prompt=document_prompt)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"{similarity:.4f}  {line}" for similarity, line in expected]
    assert printed.err == f"prompt of the query {query_prompt!r}, of the lines {document_prompt!r}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--prompt-name", "docment"],
            "--prompt-name 'docment': choose one of query, document, sts; did you",
        ),
        (
            ["--query-prompt-name", "qery"],
            "--query-prompt-name 'qery': choose one of query, document, sts; did",
        ),
        (["--query-prompt", "no place"], "--query-prompt 'no place': choose one of T0, "),
        (["--query-prompt", ""], "--query-prompt is empty: give a value"),
        (["--prompt-name", ""], "--prompt-name is empty: give a value"),
        (["--prompt", "T0", "--prompt-name", "sts"], "--prompt and --prompt-name sts: give one of the two"),
        (
            ["--query-prompt", "a [X]", "--query-prompt-name", "sts"],
            "--query-prompt and --query-prompt-name sts: give one of the two",
        ),
    ],
)
def test_a_prompt_that_cannot_be_used_is_one_line(options, message, text, tmp_path):
    with_prompts(tmp_path / "model")
    with pytest.raises(InputError) as error:
        search.main([str(tmp_path / "model"), "a", "--corpus", str(text), "--device", "cpu", *options])
    assert error.value.as_cli_message().startswith(message)


def test_vectors_belong_to_the_prompt_that_they_were_made_with(text, tmp_path, capsys):
    model, vectors = with_prompts(tmp_path / "model"), tmp_path / "x.npy"
    words = [str(tmp_path / "model"), "--device", "cpu"]
    encode.main([*words, str(text), "--out", str(vectors)])
    assert json.loads(metadata_path(vectors).read_text())["model"]["prompt"] == ""
    np.testing.assert_allclose(np.load(vectors)[0], model.encode(LINES[0]), atol=1e-6)
    message = (
        r"another model \(prompt '' instead of 'in the park '\): give the same model and options, or enc"
    )
    with pytest.raises(InputError, match=message):
        search.main([*words, "a cat", "--corpus", str(text), "--vectors", str(vectors)])
    capsys.readouterr()
    search.main([*words, "a cat", "--corpus", str(text)])
    expected = capsys.readouterr().out
    encode.main([*words, str(text), "--out", str(vectors), "--prompt-name", "document"])
    np.testing.assert_allclose(np.load(vectors)[0], model.encode_document(LINES[0]), atol=1e-6)
    capsys.readouterr()
    search.main([*words, "a cat", "--corpus", str(text), "--vectors", str(vectors)])
    assert capsys.readouterr().out == expected
    with pytest.raises(InputError, match=r"\(prompt 'in the park ' instead of 'music '\)"):
        search.main([*words, "a", "--corpus", str(text), "--vectors", str(vectors), "--prompt-name", "sts"])


@pytest.mark.parametrize("name", ["dot", "euclidean", "manhattan"])
def test_the_nearest_lines_are_ranked_by_the_similarity_of_the_model(name, text):
    model, lines = tiny_model(), sorted({line for line in LINES if line.strip()})
    model.similarity_fn_name = name
    similarities = model.similarity(model.encode("a cat"), model.encode(lines))[0].tolist()
    found = nearest_lines(model, "a cat", text, count=99)
    expected = sorted(zip(similarities, lines, strict=True), reverse=True)
    assert [line for _, line in found] == [line for _, line in expected]
    assert [value for value, _ in found] == pytest.approx(sorted(similarities)[::-1], abs=1e-4)


def change_text(text, vectors):
    text.write_text(text.read_text(encoding="utf-8").replace("dog", "cat", 1), encoding="utf-8")


def add_line(text, vectors):
    text.write_text(text.read_text(encoding="utf-8") + "a man\n", encoding="utf-8")


def remove_lines(text, vectors):
    text.write_text("a man\n", encoding="utf-8")


def roll(text, vectors):
    np.save(vectors, np.roll(np.load(vectors), 1, axis=0))


def double(text, vectors):
    np.save(vectors, np.load(vectors).astype(np.float64))


def nan(text, vectors):
    values = np.load(vectors)
    values[3, 0] = np.nan
    np.save(vectors, values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_text, "they belong to another text than .*, or to an earlier version of it: encode again"),
        (remove_lines, "they belong to another text than .*, or to an earlier version of it: encode again"),
        (add_line, "the text has more lines than there are embeddings: encode again"),
        (roll, "the file was changed or damaged: encode again"),
        (double, r"they are \(\d+, 24\) float64, expected \(N, 24\) float32: encode again"),
        (nan, "they have values that are not finite: encode again"),
        (lambda text, vectors: vectors.write_bytes(vectors.read_bytes()[:300]), "cannot be read .*: encode"),
        (lambda text, vectors: vectors.write_bytes(b""), "cannot be read .*: encode again"),
        (lambda text, vectors: vectors.unlink(), "cannot be read .*: encode again"),
        (lambda text, vectors: metadata_path(vectors).unlink(), "is missing: write both with encode"),
        (lambda text, vectors: metadata_path(vectors).write_text("{}"), "made with another model"),
        (lambda text, vectors: metadata_path(vectors).write_text("{"), "cannot be read"),
    ],
)
def test_vectors_that_do_not_belong_to_the_text_are_refused(change, message, text, tmp_path):
    encode_file(tiny_model(), text, tmp_path / "x.npy", ALONE)
    change(text, tmp_path / "x.npy")
    with pytest.raises(InputError, match=message):
        nearest_lines(tiny_model(), "a cat", text, vectors=tmp_path / "x.npy")


def test_a_search_prints_no_control_characters(text, capsys, tiny_folder):
    text.write_text("a cat\x1b[31m\x9b2J\u202e\tплатье\u3000é\u00a0.\n", encoding="utf-8")
    search.main([str(tiny_folder), "a cat", "--corpus", str(text), "--device", "cpu"])
    assert capsys.readouterr().out.partition("  ")[2] == "a cat?[31m?2J? платье\u3000é\u00a0.\n"


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


def test_standard_input_that_is_closed_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="standard input is closed: name a text file"):
        encode_file(tiny_model(), encoding.STDIN, tmp_path / "x.npy", ALONE)
    assert not list(tmp_path.iterdir())


def test_standard_input_is_not_shared(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
    with pytest.raises(InputError, match="standard input cannot be shared by several processes: name a file"):
        encode_file(tiny_model(), encoding.STDIN, tmp_path / "x.npy", Processes(0, 2, torch.device("cpu")))


def test_a_full_disk_is_one_line_and_keeps_what_is_there(text, tmp_path, monkeypatch):
    part = PartFile(tmp_path / "part-0-of-1", {"lines": None, "text": None}, 24)
    part.create()
    part.resume()
    part.append(np.ones((5, 24)))

    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(InputError, match="No space left on device.*; the same command resumes there"):
        part.append(np.ones((5, 24)))
    monkeypatch.undo()
    assert part.num_embeddings == 5
