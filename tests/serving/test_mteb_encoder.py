"""mteb runs our models through MTEBEncoder, with the scores of evaluate.py; these tasks need no network."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT, tiny_model

import evaluate
from tmft import SentenceEncoder
from tmft.data import read_examples
from tmft.errors import InputError
from tmft.tasks import TASKS

mteb = pytest.importorskip("mteb", reason="mteb is not installed: pip install mteb")
datasets = pytest.importorskip("datasets")

from mteb.abstasks import AbsTaskRetrieval, AbsTaskSTS  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402
from mteb.models import EncoderProtocol  # noqa: E402
from mteb.types import PromptType  # noqa: E402

from tmft.serving.mteb_encoder import MTEBEncoder  # noqa: E402

METADATA = {
    "description": "The test split of the sample of tmft.",
    "dataset": {"path": "local/sample", "revision": "1"},
    "eval_splits": ["test"],
    "eval_langs": ["eng-Latn"],
    "modalities": ["text"],
}


class Sample(AbsTaskSTS):
    metadata = TaskMetadata(name="Sample", type="STS", main_score="cosine_spearman", **METADATA)

    def load_data(self, *_, **__):
        pairs = read_examples(TASKS["sample"], "test")
        columns = {"sentence1": pairs.texts[0], "sentence2": pairs.texts[1], "score": pairs.labels}
        self.dataset = datasets.DatasetDict(test=datasets.Dataset.from_dict(columns))
        self.data_loaded = True


def run(model, tasks, folder, **options):
    cache = mteb.ResultCache(folder)
    return mteb.evaluate(model, tasks, cache=cache, show_progress_bar=False, co2_tracker=False, **options)


@pytest.mark.parametrize("layer", [1, 4])
def test_the_scores_of_an_sts_task_are_those_of_evaluate(layer, tmp_path):
    folder = ROOT / "data/twins/mlm-then-rtd"
    words = [str(folder), "--task", "sample", "--layer", str(layer), "--device", "cpu"]
    evaluate.main([*words, "--json", str(tmp_path / "scores.json")])
    scores = json.loads((tmp_path / "scores.json").read_text())["layers"][str(layer)]["sample"]
    model = MTEBEncoder(SentenceEncoder.from_pretrained(folder, layer=layer), "tmft/mlm-then-rtd")
    [result] = run(model, Sample(), tmp_path).task_results
    [found] = result.scores["test"]
    for name in ("spearman", "pearson"):
        assert found[name] == pytest.approx(scores[name], abs=1e-4)
        assert found[f"cosine_{name}"] == pytest.approx(scores[name], abs=1e-4)
    assert result.get_score() == pytest.approx(scores["spearman"], abs=1e-4)


def test_it_follows_the_protocol_and_keeps_the_order_of_the_texts():
    encoder = MTEBEncoder(tiny_model())
    assert isinstance(encoder, EncoderProtocol)
    batches = [{"text": ["a man", "two dogs"]}, {"text": ["a cat"]}]
    task = {"task_metadata": Sample.metadata, "hf_split": "test", "hf_subset": "default"}
    found = encoder.encode(batches, **task, batch_size=2, show_progress_bar=False)
    np.testing.assert_allclose(found, tiny_model().encode(["a man", "two dogs", "a cat"]), atol=1e-6)


def test_results_of_other_weights_or_prompts_are_not_taken_for_those_of_this_model(tmp_path):
    """mteb keeps results by name and revision."""
    model, other = tiny_model(), tiny_model()
    other.encoder.embeddings.word.weight.data[:, 0] += 1
    encoders = [MTEBEncoder(model), MTEBEncoder(model, prompts={"STS": "a "}), MTEBEncoder(other)]
    assert len({encoder.mteb_model_meta.revision for encoder in encoders}) == 3
    assert MTEBEncoder(tiny_model()).mteb_model_meta.revision == encoders[0].mteb_model_meta.revision
    scores = [run(encoder, Sample(), tmp_path).task_results[0].get_score() for encoder in encoders]
    assert len(set(scores)) == 3
    calls = []
    again = MTEBEncoder(model)
    again.encode = lambda *_, **__: calls.append(1)
    [result] = run(again, Sample(), tmp_path).task_results
    assert result.get_score() == pytest.approx(scores[0], abs=1e-5) and not calls  # it keeps six digits


PROMPTS = {"Sample-query": "1", "Sample": "2", "STS-query": "3", "STS": "4", "query": "5", "document": "6"}


@pytest.mark.parametrize(
    ("task", "task_type", "kind", "key"),
    [
        ("Sample", "STS", PromptType.query, "Sample-query"),
        ("Sample", "STS", PromptType.document, "Sample"),
        ("Sample", "STS", None, "Sample"),
        ("Other", "STS", PromptType.query, "STS-query"),
        ("Other", "STS", PromptType.document, "STS"),
        ("Other", "Retrieval", PromptType.query, "query"),
        ("Other", "Retrieval", PromptType.document, "document"),
        ("Other", "Clustering", None, None),
    ],
)
def test_the_prompt_of_a_text_is_that_which_mteb_would_choose(task, task_type, kind, key, monkeypatch):
    from mteb.models.abs_encoder import get_prompt_name

    metadata = SimpleNamespace(name=task, type=task_type)
    assert get_prompt_name(PROMPTS, metadata, kind) == key
    encoder, given = MTEBEncoder(tiny_model(), prompts=PROMPTS), []
    monkeypatch.setattr(encoder.model, "encode", lambda texts, prompt=None: given.append(prompt))
    encoder.encode([{"text": ["a"]}], task_metadata=metadata, hf_split="", hf_subset="", prompt_type=kind)
    assert given == [PROMPTS.get(key)]


class Questions(AbsTaskRetrieval):
    metadata = TaskMetadata(name="Questions", type="Retrieval", main_score="ndcg_at_10", **METADATA)

    def load_data(self, *_, **__):
        documents = [{"id": f"d{n}", "title": "", "text": f"a {word} eats"} for n, word in enumerate(WORDS)]
        queries = [{"id": f"q{n}", "text": f"the {word}"} for n, word in enumerate(WORDS)]
        data = {
            "corpus": datasets.Dataset.from_list(documents),
            "queries": datasets.Dataset.from_list(queries),
            "relevant_docs": {f"q{n}": {f"d{n}": 1} for n in range(len(WORDS))},
            "top_ranked": None,
        }
        self.dataset, self.data_loaded = {"default": {"test": data}}, True


WORDS = ["man", "woman", "dog", "cat"]


def test_a_retrieval_task_embeds_queries_and_documents_with_their_prompts(tmp_path, monkeypatch):
    model, given = tiny_model(), {}
    encode = model.encode
    monkeypatch.setattr(
        model, "encode", lambda t, prompt, **options: given.update({prompt: t}) or encode(t, prompt=prompt)
    )
    model.prompts |= {"query": "a ", "document": "the "}
    [result] = run(MTEBEncoder(model), Questions(), tmp_path).task_results
    assert {prompt: sorted(texts) for prompt, texts in given.items()} == {
        "a ": sorted(f"the {word}" for word in WORDS),
        "the ": sorted(f"a {word} eats" for word in WORDS),
    }
    assert 0 <= result.get_score() <= 1


@pytest.mark.parametrize("name", ["model", "a/b/c", "/b", "a/"])
def test_a_name_without_organisation_is_refused(name):
    with pytest.raises(InputError, match="write organisation/name"):
        MTEBEncoder(tiny_model(), name)
