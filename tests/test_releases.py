"""STS benchmark in its three official forms becomes the same files; anything else changes nothing."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tmft.data import find_task, read_pairs
from tmft.errors import InputError
from tmft.releases import STSB_SIZES, get_stsb

SPLITS = {
    split: [(f'{split} {n} says "hi', f"other {n}" if n else "b\u2028c", f"{n % 6:.3f}") for n in range(size)]
    for split, size in STSB_SIZES.items()
}


def sbert(folder: Path) -> Path:
    lines = ["split\tgenre\tdataset\tyear\tsid\tscore\tsentence1\tsentence2"]
    lines += [f"{split}\tg\td\ty\ti\t{c}\t{a}\t{b}" for split, pairs in SPLITS.items() for a, b, c in pairs]
    path = folder / "stsbenchmark.tsv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode("utf-8")))
    return path


def original(folder: Path) -> Path:
    for split, pairs in SPLITS.items():
        lines = [f"g\tf\ty\ti\t{c}\t{a}\t{b}" + "\tsource" * (n % 3) for n, (a, b, c) in enumerate(pairs)]
        (folder / f"sts-{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    return folder


def glue(folder: Path) -> Path:
    for split, pairs in SPLITS.items():
        scored = split != "test"
        columns = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
        lines = [columns + "\tscore" * scored]
        lines += [f"{n}\tg\tf\ty\ti\ts\tt\t{a}\t{b}" + f"\t{c}" * scored for n, (a, b, c) in enumerate(pairs)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    return folder


FORMS = {"sbert.net": sbert, "original": original, "GLUE": glue}


@pytest.mark.parametrize("form", FORMS)
def test_each_official_form_becomes_the_same_files(form, tmp_path):
    (tmp_path / "release").mkdir()
    said = get_stsb(str(FORMS[form](tmp_path / "release")), tmp_path)
    written = sorted(path.name for path in (tmp_path / "stsb").iterdir())
    assert written == (["dev.tsv", "train.tsv"] if form == "GLUE" else ["dev.tsv", "test.tsv", "train.tsv"])
    assert ("GLUE's test split has no scores, so there is no test.tsv" in said) == (form == "GLUE")
    for split in (name.removesuffix(".tsv") for name in written):
        pairs = read_pairs(find_task("stsb", data_root=str(tmp_path)), split)
        assert pairs.sentence1 == [a for a, _, _ in SPLITS[split]]
        assert pairs.sentence2[:2] == ["b c", "other 1"]  # a line separator inside a sentence is a space now
        assert pairs.scores == [float(score) for _, _, score in SPLITS[split]]


def test_the_original_release_gives_the_canonical_files_byte_for_byte(real_data, tmp_path):
    """Of the real release, dev and test are at hand; train is taken from the canonical form."""
    source = real_data / "original-formats" / "stsbenchmark"
    if not source.is_dir():
        pytest.skip(f"no original release in {source}")
    for split in ("dev", "test"):
        (tmp_path / f"sts-{split}.csv").write_bytes((source / f"sts-{split}.csv").read_bytes())
    train = (real_data / "stsb" / "train.tsv").read_text(encoding="utf-8").split("\n")[1:-1]
    lines = ["g\tf\ty\ti\t{2}\t{0}\t{1}".format(*line.split("\t")) for line in train]
    (tmp_path / "sts-train.csv").write_text("\n".join(lines), encoding="utf-8", newline="")
    get_stsb(str(tmp_path), tmp_path / "data")
    for split in STSB_SIZES:
        written = (tmp_path / "data" / "stsb" / f"{split}.tsv").read_bytes()
        assert written == (real_data / "stsb" / f"{split}.tsv").read_bytes()


@pytest.fixture
def server(tmp_path):
    """Serves stsbenchmark.tsv.gz, or only its first half and then hangs up."""
    content = sbert(tmp_path).read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/absent":
                return self.send_error(404)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if self.path == "/half" else content)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_download_is_converted(server, tmp_path):
    assert "train 5749, dev 1500, test 1379 pairs" in get_stsb(f"{server}/all", tmp_path / "data")
    assert len(read_pairs(find_task("stsb", data_root=str(tmp_path / "data")), "test")) == 1379


def short(folder):
    path = sbert(folder)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).rsplit(b"\n", 1)[0]))
    return path


def wrong_score(folder):
    path = sbert(folder)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b"5.000", b"7", 1)))
    return path


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
        ("half", "cannot download .*/half .*: check the network"),
        ("absent", "cannot download .*/absent .*: check the network"),
        (short, "test has 1378 pairs instead of 1379"),
        (wrong_score, r"score 7 is outside 0 to 5 \(train pair 6 of the release\)"),
        (damaged, "stsbenchmark.tsv.gz cannot be read"),
        (other_table, r"no column 'split' \(.*other.tsv, line 1\): this is not a known release"),
        (lambda folder: folder / "nothing", "no STS benchmark in .*nothing"),
    ],
)
def test_a_wrong_release_is_one_clear_line_and_leaves_what_was_there(source, message, server, tmp_path):
    old = tmp_path / "data" / "stsb" / "train.tsv"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    place = f"{server}/{source}" if isinstance(source, str) else str(source(tmp_path))
    with pytest.raises(InputError, match=message):
        get_stsb(place, tmp_path / "data")
    assert old.read_text() == "old" and [path.name for path in (tmp_path / "data").iterdir()] == ["stsb"]
