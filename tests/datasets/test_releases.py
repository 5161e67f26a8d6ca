"""Each published form of a release gives its rows unchanged; a damaged file is one line and changes none."""

import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tmft.data import SPLITS, read_examples
from tmft.datasets.download import download_dataset
from tmft.datasets.readers import SHA256
from tmft.datasets.releases import CLUSTERING_FILES, POS_NEG_FILES, RELEASES
from tmft.datasets.task_lookup import expand_groups, get_task
from tmft.errors import InputError
from tmft.tasks import TASKS

PUBLISHED_SHA256 = dict(SHA256)


@pytest.fixture(autouse=True)
def any_content(monkeypatch):
    """Switch off the check of SHA-256: the imitated files of the tests do not pass it."""
    for name in PUBLISHED_SHA256:
        monkeypatch.delitem(SHA256, name)


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        content = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


def read(name: str, folder: Path, file: str = ""):
    content = RELEASES[name].read(folder / file if file else folder)
    return content if isinstance(content, dict) else list(content)


# ----------------------------------------------------------------------------------- forms and their rows

SBERT = "split\tscore\tsentence1\tsentence2\n" + "".join(f"{split}\t5.00\tA {split}\tB\n" for split in SPLITS)
ORIGINAL = 'g\tf\ty\ti\t4.000\tSay "no.\tNo\tsource\ng\tf\ty\ti\t1.000\tA b\tC\n'
MULTI = 'Er sagt ""Nein"".,"Ja, ""gut""\nund so",2.5\r\nEin Hund,Eine Katze,0.0\r\n'
KOR = "genre\tscore\tsentence1\tsentence2\ng\t2.500\t한국\t가 안\ng\t5.000\t가\t안"
SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\tA b\tC d\t3.6\tNEUTRAL\n"
WHOLE = "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tSemEval_set\n" + "".join(
    f"{n}\tA {split}\tB\tNEUTRAL\t{n}\t{split}\n"
    for n, split in enumerate(("TRIAL", "TRAIN", "TEST"), start=1)
)
MRPC = '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tSay "no.\tNo\r\n0\t9\t10\tAn a\tA b\r\n'
RELATED = 'Index,Text,Score\n0,"Say ""A"", b.\nsay, a",0.75\n1,"A dog\r\nA cat",0.0\n'
ALL_NLI = 'split\tsentence1\tsentence2\ntrain\tB "x\tA\ndev\tA\tline\u2028end\ntest\tB "x\t \n'
CLASSES = "split\tdataset\tsentence1\tsentence2\tlabel\n" + "".join(
    f'{split}\tSNLI\tA "man\tHe {split}\tneutral\n' for split in SPLITS
)
SIMCSE = 'sent0,sent1,hard_neg\n"A man, old",He is old.,He is young.\na,"b ""c""\nd",e\n'
QUORA = "\tid\tsentence1\tsentence2\tis_duplicate\n"
QUORA += '7\taa\t"""Which?"" he"\tWhy?\t0.0\n8\tb\tA\tC\t1\n9\tc\t\tD\t1\n'
COURSE_SST = "\tid\tsentence\tsentiment\n0\taa\t A good film .\t3\n1\tbb\tBad\t0\n"
STUDENT = "0\t\tid\tsentence\n1\t0.0\tcc\tA film\n2\t1.0\tdd\tNo\n"  # the index takes two cells
SENTENCES = b"caf\xe9 \x85 a \x93b\x94 .\n\nend\tof it\n\n"  # Windows-1252; the second and the last are empty
READ_SENTENCES = ["café … a “b” .", "", "end\tof it", ""]
SENTEVAL = {
    **{file: SENTENCES for file in POS_NEG_FILES.values()},
    **{f"stsa.binary.{split}": "1 cr\u00eape .\n0 no \x85 .\n" for split in SPLITS},
    **{
        f"TREC.{split}": b"DESC:def What is caf\xe9 ?\nNUM:dist How far : 3 ?\n"
        for split in ("train", "test")
    },
}
READ_SENTEVAL = {
    **{
        name: [(label, text) for label in "10" for text in READ_SENTENCES]
        for name in ("mr", "cr", "subj", "mpqa")
    },
    **{f"sst2/{split}": [("1", "crêpe ."), ("0", "no \x85 .")] for split in SPLITS},  # UTF-8: no ellipsis
    **{
        f"trec/{split}": [("DESC", "What is café ?", "DESC:def"), ("NUM", "How far : 3 ?", "NUM:dist")]
        for split in ("train", "test")
    },
}
PLACES = {"TREC.train": "TREC/train_5500.label", "TREC.test": "TREC/TREC_10.label"} | {
    file: f"{name.partition('=')[0].upper()}/{file}" for name, file in POS_NEG_FILES.items()
}
SST5 = {f"stsa.fine.{split}": f"4 {split} a .\n0 b\n" for split in SPLITS}
READ_SST5 = {split: [("4", f"{split} a ."), ("0", "b")] for split in SPLITS}
CLUSTERING = {Path(place).name: "3\tA b\r\n12\tc \u2026 d" for place, _ in CLUSTERING_FILES.values()}
CLUSTERING["stackoverflow_true_text"] = "18\tHow?\t\r\n3\ta\tb\r\n20\tend"
GLUE_FILES = {
    "CoLA/train.tsv": "".join(f"gj04\t{n % 2}\t*\ttext {n}\n" for n in range(22)),
    "CoLA/dev.tsv": "gj04\t1\t\tok\n",
    "QQP/train.tsv": 'id\tquestion1\tquestion2\tis_duplicate\n1\t"a\tb\t1\n1\tcut\n1\ta\t\t1\n2\tc\td\t0\n',
    "QQP/dev.tsv": "id\tquestion1\tquestion2\tis_duplicate\n1\tc\td\t0\n",
    "MNLI/train.tsv": "sentence1\tsentence2\tlabel1\tgold_label\na\tb\tx\t-\na\tb\tx\tneutral\n",
    "MNLI/dev_matched.tsv": "sentence1\tsentence2\tgold_label\ne\tf\tneutral\n",
    "MNLI/dev_mismatched.tsv": "sentence1\tsentence2\tgold_label\ng\th\tneutral\n",
}
COLA = [(str(n % 2), f"text {n}") for n in range(22)]
READ_GLUE = {
    "cola/train": [*COLA[1:20], COLA[21]],
    "cola/dev": [COLA[0], COLA[20]],
    "cola/test": [("1", "ok")],
    **{"qqp/train": [("0", "c", "d")], "qqp/dev": [("1", '"a', "b")], "qqp/test": [("0", "c", "d")]},
    **{"mnli/train": [], "mnli/dev": [("neutral", "a", "b")], "mnli/test": [("neutral", "e", "f")]},
    **{"mnli-mm/train": [], "mnli-mm/dev": [("neutral", "a", "b")], "mnli-mm/test": [("neutral", "g", "h")]},
}


