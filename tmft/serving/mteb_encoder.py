"""Evaluate a model with mteb: MTEBEncoder has the methods of the encoder protocol of mteb 2.

    import mteb
    from tmft import SentenceEncoder
    from tmft.serving.mteb_encoder import MTEBEncoder

    model = SentenceEncoder.from_pretrained("my-encoder", layer=9)
    results = mteb.evaluate(MTEBEncoder(model, "me/my-encoder-9"), mteb.get_tasks(["STSBenchmark"]))

mteb is imported when an MTEBEncoder is made, not before: tmft does not need it.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from tmft.errors import InputError
from tmft.io.files import digest
from tmft.io.formatting import to_json
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.embedding_identity import model_record


class MTEBEncoder:
    """A SentenceEncoder with the interface that mteb.evaluate expects. Its embeddings are not changed.

    name: its name in the tables of mteb and in the folder of results, of the form "organisation/name";
    InputError is raised for others.
    The prompt of a text is that of the first of these keys that exists: "STSBenchmark-query", "STSBenchmark",
    "STS-query", "STS", "query"; in words, the name or the type of the task, with or without the type of the
    text, which is query or document. If none exists, it is the default prompt of the model.

    mteb stores results and does not compute them again for the same name and revision. So the revision is a
    digest of the weights, the layers, the prompts and everything else that the embeddings depend on.
    """

    def __init__(
        self, model: SentenceEncoder, name: str = "tmft/model", prompts: dict[str, str] | None = None
    ):
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        if name.count("/") != 1 or not all(name.split("/")):
            raise InputError(f"name {name!r}: write organisation/name, as mteb does", "name")
        self.model, self.prompts = model, model.prompts | (prompts or {})
        self.mteb_model_meta = ModelMeta.create_empty(
            {
                "name": name,
                "revision": digest(to_json([model_record(model), self.prompts]))[:40],
                "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
                "max_tokens": model.max_length,
                "embed_dim": model.dimensions,
                "similarity_fn_name": ScoringFunction.from_str(model.similarity_fn_name),
                "framework": ["PyTorch"],
            }
        )

    def encode(
        self,
        inputs: Iterable[dict[str, list[Any]]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **options: Any,
    ) -> np.ndarray:
        """Return the embeddings of all texts of the batches, (N, D) float32, in their order.

        inputs: batches {"text": list of str, ...}.
        prompt_type: an entry of mteb's PromptType, query or document, or None.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        kind = None if prompt_type is None else prompt_type.value
        task, task_type = task_metadata.name, task_metadata.type
        keys = (f"{task}-{kind}", task, f"{task_type}-{kind}", task_type, kind)
        prompt = next((self.prompts[key] for key in keys if key in self.prompts), None)
        return np.asarray(self.model.encode(texts, prompt=prompt, **options))

    def similarity(self, u: np.ndarray, v: np.ndarray) -> Tensor:
        """Return the similarity of each embedding in u with each one in v, (N, M); see SentenceEncoder."""
        return self.model.similarity(u, v)

    def similarity_pairwise(self, u: np.ndarray, v: np.ndarray) -> Tensor:
        """Return the similarity of each row of u with the same row of v, (N,); see SentenceEncoder."""
        return self.model.similarity_pairwise(u, v)
