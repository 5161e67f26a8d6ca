"""The three tasks of the default project of the course CS 224N (Stanford, spring 2023), to be learnt at once.

Rows like those of TASKS. Labels of the test sets of Quora and STS are not public, so dev is scored in their
place; those of SST-5 are in its own release.
"""

from functools import partial

from tmft.data import Task

BATCH = {"batch_size": 8, "lr": 1e-5}
STARS = {str(stars): stars for stars in range(5)}  # of sentiment, 0 very negative to 4 very positive

course = partial(Task, recipe=BATCH, hidden=True)
# fmt: off
COURSE = {
    "sst5":       course("sst5/{split}.tsv", columns=("text",), empty=".", label="label", classes=STARS,
                         objective="linear", metric="accuracy"),
    "quora":      course("quora/{split}.tsv", label="label", classes={"0": 0, "1": 1},
                         objective="dot", metric="accuracy"),
    "cs224n-sts": course("cs224n-sts/{split}.tsv", metric="pearson"),
}
# fmt: on