def in_splits(rows: list, splits=SPLITS) -> dict[str, list]:
    return dict.fromkeys(splits, rows)


# fmt: off
# Form -> release, its files, the file to name (else the folder), the rows.
FORMS = {
    "STS benchmark, sbert.net": ("stsb", {"a.tsv.gz": SBERT}, "a.tsv.gz",
        {split: [(f"A {split}", "B", "5.00")] for split in SPLITS}),
    "STS benchmark, original": ("stsb", {f"sts-{split}.csv": ORIGINAL for split in SPLITS}, "",
        in_splits([('Say "no.', "No", "4.000"), ("A b", "C", "1.000")])),
    "stsb-multi-mt": ("stsb-de", {f"stsb-de-{split}.csv": MULTI for split in SPLITS}, "",
        in_splits([('Er sagt ""Nein"".', 'Ja, "gut"\nund so', "2.5"), ("Ein Hund", "Eine Katze", "0.0")])),
    "KorSTS": ("kor-sts", {f"sts-{split}.tsv": KOR for split in SPLITS}, "",
        in_splits([("한국", "가 안", "2.500"), ("가", "안", "5.000")])),
    "SICK, three files": ("sick",
        {"SICK_train.txt": SICK, "SICK_trial.txt": SICK, "SICK_test_annotated.txt": SICK}, "",
        in_splits([("A b", "C d", "3.6", "NEUTRAL")])),
    "SICK, one file": ("sick", {"SICK.txt": WHOLE}, "",
        {split: [(f"A {theirs}", "B", score, "NEUTRAL")]
         for split, theirs, score in zip(SPLITS, ("TRAIN", "TRIAL", "TEST"), "213", strict=True)}),
    "MRPC": ("mrpc", {"msr_paraphrase_train.txt": MRPC, "msr_paraphrase_test.txt": MRPC}, "",
        in_splits([('Say "no.', "No", "1"), ("An a", "A b", "0")]) | {"train": []}),  # the few go to dev
    "STR": ("str", {"sem_text_rel_ranked.csv": RELATED}, "",
        {"test": [('Say "A", b.', "say, a", "0.75"), ("A dog\r", "A cat", "0.0")]}),
    "AllNLI": ("nli", {"n.gz": ALL_NLI}, "n.gz", ['B "x', "A", "line end"]),
    "AllNLI, classes": ("allnli", {"AllNLI.tsv.gz": CLASSES}, "",
        {split: [('A "man', f"He {split}", "neutral")] for split in SPLITS}),
    "SimCSE": ("nli-triplets", {"n.csv": SIMCSE}, "n.csv",
        {"train": [("A man, old", "He is old.", "He is young."), ("a", 'b "c"\nd', "e")]}),
    "duplicates": ("quora-pairs",
        {"q.tsv": "id\tquestion1\tquestion2\tis_duplicate\n0\ta\tb\t1\n1\tc\td\t0\n2\te\tf\t1.0\n"}, "q.tsv",
        {"train": [("a", "b"), ("e", "f")]}),
    "duplicates of the course": ("quora-pairs", {"quora-train.csv": QUORA}, "quora-train.csv",
        {"train": [("A", "C")]}),
    "course, pairs": ("quora", {"quora-train.csv": QUORA, "quora-dev.csv": QUORA}, "",
        in_splits([("0.0", '"Which?" he', "Why?", "aa"), ("1", "A", "C", "b")], ("train", "dev"))),
    "course, texts": ("sst5",
        {"ids-sst-train.csv": COURSE_SST, "ids-sst-dev.csv": COURSE_SST, "ids-sst-test-student.csv": STUDENT},
        "",
        in_splits([("3", " A good film .", "aa"), ("0", "Bad", "bb")], ("train", "dev"))
        | {"unlabelled": [("A film", "cc"), ("No", "dd")]}),
    "course, only dev": ("quora",
        {"quora-dev.csv": QUORA.split("\n")[0]
         + "".join(f"\n{n}\tid\ta {n}\tb\t{n % 2}.0" for n in range(20))}, "",
        {split: [(f"{n % 2}.0", f"a {n}", "b", "id") for n in numbers]
         for split, numbers in [("train", range(16)), ("dev", (16, 17)), ("test", (18, 19))]}),
    "SentEval, flat": ("senteval", SENTEVAL, "", READ_SENTEVAL),
    "SentEval, folders": ("senteval",
        {PLACES[name]: text for name, text in SENTEVAL.items() if name in PLACES}
        | {f"SST/binary/sentiment-{split}": "crêpe . \t1\nno \x85 . \t0\n" for split in SPLITS}, "",
        READ_SENTEVAL | {f"sst2/{split}": [("1", "crêpe . "), ("0", "no \x85 . ")] for split in SPLITS}),
    "SST-5": ("sst5", SST5, "", READ_SST5),
    "SST-5, folders": ("sst5",
        {f"SST/fine/{name.replace('stsa.fine.', 'sentiment-')}": text for name, text in SST5.items()}, "",
        READ_SST5),
    "clustering": ("clustering", CLUSTERING, "",
        dict.fromkeys(CLUSTERING_FILES, [("3", "A b"), ("12", "c … d")])
        | {"stackoverflow": [("18", "How?"), ("3", "a"), ("20", "end")]}),
    "GLUE": ("glue", GLUE_FILES, "", READ_GLUE),
    "SemEval": ("sts13",  # pairs without a score were not scored by the organizers, and are left out
        {f"STS.input.{name}.txt": "A\tB\tsource\nC\tD\n" for name in RELEASES["sts13"].sizes}
        | {f"STS.gs.{name}.txt": "\n4.400\n" for name in RELEASES["sts13"].sizes}, "",
        dict.fromkeys(RELEASES["sts13"].sizes, [("C", "D", "4.400")])),
}
# fmt: on


