"""Each published format is read unchanged, and a damaged file is one line that names the place."""

import gzip
import zipfile
from functools import partial
from pathlib import Path

import pytest

import tmft.datasets.parse_pairs
from tmft.datasets.parse_pairs import (
    MRPC_COLUMNS,
    SCORED_PAIR_COLUMNS,
    SICK_COLUMNS,
    read_columns,
    read_kor_sts,
    read_mrpc,
    read_nli_sentences,
    read_sick,
    read_str,
    read_sts_year,
    read_stsb,
    read_stsb_multi_mt,
    read_word_list,
    read_word_similarity,
    split_fields,
    unzip_texts,
)
from tmft.datasets.releases import write_splits
from tmft.errors import InputError

SPLITS = ("train", "dev", "test")
SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\tA b\tC d\t3.6\tNEUTRAL\n"
MRPC = '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tSay "no.\tNo\r\n0\t9\t10\tAn a\tA b\r\n'
KOR = "genre\tfilename\tyear\tid\tscore\tsentence1\tsentence2\n"
KOR += "g\tf\ty\t1\t2.500\t한국\t가 안\ng\tf\ty\t2\t5.000\t가\t안"
MULTI = 'Er sagt ""Nein"".,"Ja, ""gut""\nund so",2.5\r\nEin Hund,Eine Katze,0.0\r\n'
WHOLE = "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tSemEval_set\n"
WHOLE += "".join(
    f"{n}\tA {split}\tB\tNEUTRAL\t{n}\t{split}\n" for n, split in enumerate(("TRIAL", "TRAIN", "TEST"))
)
ORIGINAL = 'g\tf\ty\ti\t4.000\tSay "no.\tNo\tsource\ng\tf\ty\ti\t1.000\tA b\tC\n'
SBERT = "split\tscore\tsentence1\tsentence2\n" + "".join(
    f"{split}\t5.000\tA {split}\tB\n" for split in SPLITS
)
RELATED = 'Index,SourceID,SubsetID,PairID,Text,Score\n0,STS,STS,p1,"Say ""A"", b.\nsay, a",0.75\n'
RELATED += '1,STS,STS,p2,"A dog\r\nA cat",0.0\n'
WORDS = "word1\tword2\tscore\nold\tnew\t1.58\n"

# Reader, files; of the first one, a few lines as published.
FORMATS = {
    "STS benchmark, sbert.net": (lambda folder: read_stsb(folder / "a.tsv"), {"a.tsv": SBERT}),
    "STS benchmark, original": (read_stsb, {f"sts-{split}.csv": ORIGINAL for split in SPLITS}),
    "stsb-multi-mt": (
        partial(read_stsb_multi_mt, language="de"),
        {f"stsb-de-{split}.csv": MULTI for split in SPLITS},
    ),
    "KorSTS": (read_kor_sts, {f"sts-{split}.tsv": KOR for split in SPLITS}),
    "SICK, three files": (
        read_sick,
        {"SICK_train.txt": SICK, "SICK_trial.txt": SICK, "SICK_test_annotated.txt": SICK},
    ),
    "SICK, one file": (read_sick, {"SICK.txt": WHOLE}),
    "MRPC": (read_mrpc, {"msr_paraphrase_train.txt": MRPC, "msr_paraphrase_test.txt": MRPC}),
    "STS of a year": (
        partial(read_sts_year, subsets=["x"]),
        {"STS.input.x.txt": "A\tB\tsource\nC\tD\n", "STS.gs.x.txt": "\n4.400\n"},
    ),
    "STR": (read_str, {"sem_text_rel_ranked.csv": RELATED}),
    "words, header": (lambda folder: {"": read_word_list(folder / "w.tsv")}, {"w.tsv": WORDS}),
    "words, 3 columns": (
        lambda folder: {"": read_word_list(folder / "EN-w.txt")},
        {"EN-w.txt": "a\tb\t1\r\nc\td\t2"},
    ),
    "words, 5 columns": (
        lambda folder: {"": read_word_list(folder / "SimVerb.txt")},
        {"SimVerb.txt": "a\tb\tV\t1\tNONE\n"},
    ),
    "words, CSV": (
        lambda folder: {"": read_word_list(folder / "w.csv")},
        {"w.csv": ",similarity,word1,word2\n0,5.77,plane,car\n1,,,\n"},
    ),
    "AllNLI": (
        lambda folder: {"": list(read_nli_sentences(folder / "n.gz"))},
        {"n.gz": 'split\tsentence1\tsentence2\ntrain\tB "x\tA\ndev\tA\tC\n'},
    ),
}
READ = {
    "STS benchmark, sbert.net": [("A train", "B", "5.000")],
    "STS benchmark, original": [('Say "no.', "No", "4.000"), ("A b", "C", "1.000")],
    "stsb-multi-mt": [('Er sagt ""Nein"".', 'Ja, "gut"\nund so', "2.5"), ("Ein Hund", "Eine Katze", "0.0")],
    "KorSTS": [("한국", "가 안", "2.500"), ("가", "안", "5.000")],
    "SICK, three files": [("A b", "C d", "3.6", "NEUTRAL")],
    "SICK, one file": [("A TRAIN", "B", "1", "NEUTRAL")],
    "MRPC": [],  # all of the few go to dev
    "STS of a year": [("C", "D", "4.400")],
    "STR": [('Say "A", b.', "say, a", "0.75"), ("A dog\r", "A cat", "0.0")],
    "words, header": [("old", "new", "1.58")],
    "words, 3 columns": [("a", "b", "1"), ("c", "d", "2")],
    "words, 5 columns": [("a", "b", "1")],
    "words, CSV": [("plane", "car", "5.77")],
    "AllNLI": ['B "x', "A", "C"],
}


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        content = content if isinstance(content, bytes) else content.encode("utf-8")
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


