"""The registry of tasks: for each task its files, what its labels mean, and how it is trained and scored.

A task is one entry of `TASKS`. Everything that it implies (loss, metric, range of the labels,
hyperparameters) is written in its entry, and nothing is guessed from its data. docs/extending.md shows how to
add one.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

PAIR_COLUMNS = ("sentence1", "sentence2")
TRIPLET_COLUMNS = ("anchor", "positive", "negative")
TEXT_COLUMN = ("text",)
OVERALL = "overall"  # metric of a multi-task run: a mean of the scores of its tasks
CLASSES_FROM_FILE = {"any": 0}  # as Task.classes: the classes are the distinct labels in the file


@dataclass(frozen=True)
class Task:
    """A task: its files, its labels, the loss that it is trained with and the metric that it is scored with.

    files: path below the data folder, in which {split} stands for train, dev or test. A task whose path has
        no {split} has test data only; if it has a *, every file that matches is one subset of that data.
    min_score, max_score: range of the scores; the loss gets them rescaled to [0, 1].
    columns: names of the 1 to 3 text columns.
    empty_text: replacement for an empty text; the empty string means that an empty text is an error.
    label: name of the label column, which holds a score or the name of a class; "" if there are no labels.
    classes: name of each class -> its index, from 0; empty if the labels are scores.
    objective: an entry of OBJECTIVES (tmft/losses/objectives.py); "" if the task is only scored, not trained.
    metric: an entry of METRICS (tmft/metrics.py); its value on dev selects the epoch. A task that is only
        scored may name any metric that its evaluator returns.
    task_type: an entry of EVALUATORS (tmft/evaluation/evaluators.py), which scores a model without training.
    recipe: hyperparameters that replace defaults of FineTuningRecipe (tmft/runs/run_config.py).
    objective_args: hyperparameters that replace defaults of the config_class of the objective.
    eval_files: path to sentence pairs with scores from 0 to 5, which replace the dev and test data of
        `files`; "" if nothing is replaced.
    test_labels_hidden: whether the test labels are not public; the dev split is then scored as test.
    subtasks: name -> task, for a multi-task run; empty for a single task.
    """

    files: str
    min_score: float = 0.0
    max_score: float = 5.0
    columns: tuple[str, ...] = PAIR_COLUMNS
    empty_text: str = ""
    label: str = "score"
    classes: dict[str, int] = field(default_factory=dict)
    objective: str = "cosine_mse"
    metric: str = "spearman"
    task_type: str = "similarity"
    recipe: dict[str, Any] = field(default_factory=dict)
    objective_args: dict[str, Any] = field(default_factory=dict)
    eval_files: str = ""
    test_labels_hidden: bool = False
    subtasks: dict[str, "Task"] = field(default_factory=dict)

    @property
    def tasks_by_name(self) -> dict[str, "Task"]:
        """The subtasks by name or, for a single task, {"": the task itself}."""
        return self.subtasks or {"": self}


# Name of a class in the file -> its index.
BINARY = {"0": 0, "1": 1}
BOOLEANS = {"False": "0", "True": "1"}  # as which a file may have the classes of BINARY
ENTAILMENT = {"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2}  # SICK
NLI = {"contradiction": 0, "neutral": 1, "entailment": 2}  # SNLI and MultiNLI
TWO_WAY_NLI = {"not_entailment": 0, "entailment": 1}  # QNLI, RTE
SENTIMENT = {str(stars): stars for stars in range(5)}  # SST-5: 0 is very negative, 4 very positive
CITATION_INTENTS = {"background": 0, "method": 1, "result": 2}  # SciCite
QUESTION_TYPES = {name: index for index, name in enumerate("ABBR DESC ENTY HUM LOC NUM".split())}  # TREC

# Hyperparameters of Sentence-T5 (Ni et al. 2021, arXiv:2108.08877, section 4.3), for one epoch. The learning
# rate is one for Adafactor, whose steps are relative to the size of the weights; gradients are not clipped.
SENTENCE_T5_RECIPE: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 512,
    "mini_batch_size": 64,
    "optimizer": "adafactor",
    "lr": 1e-3,
    "weight_decay": 0.0,
    "max_grad_norm": 0.0,
}

CLUSTERING_TASKS = "agnews biomedical googlets searchsnippets stackoverflow tweet".split()

# Templates of the entries below.
contrastive_task: partial[Task] = partial(
    Task,
    label="",
    objective="multiple_negatives_ranking",
    objective_args={"temperature": 0.01},
    eval_files="stsb/{split}.tsv",
)
cs224n_task: partial[Task] = partial(Task, recipe={"batch_size": 8, "lr": 1e-5}, test_labels_hidden=True)
clustering_task: partial[Task] = partial(
    Task,
    columns=TEXT_COLUMN,
    empty_text=".",
    label="label",
    classes=CLASSES_FROM_FILE,
    objective="",
    metric="accuracy",
    task_type="clustering",
)
classification_task: partial[Task] = partial(
    Task,
    columns=TEXT_COLUMN,
    empty_text=".",
    label="label",
    objective="",
    metric="accuracy",
    task_type="classification",
)
relatedness_task: partial[Task] = partial(Task, objective="", metric="pearson", task_type="relatedness")

# fmt: off
TASKS = {
    # Pairs of sentences, fine-tuned and scored: the tasks of the paper, and STS benchmark in other languages.
    "stsb":    Task("stsb/{split}.tsv"),
    "stsb-de": Task("stsb-de/{split}.tsv"),
    "stsb-es": Task("stsb-es/{split}.tsv"),
    "kor-sts": Task("kor-sts/{split}.tsv"),
    "sickr":   Task("sick/{split}.tsv", min_score=1.0),
    "sicke":   Task("sick/{split}.tsv", label="label", classes=ENTAILMENT,
                    objective="softmax", metric="f1_macro"),
    "mrpc":    Task("mrpc/{split}.tsv", label="label", classes=BINARY,
                    objective="cosine_bce", metric="f1"),
    "wordsim": Task("wordsim/{split}.tsv", max_score=1.0, columns=("word1", "word2"),
                    recipe={"epochs": 50, "batch_size": 128}),
    "sts12":   Task("sts12/*.tsv"),
    "sts13":   Task("sts13/*.tsv"),
    "sts14":   Task("sts14/*.tsv"),
    "sts15":   Task("sts15/*.tsv"),
    "sts16":   Task("sts16/*.tsv"),
    "sample":  Task("sample/{split}.tsv"),

    # Contrastive learning: pairs or triplets without labels; the epoch is selected, and the run scored, on
    # STS benchmark. nli: entailed and contradicted sentences of SNLI and MultiNLI as selected by Gao et al.
    # 2021. quora-pairs: duplicate questions, in place of two billion pairs of community questions, which are
    # not public.
    "nli":         contrastive_task("nli-triplets/{split}.tsv", columns=TRIPLET_COLUMNS,
                                    recipe=SENTENCE_T5_RECIPE),
    "quora-pairs": contrastive_task("quora-pairs/{split}.tsv", columns=TRIPLET_COLUMNS[:2],
                                    recipe=SENTENCE_T5_RECIPE | {"batch_size": 2048}),

    # The classification loss of footnote 4 of Ni et al. 2021, on pairs of SNLI and MultiNLI. The paper has
    # no hyperparameters for it; these are those of Reimers and Gurevych 2019, whose loss it is.
    "allnli":      Task("allnli/{split}.tsv", label="label", classes=NLI, objective="softmax",
                        metric="accuracy", recipe={"epochs": 1, "batch_size": 16}),

    # The default project of the course CS 224N (Stanford, spring 2023): three tasks, to be trained together.
    # The test labels of Quora and STS are not public; those of SST-5 come from its own release.
    "sst5":       cs224n_task("sst5/{split}.tsv", columns=TEXT_COLUMN, empty_text=".", label="label",
                              classes=SENTIMENT, objective="single_text_head", metric="accuracy"),
    "quora":      cs224n_task("quora/{split}.tsv", label="label", classes=BINARY,
                              objective="dot_product_head", metric="accuracy"),
    "cs224n-sts": cs224n_task("cs224n-sts/{split}.tsv", metric="pearson"),

    # Scored without fine-tuning (objective=""). Sources: str Abdalla et al. 2023; clustering Rakib et al.
    # 2020; classification and relatedness SentEval (Conneau and Kiela 2018, arXiv:1803.05449) and SST-5
    # (Socher et al. 2013); from cola on GLUE (Wang et al. 2019).
    "str":            Task("str/test.tsv", max_score=1.0),
    **{name: clustering_task(f"clustering/{name}.tsv") for name in CLUSTERING_TASKS},
    "mr":             classification_task("senteval/mr.tsv", classes=BINARY),
    "cr":             classification_task("senteval/cr.tsv", classes=BINARY),
    "subj":           classification_task("senteval/subj.tsv", classes=BINARY),
    "mpqa":           classification_task("senteval/mpqa.tsv", classes=BINARY),
    "sst2":           classification_task("senteval/sst2/{split}.tsv", classes=BINARY),
    "trec":           classification_task("senteval/trec/{split}.tsv", classes=QUESTION_TYPES),
    "scicite":        classification_task("scicite/{split}.tsv", classes=CITATION_INTENTS),
    "sst5-transfer":  classification_task("sst5/{split}.tsv", classes=SENTIMENT),
    "mrpc-transfer":  classification_task("mrpc/{split}.tsv", columns=PAIR_COLUMNS, classes=BINARY),
    "sicke-transfer": classification_task("sick/{split}.tsv", columns=PAIR_COLUMNS, classes=ENTAILMENT),
    "sickr-transfer": relatedness_task("sick/{split}.tsv", min_score=1.0),
    "stsb-transfer":  relatedness_task("stsb/{split}.tsv"),
    "cola":           classification_task("glue/cola/{split}.tsv", columns=("sentence1",), classes=BINARY,
                                          metric="matthews"),
    "glue-sst2":      classification_task("glue/sst2/{split}.tsv", columns=("sentence1",), classes=BINARY),
    "glue-stsb":      Task("stsb/dev.tsv"),
    "qqp":            classification_task("glue/qqp/{split}.tsv", columns=PAIR_COLUMNS, classes=BINARY),
    "mnli":           classification_task("glue/mnli/{split}.tsv", columns=PAIR_COLUMNS, classes=NLI),
    "mnli-mm":        classification_task("glue/mnli-mm/{split}.tsv", columns=PAIR_COLUMNS, classes=NLI),
    "qnli":           classification_task("glue/qnli/{split}.tsv", columns=PAIR_COLUMNS, classes=TWO_WAY_NLI),
    "rte":            classification_task("glue/rte/{split}.tsv", columns=PAIR_COLUMNS, classes=TWO_WAY_NLI),

    # Distillation: the lines of a text with the embeddings that a teacher gives them as labels, see
    # tmft/students/distillation.py. The learning rate is higher than the default, since each target is
    # a whole embedding and not one score of a pair.
    "distillation": Task("", columns=TEXT_COLUMN, label="embedding", objective="distillation",
                         eval_files="stsb/{split}.tsv",
                         recipe={"epochs": 2, "batch_size": 128, "lr": 5e-4}),
}
# fmt: on

TRANSFER_TASKS = ["mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc-transfer"]  # as in SentEval

# Name of a group -> its tasks. Where a model is scored, the name stands for all of them.
GROUPS = {
    "sts": ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"],
    "clustering": CLUSTERING_TASKS,
    # Ni et al. 2021: GLUE without WNLI, with each text embedded alone
    "sentglue": "cola glue-sst2 mrpc-transfer glue-stsb qqp mnli mnli-mm qnli rte".split(),
    "transfer": TRANSFER_TASKS,
    "classification": [
        *TRANSFER_TASKS,
        "sst5-transfer",
        "sicke-transfer",
        "sickr-transfer",
        "stsb-transfer",
    ],
}