@pytest.mark.parametrize("form", FORMS)
def test_a_published_form_is_read_unchanged(form, tmp_path):
    name, files, file, rows = FORMS[form]
    assert read(name, write(tmp_path, files), file) == rows


# Four lists, one in the other form; SimVerb repeats a pair of RG-65 in the other order.
HEADER = ",word1,word2,similarity"
WORD_FILES = {
    "rg65.tsv": ["word1\tword2\tscore", *(f"r{n}\trr\t{4 * n / 64}" for n in range(65))],
    "simlex999.csv": [HEADER, *(f"{n},s{n},ss,{n % 11}" for n in range(999))],
    "simverb-3500.csv": [HEADER, "0,rr,r0,9", *(f"{n},v{n},vv,{n % 11}" for n in range(3499))],
    "wordsim353-sim.csv": [HEADER, *(f"{n},w{n},ww,{n % 11}" for n in range(203)), "203,,,"],
}
WORD_FILES = {name: "\n".join(lines) for name, lines in WORD_FILES.items()}


def test_word_pairs_are_rescaled_merged_and_split_70_15_15_reproducibly(tmp_path):
    splits = read("wordsim", write(tmp_path, WORD_FILES))
    assert splits == read("wordsim", tmp_path)
    sizes = [len(splits[split]) for split in SPLITS]
    assert sum(sizes) == 65 + 999 + 3500 + 203 - 1 and sizes == [3336, 715, 715]
    score = {row[:2]: float(row[2]) for split in SPLITS for row in splits[split]}
    assert len(score) == sum(sizes)  # no pair in two splits
    assert score["r0", "rr"] == 0.0 and ("rr", "r0") not in score  # the first score stays
    assert score["r64", "rr"] == 1.0 and score["s10", "ss"] == 1.0 and score["v5", "vv"] == 0.5


