"""Run every kind of command with the code of two checkouts, and name the files whose bytes differ.

    git worktree add ../before v0.17.0
    python tests/harness/same_bytes.py ../before                      all jobs; ten minutes on one core
    python tests/harness/same_bytes.py ../before --only sweep encode  jobs with such a word in the name

For changes that must change no result: weights, losses, scores and embeddings have to be the same to the last
bit, on the same machine with the same number of threads. Times are not compared, and neither are pages and
figures, nor the output, of which the lines that differ are printed nevertheless.
"""

import argparse
import difflib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HARNESS = [str(ROOT / "tests" / folder) for folder in ("harness", "models", "")]
MULTI = "--task mrpc sst5 sicke --data-root root"
SHORT = "--epochs 2 --batch-size 16 --lr 1e-3 --max-length 24 --train-fraction 0.2"
TUNE = SHORT + " --run-name {} --ckpt twins"
PAIRS = f"{TUNE}/mlm-then-rtd --task sample"
PRETRAIN = "--run-name {} --text text.txt --steps 6 --batch-size 8 --max-length 32 --save-steps 2 --lr 1e-3"
LEARN = "--text text.txt --selection-metric teacher_cosine"
HEADS = ("dot_product_head", "cosine_head", "concat_head", "concat_cosine_head", "concat_cosine01_head")

# Name of a job -> its command line. {} is the name with hyphens. A job may read what earlier ones wrote.
JOBS = {
    "mixed precision": f"train {PAIRS} --layer 4",
    "float32": f"train {PAIRS} --layer 4 --precision fp32",
    "sweep": f"train {PAIRS} --layer 0,1,3 --num-seeds 2",
    "loss cosine_bce": f"train {PAIRS} --layer 3 --objective cosine_bce",
    "loss of in-batch negatives": f"train {PAIRS} --layer 3 --objective multiple_negatives_ranking",
    **{f"loss {name}": f"train {PAIRS} --layer 3 --objective {name} --dropout 0.1" for name in HEADS},
    "rescaled scores": f"train {PAIRS} --layer 3 --objective concat_head --rescale-to-labels --dropout 0.2 "
    "--dropout-after-features",
    **{
        f"task {name}": f"train {TUNE}/mlm-then-rtd --layer 3 --task {name} --data-root root"
        for name in ("mrpc", "sst5", "sicke", "nli")
    },
    "gradient cache": f"train {TUNE}/mlm-then-rtd --layer 3 --task quora-pairs --data-root root "
    "--mini-batch-size 5 --temperature 0.1 --no-symmetric",
    "frozen layers": f"train {PAIRS} --layer 3 --freeze-layers 2",
    "frozen encoder": f"train {PAIRS} --layer 3 --freeze-layers --objective concat_head",
    **{f"all layers, {way}": f"train {PAIRS} --layer 4 --all-layers {way}" for way in ("mean", "widening")},
    "matryoshka": f"train {PAIRS} --layer 3 --matryoshka-dims 16 64 --all-layers mean",
    "kept layers": f"train {PAIRS} --keep-layers 0,3,7",
    "projection": f"train {PAIRS} --layer 2 --projection 32",
    "random weights": f"train {PAIRS} --layer 2 --init random --seed 3",
    "token weights": f"train {PAIRS} --layer 2 --token-weights idf --pooling max+mean",
    "adafactor": f"train {PAIRS} --layer 2 --optimizer adafactor --selection-metric pearson",
    "T5": f"train {TUNE}/t5 --task sample --layer 3",
    "T5 decoder": f"train {TUNE}/t5 --task sample --pooling decoder",
    "from a run": f"train {PAIRS} --layer 4 --init-from runs/mixed-precision-layer4-seed0",
    **{
        f"several tasks, {way}": f"train {TUNE}/mlm-then-rtd --layer 3 {MULTI} --task-sampling {way}"
        for way in ("joint", "sequential")
    },
    **{
        f"gradient surgery, {way}": f"train {TUNE}/mlm-then-rtd --layer 3 --task mrpc sst5 --data-root root "
        f"--loss-weights 1 0.5 --gradient-surgery {way}"
        for way in ("log", "pcgrad")
    },
    "distillation": f"train {TUNE}/mlm-then-rtd --layer 3 --teacher tiny {LEARN} --projection 384",
    "distilled cosines": f"train {TUNE}/mlm --keep-layers 0,4 --teacher twins/mlm {LEARN}",
    "mlm": f"train --task mlm --ckpt twins/mlm {PRETRAIN}",
    "rtd": f"train --task rtd --ckpt twins/mlm-then-rtd {PRETRAIN} --gradient-accumulation-steps 2",
    "from scratch": f"train --task rtd --from-scratch families/electra {PRETRAIN} --vocab-size 300 "
    "--save-fp16",
    "encode": "encode tiny text.txt --out whole.npy",
    "encode bf16": "encode tiny text.txt --out bf16.npy --dtype bfloat16 --truncate-dim 32",
    "encode a mix of layers": "encode twins/mlm text.txt --out mix.npy --layer 1+5 --pooling max",
    "encode words": "encode twins/mlm text.txt --out words.npy --layer word --prompt T0",
    "encode T5": "encode twins/t5 text.txt --out t5.npy --dtype bfloat16",
    "export": "export runs/mixed-precision-layer4-seed0 exported",
    "export as BERT": "export runs/mixed-precision-layer4-seed0 bert --format bert",
    "export pruned": "export tiny pruned --prune-vocabulary text.txt",
    "export 4 bits": "export tiny four --format compact --dtype int4",
    "student": "student tiny student --text text.txt --vocab-size 500 --hidden-size 64",
    "cka": "cka twins/mlm tiny --data text.txt --json cka.json",
    "evaluate a run": "evaluate runs/mixed-precision-layer4-seed0 --json run.json",
    "evaluate layers": "evaluate twins/mlm --layer all --task sample --isotropy --json layers.json",
    "evaluate without training": "evaluate twins/mlm --layer 1+5 --token-weights idf --postprocess zscore "
    "--task sample --json zscore.json",
    "tables": f"tables twins/mlm --table {ROOT}/tests/harness/sample.toml --out tables",
    "report": "report runs",
}


