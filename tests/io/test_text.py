"""TSV files: cells are read exactly as written, and the message about a wrong line names the line."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmft.errors import InputError
from tmft.io.text import has_visible_text, read_table

HEADER = "a\tb\tc\n"
# Quotes, spaces, a \r inside a cell and other characters at which Python ends a line are as any other.
CELL = st.text(st.characters(exclude_characters="\0\t\r\n", exclude_categories=["Cs"]) | st.just("\r"))
CELL = CELL.filter(lambda cell: not cell.endswith("\r"))


@given(
    rows=st.lists(st.tuples(CELL, CELL, CELL)),
    start=st.sampled_from(["", "\ufeff"]),
    end=st.sampled_from(["\n", "\r\n"]),
    has_last_end=st.booleans(),
)
def test_any_cells_are_read_as_they_were_written(rows, start, end, has_last_end, tmp_path_factory):
    """With and without byte-order mark, \\r before the line end, and an end of the last line."""
    path = tmp_path_factory.getbasetemp() / "table.tsv"
    text = start + end.join(map("\t".join, [("a", "b", "c"), *rows])) + end * has_last_end
    path.write_text(text, encoding="utf-8", newline="")
    expected = [(f"{path}, line {n}", [c, a]) for n, (a, _, c) in enumerate(rows, start=2)]
    assert list(read_table(path, ["c", "a"])) == expected


# fmt: off
REFUSALS = [
    ("", r"no header line \(.*table.tsv\): the file is empty, write a, c and examples$"),
    ("b\tc\n1\t2\n", r"no column 'a' \(.*table.tsv, line 1\): the columns are b, c$"),
    ("a\tc\ta\n", r"two columns 'a' \(.*table.tsv, line 1\): rename one of them$"),
    ("a,c\n1,2\n", r"no TAB in the header 'a,c' \(.*table.tsv, line 1\): write a TSV file"),
    (HEADER + "1\t2\t3\n1\t2\n", r"2 fields instead of 3 \(.*table.tsv, line 3\): one TAB goes between"),
    (HEADER + "1\t2\t3\t4\n", r"4 fields instead of 3 \(.*table.tsv, line 2\)"),
    (HEADER + "\n", r"1 fields instead of 3 \(.*table.tsv, line 2\)"),
    (HEADER.encode() + b"\xff\xfe\t2\t3\n", r"table.tsv cannot be read .*0xff.*which has to be text in UTF"),
    ("a\tb\tc\r1\t2\t3\r", r"table.tsv is one line: its lines end with .r alone, as old programs on a Mac"),
    (None, r"table.tsv cannot be read \(No such file or directory\): check the name and the file, which"),
]
# fmt: on


@pytest.mark.parametrize(("content", "message"), REFUSALS)
def test_an_error_in_a_table_is_one_line_that_names_the_location(content, message, tmp_path):
    path = tmp_path / "table.tsv"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as error:
        list(read_table(path, ["a", "c"]))
    assert "\n" not in str(error.value)


def test_a_device_or_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "train.tsv")
    for path in (tmp_path / "train.tsv", Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match="is not a regular file"):
            list(read_table(path, ["sentence"]))


@pytest.mark.parametrize(
    ("cell", "is_visible"),
    [("", False), (" \t\xa0\u3000", False), ("\x00\x85", False), ("\u200b\ufeff", False)]
    + [(" a", True), ("\U0001fae0", True), ("\U0001faea", True), ("\ue000", True)],
)
def test_an_emoji_that_this_version_of_python_does_not_know_is_visible(cell, is_visible):
    assert has_visible_text(cell) == is_visible