# -------------------------------------------------------------------------------------------- what is wrong

REFUSALS = [  # form, file, what it has instead (None: it is absent), words of the message
    ("STS benchmark, sbert.net", "a.tsv.gz", SBERT.replace("test", "rest"), r"no split 'rest' \(.*, line"),
    ("STS benchmark, sbert.net", "a.tsv.gz", SBERT[:-3], r"3 fields instead of 4 \(.*, line 4\): download"),
    ("STS benchmark, original", "sts-train.csv", ORIGINAL[:-3], r"6 fields instead of 7 \(.*, line 2\)"),
    ("STS benchmark, original", "sts-dev.csv", None, "no sts-dev.csv in .*: name the folder of the release"),
    (
        "STS benchmark, original",
        "sts-dev.csv",
        ORIGINAL.replace("4.0", "x"),
        "score 'x00' is not a number",
    ),
    ("SICK, one file", "SICK.txt", WHOLE.encode() + b"\xff", "SICK.txt cannot be read .*utf-8.*: download"),
    ("STR", "sem_text_rel_ranked.csv", RELATED.replace("\r\nA cat", ""), "not two sentences .*pair 2"),
    ("AllNLI", "n.gz", "sentence1\tsentence2\na\n", "1 fields instead of 2 .*line 2."),
    ("course, pairs", "quora-dev.csv", None, "has no quora-dev.csv: name the folder with the files of the c"),
    ("SentEval, flat", "rt-polarity.neg", b"a\x81\n", r"rt-polarity.neg cannot be read .*: download it"),
    ("SentEval, flat", "TREC.test", "DESC:def a\nDESC b\n", r"no CLASS:fine, space .* \(.*TREC.test, line"),
    ("SST-5", "stsa.fine.dev", None, "no stsa.fine.dev or fine/sentiment-dev in .*: name the folder of the"),
    ("clustering", "TS", "1\ta\n2", r"no class, TAB and text \(.*TS, line 2\): download it again"),
    ("GLUE", "QQP/dev.tsv", "id\tis_duplicate\n", r"no column 'question1' \(.*dev.tsv"),
    ("SemEval", "STS.gs.FNWN.txt", "4.400\n", "FNWN: 1 scores for 2 pairs: download both again"),
    (
        "word lists",
        "rg65.tsv",
        "word1\tword2\tscore\na\tb\tx\n",
        "rg65 in .* cannot be read .*'x'",
    ),
]


