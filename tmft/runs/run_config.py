"""What a run is: all that its outcome depends on. result.json has it as `settings`."""

from dataclasses import asdict, dataclass
from pathlib import Path

from tmft.data import Task
from tmft.errors import SEEDS, InputError, check_range
from tmft.io.atomic import reason
from tmft.pretraining.loop import PretrainingRecipe
from tmft.training.loop import Recipe

# Batch and rate of ELECTRA-small. What continues a checkpoint has the recipe's own, those of the TMFT paper.
FROM_SCRATCH = {"batch_size": 128, "accumulate": 1, "lr": 5e-4}
GENERATOR_SIZE = 0.25  # ELECTRA's


@dataclass(frozen=True, kw_only=True)
class FineTuningConfig:
    """What the scores of a run depend on. init_from: the weights to start from, if not those of ckpt, at the
    same layer; {layer} and {seed} stand for those of the run. keep: numbers of the layers that are kept, from
    0, None: the first `layer`; weights: of the losses of several tasks; share: of the train examples."""

    ckpt: str
    init: str = "pretrained"
    layer: int | None = None
    seed: int = 0
    init_from: str | None = None
    keep: tuple[int, ...] | None = None
    pooling: str | None = None
    tokens: str | None = None
    projection: int | None = None
    max_length: int | None = None
    weights: tuple[float, ...] | None = None
    share: float = 1.0
    task: Task
    recipe: Recipe

    def __post_init__(self):
        if self.init == "random" and self.init_from:
            raise InputError("init random and init_from: give one of the two", "init", "init_from")
        if self.keep and self.init_from:
            raise InputError(
                "keep and init_from: an earlier run has its layers, leave out keep", "keep", "init_from"
            )
        check_range("seed", self.seed, *SEEDS)
        if not 0 < self.share <= 1:
            raise InputError(f"share {self.share:g}: choose above 0, up to 1", "share")
        for weight in self.weights or ():
            check_range("weights", weight, 0)

    @property
    def settings(self) -> dict:
        """The fields, those of the recipe among them."""
        return flat(self)

    @property
    def depth(self) -> int | None:
        """Layers that are read, from below."""
        return max(self.keep) + 1 if self.keep else self.layer


@dataclass(frozen=True)
class Run:
    """One run of a sweep: what it is, where it writes, where its weights come from."""

    what: FineTuningConfig
    sweep: str  # name of all runs that differ in layer and seed only
    folder: Path
    data: str  # name of the data
    weights: Path  # folder of ckpt, or of what init_from names
    history: list[dict]  # results of the runs that these weights have been through
    num_hidden_layers: int  # of the whole checkpoint


@dataclass(frozen=True, kw_only=True)
class PretrainingConfig:
    """What a run depends on. Either ckpt, a checkpoint to go on with, or from_scratch, the shape of random
    weights: a config.json, a folder or a hub id. text: files with a sentence per line. vocab_size: of a
    vocabulary to be made from the text; generator_size: of rtd, the generator's width as a share of the
    discriminator's, None is a quarter; half: save in float16.
    """

    task: str
    ckpt: str | None = None
    from_scratch: str | None = None
    seed: int = 0
    text: tuple[Path, ...] = ()
    vocab_size: int | None = None
    generator_size: float | None = None
    half: bool = False
    recipe: PretrainingRecipe

    def __post_init__(self):
        """Raises InputError for what does not go together, before any work."""
        check_range("seed", self.seed, *SEEDS)
        if self.vocab_size is not None:
            check_range("vocab_size", self.vocab_size, 1, 10_000_000)
        if not self.text:
            raise InputError(
                f"task {self.task}: name the lines to train on with text FILE...", "task", "text"
            )
        if (self.ckpt is None) == (self.from_scratch is None):
            raise InputError(
                f"task {self.task}: name either a checkpoint to continue with ckpt, or a shape to train with "
                "from_scratch",
                "task",
                "ckpt",
                "from_scratch",
            )
        if self.task == "span" and self.ckpt is not None:
            raise InputError(
                f"task {self.task}: it starts with from_scratch, not with ckpt",
                "task",
                "ckpt",
                "from_scratch",
            )
        if self.generator_size is not None and not 0 < self.generator_size <= 1:
            raise InputError(
                f"generator_size {self.generator_size}: choose a share above 0, up to 1", "generator_size"
            )
        if self.generator_size is not None and self.task != "rtd":
            raise InputError(f"generator_size: task {self.task} has no generator", "generator_size", "task")
        if self.vocab_size is not None and self.from_scratch is None:
            raise InputError("vocab_size: a checkpoint has its vocabulary, leave it out", "vocab_size")

    @property
    def settings(self) -> dict:
        """The fields, those of the recipe among them; of each file of text its size, too."""
        text = [[str(path), size(path)] for path in self.text]
        width = (self.generator_size or GENERATOR_SIZE) if self.task == "rtd" else None
        return flat(self) | {"text": text, "generator_size": width}

    @property
    def name(self) -> str:
        source = (self.from_scratch or self.ckpt).partition("@")[0]
        return f"{Path(source).name.removesuffix('.json')}-{self.task}"


def parse_keep(text: str) -> tuple[int, ...]:
    """'0,2,5' -> (0, 2, 5)"""
    parts = text.split(",")
    layers = [int(part) for part in parts if part.isdecimal()]
    if len(layers) < len(parts) or layers != sorted(set(layers)):
        raise InputError(f"keep {text}: write numbers of layers that rise, from 0, such as 0,2,5", "keep")
    return tuple(layers)


def flat(what: FineTuningConfig | PretrainingConfig) -> dict:
    """The fields of a run, then those of its recipe."""
    fields = asdict(what)
    recipe = fields.pop("recipe")
    return fields | recipe


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise InputError(f"{path} cannot be read ({reason(error)}): check the name") from None
