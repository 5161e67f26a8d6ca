"""docs/demo, the page that compares sentences: its JavaScript in Node.js, and the page itself in Chromium."""

import functools
import http.server
import json
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import Browser
from conftest import ROOT, tiny_model
from test_compact_export import DAMAGED
from tokenizers import Tokenizer

from tmft import SentenceEncoder
from tmft.embedding.modules import Dense, Normalize
from tmft.export.export import export
from tmft.export.numpy_encoder import Encoder

DEMO = ROOT / "docs/demo"
MODEL = DEMO / "model"
NEEDS_NODE = pytest.mark.skipif(not shutil.which("node"), reason="Node.js is not installed")
# Several scripts, and characters that the tokenizer treats in a way of their own.
SENTENCES = """A man plays the guitar.|Someone is making music.|The market fell by 3.5 %!|Déjà vu, naïve
Der Fluß fließt über Äcker.|¿Dónde está la biblioteca?|Πού είναι ο ΣΊΣΥΦΟΣ;|Москва — столица.
İstanbul'da ÇOK güzel.|东京是日本的首都。|私はギターを弾きます。|안녕하세요, 세계!|هذا كتاب جديد.|שלום עולם
यह एक किताब है।|ภาษาไทย|Ὀδυσσεύς|[MASK] is [CLS][SEP] not [mask]|$5 + 3^2 ~ `x` <= 7|don't, e.g. U.S.A."""
SENTENCES = SENTENCES.replace("\n", "|").split("|")
SENTENCES += ["\ufb01ne Ⅳ ½ ℃", "I ♥ it 😀👍🏽👩\u200d👧!", "e\u0301\u0327 o\u0308", "\ufffd", "", " "]
SENTENCES += [
    "tab\there\r\nand\u2028there",
    "a\u200bb\u00adc\ufeffd\x00e\x07\x85f\u3000g",
    "w" * 100,
    "w" * 101,
]
SENTENCES += ["\U000e0001\ue000", "\U00020000\U0002f800\u3400", "two words " * 100, "__proto__ toString"]
START = """
const fs = require("fs");
const { Encoder } = require("./encoder.js");
const input = JSON.parse(fs.readFileSync(0, "utf8"));
const load = (folder) => Encoder.load(async (path) => new Uint8Array(fs.readFileSync(`${folder}/${path}`)));
const run = async () => { %s };
run().then((result) => process.stdout.write(JSON.stringify(result)));
"""


def run_node(code: str, content):
    """Run JavaScript in docs/demo, with the content as `input`, and return the object that it returns."""
    command, text = ["node", "-e", START % code], json.dumps(content)
    done = subprocess.run(command, input=text, capture_output=True, cwd=DEMO, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-1000:]
    return json.loads(done.stdout)


def random_lines(count: int, characters_in: float = 0.5) -> list[str]:
    """Lines of words, of pieces of SENTENCES, and of any characters of Unicode's first 65,536.

    characters_in: the part of the lines that have such characters.
    """
    draw = random.Random(0)
    vocabulary = [
        word.removeprefix("##") for word in Tokenizer.from_file(f"{MODEL}/tokenizer.json").get_vocab()
    ]
    characters = [chr(n) for n in range(0x10000) if not 0xD800 <= n < 0xE000]
    pieces = [word for sentence in SENTENCES for word in sentence.split(" ")]
    lines = []
    for _ in range(count):
        parts = draw.choices(vocabulary, k=4) + draw.choices(pieces, k=4)
        if draw.random() < characters_in:
            parts += draw.choices(characters, k=4)
        draw.shuffle(parts)
        lines.append(draw.choice([" ", "", "\u0301", "."]).join(parts))
    return lines


# ---------------------------------------------------------------------------------------- the model folder


def test_the_committed_model_is_tiny_in_four_bits_and_an_export_of_itself(tmp_path):
    """Its weights are rounded already, so that the export stores exactly these."""
    model, tiny = SentenceEncoder.from_pretrained(MODEL), SentenceEncoder.from_pretrained(ROOT / "data/tiny")
    assert (model.encode(SENTENCES) * tiny.encode(SENTENCES)).sum(1).mean() > 0.97
    export(model, tmp_path / "model", "compact", "int4")
    (tmp_path / "model/encode.py").unlink()  # not committed twice: it is tmft/export/numpy_encoder.py
    (tmp_path / "model/README.md").unlink()
    for path in (path for path in (tmp_path / "model").rglob("*") if path.is_file()):
        committed = MODEL / path.relative_to(tmp_path / "model")
        assert path.stat().st_size == committed.stat().st_size, path.name
        assert path.suffix == ".safetensors" or path.read_bytes() == committed.read_bytes(), path.name
    again = SentenceEncoder.from_pretrained(tmp_path / "model").state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in model.state_dict().items())


def test_what_the_page_loads_is_at_most_three_megabytes():
    assert sum(path.stat().st_size for path in DEMO.rglob("*") if path.is_file()) < 3_000_000


# ------------------------------------------------------------------------------------------------- in Node.js