@pytest.mark.parametrize(("form", "file", "content", "message"), REFUSALS)
def test_a_damaged_file_is_one_line_and_changes_no_file(form, file, content, message, tmp_path, monkeypatch):
    name, files, place, *_ = (FORMS | {"word lists": ("wordsim", WORD_FILES, "")})[form]
    monkeypatch.setitem(RELEASES, name, replace(RELEASES[name], sizes={}))
    write(tmp_path / "release", files | ({} if content is None else {file: content}))
    if content is None:
        (tmp_path / "release" / file).unlink()
    kept = write(tmp_path / "data" / name, {"old.tsv": "old"}) / "old.tsv"
    with pytest.raises(InputError, match=message) as error:
        download_dataset(name, str(tmp_path / "release" / place), tmp_path / "data")
    assert "\n" not in str(error.value)
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == [kept]


def test_what_a_release_lacks_as_a_whole_is_named(tmp_path):
    with pytest.raises(InputError, match="has none of the folders CoLA, SST-2, QQP, MNLI, QNLI, RTE: name"):
        read("glue", tmp_path)


def test_a_changed_file_is_recognized_by_its_sha256(tmp_path, monkeypatch):
    monkeypatch.setitem(SHA256, "SICK_train.txt", "0" * 64)
    _, files, *_ = FORMS["SICK, three files"]
    with pytest.raises(InputError, match=r"SICK_train.txt is not the published SICK_train.txt \(SHA-256\)"):
        read("sick", write(tmp_path, files))


# ----------------------------------------------------------------------------------------- what is written


def test_a_file_is_written_for_each_name_and_read_by_its_task(tmp_path, monkeypatch):
    for form, output in [
        ("course, texts", "(train 2, dev 2, unlabelled 2 texts)"),
        ("course, pairs", "(train 2, dev 2 pairs)"),
        ("STS benchmark, original", "(train 2, dev 2, test 2 pairs)"),
        ("SimCSE", "(train 2 triplets)"),
        ("SentEval, flat", "trec/train 2, trec/test 2 texts)"),
    ]:
        name, files, place, _ = FORMS[form]
        folder = write(tmp_path / form, files)
        monkeypatch.setitem(RELEASES, name, replace(RELEASES[name], sizes={}))
        assert download_dataset(name, str(folder / place), tmp_path / "data").endswith(output)
    data = tmp_path / "data"
    senteval = sorted(
        path.relative_to(data / "senteval").as_posix() for path in data.glob("senteval/**/*.tsv")
    )
    assert ", ".join(senteval) == (
        "cr.tsv, mpqa.tsv, mr.tsv, sst2/dev.tsv, sst2/test.tsv, sst2/train.tsv, subj.tsv, trec/test.tsv, "
        "trec/train.tsv"
    )
    assert (data / "sst5/unlabelled.tsv").read_text() == "text\tid\nA film\tcc\nNo\tdd\n"
    assert (data / "stsb/dev.tsv").read_text().endswith('\tscore\nSay "no.\tNo\t4\nA b\tC\t1\n')
    assert (data / "nli-triplets/train.tsv").read_text().endswith('\na\tb "c" d\te\n')
    assert (
        (data / "senteval/trec/test.tsv").read_text("utf-8").startswith("label\ttext\tfine_label\nDESC\tWh")
    )
    for task, split, text, label in [
        ("sst5", "dev", "A good film .", 3),
        ("quora", "dev", '"Which?" he', 0),
        ("trec", "test", "What is café ?", 1),
        ("mr", "test", "café … a “b” .", 1),
        ("nli", "train", "A man, old", [0, 1, 2]),
    ]:
        examples = read_examples(get_task(task, data_root=str(data)), split)
        assert (examples.texts[0][0], examples.labels[0]) == (text, label)
    assert read_examples(get_task("mr", data_root=str(data)), "test").texts[0][1] == "."  # it was empty


def test_scicite_is_read_from_its_json_lines(tmp_path):
    for split in ("train", "dev", "test"):
        lines = [
            {"string": f"a {split}\nof two", "label": "method", "id": 1},
            {"string": "b", "label": "result"},
        ]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [("method", "a dev of two"), ("result", "b")]
    assert RELEASES["scicite"].read(tmp_path)["dev"] == rows
    (tmp_path / "test.jsonl").write_text('{"string": "a"}\n')
    with pytest.raises(InputError, match=r"no column 'label' \(.*test.jsonl, line 1\)"):
        RELEASES["scicite"].read(tmp_path)