@pytest.fixture(autouse=True)
def any_content(monkeypatch):
    monkeypatch.setattr(tmft.datasets.parse_pairs, "SHA256", {})


@pytest.mark.parametrize("name", FORMATS)
def test_a_published_format_is_read_unchanged(name, tmp_path):
    read, files = FORMATS[name]
    first = next(iter(read(write(tmp_path, files)).values()))
    assert first == READ[name]


def cut(text: str) -> str:
    """Cut the end of the last line off, as after a broken download."""
    for mark in ("\t", ","):
        if mark in text:
            return text.rstrip("\r\n").rpartition(mark)[0]
    return ""


DAMAGES = {
    "truncated": (
        lambda text: cut(text).encode(),
        r"fields? instead of \d.*line \d+\): download it again|1 scores for 2 pairs",
    ),
    "wrong header": (
        lambda text: (
            "x"
            + text.lstrip("\ufeff")
            .replace("word1", "w1")
            .replace("entence", "atz")
            .replace("String", "")
            .replace("Text", "")
        ).encode(),
        r"no columns? .*line 1\)",
    ),
    "wrong delimiter": (
        lambda text: text.replace(",", ";").replace("\t", ",").encode(),
        r"no columns? .*line 1\)|1 fields? instead of \d.*line 1\)",
    ),
    "bad UTF-8": (
        lambda text: text.encode().replace(b"A", b"\xff").replace(b"a", b"\xff") + b"\xff",
        "cannot be read .*utf-8.*: download it again",
    ),
}
NO_HEADER = (
    "STS benchmark, original",
    "stsb-multi-mt",
    "STS of a year",
    "words, 3 columns",
    "words, 5 columns",
)
CASES = [
    (name, damage)
    for name in FORMATS
    for damage in DAMAGES
    if not (damage == "wrong header" and name in NO_HEADER)
]


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_a_damaged_file_is_one_line(name, damage, tmp_path):
    read, files = FORMATS[name]
    spoil, message = DAMAGES[damage]
    first = next(iter(files))
    with pytest.raises(InputError, match=message) as error:
        read(write(tmp_path, files | {first: spoil(files[first])}))
    assert "\n" not in str(error.value) and str(tmp_path / first) in str(error.value)


@pytest.mark.parametrize("name", FORMATS)
def test_an_empty_file_is_one_line(name, tmp_path):
    read, files = FORMATS[name]
    first = next(iter(files))
    with pytest.raises(
        InputError, match=r"no columns? .*line 1\)|fields? instead of .*line 1\)|scores for 1 pairs"
    ):
        read(write(tmp_path, files | {first: ""}))


