"""The nearest lines of a text, whose embeddings are made at once or read from a file that encode wrote."""

import json
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from conftest import ALONE, tiny_model
from test_encode_file import LINES, MODEL, write_lines

import tmft
import tmft.serving.encode_file as encoding
from tmft.cli import encode_command as encode
from tmft.cli import search_command as search
from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.encode_file import encode_file, metadata_path
from tmft.serving.search import nearest_lines


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    with patch.object(encoding, "BLOCK_SIZE", 5):
        yield


@pytest.fixture
def text(tmp_path):
    return write_lines(tmp_path / "text.txt", LINES)


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_the_nearest_lines_are_ranked_by_the_similarity_of_the_model(name, text):
    model, lines = tiny_model(), sorted({line for line in LINES if line.strip()})
    model.similarity_fn_name = name
    similarities = model.similarity(model.encode("a cat"), model.encode(lines))[0].tolist()
    found = nearest_lines(model, "a cat", text, count=99)
    expected = sorted(zip(similarities, lines, strict=True), reverse=True)
    assert [line for _, line in found] == [line for _, line in expected]
    assert [value for value, _ in found] == pytest.approx(sorted(similarities)[::-1], abs=1e-4)


def test_the_command_prints_ten_lines(text, capsys, tiny_folder):
    search.main([str(tiny_folder), "a cat", "--corpus", str(text), "--device", "cpu"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10 and lines[0] == "1.0000  a cat"


def test_a_search_in_python_is_that_of_the_command(text, tiny_folder, monkeypatch):
    """For several queries at once, in blocks, with a model or its name, and with embeddings made before."""
    model, queries = tiny_model(), ["a cat", "two dogs eat", "music"]
    found = tmft.search(tiny_folder, queries, LINES, top_k=4)
    for query, hits in zip(queries, found, strict=True):
        expected = nearest_lines(model, query, text, 4)
        assert [hit.text for hit in hits] == [line for _, line in expected]
        assert [hit.score for hit in hits] == pytest.approx([score for score, _ in expected], abs=1e-6)
        assert all(LINES.index(hit.text) == hit.corpus_id for hit in hits)
    embeddings = model.encode(LINES, convert_to_tensor=True)
    monkeypatch.setattr(model, "encode", partial(refuse_more_than, len(queries), model.encode))
    for given in (embeddings, embeddings.numpy()):
        again = tmft.search(model, queries, LINES, 4, corpus_embeddings=given)
        assert [[hit.text for hit in hits] for hits in again] == [
            [hit.text for hit in hits] for hits in found
        ]
    assert tmft.search(model, "music", ["music", "music"])[0][0] == pytest.approx((1.0, "music", 0))
    assert tmft.search(model, [], LINES) == [] and tmft.search(model, ["a", "b"], ["", " "]) == [[], []]


def refuse_more_than(count, encode, texts, **options):
    assert len(texts) <= count
    return encode(texts, **options)


def test_a_search_in_python_has_the_prompts_of_the_model_unless_others_are_given(tmp_path):
    model = with_prompts(tmp_path / "model")
    for prompts in ({}, {"query_prompt": "music "}, {"document_prompt": "", "query_prompt": ""}):
        [hits] = tmft.search(model, "a cat", ["a man eats"], **prompts)
        u = model.encode("a cat", prompt=prompts.get("query_prompt", "two dogs: "))
        v = model.encode("a man eats", prompt=prompts.get("document_prompt", "in the park "))
        assert hits[0].score == pytest.approx(model.similarity(u, v).item(), abs=1e-6)


@pytest.mark.parametrize("precision", ["int8", "binary"])
def test_a_search_in_rounded_vectors_has_the_exact_order_of_their_cosines_with_the_query(
    precision, text, tmp_path, tiny_folder, capsys
):
    model, vectors = tiny_model(), tmp_path / "x.npy"
    words = [str(tiny_folder), str(text), "--device", "cpu", "--out", str(vectors)]
    encode.main([*words, "--embedding-precision", precision])
    assert precision in capsys.readouterr().out
    stored = np.load(vectors)
    embeddings = model.encode([line if line.strip() else "." for line in LINES])
    if precision == "binary":
        assert stored.shape == (len(LINES), 3) and stored.dtype == np.uint8  # 24 dimensions
        rounded = np.where(embeddings > 0, 1.0, -1.0)
        bits = [[int(bit) for byte in row for bit in f"{byte:08b}"] for row in stored]
        np.testing.assert_array_equal(bits, rounded > 0)
    else:
        assert stored.shape == (len(LINES), 24) and stored.dtype == np.int8
        rounded = np.round(embeddings / np.abs(embeddings).max(1, keepdims=True) * 127)
        assert np.abs(stored - rounded).max() <= 1
        rounded = stored.astype(float)
    query = model.encode(["a cat"])[0]
    cosines = rounded @ query / np.linalg.norm(rounded, axis=1) / np.linalg.norm(query)
    expected = {line: cosine for line, cosine in zip(LINES, cosines, strict=True) if line.strip()}
    found = nearest_lines(model, "a cat", text, count=100, vectors=vectors)
    assert {line for _, line in found} == set(expected)
    assert [cosine for cosine, _ in found] == pytest.approx(sorted(expected.values(), reverse=True), abs=1e-5)
    assert all(cosine == pytest.approx(expected[line], abs=1e-5) for cosine, line in found)


@pytest.mark.parametrize(
    ("out", "changes", "message"),
    [
        ("x.parquet", {}, "a Parquet file has float32 embeddings: name an out that ends with .npy"),
        ("x.npy", {"similarity_fn_name": "dot"}, "the model compares by dot, which needs lengths: choose"),
        ("x.npy", {"truncate_dim": 20}, "20 dimensions are no multiple of 8: choose int8"),
    ],
)
def test_embeddings_that_cannot_be_binary_are_refused(out, changes, message, text, tmp_path):
    model = tiny_model()
    for name, value in changes.items():
        setattr(model, name, value)
    with pytest.raises(InputError, match=message):
        encode_file(model, text, tmp_path / out, ALONE, embedding_precision="binary")
    assert not list(tmp_path.glob("x*"))


def test_a_search_reads_the_vectors_that_encode_wrote(text, tmp_path, monkeypatch):
    model, vectors = tiny_model(), tmp_path / "x.npy"
    encode_file(model, text, vectors, ALONE)
    read = []
    embed = type(model).encode
    monkeypatch.setattr(model, "encode", lambda texts, **_: read.extend(texts) or embed(model, texts))
    found = nearest_lines(model, "a cat", text, vectors=vectors)
    assert read == ["a cat"]  # the query alone
    expected = nearest_lines(model, "a cat", text)
    assert [line for _, line in found] == [line for _, line in expected]
    np.testing.assert_allclose([c for c, _ in found], [c for c, _ in expected], atol=1e-6)


def with_prompts(folder) -> SentenceEncoder:
    model = tiny_model()
    model.prompts |= {"query": "two dogs: ", "document": "in the park ", "sts": "music "}
    model.save_pretrained(folder)
    return model


def test_a_search_uses_the_prompt_of_queries_and_that_of_documents(text, tmp_path):
    model = with_prompts(tmp_path / "model")
    found = nearest_lines(model, "a cat", text)
    expected = nearest_lines(model, "a cat", text, query_prompt="two dogs: ", document_prompt="in the park ")
    assert found == expected != nearest_lines(model, "a cat", text, query_prompt="", document_prompt="")
    u, v = model.encode_query("a cat"), model.encode_document(line := "a man eats")
    assert dict(map(reversed, nearest_lines(model, "a cat", text, 99)))[line] == pytest.approx(
        model.similarity(u, v).item(), abs=1e-6
    )
    model.prompts |= {"query": "", "document": ""}  # then both get the default prompt
    model.default_prompt_name = "sts"
    expected = nearest_lines(model, "a cat", text, query_prompt="music ", document_prompt="music ")
    assert nearest_lines(model, "a cat", text) == expected
    model.prompts["query"] = "two dogs: "  # then documents get none, as encode_document says
    expected = nearest_lines(model, "a cat", text, query_prompt="two dogs: ", document_prompt="")
    assert nearest_lines(model, "a cat", text) == expected


# Options of search -> the prompts of the query and of the lines.
PROMPT_OPTIONS = {
    (): ("two dogs: ", "in the park "),
    ("--prompt-name", "sts"): ("music ", "music "),
    ("--prompt", "a [X] b"): ("a [X] b", "a [X] b"),
    ("--query-prompt-name", "sts"): ("music ", "in the park "),
    ("--query-prompt", "[X]"): ("[X]", "in the park "),  # that is none
    ("--prompt-name", "document", "--query-prompt", "the [X]"): ("the [X]", "in the park "),
    ("--prompt", "a [X]", "--query-prompt-name", "query"): ("two dogs: ", "a [X]"),
}


@pytest.mark.parametrize("options", PROMPT_OPTIONS)
def test_the_prompts_of_a_search_can_be_chosen(options, text, tmp_path, capsys):
    model = with_prompts(tmp_path / "model")
    query_prompt, document_prompt = PROMPT_OPTIONS[options]
    words = [str(tmp_path / "model"), "a cat", "--corpus", str(text), "--device", "cpu"]
    search.main([*words, *options])
    expected = nearest_lines(model, "a cat", text, query_prompt=query_prompt, document_prompt=document_prompt)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"{similarity:.4f}  {line}" for similarity, line in expected]
    assert printed.err == f"prompt of the query {query_prompt!r}, of the lines {document_prompt!r}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt-name", "docment"], "--prompt-name 'docment': choose one of query, document, sts; did"),
        (["--query-prompt-name", "qery"], "--query-prompt-name 'qery': choose one of query, document,"),
        (["--query-prompt", "no place"], "--query-prompt 'no place': choose one of T0, "),
        (["--query-prompt", "a [X]", "--query-prompt-name", "sts"], "--query-prompt and"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_one_line(options, message, text, tmp_path):
    with_prompts(tmp_path / "model")
    with pytest.raises(InputError) as error:
        search.main([str(tmp_path / "model"), "a", "--corpus", str(text), "--device", "cpu", *options])
    assert error.value.as_cli_message().startswith(message)


def test_vectors_belong_to_the_prompt_that_they_were_made_with(text, tmp_path, capsys):
    with_prompts(tmp_path / "model")
    words, vectors = [str(tmp_path / "model"), "--device", "cpu"], tmp_path / "x.npy"
    encode.main([*words, str(text), "--out", str(vectors)])
    assert json.loads(metadata_path(vectors).read_text())["model"]["prompt"] == ""
    message = (
        r"another model \(prompt '' instead of 'in the park '\): give the same model and options, or enc"
    )
    with pytest.raises(InputError, match=message):
        search.main([*words, "a cat", "--corpus", str(text), "--vectors", str(vectors)])
    capsys.readouterr()
    search.main([*words, "a cat", "--corpus", str(text)])
    expected = capsys.readouterr().out
    encode.main([*words, str(text), "--out", str(vectors), "--prompt-name", "document"])
    capsys.readouterr()
    search.main([*words, "a cat", "--corpus", str(text), "--vectors", str(vectors)])
    assert capsys.readouterr().out == expected
    with pytest.raises(InputError, match=r"\(prompt 'in the park ' instead of 'music '\)"):
        search.main([*words, "a", "--corpus", str(text), "--vectors", str(vectors), "--prompt-name", "sts"])


def set_nan(values):
    values[3, 0] = np.nan
    return values


def change_bytes(change):
    """Return a function that replaces the content of a file by `change` of it."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


def change_values(change):
    """Return a function that replaces the numbers in a .npy file by `change` of them."""
    return lambda path: np.save(path, change(np.load(path)))


def change_record(**changes):
    """Return a function that changes values in a .json file."""
    return change_bytes(lambda content: json.dumps(json.loads(content) | changes).encode())


ANOTHER_TEXT = "they belong to another text than .*, or to an earlier version of it: encode again"
UNREADABLE = "cannot be read .*: encode again"
CHANGES = [  # file that is changed, what becomes of it, and words of the message
    ("x.npy", Path.unlink, UNREADABLE),
    ("x.npy", change_bytes(lambda content: content[:300]), UNREADABLE),
    ("x.npy", change_bytes(lambda content: b""), UNREADABLE),
    ("x.npy", change_bytes(lambda content: content.replace(b"<f4", b"|O8")), "they are .*object|cannot be r"),
    ("x.npy", change_bytes(lambda content: content.replace(b"(24, 24)", b"(2**9,1)")), UNREADABLE),
    ("x.npy", change_values(lambda v: np.roll(v, 1, axis=0)), "the file was changed or damaged: encode"),
    ("x.npy", change_values(np.float64), r"they are \(\d+, 24\) float64, expected \(N, 24\) float32\): enc"),
    ("x.npy", change_values(set_nan), "the file was changed or damaged: encode again"),
    ("text.txt", change_bytes(lambda text: text.replace(b"dog", b"cat", 1)), ANOTHER_TEXT),
    ("text.txt", change_bytes(lambda text: b"a man\n"), ANOTHER_TEXT),
    ("text.txt", change_bytes(lambda text: text + b"a man\n"), "the text has more lines than there are"),
    ("x.npy.json", Path.unlink, "is missing: write both with encode"),
    ("x.npy.json", change_bytes(lambda content: b"{}"), "made with another model"),
    ("x.npy.json", change_record(embedding_precision="int8"), r"expected \(N, 24\) int8"),
    ("x.npy.json", change_bytes(lambda content: b"{"), "cannot be read"),
]


@pytest.mark.parametrize(("name", "change", "message"), CHANGES)
def test_vectors_that_do_not_belong_to_the_text_are_refused(name, change, message, text, tmp_path):
    encode_file(MODEL, text, tmp_path / "x.npy", ALONE)
    change(tmp_path / name)
    with pytest.raises(InputError, match=message):
        nearest_lines(MODEL, "a cat", text, vectors=tmp_path / "x.npy")


def test_a_search_prints_no_control_characters(text, capsys, tiny_folder):
    text.write_text("a cat\x1b[31m\x9b2J\u202e\tплатье\u3000é\u00a0.\n", encoding="utf-8")
    search.main([str(tiny_folder), "a cat", "--corpus", str(text), "--device", "cpu"])
    assert capsys.readouterr().out.partition("  ")[2] == "a cat?[31m?2J? платье\u3000é\u00a0.\n"
