"""A file of embeddings: row i is line i; the same bytes after an interruption or in several processes."""

import csv
import gzip
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pytest
import torch
from conftest import ALONE, ROOT, SENTENCES, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run_together

import tmft.serving.encode_file as encoding
from tmft.cli import encode_command as encode
from tmft.embedding.modules import Dense
from tmft.embedding.token_weights import TokenWeights
from tmft.errors import InputError
from tmft.io.distributed import Processes
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.encode_file import encode_file
from tmft.training_free.postprocessing import keep_first_dimensions

LINES = [*SENTENCES, "", "a cat", "   ", *(f"a {word} eats" for word in "man woman dog cat".split() * 4)]
MODEL = tiny_model()


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    with patch.object(encoding, "BLOCK_SIZE", 5):
        yield


@pytest.fixture
def text(tmp_path):
    return write_lines(tmp_path / "text.txt", LINES)


def write_lines(path, lines):
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


class OneOfSeveral(Processes):
    """A process of several that run one after the other, the main process last."""

    def barrier(self):
        pass

    def all_gather_object(self, value):
        return [value]

    def check_shared_folder(self, folder):
        pass


def interrupt(model, path, out, num_blocks=1, processes=ALONE):
    """Stop encode_file when this process has written some blocks."""
    write, written = encoding.write_file, []

    def interrupted(*arguments):
        if len(written) == num_blocks:
            raise KeyboardInterrupt
        written.append(write(*arguments))

    with patch.object(encoding, "write_file", interrupted), pytest.raises(KeyboardInterrupt):
        encode_file(model, path, out, processes)


def expect_rows(model, lines):
    blocks = [lines[start : start + 5] for start in range(0, len(lines), 5)]
    rows = [model.encode([line if line.strip() else "." for line in block]) for block in blocks]
    return np.concatenate([np.zeros((0, model.dimensions), np.float32), *rows])


@settings(max_examples=25)
@given(
    lines=st.lists(st.sampled_from(LINES), max_size=13, unique=True),
    world_sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    num_blocks=st.integers(0, 2),
    is_cut=st.booleans(),
)
def test_row_i_is_line_i_whatever_happened_before(lines, world_sizes, num_blocks, is_cut):
    """An interrupted command resumes, also in another number of processes, or says what is to be removed."""
    before, now = world_sizes
    with TemporaryDirectory() as name:
        out, parts = Path(name) / "x.npy", Path(name) / "x.npy.parts"
        text, expected = write_lines(Path(name) / "text.txt", lines), expect_rows(MODEL, lines)
        encode_others(before, text, out)
        num_own = len(range(0, -(-len(lines) // 5), before))
        if num_blocks < num_own:
            interrupt(MODEL, text, out, num_blocks, OneOfSeveral(0, before, torch.device("cpu")))
            assert not out.exists()
        else:
            encode_file(MODEL, text, out, OneOfSeveral(0, before, torch.device("cpu")))
        files = sorted(parts.glob("*.npy"))
        assert not files or len(files) == -(-len(lines) // 5) - num_own + num_blocks
        encode_others(now, text, out)
        main = OneOfSeveral(0, now, torch.device("cpu"))
        if is_cut and files:
            files[-1].write_bytes(files[-1].read_bytes()[:-1])
            with pytest.raises(InputError, match=f"{files[-1]} cannot be read .*: remove it, and give"):
                encode_file(MODEL, text, out, main)
            files[-1].unlink()
            encode_others(now, text, out)
        count, num_resumed = encode_file(MODEL, text, out, main)
        assert count == len(lines) and (num_resumed > 0 or not files or now > 1 or is_cut)
        np.testing.assert_array_equal(np.load(out), expected)
        assert {path.name for path in Path(name).iterdir()} == {"text.txt", "x.npy"}


def encode_others(world_size, text, out):
    """Embed the blocks of all processes but the main one."""
    out.with_name("x.npy.parts").mkdir(exist_ok=True)
    for rank in range(1, world_size):
        encode_file(MODEL, text, out, OneOfSeveral(rank, world_size, torch.device("cpu")))


def test_nobody_else_works_on_a_file_until_it_is_complete(text, tmp_path, tiny_folder):
    out, join = tmp_path / "x.npy", encoding.join_blocks
    words = [str(tiny_folder), str(text), "--device", "cpu", "--out", str(out)]

    def join_while_others_come(*arguments):
        for _ in range(2):
            with pytest.raises(InputError) as error:
                encode.main(words)
            assert error.value.as_cli_message() == (
                f"another process is working in {out}.parts: wait for it, or write to another file with --out"
            )
        join(*arguments)

    with patch.object(encoding, "join_blocks", join_while_others_come):
        encode_file(MODEL, text, out, ALONE)
    np.testing.assert_array_equal(np.load(out), expect_rows(MODEL, LINES))


CHANGES = {
    "weights": lambda model: model.encoder.embeddings.word.weight.data[5, 0].add_(1e-3),
    "layers": lambda model: model.encoder.keep_layers([0, 1, 2]),
    "modules": lambda model: model.head_modules.append(Dense(24, 24)),
    "token weights": lambda model: setattr(
        model, "token_weights", TokenWeights(torch.linspace(0.1, 1, model.encoder.config.vocab_size))
    ),
    "config": lambda model: setattr(
        model.encoder, "config", replace(model.encoder.config, layer_norm_eps=1e-3)
    ),
    "mix of layers": lambda model: setattr(model, "layers", (0, 1)),
    "prompt": lambda model: setattr(model, "prompt", "query: "),
    "pooling": lambda model: setattr(model, "pooling", "cls"),
    "max_length": lambda model: setattr(model, "max_length", 5),
    "precision": lambda model: model.bfloat16(),
    "reproducible": lambda model: setattr(model, "reproducible", True),
    "dimensions": lambda model: keep_first_dimensions(model, 8),
    "tokenizer": lambda model: model.tokenizer.special_tokens.update(mask_token="[OTHER]"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_embeddings_of_another_model_are_not_resumed(name, text, tmp_path):
    """The path of the model is the same: its folder may have got other weights."""
    interrupt(MODEL, text, tmp_path / "x.npy", num_blocks=2)
    other = tiny_model()
    CHANGES[name](other)
    assert encode_file(other, text, tmp_path / "x.npy", ALONE) == (len(LINES), 0)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), expect_rows(other, LINES))
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "x.npy"}


def test_a_copy_of_the_model_and_of_the_text_is_the_same(text, tmp_path, tiny_folder):
    model = SentenceEncoder.from_pretrained(tiny_folder)
    interrupt(model, text, tmp_path / "x.npy", num_blocks=2)
    shutil.copytree(tiny_folder, tmp_path / "copy")
    (tmp_path / "text.gz").write_bytes(gzip.compress(text.read_bytes()))
    copy = SentenceEncoder.from_pretrained(tmp_path / "copy")
    assert encode_file(copy, tmp_path / "text.gz", tmp_path / "x.npy", ALONE) == (len(LINES), 10)


@pytest.mark.parametrize("from_stdin", [False, True])
@pytest.mark.parametrize(
    ("lines", "num_resumed"),
    [(LINES, 10), (["a dog", *LINES[1:]], 5), ([*LINES[1:], "music"], 0), (LINES[:6], 5), ([], 0)],
)
def test_only_the_same_lines_are_resumed(lines, num_resumed, from_stdin, text, tmp_path, monkeypatch):
    path = encoding.STDIN if from_stdin else text
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    interrupt(MODEL, path, tmp_path / "x.npy", num_blocks=2)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(write_lines(text, lines).read_bytes())))
    assert encode_file(MODEL, path, tmp_path / "x.npy", ALONE) == (len(lines), num_resumed)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), expect_rows(MODEL, lines))


