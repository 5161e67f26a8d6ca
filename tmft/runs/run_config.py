"""The configuration of a run: all settings that its result depends on. result.json has them as `settings`."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tmft.checkpoints.compact import NUMBER_RANGES
from tmft.checkpoints.model_folder import ModelFolder
from tmft.embedding.token_weights import check_token_weights
from tmft.errors import MAX_COUNT, SEED_RANGE, InputError
from tmft.io.arguments import check_fields, choice, in_range
from tmft.io.files import reading
from tmft.loop import Recipe
from tmft.losses.nested import ALL_LAYERS
from tmft.losses.objectives import OBJECTIVES
from tmft.pooling import parse_pooling
from tmft.pretraining.pretraining_loop import PretrainingRecipe
from tmft.tasks import Task
from tmft.training.gradient_surgery import GRADIENT_SURGERY
from tmft.training.multitask import TASK_SAMPLING

# Batch size, learning rate and length of ELECTRA-small, the defaults of pre-training from scratch. Continued
# pre-training uses the defaults of PretrainingRecipe, those of the TMFT paper.
FROM_SCRATCH_DEFAULTS: dict[str, Any] = {
    "batch_size": 128,
    "gradient_accumulation_steps": 1,
    "lr": 5e-4,
    "max_length": 128,
}
MIN_FRACTION = 1e-6
GENERATOR_SIZE = 0.25  # width of the generator as a fraction of the discriminator's, as in ELECTRA


@dataclass(frozen=True)
class FineTuningRecipe(Recipe):
    """The hyperparameters of the paper (Recipe), and those of the features that runs/train_run.py plugs in.

    mini_batch_size: embed N examples of a batch at a time (gradient caching): the gradient is the same and
        needs less memory; None: the whole batch.
    task_sampling: joint: every step has a batch of each task (the Round-Robin of the report on CS 224N);
        sequential: one whole task after the other, in equal parts of the run. An epoch ends when the smallest
        data set has been used.
    gradient_surgery: log: log the cosine similarity of the gradients of each two tasks; pcgrad: also project
        each gradient onto the normal plane of those that it conflicts with (Yu et al. 2020).
    freeze_layers: do not train the embeddings and the first N layers or, with -1 (as an option, without N),
        the whole encoder; not with `all_layers`; None: nothing is frozen.
    all_layers: train the output of every kept layer in one run, so that the model can be truncated later.
        mean: the mean of the losses of all layers; widening: the same, but each layer has as many dimensions
        as its depth allows: layer 2 of 6 a third of them, the last one all; None: only the output of the last
        kept layer is trained.
    matryoshka_dims: also train the first N dimensions of the embedding, for each N of these increasing
        numbers, such as 64 128, so that they can be used alone; not with a trained head; None: only the full
        embedding is trained.
    quantization: train with weights that are rounded to 4 or 8 bits, as an export in the compact format with
        this type will store them; None: no rounding.
    cuda_graphs: on a GPU, start all kernels of a pass at once, by replaying CUDA graphs; False: do not use
        CUDA graphs on a GPU: the results are the same, but small batches take longer.
    """

    mini_batch_size: int | None = in_range(None, 1, MAX_COUNT)
    task_sampling: str = choice("joint", TASK_SAMPLING)
    gradient_surgery: str = choice("none", GRADIENT_SURGERY)
    freeze_layers: int | None = in_range(None, -1, MAX_COUNT)
    all_layers: str | None = choice(None, ALL_LAYERS)
    matryoshka_dims: tuple[int, ...] | None = None
    quantization: str | None = choice(None, NUMBER_RANGES)
    cuda_graphs: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_exclusive(self, "all_layers", "freeze_layers")
        if self.all_layers == "widening" and self.matryoshka_dims:
            raise InputError(
                "all_layers widening: it says itself how many dimensions a layer has: leave out "
                "`matryoshka_dims`",
                "all_layers",
                "matryoshka_dims",
            )
        dims = list(self.matryoshka_dims or ())
        if [0, *dims] != sorted({0, *dims}):
            raise InputError(
                f"matryoshka_dims {' '.join(map(str, dims))}: give increasing numbers, from 1 to "
                "fewer than the model has",
                "matryoshka_dims",
            )


@dataclass(frozen=True, kw_only=True)
class FineTuningConfig:
    """Everything that the scores of a fine-tuning run depend on.

    ckpt: hub id or folder of the checkpoint.
    init: pretrained: load the weights of the checkpoint; random: use only its architecture, with random
        weights.
    layer: number of layers to keep, from the bottom; None: all.
    seed: number that determines the random weights, the order of the examples and dropout.
    init_from: start from the weights of an earlier run, given as its folder; it must have the same `ckpt` and
        `layer`. {layer} and {seed} in the name are replaced by those of each run:
        runs/electra-wordsim-layer{layer}-seed0. Not with `init` random.
    keep_layers: keep the layers with these indices, counted from 0, such as 0,2,5; not with `layer` or
        `init_from`; None: the first layers, see `layer`.
    pooling: how the vectors of the tokens become one: an entry of POOLINGS, or several, concatenated:
        max+mean. pooler is tanh(W h + b) of the first token with BERT's own weights, decoder the first output
        of a T5 decoder; None: the pooling saved with the model, else mean (lasttoken for a causal language
        model).
    token_weights: how tokens are weighted in the mean: an entry of TOKEN_WEIGHTS. no-special: 0 for [CLS] and
        [SEP]; no-prompt: 0 for the words of the prompt; no-mask: 0 for [MASK]; content-words: 0 for
        punctuation, subwords, frequent words and special tokens other than [MASK]; idf: inverse document
        frequency; mask-token: 1 for [MASK], 0 for all others. Words are counted in the sentences that are
        trained on or scored; None: the weights saved with the model, else uniform.
    projection: add a linear map to N dimensions after the pooling, then scale to length 1; None: no map.
    max_length: truncate sentences to N tokens, special tokens included; None: the limit of the model.
    loss_weights: weight of the loss of each task, in the order of `task`; None: 1 for each.
    train_fraction: train on this fraction of the examples, drawn with the seed.
    dev_fraction: for data without dev.tsv: keep this fraction of the training examples for dev, such as 0.1;
        they are the same with every seed; None: dev.tsv is read.
    task: the data, the loss and the metric. recipe: the hyperparameters of training.
    """

    ckpt: str
    init: str = choice("pretrained", ["pretrained", "random"])
    layer: int | None = in_range(None, 0, MAX_COUNT)
    seed: int = in_range(0, *SEED_RANGE)
    init_from: str | None = None
    keep_layers: tuple[int, ...] | None = None
    pooling: str | None = None
    token_weights: str | None = None
    projection: int | None = in_range(None, 1, MAX_COUNT)
    max_length: int | None = in_range(None, 3, MAX_COUNT)
    loss_weights: tuple[float, ...] | None = in_range(None, 0)
    train_fraction: float = in_range(1.0, MIN_FRACTION, 1)
    dev_fraction: float | None = in_range(None, MIN_FRACTION, 0.99)
    task: Task
    recipe: FineTuningRecipe

    def __post_init__(self) -> None:
        """Raise InputError if values have a wrong type, do not go together or are out of range."""
        check_fields(self)
        if self.pooling is not None:
            parse_pooling(self.pooling)
        check_token_weights(self.token_weights, self.pooling)
        if self.keep_layers is not None:
            parse_keep_layers(",".join(map(str, self.keep_layers)))
        check_exclusive(self, "init", "init_from")
        check_exclusive(self, "keep_layers", "init_from")  # the earlier run has chosen its layers
        tasks, batch_size = self.task.tasks_by_name, self.recipe.batch_size
        if not self.task.objective:
            raise InputError("this task cannot be trained, it has no objective: score it with evaluate.py")
        for name in (task.objective for task in tasks.values()):
            if batch_size < (minimum := OBJECTIVES[name].min_batch_size):
                raise InputError(
                    f"batch_size {batch_size}: {name} compares the examples of a batch, choose {minimum} or "
                    "more",
                    "batch_size",
                )
        if self.loss_weights is not None and len(self.loss_weights) != len(tasks):
            raise InputError(
                f"loss_weights {' '.join(map(str, self.loss_weights))}: there are {len(tasks)} tasks, give "
                "one weight for each",
                "loss_weights",
            )

    def to_flat_dict(self) -> dict[str, Any]:
        """Return the fields of this config and of its recipe in one dict."""
        fields = asdict(self)
        recipe = fields.pop("recipe")
        return fields | recipe


@dataclass(frozen=True)
class Run:
    """One fine-tuning run of a sweep: its configuration, the folder it writes, and the origin of its weights.

    sweep: name that is shared by the runs that differ only in layer and seed.
    folder: the run folder. data: name of the data.
    init_folder: the folder from which the weights are loaded, that of config.ckpt or of config.init_from. The
        runs of a sweep share it, so that they start from the same files.
    checkpoint_digests: the digests of its files when the command began.
    provenance: the earlier runs that trained these weights, oldest first, see docs/commands.md.
    num_hidden_layers: number of layers of the whole checkpoint.
    """

    config: FineTuningConfig
    sweep: str
    folder: Path
    data: str
    init_folder: ModelFolder
    checkpoint_digests: dict[str, str]
    provenance: list[dict[str, Any]]
    num_hidden_layers: int


@dataclass(frozen=True, kw_only=True)
class PretrainingConfig:
    """Everything that a pre-training run depends on.

    task: "mlm" (masked language modeling), or "rtd" (replaced token detection).
    ckpt: hub id or folder of a checkpoint to continue with. Exactly one of ckpt and from_scratch is given.
    from_scratch: train a new model with random weights: a folder with a config.json, or the hub id of a model
        with this architecture; not with `ckpt`.
    seed: number that determines the random weights, the order of the sentences, the masks and dropout.
    text: text with one sentence per line, also .gz or .xz; needed for pre-training and distillation.
    vocab_size: with `from_scratch`: train a WordPiece vocabulary of N tokens on `text`, even if there is a
        tokenizer next to the config.json.
    generator_size: width of the generator of `task` rtd, as a fraction of the discriminator's; None: 0.25.
    save_fp16: save the weights in float16, in half the file size.
    recipe: the hyperparameters of training.
    """

    task: str
    ckpt: str | None = None
    from_scratch: str | None = None
    seed: int = in_range(0, *SEED_RANGE)
    text: tuple[Path, ...] = ()
    vocab_size: int | None = in_range(None, 1, MAX_COUNT)
    generator_size: float | None = in_range(None, MIN_FRACTION, 1)
    save_fp16: bool = False
    recipe: PretrainingRecipe

    def __post_init__(self) -> None:
        """Raise InputError if values have a wrong type, do not go together or are out of range."""
        check_fields(self)
        if not self.text:
            raise InputError(
                f"task {self.task} needs files to train on: name them with `text` FILE...", "task", "text"
            )
        if (self.ckpt is None) == (self.from_scratch is None):
            raise InputError(
                f"task {self.task} needs a checkpoint to continue with (`ckpt`) or the architecture of a new "
                "model (from_scratch): use one of the two",
                "task",
                "ckpt",
                "from_scratch",
            )
        if self.generator_size is not None and self.task != "rtd":
            raise InputError(
                f"generator_size has no effect with `task` {self.task}, which has no generator: "
                "remove generator_size",
                "generator_size",
                "task",
                "generator_size",
            )
        check_exclusive(self, "vocab_size", "ckpt")  # which has a vocabulary

    def to_flat_dict(self) -> dict[str, Any]:
        """Return the fields of this config and of its recipe in one dict.

        A text file becomes [path, size in bytes]; generator_size is the value that is used, None without rtd.
        """
        fields = asdict(self)
        recipe, fields["text"] = fields.pop("recipe"), []
        for path in self.text:
            with reading(path, "check the name"):
                fields["text"].append([str(path), path.stat().st_size])
        if self.task == "rtd":
            fields["generator_size"] = self.generator_size or GENERATOR_SIZE
        return fields | recipe

    @property
    def name(self) -> str:
        """The default name of the run, checkpoint and task, such as "bert-base-uncased-mlm"."""
        return f"{Path(self.source.partition('@')[0]).name}-{self.task}"

    @property
    def source(self) -> str:
        """The checkpoint or architecture that the run starts from: ckpt or from_scratch."""
        return self.ckpt or self.from_scratch or ""


def check_exclusive(config: Any, one: str, other: str) -> None:
    """Raise InputError if both of two fields of a config have another value than their default."""
    defaults = {field.name: field.default for field in fields(config)}
    if all(getattr(config, name) != defaults[name] for name in (one, other)):
        raise InputError(f"{one} and `{other}`: give only one of the two", one, other)


def parse_keep_layers(text: str) -> tuple[int, ...]:
    """Return the indices of layers to keep in a text: "0,2,5" -> (0, 2, 5).

    Raises InputError if the text has anything else, or if they do not increase.
    """
    words = text.split(",")
    layers = [int(word) for word in words if word.isdecimal()]
    if len(layers) < len(words) or layers != sorted(set(layers)):
        raise InputError(
            f"keep_layers {text}: write increasing layer indices, counted from 0, such as 0,2,5",
            "keep_layers",
        )
    return tuple(layers)