def prepare(folder: Path) -> list[str]:
    """Write what the jobs read: text.txt, data sets in root/, twins/, tiny/, and families/ with one of each.

    Returns the names of the families.
    """
    sys.path[:0] = [str(ROOT), *HARNESS]
    from conftest import vocabulary_folder
    from random_configs import RANDOM_CONFIGS

    from tmft.checkpoints.tokenizers import load_tokenizer
    from tmft.models.families import config_from_dict, random_encoder
    from tmft.sentence_encoder import SentenceEncoder

    for split in ("train", "dev", "test"):
        table = (ROOT / f"data/sample/{split}.tsv").read_text("utf-8").splitlines()[1:]
        rows = [line.split("\t") for line in table]
        first, second, scores = zip(*rows, strict=True)
        levels = [min(round(float(score)), 4) for score in scores]
        others = second[5:] + second[:5]
        paraphrases = [level // 3 for level in levels]
        relations = [("CONTRADICTION", "NEUTRAL", "ENTAILMENT")[level // 2] for level in levels]
        data = {
            "mrpc": ("sentence1\tsentence2\tlabel", first, second, paraphrases),
            "sst5": ("label\ttext", levels, first),
            "sick": ("sentence1\tsentence2\tscore\tlabel", first, second, scores, relations),
            "stsb": ("sentence1\tsentence2\tscore", first, second, scores),
            "nli-triplets": ("anchor\tpositive\tnegative", first, second, others),
            "quora-pairs": ("anchor\tpositive", first, second),
        }
        for name, (header, *columns) in data.items():
            lines = zip(*columns, strict=True)
            (folder / "root" / name).mkdir(parents=True, exist_ok=True)
            text = "\n".join([header, *("\t".join(map(str, line)) for line in lines)]) + "\n"
            (folder / "root" / name / f"{split}.tsv").write_text(text, encoding="utf-8")
        if split == "train":
            (folder / "text.txt").write_text("\n".join(first[:300]) + "\n", encoding="utf-8")
    shutil.copytree(ROOT / "data/twins", folder / "twins")
    shutil.copytree(ROOT / "data/tiny", folder / "tiny")
    for name, draw in RANDOM_CONFIGS.items():
        encoder = random_encoder(config_from_dict(draw(random.Random(name))))
        model = SentenceEncoder(encoder, load_tokenizer(vocabulary_folder())).eval()
        model.save_pretrained(folder / "families" / name)
    return list(RANDOM_CONFIGS)


def run(checkout: Path, folder: Path, line: str) -> tuple[int, str]:
    """Run a command line with the code of a checkout: return its exit code and its output.

    Meanwhile the folder has the same name for both checkouts, because results name what they were made of.
    """
    here = folder.rename(folder.with_name("here"))
    start = "import sys; from tmft.cli.entry_points import main; sys.argv[0] = 'tmft'; main()"
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", start, *line.split()],
        cwd=here, env=os.environ | environment, text=True, capture_output=True,
    )  # fmt: skip
    here.rename(folder)
    return done.returncode, (done.stdout + done.stderr).replace(str(checkout), "")


def comparable_output(text: str) -> list[str]:
    """Return the lines of an output without speeds and times."""
    text = re.sub(r"[\d,.]+k? \w+/s.*|\d+:\d\d.*|\d+(\.\d+)? (seconds?|minutes?|s|ms)\b", "#", text)
    return re.sub(
        r"( M) +\d+\b", r"\1", text
    ).splitlines()  # the column of seconds follows that of parameters


def comparable_files(folder: Path) -> dict[str, str]:
    """Return a digest of every file of a folder, '' for pages and figures."""
    from kill import digests

    pages = (".html", ".pdf", ".png", ".csv", ".tex", ".pt")
    return {name: "" if name.endswith(pages) else digest for name, digest in digests(folder).items()}


def compare(other: Path, only: list[str]) -> bool:
    """Run the jobs that have one of the words in the name, or all; return whether their files are equal."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / "before", Path(scratch) / "now"]
        families = prepare(folders[0])
        for name in families:
            JOBS[f"family {name}"] = f"train {TUNE} --task sample --layer 1".replace(
                "twins", f"families/{name}"
            )
        shutil.copytree(*folders)
        is_equal, known = True, set()
        for name, line in JOBS.items():
            if only and not any(word in name for word in only):
                continue
            line = line.format(name.replace(",", "").replace(" ", "-"))
            code, output = run(other, folders[0], line)
            code_now, output_now = run(ROOT, folders[1], line)
            files, files_now = map(comparable_files, folders)
            differ = {
                path for path in files.keys() | files_now.keys() if files.get(path) != files_now.get(path)
            }
            news = sorted(differ - known)
            known |= differ
            if code != code_now:
                news.append(f"exit code {code} became {code_now}: {output_now[-300:]}")
            elif code:
                news.append(f"fails in both: {output_now[-300:]}")
            is_equal &= not news
            print(f"{name}: {', '.join(news) or 'equal'}", flush=True)
            lines = difflib.unified_diff(*map(comparable_output, (output, output_now)), lineterm="", n=0)
            print("".join(f"    {line}\n" for line in list(lines)[2:8]), end="")
    return is_equal


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument(
        "other", type=Path, metavar="CHECKOUT", help="folder of another version, such as the last release"
    )
    p.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="do the jobs whose names contain a WORD"
    )
    args = p.parse_args()
    sys.exit(not compare(args.other.resolve(), args.only))