@pytest.mark.parametrize("target", ["mine.txt", "nowhere"])
def test_what_is_no_folder_of_blocks_is_refused(target, text, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "x.npy.parts").symlink_to(tmp_path / target)
    with pytest.raises(InputError, match="cannot write .*x.npy.parts .*File exists"):
        encode_file(MODEL, text, tmp_path / "x.npy", ALONE)
    assert (tmp_path / "mine.txt").read_text() == "mine" and not (tmp_path / "nowhere").exists()


def test_embeddings_that_are_not_finite_are_never_written(text, tmp_path):
    model = tiny_model()
    model.head_modules.append(Dense(24, 24))
    model.head_modules[0].weight.data.fill_(3e38)  # finite, and the embeddings overflow
    with pytest.raises(InputError, match=r"the embedding of sentence \d+ \('.*'\) has values that are not"):
        encode_file(model, text, tmp_path / "x.npy", ALONE)
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt"}


def test_a_full_disk_is_one_line_and_keeps_what_is_there(text, tmp_path):
    interrupt(MODEL, text, tmp_path / "x.npy", num_blocks=2)
    with (
        patch("os.fsync", side_effect=OSError("No space left on device")),
        pytest.raises(InputError, match="cannot write .*No space left on device.*: check space"),
    ):
        encode_file(MODEL, text, tmp_path / "x.npy", ALONE)
    assert encode_file(MODEL, text, tmp_path / "x.npy", ALONE)[1] >= 10


