"""The part of bench.py that is several tasks at once: a step of three beside three steps of one each.

The pairs of --data serve all three: as sentences with a class, as pairs with two classes, as scores.
"""

from bench import measure

from tmft import SentenceEncoder
from tmft.data import Examples, read_examples
from tmft.datasets.task_lookup import get_task
from tmft.training.loop import Recipe, fit
from tmft.training.multitask import lessons_of

BATCH, STEPS = 8, 25


def bench_multitask(args) -> None:
    pairs = read_examples(get_task("stsb", data=str(args.data)), "train")
    texts = [column[: BATCH * STEPS] for column in pairs.texts]
    scores = pairs.labels[: BATCH * STEPS]
    data = {
        "sst5": Examples((texts[0],), [min(4, int(score)) for score in scores]),
        "quora": Examples(tuple(texts), [int(score > 3) for score in scores]),
        "cs224n-sts": Examples(tuple(texts), scores),
    }
    few = {name: Examples(tuple(c[:2] for c in part.texts), part.labels[:2]) for name, part in data.items()}

    def timed(*names, **recipe):
        """ms of a step: the second epoch, without dev."""
        task = get_task(" ".join(names) if len(names) > 1 else names[0])
        each = task.subtasks or {"": task}
        splits = {key: {"train": data[name], "dev": few[name]} for key, name in zip(each, names, strict=True)}
        how = Recipe(epochs=2, batch_size=BATCH, precision="fp32", **recipe)

        def run():
            model = SentenceEncoder.from_pretrained(args.ckpt, args.layer)
            lessons = lessons_of(task, model.dimensions, splits)
            _, epoch = fit(model, lessons, how, seed=0)
            return 1000 * BATCH * len(names) / epoch.pairs_per_second

        return run

    names = list(data)
    peers = {f"{name} alone": timed(name) for name in names}
    peers |= {
        "a step of all three": timed(*names),
        "and their cosines (compare)": timed(*names, gradients="compare"),
        "and projected (project)": timed(*names, gradients="project"),
        "sst5 and quora, all frozen": timed("sst5", "quora", freeze=-1),
    }
    print(f"layer {args.layer}, batches of {BATCH} of each task, float32, {STEPS} steps")
    found = measure(peers, args.rounds, "ms", "a step of all three")
    alone = sum(found[f"{name} alone"] for name in names)
    print(
        f"three single steps {alone:.0f} ms, {alone / found['a step of all three']:.2f} x a step of all three"
    )
