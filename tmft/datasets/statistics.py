"""Statistics of data sets: sizes, classes, vocabulary and length, as tables 2 and 3 of a paper have them.

Source: Stankevičius and Lukoševičius 2024, arXiv:2408.08073. Words are what stands between spaces, which
gives their numbers for the clustering sets; their texts of pairs were tokenized before.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from tmft.data import Examples
from tmft.tasks import Task

HEADING = "task,split,N,C,L/S,V words,V,length words,length,alpha % words,alpha %,".split(",")


def data_statistics(
    task: Task, examples: Examples, tokenize: Callable[[list[str]], Iterable[list[str]]]
) -> list[str]:
    """Return the cells of a line from N on: examples, classes, imbalance, and of the tokens, by words and by
    `tokenize`, how many there are in all, their mean number in an example, and the share that is alphabetic.

    The texts of a pair are joined. The imbalance is the size of the largest class divided by that of the
    smallest; for scores, those within 1 of the highest score and of the lowest one stand for the two classes.
    """
    labels = examples.labels
    if task.task_type in ("clustering", "classification") or task.classes:
        counts = Counter(labels).values()
        num_classes, imbalance = str(len(counts)), max(counts) / min(counts)
    else:
        high = sum(score >= task.max_score - 1 for score in labels)
        num_classes, imbalance = "", high / max(1, sum(score <= task.min_score + 1 for score in labels))
    texts = [" ".join(texts) for texts in zip(*examples.texts, strict=True)]
    cells = [str(len(texts)), num_classes, f"{imbalance:.1f}"]
    both = [[text.split() for text in texts], list(tokenize(texts))]
    tokens = [[token for text in tokenized for token in text] for tokenized in both]
    cells += [str(len(set(all_tokens))) for all_tokens in tokens]
    cells += [f"{len(all_tokens) / len(texts):.0f}" for all_tokens in tokens]
    return cells + [f"{100 * sum(map(str.isalpha, one)) / max(1, len(one)):.0f}" for one in tokens] + [""]
