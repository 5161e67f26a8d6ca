"""Benchmark of several tasks at once: one step of three tasks, and three steps of one task each.

The pairs of --data are used for all three: as sentences with a class, as pairs with a class, as pairs with a
score.
"""

from bench import measure

from tmft import SentenceEncoder
from tmft.data import Examples, read_examples
from tmft.datasets.task_lookup import get_task
from tmft.runs.fine_tune import assemble_training
from tmft.runs.run_config import FineTuningRecipe
from tmft.training.loop import fit
from tmft.training.multitask import make_training_tasks

BATCH, STEPS = 8, 25


def bench_multitask(args) -> None:
    """Time steps with and without gradient surgery, and with a frozen encoder."""
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
        """Return a round, in ms per step: the second of two epochs, without the evaluation on dev."""
        task = get_task(" ".join(names) if len(names) > 1 else names[0])
        examples = {
            key: {"train": data[name], "dev": few[name]}
            for key, name in zip(task.tasks_by_name, names, strict=True)
        }
        changed = FineTuningRecipe(epochs=2, batch_size=BATCH, precision="fp32", **recipe)

        def run():
            model = SentenceEncoder.from_pretrained(args.ckpt, args.layer)
            tasks = make_training_tasks(task, model.dimensions, examples)
            training_task, embed, callbacks = assemble_training(model, tasks, changed)
            _, epoch = fit(model, training_task, changed, 0, embed, callbacks)
            return 1000 * BATCH * len(names) / epoch.pairs_per_second

        return run

    names = list(data)
    peers = {f"{name} alone": timed(name) for name in names}
    peers |= {
        "a step of all three": timed(*names),
        "with gradient cosines (log)": timed(*names, gradient_surgery="log"),
        "with projected gradients (pcgrad)": timed(*names, gradient_surgery="pcgrad"),
        "sst5 and quora, encoder frozen": timed("sst5", "quora", freeze_layers=-1),
    }
    print(f"layer {args.layer}, batches of {BATCH} of each task, float32, {STEPS} steps")
    medians = measure(peers, args.rounds, "ms", "a step of all three")
    single = sum(medians[f"{name} alone"] for name in names)
    print(
        f"three single steps {single:.0f} ms, "
        f"{single / medians['a step of all three']:.2f} x a step of all three"
    )
