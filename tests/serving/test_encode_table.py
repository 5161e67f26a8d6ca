"""A column of a table is embedded row by row; the result may be a Parquet file, with the same numbers."""

import csv
import json
from unittest.mock import patch

import numpy as np
import pytest
from conftest import ALONE, SENTENCES, tiny_model
from test_encode_file import interrupt, write_lines

import tmft.serving.encode_file as encoding
from tmft import SentenceEncoder
from tmft.cli import encode_command as encode
from tmft.cli import search_command as search
from tmft.errors import InputError
from tmft.serving.encode_file import encode_file, metadata_path
from tmft.serving.search import nearest_lines

TEXTS = [*SENTENCES, "", "a cat\nand a dog", *(f"a {word} eats" for word in "man woman dog cat".split() * 4)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(encoding, "BLOCK_SIZE", 5)
    monkeypatch.setattr(encoding, "GROUP_BLOCKS", 2)


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
    model, table = tiny_model(), write_table(tmp_path, kind)
    assert encode_file(model, table, tmp_path / "x.npy", ALONE, "text") == (len(TEXTS), 0)
    expected = model.encode([text or "." for text in TEXTS])
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), expected, atol=1e-5)


def test_a_column_and_the_file_of_its_lines_have_one_record(tmp_path):
    """So the embeddings of a column can be searched with the lines."""
    model, lines = tiny_model(), [text for text in TEXTS if "\n" not in text]
    write_lines(tmp_path / "lines.txt", lines)
    encode_file(model, write_table(tmp_path, "csv", lines), tmp_path / "x.npy", ALONE, "text")
    encode_file(model, tmp_path / "lines.txt", tmp_path / "y.npy", ALONE)
    assert metadata_path(tmp_path / "x.npy").read_bytes() == metadata_path(tmp_path / "y.npy").read_bytes()
    assert nearest_lines(model, "a cat", tmp_path / "lines.txt", vectors=tmp_path / "x.npy")


@pytest.mark.parametrize("texts", [["a\nb", "c"], ["a", "b\nc"]])
def test_texts_that_are_cut_at_another_line_end_have_another_digest(texts, tmp_path):
    records = []
    for rows in (texts, ["a\nb\nc", ""], ["a", "b", "c"]):
        encode_file(tiny_model(), write_table(tmp_path, "csv", rows), tmp_path / "x.npy", ALONE, "text")
        records.append(json.loads(metadata_path(tmp_path / "x.npy").read_text())["text"])
    assert len(set(records)) == 3


