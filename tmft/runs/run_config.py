"""The configuration of a run: everything that its result depends on. result.json stores it as `settings`."""

from dataclasses import asdict, dataclass
from pathlib import Path

from tmft.errors import SEED_RANGE, InputError, check_choice, check_range
from tmft.io.atomic import error_text
from tmft.losses.nested import ALL_LAYERS
from tmft.pretraining.loop import PretrainingRecipe
from tmft.tasks import Task
from tmft.training.gradient_surgery import GRADIENT_SURGERY
from tmft.training.loop import Recipe
from tmft.training.multitask import STOPPING_STRATEGIES, TASK_SAMPLING

# Batch size and learning rate of ELECTRA-small, the defaults of pre-training from scratch. Continued
# pre-training uses the defaults of PretrainingRecipe, those of the TMFT paper.
FROM_SCRATCH_DEFAULTS = {"batch_size": 128, "gradient_accumulation_steps": 1, "lr": 5e-4}
GENERATOR_SIZE = 0.25  # width of the generator as a fraction of the discriminator's, as in ELECTRA
MAX_VOCAB_SIZE = 10_000_000


@dataclass(frozen=True)
class FineTuningRecipe(Recipe):
    """The paper's hyperparameters, and the options of what plugs into the training loop (runs/fine_tune.py).

    mini_batch_size: examples embedded at a time, of a batch that is too large for memory; None: all at once.
    task_sampling, stopping_strategy: which task a step trains, and when an epoch ends, when several tasks are
        trained together.
    gradient_surgery: how the gradients of several tasks are combined in a step.
    freeze_layers: number of frozen layers, counted from the bottom; the embeddings are frozen, too; -1
        freezes the whole encoder; None freezes nothing.
    all_layers: how the losses of all layers are combined when every layer is trained; None: the last layer.
    matryoshka_dims: how many first dimensions of an embedding are trained to be used alone, increasing.
    """

    mini_batch_size: int | None = None
    task_sampling: str = "joint"
    stopping_strategy: str = "first_exhausted"
    gradient_surgery: str = "none"
    freeze_layers: int | None = None
    all_layers: str | None = None
    matryoshka_dims: tuple[int, ...] | None = None

    def __post_init__(self):
        super().__post_init__()
        choices = {
            "task_sampling": TASK_SAMPLING,
            "stopping_strategy": STOPPING_STRATEGIES,
            "gradient_surgery": GRADIENT_SURGERY,
        }
        for name, entries in choices.items():
            check_choice(name, getattr(self, name), entries)
        if self.all_layers is not None:
            check_choice("all_layers", self.all_layers, ALL_LAYERS)
        if self.mini_batch_size is not None:
            check_range("mini_batch_size", self.mini_batch_size, 1)


@dataclass(frozen=True, kw_only=True)
class FineTuningConfig:
    """Everything that the scores of a fine-tuning run depend on.

    ckpt: hub id or folder of the checkpoint.
    init: "pretrained", or "random" to use only the architecture of the checkpoint, with random weights.
    layer: keep the first `layer` layers; None keeps all.
    init_from: folder of an earlier run of `ckpt` at the same layer, whose weights are used instead; {layer}
        and {seed} are replaced by those of the run.
    keep_layers: indices of the layers to keep, from 0, instead of the first `layer` ones.
    pooling: name of a pooling; None uses the one saved with the checkpoint, or the mean.
    token_weights: how tokens are weighted in the mean, an entry of TOKEN_WEIGHTS; None uses what is saved.
    projection: dimensions of a linear projection after the pooling; None adds none.
    max_length: tokens per sentence at most; None uses the limit of the checkpoint.
    loss_weights: weight of each task's loss when several tasks are trained together; None weights all by 1.
    train_fraction: fraction of the training examples to use, in (0, 1].
    """

    ckpt: str
    init: str = "pretrained"
    layer: int | None = None
    seed: int = 0
    init_from: str | None = None
    keep_layers: tuple[int, ...] | None = None
    pooling: str | None = None
    token_weights: str | None = None
    projection: int | None = None
    max_length: int | None = None
    loss_weights: tuple[float, ...] | None = None
    train_fraction: float = 1.0
    task: Task
    recipe: FineTuningRecipe

    def __post_init__(self):
        """Raise InputError if values do not go together or are out of range."""
        if self.init == "random" and self.init_from:
            raise InputError(
                "init random and init_from exclude each other: use one of the two", "init", "init_from"
            )
        if self.keep_layers and self.init_from:
            raise InputError(
                "keep_layers and init_from exclude each other, as the earlier run has chosen its layers: "
                "remove keep_layers",
                "keep_layers",
                "init_from",
                "keep_layers",
            )
        check_range("seed", self.seed, *SEED_RANGE)
        if not 0 < self.train_fraction <= 1:
            raise InputError(
                f"train_fraction {self.train_fraction:g}: choose above 0, up to 1", "train_fraction"
            )
        for weight in self.loss_weights or ():
            check_range("loss_weights", weight, 0)

    def to_flat_dict(self) -> dict:
        """Return the fields of this config and of its recipe in one dict."""
        return flatten_config(self)

    @property
    def num_loaded_layers(self) -> int | None:
        """How many layers are read from the checkpoint, counted from the bottom; None: all."""
        return max(self.keep_layers) + 1 if self.keep_layers else self.layer