def test_a_year_must_have_as_many_scores_as_pairs(tmp_path):
    write(tmp_path, {"STS.input.x.txt": "A\tB\nC\tD\n", "STS.gs.x.txt": "4.400\n"})
    with pytest.raises(InputError, match=r"1 scores for 2 pairs \(.*STS.gs.x.txt\): download both again"):
        read_sts_year(tmp_path, ["x"])


@pytest.mark.parametrize("text", ["A b", "A\nb\nc", "A\n"])
def test_a_cell_that_is_not_two_sentences_is_one_line(text, tmp_path):
    write(tmp_path, {"sem_text_rel_ranked.csv": RELATED.replace("A dog\r\nA cat", text)})
    with pytest.raises(InputError, match=r"Text is not two sentences on two lines \(.*ranked.csv, pair 2\)"):
        read_str(tmp_path)


def test_a_file_that_unpacks_to_too_many_bytes_is_an_error(tmp_path, monkeypatch):
    """A few compressed KB of one letter may become gigabytes."""
    monkeypatch.setattr(tmft.datasets.parse_pairs, "MAX_UNPACKED_BYTES", 5000)
    text = "sentence1\tsentence2\tscore\n" + "a\tb\t1\n" * 1000
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(text.encode()))
    with pytest.raises(InputError, match="a.tsv.gz unpacks to more than 5,000 bytes"):
        read_columns(tmp_path / "a.tsv.gz", SCORED_PAIR_COLUMNS)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/SICK.txt", text[:2600])
        archive.writestr("b/SICK.txt", text[:2600])
        archive.writestr("large.exe", text)  # which is not unpacked
    with pytest.raises(InputError, match="a.zip unpacks to more than 5,000 bytes"):
        unzip_texts(tmp_path / "a.zip", tmp_path)
    monkeypatch.setattr(tmft.datasets.parse_pairs, "MAX_UNPACKED_BYTES", 5200)
    assert unzip_texts(tmp_path / "a.zip", tmp_path) == tmp_path and (tmp_path / "SICK.txt").is_file()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_whose_blocks_may_have_any_size_is_refused_before_it_is_unpacked(method, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        archive.writestr("SICK.txt", "a" * 10_000)
    with pytest.raises(InputError, match="a.zip is compressed by another method than deflate: unpack it"):
        unzip_texts(tmp_path / "a.zip", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_other_errors_name_their_cause(tmp_path):
    with pytest.raises(
        InputError, match="no SICK_train.txt in .*: name the folder .* SICK_train.txt or train.tsv"
    ):
        read_sick(tmp_path)
    write(tmp_path, {"SICK.txt": WHOLE.replace("TEST", "REST")})
    with pytest.raises(InputError, match=r"no split 'REST' \(.*SICK.txt, line 4\)"):
        read_sick(tmp_path / "SICK.txt")
    write(tmp_path, {"stsb-de-train.csv": 'a,"b" c,1\n'})
    with pytest.raises(InputError, match="stsb-de-train.csv is no CSV file .*: download it again"):
        read_stsb_multi_mt(tmp_path, "de")


def test_a_changed_file_is_recognized_by_its_sha256(tmp_path, monkeypatch):
    monkeypatch.setattr(tmft.datasets.parse_pairs, "SHA256", {"SICK_trial.txt": ["0" * 64]})
    _, files = FORMATS["SICK, three files"]
    with pytest.raises(InputError, match=r"SICK_trial.txt is not the published SICK_trial.txt \(SHA-256\)"):
        read_sick(write(tmp_path, files))


# ---------------------------------------------------------------------------- the word similarity set


def word_folder(folder: Path, change=lambda name, lines: lines) -> Path:
    """Four lists in three formats; SimVerb repeats a pair of RG-65 in the other order."""
    lists = {
        "EN-RG-65.txt": [f"r{n}\trr\t{4 * n / 64}" for n in range(65)],
        "SimLex-999.txt": ["word1\tword2\tPOS\tSimLex999", *(f"s{n}\tss\tN\t{n % 11}" for n in range(999))],
        "SimVerb-3500.txt": ["rr\tr0\tV\t9\tNONE", *(f"v{n}\tvv\tV\t{n % 11}\tNONE" for n in range(3499))],
        "wordsim353-sim.csv": [
            ",word1,word2,similarity",
            *(f"{n},w{n},ww,{n % 11}" for n in range(203)),
            "203,,,",
        ],
    }
    return write(folder, {name: "\n".join(change(name, lines)) for name, lines in lists.items()})


def test_word_pairs_are_rescaled_merged_and_split_70_15_15_reproducibly(tmp_path):
    splits = read_word_similarity(word_folder(tmp_path))
    assert splits == read_word_similarity(tmp_path)
    sizes = [len(splits[split]) for split in SPLITS]
    assert sum(sizes) == 65 + 999 + 3500 + 203 - 1 and sizes == [3336, 715, 715]
    score = {row[:2]: float(row[2]) for split in SPLITS for row in splits[split]}
    assert len(score) == sum(sizes)  # no pair in two splits
    assert score["r0", "rr"] == 0.0 and ("rr", "r0") not in score  # the first score stays
    assert score["r64", "rr"] == 1.0 and score["s10", "ss"] == 1.0 and score["v5", "vv"] == 0.5


def test_a_word_list_of_another_length_or_with_a_wrong_score_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"64 pairs instead of 65 \(.*EN-RG-65.txt\): download it again"):
        read_word_similarity(word_folder(tmp_path, lambda name, lines: lines[:64] if "RG" in name else lines))
    with pytest.raises(InputError, match=r"score 'x' is not a number \(.*EN-RG-65.txt, pair 2\)"):
        read_word_similarity(word_folder(tmp_path, lambda name, lines: [lines[0], "a\tb\tx", *lines[2:]]))


# ---------------------------------------------------------------------------- real releases, where at hand

RELEASED = {
    "stsb-multi-mt/stsb-de-dev.csv": (
        "stsb-de/dev.tsv",
        lambda path: [tuple(row) for row in split_fields(path, True)],
    ),
    "kor-sts/sts-dev.tsv": ("kor-sts/dev.tsv", lambda path: read_columns(path, SCORED_PAIR_COLUMNS)),
    "sick/SICK_trial.txt": ("sick/trial.tsv", lambda path: read_columns(path, *SICK_COLUMNS)),
    "mrpc/msr_paraphrase_test.txt": ("mrpc/test.tsv", lambda path: read_columns(path, *MRPC_COLUMNS)),
    "semeval-sts12/STS.input.MSRpar.txt": (
        "sts12/MSRpar.tsv",
        lambda path: read_sts_year(path.parent, ["MSRpar"])["MSRpar"],
    ),
    "semeval-sts16/STS2016.input.headlines.txt": (
        "sts16/headlines.tsv",
        lambda path: read_sts_year(path.parent, ["headlines"])["headlines"],
    ),
}


@pytest.fixture
def originals(real_data) -> Path:
    if not (real_data / "original-formats").is_dir():
        pytest.skip(f"no original-formats in {real_data}")
    return real_data / "original-formats"


@pytest.mark.parametrize("name", RELEASED)
def test_a_real_release_is_converted_to_the_known_file_byte_for_byte(
    name, originals, real_data, tmp_path, monkeypatch
):
    monkeypatch.undo()  # so that its SHA-256 is checked
    canonical, read = RELEASED[name]
    task = canonical.partition("/")[0]
    write_splits({"written": read(originals / name)}, task, tmp_path / task)
    assert (tmp_path / task / "written.tsv").read_bytes() == (real_data / canonical).read_bytes()


@pytest.mark.parametrize(
    ("released", "canonical"),
    [
        ("SimLex-999.txt", "simlex999.tsv"),
        ("EN-RG-65.txt", "rg65.tsv"),
        ("EN-SimVerb-3500.txt", "simverb3500.tsv"),
    ],
)
def test_both_forms_of_the_real_word_lists_give_the_same_rows(
    released, canonical, originals, real_data, monkeypatch
):
    monkeypatch.undo()

    def read(path):
        return [(word1, word2, float(score)) for word1, word2, score in read_word_list(path)]

    assert read(originals / "wordsim" / released) == read(real_data / "wordsim" / canonical)