def test_a_parquet_file_has_the_numbers_of_the_npy_file_and_the_record(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    model, table = tiny_model(), write_table(tmp_path, "csv")
    for name in ("x.npy", "x.parquet"):
        encode_file(model, table, tmp_path / name, ALONE, "text")
    found = parquet.read_table(tmp_path / "x.parquet")
    assert found.column_names == ["embedding"]
    rows = np.array(found["embedding"].to_pylist(), dtype=np.float32)
    np.testing.assert_array_equal(rows, np.load(tmp_path / "x.npy"))
    records = [json.loads(metadata_path(tmp_path / name).read_text()) for name in ("x.npy", "x.parquet")]
    assert records[0] == records[1]
    inside = json.loads(found.schema.metadata[b"tmft"])
    assert inside == {name: value for name, value in records[0].items() if name != "vectors"}
    with pytest.raises(InputError, match="vectors .*x.parquet: a search reads .npy: encode to such a file"):
        nearest_lines(model, "a cat", table, vectors=tmp_path / "x.parquet")


def test_values_of_json_that_are_kept_are_as_in_the_file(tmp_path):
    """In the embedded text, true is 1 and null is nothing."""
    parquet = pytest.importorskip("pyarrow.parquet")
    values = ["true", "false", "null", "NaN", "1", "1.50", '"null"', '""', "12345678901234567890"]
    lines = [f'{{"text": "a", "kept": {value}}}\n' for value in values]
    (tmp_path / "table.jsonl").write_text("".join(lines))
    encode_file(tiny_model(), tmp_path / "table.jsonl", tmp_path / "x.parquet", ALONE, "text", ["kept"])
    found = parquet.read_table(tmp_path / "x.parquet")["kept"].to_pylist()
    assert found == ["true", "false", None, None, "1", "1.5", "null", "", "12345678901234567890"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_that_are_kept_are_those_of_the_same_rows(kind, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    model, table, key = tiny_model(), write_table(tmp_path, kind), "id" if kind == "csv" else "n"
    out = tmp_path / "x.parquet"
    interrupt(model, table, out, 2, column="text")
    encode_file(model, table, out, ALONE, "text", [key, "text"])
    found = parquet.read_table(out)
    assert found.column_names == [key, "text", "embedding"]
    count = range(len(TEXTS))
    assert found[key].to_pylist() == [str(n) if kind == "csv" else n for n in count]  # an integer remains one
    assert found["text"].to_pylist() == TEXTS
    encode_file(model, table, tmp_path / "y.parquet", ALONE, "text")
    assert found["embedding"] == parquet.read_table(tmp_path / "y.parquet")["embedding"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["id", "key"], "no column 'key'"),
        (["embedding"], "two columns would be named 'embedding': rename one"),
        (["id", "id"], "keep_columns: two columns would be named 'id': rename one"),
    ],
)
def test_columns_that_cannot_be_kept_are_refused_before_anything_is_embedded(names, message, tmp_path):
    pytest.importorskip("pyarrow")
    table = write_table(tmp_path, "csv")
    with pytest.raises(InputError, match=message):
        encode_file(tiny_model(), table, tmp_path / "x.parquet", ALONE, "text", names)
    assert list(tmp_path.iterdir()) == [table]


def test_a_search_in_a_column_finds_its_texts(tiny_folder, tmp_path, capsys):
    model, table = SentenceEncoder.from_pretrained(tiny_folder), write_table(tmp_path, "csv")
    expected = nearest_lines(
        model, "a cat", write_lines(tmp_path / "lines.txt", [t for t in TEXTS if "\n" not in t]), 3
    )
    found = nearest_lines(model, "a cat", table, 99, column="text")
    assert [pair for pair in found if "\n" not in pair[1]][:3] == expected
    encode_file(model, table, tmp_path / "x.npy", ALONE, "text")
    words = ["--corpus", str(table), "--column", "text", "--vectors", str(tmp_path / "x.npy")]
    search.main([str(tiny_folder), "a cat", *words, "--device", "cpu"])
    output = capsys.readouterr().out.splitlines()
    assert output[0].split("  ")[1] == "a cat?and a dog" == found[0][1].replace("\n", "?")
    with pytest.raises(InputError, match="is a table: column names the one with its texts"):
        nearest_lines(model, "a cat", table)


def test_an_empty_table_gives_an_empty_parquet_file(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    encode_file(tiny_model(), write_table(tmp_path, "csv", []), tmp_path / "x.parquet", ALONE, "text")
    assert parquet.read_table(tmp_path / "x.parquet").num_rows == 0


# fmt: off
MISTAKES = [
    ("table.csv --out x.npy", "table.csv is a table: --column names the one with its texts"),
    ("table.csv --out x.npy --column body", "no column 'body' (table.csv, line 1): the columns are id, text"),
    ("lines.txt --out x.npy --column text", "--column 'text': lines.txt is no table by its name"),
    ("- --out x.npy --column text", "--column 'text': - is no table by its name"),
    ("table.parquet --out x.npy --column text", "table.parquet: Parquet needs the package pyarrow, "),
    ("table.csv --out x.parquet --column text", "x.parquet: Parquet needs the package pyarrow, which is not"),
    ("lines.txt --out x.csv", "--out x.csv: embeddings are written as .npy or .parquet: end the name so"),
    ("table.csv --out table.csv --column text", "cannot write table.csv: the command reads this file"),
    ("table.csv --out x.npy --column text --keep-columns id", "--keep-columns are written only from a table"),
    ("lines.txt --out x.parquet --keep-columns id", "--keep-columns are written only from a table into a P"),
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


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("texts", [["a dog", *TEXTS[1:]], TEXTS[:-1], [*TEXTS, "music"]])
def test_columns_of_a_table_that_has_changed_are_not_kept(kind, texts, tmp_path):
    """The rows are read once more for the columns, after the embeddings."""
    pytest.importorskip("pyarrow")
    model, table, out = tiny_model(), write_table(tmp_path, kind), tmp_path / "x.parquet"
    join = encoding.join_blocks

    def change_table(*arguments):
        write_table(tmp_path, kind, texts)
        return join(*arguments)

    with (
        patch.object(encoding, "join_blocks", change_table),
        pytest.raises(InputError, match="was changed while it was read: give the command again"),
    ):
        encode_file(model, table, out, ALONE, "text", ["id" if kind == "csv" else "n"])
    assert not out.exists() and not metadata_path(out).exists()