@dataclass(frozen=True)
class Run:
    """One fine-tuning run of a sweep: its configuration, where it writes, and where its weights come from."""

    config: FineTuningConfig
    sweep: str  # name that all runs have which differ only in layer and seed
    folder: Path  # run folder
    data: str  # name of the data
    init_folder: Path  # folder of the checkpoint that the weights are loaded from: `ckpt` or `init_from`
    provenance: list[dict]  # the earlier runs that trained these weights, oldest first; see result_schema.py
    num_hidden_layers: int  # of the whole checkpoint


@dataclass(frozen=True, kw_only=True)
class PretrainingConfig:
    """Everything that a pre-training run depends on.

    task: "mlm", "rtd" or "span".
    ckpt: checkpoint to continue with. Exactly one of ckpt and from_scratch is given.
    from_scratch: architecture of a model with random weights: a config.json, a folder or a hub id.
    text: files with one sentence per line.
    vocab_size: train a vocabulary of this size on the text; only with from_scratch.
    generator_size: width of the generator as a fraction of the discriminator's; only for rtd. None: 0.25.
    save_fp16: save the weights in float16.
    """

    task: str
    ckpt: str | None = None
    from_scratch: str | None = None
    seed: int = 0
    text: tuple[Path, ...] = ()
    vocab_size: int | None = None
    generator_size: float | None = None
    save_fp16: bool = False
    recipe: PretrainingRecipe

    def __post_init__(self):
        """Raise InputError, before any work, if values do not go together or are out of range."""
        check_range("seed", self.seed, *SEED_RANGE)
        if self.vocab_size is not None:
            check_range("vocab_size", self.vocab_size, 1, MAX_VOCAB_SIZE)
        if not self.text:
            raise InputError(
                f"task {self.task} needs files to train on: name them with text FILE...", "task", "text"
            )
        if (self.ckpt is None) == (self.from_scratch is None):
            raise InputError(
                f"task {self.task} needs a checkpoint to continue with (ckpt) or the architecture of a new "
                "model (from_scratch): use one of the two",
                "task",
                "ckpt",
                "from_scratch",
            )
        if self.task == "span" and self.ckpt is not None:
            raise InputError(
                f"task {self.task} trains from scratch only: use from_scratch instead of ckpt",
                "task",
                "from_scratch",
                "ckpt",
            )
        if self.generator_size is not None and not 0 < self.generator_size <= 1:
            raise InputError(
                f"generator_size {self.generator_size}: choose above 0, up to 1", "generator_size"
            )
        if self.generator_size is not None and self.task != "rtd":
            raise InputError(
                f"generator_size has no effect with task {self.task}, which has no generator: "
                "remove generator_size",
                "generator_size",
                "task",
                "generator_size",
            )
        if self.vocab_size is not None and self.from_scratch is None:
            raise InputError(
                "vocab_size has no effect with ckpt, which has a vocabulary: remove vocab_size",
                "vocab_size",
                "ckpt",
                "vocab_size",
            )

    def to_flat_dict(self) -> dict:
        """Return the fields of this config and of its recipe in one dict; each text file with its size.

        generator_size is the one that is used, None for tasks other than rtd.
        """
        text = [[str(path), file_size(path)] for path in self.text]
        generator_size = (self.generator_size or GENERATOR_SIZE) if self.task == "rtd" else None
        return flatten_config(self) | {"text": text, "generator_size": generator_size}

    @property
    def name(self) -> str:
        """The default name of the run: checkpoint or architecture, and task."""
        source = (self.from_scratch or self.ckpt).partition("@")[0]
        return f"{Path(source).name.removesuffix('.json')}-{self.task}"


def parse_layer_list(text: str) -> tuple[int, ...]:
    """Parse the indices of layers to keep: "0,2,5" -> (0, 2, 5). Raise InputError if they do not increase."""
    words = text.split(",")
    layers = [int(word) for word in words if word.isdecimal()]
    if len(layers) < len(words) or layers != sorted(set(layers)):
        raise InputError(
            f"keep_layers {text}: write increasing layer indices, counted from 0, such as 0,2,5",
            "keep_layers",
        )
    return tuple(layers)


def flatten_config(config: FineTuningConfig | PretrainingConfig) -> dict:
    """Return the fields of a config, followed by those of its recipe."""
    fields = asdict(config)
    recipe = fields.pop("recipe")
    return fields | recipe


def file_size(path: Path) -> int:
    """The size of a file in bytes. Raise InputError if it cannot be read."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error_text(error)}): check the name") from None
