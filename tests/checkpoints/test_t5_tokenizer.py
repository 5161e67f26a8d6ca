"""T5's tokenizer, of spiece.model or tokenizer.json: the ids of transformers, also when it was saved."""

import json
import random
from itertools import islice
from pathlib import Path

import pytest
from conftest import vocabulary_folder
from spm_model import tiny_t5_spm
from tokenizer_forms import random_texts
from tokenizers import Tokenizer, normalizers, processors

from tmft.checkpoints.sentencepiece import read_spm
from tmft.checkpoints.tokenizers import load_tokenizer, tokenizer_to_files
from tmft.embedding.prompts import Prompt
from tmft.encoder import UNLIMITED_LENGTH
from tmft.errors import InputError
from tmft.tokenizer import resolve_max_length

TEXTS = random_texts(300, seed=4)


@pytest.fixture(scope="module")
def spiece() -> bytes:
    return tiny_t5_spm()


@pytest.fixture
def folder(tmp_path, spiece) -> Path:
    """With a spiece.model alone."""
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5" / "spiece.model").write_bytes(spiece)
    return tmp_path / "t5"


@pytest.fixture
def json_folder(folder) -> Path:
    """With a tokenizer.json alone."""
    load_tokenizer(folder).backend.save(str(folder / "tokenizer.json"))
    (folder / "spiece.model").unlink()
    return folder


@pytest.fixture(scope="session")
def t5(real_data) -> Path:
    """The real files of T5."""
    if not (real_data / "t5-tokenizer" / "spiece.model").is_file():
        pytest.skip("no folder t5-tokenizer beside the data")
    return real_data / "t5-tokenizer"


def ids(tokenizer, sentences: list[str]) -> list[list[int]]:
    return tokenizer(sentences, max_length=10**9)[0]


def theirs(folder, name: str = "T5Tokenizer"):
    import transformers

    return getattr(transformers, name).from_pretrained(folder)


def save(tokenizer, folder: Path, max_length: int = 64) -> Path:
    folder.mkdir()
    for name, content in tokenizer_to_files(tokenizer, max_length).items():
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def content(backend: Tokenizer) -> dict:
    return json.loads(backend.to_str())


# ------------------------------------------------------------------------------------- as transformers has it


@pytest.mark.slow
def test_ids_of_real_text_equal_transformers(t5, real_data):
    """Of STSb 2,000 lines of each split, of every other file 100."""
    ours, reference = load_tokenizer(t5), theirs(t5)
    files = sorted(real_data.rglob("*.tsv"))
    assert len(files) > 10
    for path in files:
        most = 2001 if path.parent == real_data / "stsb" else 101
        with open(path, encoding="utf-8", newline="\n") as lines:
            rows = [line.rstrip("\n").split("\t") for line in islice(lines, most)]
        texts = [*dict.fromkeys(field for row in rows for field in row)]
        assert ids(ours, texts) == reference(texts)["input_ids"], path


# ---------------------------------------------------------------------------------------------- what it gives


def test_the_real_ids_without_a_reference(t5):
    tokenizer = load_tokenizer(t5)
    assert ids(tokenizer, ["", "  ", "Hello<extra_id_0>world <unk>x"]) == [
        [1],
        [1],
        [8774, 32099, 296, 2, 3, 226, 1],
    ]
    assert len(tokenizer.vocabulary) == 32100 and tokenizer.vocabulary[32000] == "<extra_id_99>"
    assert tokenizer.max_length == 512


def test_a_lone_surrogate_is_one_line(folder):
    for tokenizer in (load_tokenizer(folder), load_tokenizer(vocabulary_folder())):
        with pytest.raises(InputError, match="a text cannot be read"):
            tokenizer(["\ud800"], 9)


def test_a_prompt_has_its_tokens_before_those_of_the_sentence_and_the_end_behind(folder):
    tokenizer = load_tokenizer(folder)
    prompt = Prompt("der Bäcker [X] una guitarra", tokenizer)
    (whole,), _ = prompt(["die Brücke"], 99)
    before, after = ids(tokenizer, ["der Bäcker", "una guitarra"])
    assert (prompt.prefix_length, prompt.suffix_length) == (len(before) - 1, len(after))
    assert whole[: prompt.prefix_length] == before[:-1] and whole[-prompt.suffix_length :] == after


def test_without_position_embeddings_no_error_mentions_them(folder):
    with pytest.raises(InputError, match=f"choose 3 to {UNLIMITED_LENGTH}$"):
        resolve_max_length(load_tokenizer(folder), UNLIMITED_LENGTH + 1, UNLIMITED_LENGTH, 512)


# --------------------------------------------------------------------------------- how it is told from others


def test_an_older_tokenizer_json_is_rebuilt(json_folder):
    """Such as strip no spaces, or keep two of them."""
    expected = content(load_tokenizer(json_folder).backend)
    older = Tokenizer.from_file(str(json_folder / "tokenizer.json"))
    older.normalizer = normalizers.Sequence([older.normalizer, normalizers.Replace("  ", "▁")])
    older.pre_tokenizer = older.pre_tokenizer[1]
    older.enable_padding(length=9)
    older.enable_truncation(5)
    stored = json.loads((json_folder / "tokenizer.json").read_text())
    stored |= {
        key: part for key, part in content(older).items() if key != "model"
    }  # whose scores are rounded
    (json_folder / "tokenizer.json").write_text(json.dumps(stored))
    assert content(load_tokenizer(json_folder).backend) == expected


def test_a_tokenizer_json_of_a_generic_class_is_used_unchanged(json_folder):
    older = Tokenizer.from_file(str(json_folder / "tokenizer.json"))
    older.normalizer = normalizers.Sequence([older.normalizer, normalizers.Replace("a", "e")])
    older.save(str(json_folder / "tokenizer.json"))
    (json_folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    tokenizer = load_tokenizer(json_folder)
    assert content(tokenizer.backend) == content(older) and tokenizer.num_special_tokens == (0, 1)
    assert (
        '"tokenizer_class": "PreTrainedTokenizerFast"'
        in tokenizer_to_files(tokenizer, 9)["tokenizer_config.json"]
    )


@pytest.mark.parametrize("name", ["T5Tokenizer", "T5TokenizerFast"])
def test_without_a_template_the_tokenizer_class_decides(name, json_folder):
    backend = Tokenizer.from_file(str(json_folder / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    backend.save(str(json_folder / "tokenizer.json"))
    assert 1 not in ids(load_tokenizer(json_folder), ["the baker"])[0]
    (json_folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    assert ids(load_tokenizer(json_folder), [""]) == [[1]]


# ------------------------------------------------------------------------------- errors


def test_a_file_with_wrong_bytes_is_refused_or_read_in_one_line(spiece, tmp_path):
    """Anywhere, in the trie, at its begin; a panic of the tokenizers library is no Exception."""
    chance, path = random.Random(0), tmp_path / "spiece.model"
    path.write_bytes(spiece)
    whole = read_spm(path).character_map
    begin, size = spiece.index(whole) + 4, int.from_bytes(whole[:4], "little")
    refused = 0
    for number in range(150):
        first, behind = [(0, len(spiece)), (begin, begin + size), (begin, begin + size // 20)][number % 3]
        damaged = bytearray(spiece)
        for _ in range(chance.choice([1, 3, 50, 5000])):
            damaged[chance.randrange(first, behind)] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            ids(load_tokenizer(tmp_path), TEXTS[:40])
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
    assert 10 < refused < 150
