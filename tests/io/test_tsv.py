"""TSV files: cells are read exactly as written, and the message about a wrong line names the line."""

import os
from pathlib import Path

import pytest

from tmft.errors import InputError
from tmft.io.text import read_lines
from tmft.io.tsv import read_table, select_columns

HEADER = "a\tb\tc\n"


def table(tmp_path, text: str | bytes):
    path = tmp_path / "table.tsv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def cells(tmp_path, text: str, *choices) -> list[list[str]]:
    return [cells for _, cells in read_table(table(tmp_path, text), *choices)]


def test_columns_are_found_by_name_and_come_in_the_given_order(tmp_path):
    assert cells(tmp_path, HEADER + "1\t2\t3\n", ["c", "a"]) == [["3", "1"]]


@pytest.mark.parametrize(
    "text", ['He said "no.', '"', "line\u2028separator", "next\x85line", "return\rinside", " padded "]
)
def test_quotes_and_odd_characters_are_kept(text, tmp_path):
    assert cells(tmp_path, f"{HEADER}1\t{text}\t3\n", ["b", "c"]) == [[text, "3"]]


def test_a_byte_order_mark_does_not_matter(tmp_path):
    assert cells(tmp_path, "\ufeff" + HEADER + "1\t2\t3\n", ["a"]) == [["1"]]


def test_windows_line_ends_do_not_matter(tmp_path):
    assert cells(tmp_path, "a\tb\tc\r\n1\t2\t3\r\n", ["c"]) == [["3"]]


def test_the_last_line_may_lack_its_end(tmp_path):
    assert cells(tmp_path, HEADER + "1\t2\t3", ["c"]) == [["3"]]


def test_an_empty_cell_is_a_cell(tmp_path):
    assert cells(tmp_path, HEADER + "\t\t3\n", ["a", "c"]) == [["", "3"]]


def test_the_location_is_the_path_and_the_line_number(tmp_path):
    path = table(tmp_path, HEADER + "1\t2\t3\n4\t5\t6\n")
    assert [location for location, _ in read_table(path, ["a"])] == [f"{path}, line 2", f"{path}, line 3"]


@pytest.mark.parametrize(("header", "expected"), [("x\ty", ["x"]), ("y\tz", ["z"]), ("z\tx", ["x"])])
def test_the_first_list_of_columns_that_the_header_contains_is_read(header, expected, tmp_path):
    """Each cell holds the name of its column."""
    assert cells(tmp_path, f"{header}\n{header}\n", ["x"], ["z"]) == [expected]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"no header line \(.*table.tsv\): the file is empty, write a, c and examples$"),
        ("b\tc\n1\t2\n", r"no column 'a' \(.*table.tsv, line 1\): the columns are b, c$"),
        ("a,c\n1,2\n", r"no TAB in the header 'a,c' \(.*table.tsv, line 1\): write a TSV file"),
        (HEADER + "1\t2\t3\n1\t2\n", r"2 fields instead of 3 \(.*table.tsv, line 3\): one TAB goes between"),
        (HEADER + "1\t2\t3\t4\n", r"4 fields instead of 3 \(.*table.tsv, line 2\)"),
        (HEADER + "\n", r"1 fields instead of 3 \(.*table.tsv, line 2\)"),
        (
            HEADER.encode() + b"\xff\xfe\t2\t3\n",
            r"table.tsv is not UTF-8 text \(byte 0xff; .*\): save it as UTF-8$",
        ),
    ],
)
def test_an_error_in_a_table_is_one_line_that_names_the_location(text, message, tmp_path):
    with pytest.raises(InputError, match=message) as error:
        list(read_table(table(tmp_path, text), ["a", "c"]))
    assert "\n" not in str(error.value)


def test_a_missing_table_is_a_one_line_error(tmp_path):
    with pytest.raises(InputError, match=r"table.tsv cannot be read \(No such file or directory\)"):
        list(read_table(tmp_path / "table.tsv", ["a"]))


def test_lines_split_by_another_reader_are_checked_with_its_remedy(tmp_path):
    lines = [["a", "b"], ["1", "2"], ["3"]]
    rows = select_columns(lines, tmp_path, ["b"], remedy="close the quote")
    assert next(rows) == (f"{tmp_path}, line 2", ["2"])
    with pytest.raises(InputError, match="1 fields instead of 2 .*, line 3.: close the quote$"):
        next(rows)


def test_a_device_or_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "train.tsv")
    for path in (tmp_path / "train.tsv", Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match="is no ordinary file"):
            list(read_table(path, ["sentence"]))
    with pytest.raises(InputError, match="is a device, which may have no end"):
        list(read_lines(Path("/dev/zero")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"no header line \(.*t.tsv\): the file is empty"),
        (b"a,b\n1,2\n", r"no TAB in the header 'a,b' \(.*t.tsv, line 1\): write a TSV file"),
        (
            "a\tb\n1\t2\n".encode("utf-16"),
            r"is not UTF-8 text \(it begins like UTF-16\): save it as UTF-8",
        ),
        (
            "a\tb\ncaf\xe9\t2\n".encode("latin-1"),
            r"is not UTF-8 text \(byte 0xe9; perhaps it is Latin-1",
        ),
    ],
)
def test_a_file_of_another_kind_is_recognized(content, message, tmp_path):
    (tmp_path / "t.tsv").write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(read_table(tmp_path / "t.tsv", ["a", "b"]))
