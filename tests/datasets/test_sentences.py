"""Splitting texts into sentences: what stays whole, what is left out, and the command."""

import pytest

from tmft.cli import data_command
from tmft.errors import InputError
from tmft.students.distillation_data import extract_sentences, line_to_sentences

LONG = "The first sentence is here, and it is not short at all. “The second one” begins with a quote! " + (
    "Does (he) know that e.g. this stays, as no capital follows? Yes."
)


def test_a_long_line_gives_its_sentences_and_itself_and_a_short_one_stays_whole():
    sentences = line_to_sentences(LONG, 250)
    assert sentences[-1] == LONG and " ".join(sentences[:-1]) == LONG and len(sentences) == 5
    assert sentences[1] == "“The second one” begins with a quote!"
    assert line_to_sentences(LONG, 100) == sentences[:-1], "the line itself is too long"
    assert line_to_sentences("Hi there. How are you?", 250) == ["Hi there. How are you?"]


def test_short_long_repeated_and_excluded_sentences_are_left_out():
    lines = ["A dog runs in the park.", "a DOG runs, in the park", "Too short.", "?" * 40, "x" * 300, LONG]
    excluded = ["does he know that eg this stays as no capital follows"]
    assert list(extract_sentences(lines, 20, 120, excluded)) == [
        lines[0],
        *line_to_sentences(LONG, 120)[:2],
    ]


def test_the_command_writes_one_sentence_per_line_and_refuses_to_overwrite(tmp_path, capsys):
    text, test_set, out = tmp_path / "text.txt", tmp_path / "test.tsv", tmp_path / "lines.txt"
    text.write_text(f"{LONG}\nA dog runs in the park.\n", encoding="utf-8")
    test_set.write_text("sentence1\tsentence2\nA dog runs in the park\tsomething else\n", encoding="utf-8")
    arguments = ["sentences", str(text), "--out", str(out), "--exclude", str(test_set)]
    data_command.main(arguments)
    assert "4 sentences" in capsys.readouterr().out
    assert out.read_text(encoding="utf-8").splitlines() == [*line_to_sentences(LONG, 250)[:3], LONG]
    with pytest.raises(InputError, match="exists already"):
        data_command.main(arguments)
    with pytest.raises(InputError, match="no sentence of 20 to 21 characters"):
        data_command.main([*arguments[:3], str(tmp_path / "other"), "--max-length", "21"])