@pytest.mark.slow
def test_standard_input_and_two_processes_give_the_file(text, tmp_path, tiny_folder):
    """The command, with its own blocks: more lines than two of them."""
    text.write_text("\n".join(LINES * 120) + "\n", encoding="utf-8")
    for _ in range(2):  # the second time the file exists
        encode.main([str(tiny_folder), str(text), "--device", "cpu", "--out", str(tmp_path / "one.npy")])
    line = [sys.executable, "-m", "tmft", "encode", str(tiny_folder), "-", "--device", "cpu"]
    line += ["--out", str(tmp_path / "in.npy")]
    done = subprocess.run(line, input=text.read_bytes(), capture_output=True, check=True, cwd=ROOT)
    assert f"wrote {tmp_path / 'in.npy'}: {len(LINES) * 120} x 24 float32".encode() in done.stdout
    options = ["encode", tiny_folder, text, "--device", "cpu", "--out", tmp_path / "two.npy"]
    two = run_together(2, *options, command="tmft/__main__.py")
    assert two.returncode == 0 and two.stdout.count("wrote") == 1, two.stderr
    one = np.load(tmp_path / "one.npy")
    for name in ("in", "two"):
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), one, atol=1e-5)
    assert not list(tmp_path.glob("*part*"))


def test_a_model_is_loaded_in_the_dtype_that_is_asked_for(text, tmp_path):
    """In float32 by default, and with auto in the type in which its weights are stored."""
    tiny_model().save_pretrained(tmp_path / "stored", dtype=torch.bfloat16)
    for dtype, loaded in ((None, "float32"), ("auto", "bfloat16"), ("float16", "float16")):
        options = [] if dtype is None else ["--dtype", dtype]
        encode.main([str(tmp_path / "stored"), str(text), "--out", str(tmp_path / "x.npy"), *options])
        model = SentenceEncoder.from_pretrained(tmp_path / "stored", dtype=loaded)
        np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), expect_rows(model, LINES))


def test_standard_input_is_not_shared(tmp_path):
    with pytest.raises(InputError, match="standard input cannot be shared by several processes: name a file"):
        encode_file(MODEL, encoding.STDIN, tmp_path / "x.npy", Processes(0, 2, torch.device("cpu")))


# ---------------------------------------------------------------------------------------------------- tables

TEXTS = [*SENTENCES, "", "a cat\nand a dog", "a man eats"]


def write_table(folder, kind, texts=TEXTS):
    path = folder / f"table.{kind}"
    if kind == "csv":
        with open(path, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["id", "text"], *enumerate(texts)])
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"text": texts, "n": list(range(len(texts)))}), path)
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_row_i_is_the_text_of_row_i(kind, tmp_path):
    table = write_table(tmp_path, kind)
    assert encode_file(MODEL, table, tmp_path / "x.npy", ALONE, "text") == (len(TEXTS), 0)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), expect_rows(MODEL, TEXTS))


# fmt: off
MISTAKES = [
    ("table.csv --out x.npy", "table.csv is a table: --column names the one with its texts"),
    ("table.csv --out x.npy --column body", "no column 'body' (table.csv, line 1): the columns are id, text"),
    ("lines.txt --out x.npy --column text", "--column 'text': lines.txt is no table by its name"),
    ("- --out x.npy --column text", "--column 'text': - is no table by its name"),
    ("table.parquet --out x.npy --column text", "table.parquet: Parquet needs the package pyarrow, "),
    ("lines.txt --out x.csv", "--out x.csv: embeddings are written as .npy: end the name so"),
    ("table.csv --out table.csv --column text", "cannot write table.csv: the command reads table.csv"),
    ("broken.csv --out x.npy --column text", "3 fields instead of 2 (broken.csv, line 9): put quotes"),
]
# fmt: on


@pytest.mark.parametrize(("line", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_leaves_no_file(line, message, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tmft.io.tables.find_spec", lambda name: None)
    write_table(tmp_path, "csv", ["a man"])
    (tmp_path / "lines.txt").write_text("a man\n")
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    (tmp_path / "broken.csv").write_text("id,text\n" + "1,a man\n" * 7 + "1,a,b\n")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError) as caught:
        encode.main([str(tiny_folder), "--device", "cpu", *line.split()])
    assert message in caught.value.as_cli_message()
    assert sorted(tmp_path.iterdir()) == before


# -------------------------------------------------------------------------------------- recipes of the page


def test_the_recipe_of_the_page_prints_the_ten_nearest_lines(text, tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    [recipe] = re.findall(r"```python\n((?:(?!```).)*vectors\.npy.*?)```", page, re.DOTALL)
    assert recipe.count("\n") <= 10
    monkeypatch.chdir(tmp_path)
    text.rename("sentences.txt")
    encode_file(MODEL, Path("sentences.txt"), Path("vectors.npy"), ALONE)
    exec(recipe.replace("music for one guitar", "a cat"), names := {"model": MODEL})
    printed = [line.split("  ", 1) for line in capsys.readouterr().out.splitlines()]
    cosines = MODEL.similarity(MODEL.encode("a cat"), names["corpus"])[0]
    assert printed[0] == ["1.0000", "a cat"]
    assert [float(score) for score, _ in printed] == pytest.approx(cosines.topk(10)[0].tolist(), abs=1e-4)
    [signs] = re.findall(r"`(np\.packbits.*?)`", page)
    assert eval(signs, names).shape == (len(LINES), 3)  # 24 dimensions