def test_wikitext_is_split_into_sentences_of_at_least_10_characters(tmp_path):
    (tmp_path / "wiki.valid.tokens").write_text(
        ' = Short = \n \n One sentence . Is it a No. 2 ? Yes . " An end ! "\n'
    )
    (tmp_path / "wiki.train.tokens").write_text(" = Longer title = \n")
    sentences = ["= Longer title =", "One sentence .", "Is it a No. 2 ?", '" An end !']
    assert list(RELEASES["wikitext-2"].read(tmp_path)) == sentences
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has none of the files wiki.train.tokens, "):
        list(RELEASES["wikitext-2"].read(tmp_path / "empty"))


# ------------------------------------------------------------------------------------------------ the table


def test_every_address_is_of_one_file_with_a_unique_name():
    for name, release in RELEASES.items():
        names = [url.rpartition("/")[2] for url in release.urls]
        assert all(url.startswith("https://") for url in release.urls) and all(names), name
        assert len({*names}) == len(names)  # they are fetched into one folder
        assert release.urls or name in ("quora-pairs", "glue", "scicite", "wikitext-2")


def test_every_task_has_a_release_under_the_name_of_its_folder():
    folders = {Path(task.files).parts[0] for task in TASKS.values() if task.files}
    assert folders - {"sample"} | {"nli", "wikitext-2"} == {*RELEASES}
    assert len(expand_groups(["sentglue"])) == 9 and set(expand_groups(["sentglue"])) <= TASKS.keys()


# ---------------------------------------------------------------------------- real releases, where at hand


def semeval(prefix: str, name: str, original: str) -> dict[str, str]:
    """The files of a year, each with the original of one of its sets in its place."""
    return {
        f"{prefix}.{kind}.{subset}.txt": f"semeval-{name}/{prefix}.{kind}.{original}.txt"
        for subset in RELEASES[name].sizes
        for kind in ("input", "gs")
    }


# fmt: off
ORIGINALS = {  # release -> its files, each with an original in its place; the known files of these originals
    "mrpc": (dict.fromkeys(FORMS["MRPC"][1], "mrpc/msr_paraphrase_test.txt"), ["test.tsv"]),
    "sick": (dict.fromkeys(FORMS["SICK, three files"][1], "sick/SICK_trial.txt"), ["trial.tsv"]),
    "stsb": (dict.fromkeys(FORMS["STS benchmark, original"][1], "stsbenchmark/sts-test.csv"), ["test.tsv"]),
    "stsb-de": (dict.fromkeys(FORMS["stsb-multi-mt"][1], "stsb-multi-mt/stsb-de-dev.csv"), ["dev.tsv"]),
    "kor-sts": (dict.fromkeys(FORMS["KorSTS"][1], "kor-sts/sts-dev.tsv"), ["dev.tsv"]),
    "sts12": (semeval("STS", "sts12", "MSRpar"), ["MSRpar.tsv"]),
    "sts16": (semeval("STS2016", "sts16", "headlines"), ["headlines.tsv"]),
    "senteval": ({place: f"senteval/{place}" for place in PLACES.values()},
                 ["mr.tsv", "cr.tsv", "subj.tsv", "mpqa.tsv", "trec/train.tsv", "trec/test.tsv"]),
}
# fmt: on


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_real_release_is_converted_to_the_known_files_byte_for_byte(name, real_data, tmp_path, monkeypatch):
    originals = real_data / "original-formats"
    if not originals.is_dir():
        pytest.skip("no original releases")
    files, known = ORIGINALS[name]
    monkeypatch.setitem(RELEASES, name, replace(RELEASES[name], sizes={}))
    write(tmp_path / "release", FORMS["SentEval, folders"][1] if name == "senteval" else {})
    write(tmp_path / "release", {file: (originals / place).read_bytes() for file, place in files.items()})
    download_dataset(name, str(tmp_path / "release"), tmp_path)
    for file in known:
        written = tmp_path / name / file.replace("trial", "dev")
        assert written.read_bytes() == (real_data / name / file).read_bytes(), file
    for place in files.values():
        digest = hashlib.sha256((originals / place).read_bytes()).hexdigest()
        assert digest in PUBLISHED_SHA256.get(Path(place).name, digest), place
