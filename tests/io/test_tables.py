"""Tables of any kind give the same cells; the message about a wrong row names it."""

import csv
import gzip
import io
import json
import lzma
from decimal import Decimal
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmft.errors import InputError
from tmft.io.tables import read_columns


def cells(path, *columns):
    return [row for _, row in read_columns(path, columns or ("text", "score"))]


def write(tmp_path, name: str, content: str | bytes):
    path = tmp_path / name
    content = content if isinstance(content, bytes) else content.encode("utf-8")
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(content))
    return path


# Any characters, often those that mean something in a table; Python's writer does not quote a single \r.
TEXT = st.sampled_from(["  a", ' "a" b', ' ", ', ' "a\n"', 'says "no",\r\nthen; leaves ']) | st.text(
    st.sampled_from("\",;\t|\n '") | st.characters(exclude_characters="\0\r", exclude_categories=["Cs"])
)
KINDS = ["csv", "b.CSV.gz", "jsonl", "ndjson.xz", *(["parquet"] if find_spec("pyarrow") else [])]


@given(
    rows=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5),
    kind=st.sampled_from(KINDS),
    delimiter=st.sampled_from(",;\t"),
    begin=st.sampled_from(["", "\ufeff"]),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_any_texts_are_read_from_any_table_as_they_were_written(
    rows, kind, delimiter, begin, quoting, end, tmp_path_factory
):
    """CSV as Excel and pandas write it."""
    path = tmp_path_factory.getbasetemp() / f"table.{kind}"
    if kind == "parquet":
        texts, scores = map(list, zip(*rows, strict=True))
        table = pytest.importorskip("pyarrow").table({"score": scores, "text": texts})
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    elif "csv" in kind.lower():
        file = io.StringIO(newline="")
        file.write(begin)
        writer = csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=quoting)
        writer.writerows([("score", "id", "text"), *((score, "x", text) for text, score in rows), ()])
        write(path.parent, path.name, file.getvalue())
    else:
        lines = [json.dumps({"score": score, "more": [1], "text": text}) for text, score in rows]
        write(path.parent, path.name, begin + end.join([*lines, ""]))
    assert cells(path) == [list(row) for row in rows]


def test_decimals_of_parquet_are_numbers(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    numbers = [Decimal("4.50"), Decimal("-20.00"), None, Decimal("0.00"), Decimal("12345678901234567890.25")]
    parquet.write_table(pyarrow.table({"n": numbers}), tmp_path / "t.parquet")
    assert cells(tmp_path / "t.parquet", "n") == [["4.5"], ["-20"], [""], ["0"], ["12345678901234567890.25"]]


def test_values_of_jsonl_become_texts(tmp_path):
    content = '{"a": true, "b": null}\n\n{"a": 7, "b": NaN}\n{"a": 0.1, "b": ""}\n'
    assert cells(write(tmp_path, "u.ndjson", content), "a", "b") == [["true", ""], ["7", ""], ["0.1", ""]]


def test_numbers_keep_all_digits_that_matter(tmp_path):
    numbers = [
        "1700000000.123456",
        "0.30000000000000004",
        "12345678901234567890.25",
        "1e99999999999999999999",
    ]
    lines = [f'{{"n": {number}}}' for number in [*numbers, "2.50", "3.0", "1e3"]]
    read = [cell for [cell] in cells(write(tmp_path, "t.jsonl", "\n".join(lines)), "n")]
    assert read == [*numbers, "2.5", "3", "1000"]
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"n": [1700000000.123456, 0.1 + 0.2, 3.0]}), tmp_path / "t.parquet")
    assert cells(tmp_path / "t.parquet", "n") == [[numbers[0]], [numbers[1]], ["3"]]


