"""Tasks that embeddings are scored on as they are: no objective, nothing is fine-tuned.

Rows like those of TASKS. Their files are those of data/get_data.py: clustering (Rakib et al. 2020), senteval
(Conneau and Kiela 2018, arXiv:1803.05449), sst5 (Socher et al. 2013), str (Abdalla et al. 2023),
glue (Wang et al. 2019).
"""

from functools import partial

from tmft.data import FOUND, PAIR, TASKS, Task
from tmft.datasets.cs224n_tasks import STARS

CLUSTERING = "agnews biomedical googlets searchsnippets stackoverflow tweet".split()
BINARY = {"0": 0, "1": 1}
ENTAILED = {"not_entailment": 0, "entailment": 1}
INFERENCE = {"contradiction": 0, "neutral": 1, "entailment": 2}
TREC = {name: number for number, name in enumerate("ABBR DESC ENTY HUM LOC NUM".split())}

labelled = partial(Task, columns=("text",), label="label", empty=".", objective="", metric="accuracy")
classified = partial(labelled, suite="classification")
related = partial(Task, objective="", metric="pearson", suite="relatedness")
# fmt: off
SCORED = {
    "str":            Task("str/test.tsv", max_score=1.0),
    **{name: labelled(f"clustering/{name}.tsv", classes=FOUND, suite="clustering") for name in CLUSTERING},
    **{name: classified(f"senteval/{name}.tsv", classes=BINARY) for name in ("mr", "cr", "subj", "mpqa")},
    "sst2":           classified("senteval/sst2/{split}.tsv", classes=BINARY),
    "trec":           classified("senteval/trec/{split}.tsv", classes=TREC),
    "sst5-transfer":  classified("sst5/{split}.tsv", classes=STARS),
    "mrpc-transfer":  classified("mrpc/{split}.tsv", columns=PAIR, classes=BINARY),
    "sicke-transfer": classified("sick/{split}.tsv", columns=PAIR, classes=TASKS["sicke"].classes),
    "sickr-transfer": related("sick/{split}.tsv", min_score=1.0),
    "stsb-transfer":  related("stsb/{split}.tsv"),
    "cola":           classified("glue/cola/{split}.tsv", columns=PAIR[:1], classes=BINARY,
                                 metric="matthews"),
    "glue-sst2":      classified("glue/sst2/{split}.tsv", columns=PAIR[:1], classes=BINARY),
    "glue-stsb":      Task("stsb/dev.tsv"),
    "qqp":            classified("glue/qqp/{split}.tsv", columns=PAIR, classes=BINARY),
    "mnli":           classified("glue/mnli/{split}.tsv", columns=PAIR, classes=INFERENCE),
    "mnli-mm":        classified("glue/mnli-mm/{split}.tsv", columns=PAIR, classes=INFERENCE),
    "qnli":           classified("glue/qnli/{split}.tsv", columns=PAIR, classes=ENTAILED),
    "rte":            classified("glue/rte/{split}.tsv", columns=PAIR, classes=ENTAILED),
}
# fmt: on
GROUPS = {
    "sts": ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"],
    "clustering": CLUSTERING,
    # Ni et al. 2021: GLUE without WNLI, each text embedded alone
    "sentglue": "cola glue-sst2 mrpc-transfer glue-stsb qqp mnli mnli-mm qnli rte".split(),
    "transfer": ["mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc-transfer"],
}
GROUPS["classification"] = [
    *GROUPS["transfer"],
    "sst5-transfer",
    "sicke-transfer",
    "sickr-transfer",
    "stsb-transfer",
]