@NEEDS_NODE
def test_tokens_are_those_of_the_tokenizers_library():
    lines = SENTENCES + random_lines(10_000)
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    tokenizer.enable_truncation(128)
    found = run_node(
        "const {tokenizer} = await load('model'); return input.map((x) => tokenizer.encode(x).ids);", lines
    )
    differing = {
        line: (ours, theirs.ids)
        for line, ours, theirs in zip(lines, found, tokenizer.encode_batch(lines), strict=True)
        if ours != theirs.ids
    }
    # The library has the characters of Unicode 8. Those of later versions that are marks or punctuation, some
    # hundred of these 65,536, are neither there.
    assert len(differing) < 100 and not differing.keys() & set(SENTENCES), list(differing.items())[:3]


@NEEDS_NODE
@pytest.mark.parametrize(
    "name", ["tiny", "small", "cls, relu, Dense, prompt", "electra with narrow embeddings"]
)
def test_embeddings_are_those_of_python(name, tmp_path):
    folder = {"tiny": MODEL}.get(name, ROOT / "data/small")
    if name not in ("tiny", "small"):
        model = tiny_model(model_type="bert" if "relu" in name else "electra", hidden_act="relu")
        model.pooling = "cls"
        model.head_modules.extend([Dense(24, 8, activation="Tanh"), Normalize()])
        model.prompts["query"], model.default_prompt_name = "a man ", "query"
        export(model, tmp_path / "model", "compact", "int8")
        folder = tmp_path / "model"
    lines = SENTENCES + random_lines(200 - len(SENTENCES), characters_in=0)
    code = "const encoder = await load(input[0]); return input[1].map((x) => [...encoder.encode(x)]);"
    found = run_node(code, [str(folder), lines])
    np.testing.assert_allclose(found, Encoder(folder).encode(lines), atol=1e-4)


@NEEDS_NODE
def test_what_encode_py_refuses_is_no_encoder_here_either(tmp_path):
    """Every damage of its table, in a model that this page reads; the reason is one line."""
    model = tiny_model(model_type="bert")
    model.head_modules.extend([Dense(24, 8, activation="Tanh"), Normalize()])
    export(model, tmp_path / "whole", "compact", "int4")
    for number, damage in enumerate(DAMAGED.values()):
        damage(Path(shutil.copytree(tmp_path / "whole", tmp_path / f"{number}/folder")))
    folders = [str(tmp_path / "whole"), *(str(tmp_path / f"{n}/folder") for n in range(len(DAMAGED)))]
    code = (
        "const answers = []; for (const folder of input) { try { (await load(folder)).encode('a'); "
        "answers.push('loaded'); } catch (error) { answers.push(error.message); } } return answers;"
    )
    whole, *answers = run_node(code, folders)
    assert whole == "loaded"
    assert [name for name, answer in zip(DAMAGED, answers, strict=True) if answer == "loaded"] == []
    assert not any("\n" in answer for answer in answers)


# ---------------------------------------------------------------------------------------- in Chromium


CELL = 'document.querySelector(`[data-pair="0,1"]`)'
LINES = ["A man plays the guitar.", "Someone is making music.", "<b>It rains</b> & pours."]


def type_into(browser: Browser, field: str, text: str) -> None:
    browser.evaluate(f"document.getElementById({field!r}).value = {json.dumps(text)}")
    browser.evaluate(f"document.getElementById({field!r}).dispatchEvent(new Event('input'))")


def test_the_page_compares_ranks_and_groups_what_one_types(start_server):
    files = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words):
            files.append(self.path)

    address = start_server(functools.partial(Handler, directory=DEMO))
    with Browser() as browser:
        browser.open(f"{address}/")
        browser.wait_for("!document.getElementById('main').hidden && " + CELL)
        loaded = len(files)
        type_into(browser, "sentences", "\n".join(LINES))
        browser.wait_for("document.querySelectorAll('#heat-map tbody tr').length === 3")
        embeddings = Encoder(MODEL).encode(LINES)
        cells = "[...document.querySelectorAll('#heat-map tbody td')]"
        shown = browser.evaluate(f"{cells}.map((x) => +x.textContent)")
        np.testing.assert_allclose(np.reshape(shown, (3, 3)), embeddings @ embeddings.T, atol=0.0051)
        type_into(browser, "query", "bad weather")
        browser.wait_for("document.querySelector('#ranking .text')?.textContent.includes('rains')")
        assert browser.evaluate("document.querySelector('#ranking .text').textContent") == LINES[2]
        groups = browser.evaluate("[...document.querySelectorAll('#groups ul')].map((x) => x.innerText)")
        assert groups == ["\n".join(LINES[:2]), LINES[2]]
        # The keyboard moves through the chart, and what is chosen is said in words.
        browser.evaluate(CELL + ".focus()")
        arrow = "new KeyboardEvent('keydown', {key: 'ArrowDown', bubbles: true})"
        browser.evaluate(f"document.activeElement.dispatchEvent({arrow})")
        assert browser.evaluate("document.activeElement.dataset.pair") == "1,1"
        assert browser.evaluate("document.getElementById('pair').innerText").count(LINES[1]) == 2
    assert len(files) == loaded  # once it is loaded, it asks for nothing