def test_a_parquet_file_with_a_string_that_is_not_utf8_is_one_line(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    offsets, content = pyarrow.py_buffer(bytes([0, 0, 0, 0, 2, 0, 0, 0])), pyarrow.py_buffer(b"\xe9a")
    column = pyarrow.StringArray.from_buffers(1, offsets, content)
    parquet.write_table(pyarrow.table({"t": column}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"t.parquet cannot be read \(.*utf-8.*\): check the file"):
        cells(tmp_path / "t.parquet", "t")


def test_tsv_files_have_no_quotes(tmp_path):
    assert cells(write(tmp_path, "t.tsv.gz", 'score\ttext\n1\t"a\n'), "text") == [['"a']]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_parquet_values_become_texts(dtype, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    numbers = pyarrow.array([0.1, None, float("nan")]).cast(dtype)
    table = {"t": ["a\nb", None, "é"], "n": numbers, "b": [True, False, None], "l": [[1], [], []]}
    parquet.write_table(pyarrow.table(table), tmp_path / "t.parquet")
    assert cells(tmp_path / "t.parquet", "n", "t", "b") == [
        ["0.1", "a\nb", "true"],
        ["", "", "false"],
        ["", "é", ""],
    ]
    with pytest.raises(InputError, match=r"'l' holds \[1\] \(.*t.parquet, row 1\): name a column of texts"):
        cells(tmp_path / "t.parquet", "l")
    with pytest.raises(InputError, match=r"no column 'bb' \(.*t.parquet\): the columns are t, n, b, l"):
        cells(tmp_path / "t.parquet", "bb")


# fmt: off
MISTAKES = [
    ("t.csv", "", "no column 'text' .*t.csv, line 1.: no column has a name"),
    ("t.jsonl", "{}\n", "no column 'text' .*t.jsonl, line 1.: no column has a name"),
    ("t.csv", "texts,score\na,1\n", "no column 'text' .*line 1.: the columns are texts, score; did you"),
    ("t.csv", "text,score,text\na,1,b\n", "two columns 'text' .*line 1"),
    ("t.csv", "text,score\na,1\nb,c,2\n", "3 fields instead of 2 .*t.csv, line 3.: put quotes"),
    ("t.csv", 'text,score\n"a,1\n', "t.csv is not CSV up to line 2 .unexpected end of data"),
    ("t.csv", 'text,score\n"a"b,1\n', "t.csv is not CSV up to line 2 "),
    ("t.csv", "text,score\na\0b,1\n", "holds a zero byte or half a character"),
    ("t.csv", "text,score\n\xe9,1\n".encode("latin-1"), "t.csv cannot be read .*: check the name and"),
    ("t.csv.gz", b"", "no column 'text' .*: no column has a name"),
    ("t.jsonl", '{"text": 1, "score": 2}\n[1]\n', r"no object, but \[1\] .*t.jsonl, line 2"),
    ("t.jsonl", "\nnot\n", r"no JSON .*line 2: "),
    ("t.jsonl", '{"text": 1}\n', "no column 'score' .*line 1.: the columns are text"),
    ("t.jsonl", '{"text": {"a": 1}, "score": 2}\n', "column 'text' holds {'a': 1}"),
    ("t.jsonl", '{"text": "\\ud83d", "score": 2}\n', "zero byte or half a character"),
    ("t.jsonl", '{"text": ' + "[" * 100_000 + "\n", "no JSON"),
    ("t.jsonl", '{"text": ' + "9" * 5000 + ', "score": 1}\n', "no JSON"),
    ("t.parquet", "PAR1 this is none", "t.parquet cannot be read .Parquet magic bytes not found"),
    ("t.tsv", "text\tscore\na\tb\tc\n", "3 fields instead of 2 .*line 2"),
    ("t.json", "[]", "t.json is no table by its name: name a .csv, .tsv, .jsonl, .ndjson, .parquet file"),
]
# fmt: on


@pytest.mark.parametrize(("name", "content", "message"), MISTAKES)
def test_a_wrong_table_is_one_line(name, content, message, tmp_path):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = write(tmp_path, name, content)
    with pytest.raises(InputError, match=message):
        cells(path)


def test_what_is_no_file_is_one_line(tmp_path):
    for name, message in [
        ("none.csv", "cannot be read"),
        ("none.jsonl", "cannot be read"),
        (".", "no table"),
    ]:
        with pytest.raises(InputError, match=message):
            cells(tmp_path / name)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="is not a regular file"):
        cells(tmp_path / "folder.csv")


def test_without_pyarrow_parquet_is_one_line_that_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("tmft.io.tables.find_spec", lambda name: None)
    with pytest.raises(InputError, match="needs the package pyarrow, which is not installed: pip inst"):
        cells(tmp_path / "t.parquet")
