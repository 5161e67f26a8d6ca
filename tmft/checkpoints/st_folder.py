"""The folder of a sentence-transformers model: what it says beyond the encoder, as plain values.

modules.json lists what a sentence goes through: Transformer, WordWeights if tokens differ in weight, Pooling,
then any of MODULES in folders of their own; or a StaticEmbedding in place of the first three. What
sentence-transformers does not know stands in tmft.json, and for others as what comes nearest.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from tmft.checkpoints.save import save_tensors
from tmft.checkpoints.st_modules import STATIC, home_of, modules_of
from tmft.checkpoints.tokenizers import Tokenizer
from tmft.checkpoints.weights import WEIGHT_FILES, WeightFiles
from tmft.errors import InputError, short
from tmft.io.atomic import read_json, write_file
from tmft.io.json_values import value_of
from tmft.pooling import POOLINGS

SENTENCE_FILES = (
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tmft.json",
)
WRITTEN = ("cls", "mean", "max", "mean_sqrt_len_tokens")  # keys that all versions know
SIDE_BY_SIDE = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")  # their order
FIRST, WEIGHTS = ("Transformer", STATIC, "Pooling"), "WordWeights"
LONGEST_NAME = 200  # letters of a pooling such as max+mean
MODULES = ("Dense", "LayerNorm", "Normalize")  # what may follow the pooling


@dataclass
class Module:
    """What follows the pooling. kind: of MODULES; settings: its config.json; weights: its tensors."""

    kind: str
    settings: dict = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    folder: str = ""  # where it was read


@dataclass
class SentenceFolder:
    """pooling: as in tmft/pooling.py, None if not said; prompt: a template, or what is put before a sentence;
    layer: the mix of hidden states, None: the last one; tokens: the name of weights that follow from the
    place of a token, else None; weights: of the words of the vocabulary, (V,), None: all are alike.
    """

    pooling: str | None = None
    max_length: int | None = None
    lower_case: bool = False
    prompt: str = ""
    layer: str | None = None
    tokens: str | None = None
    weights: Tensor | None = None
    modules: list[Module] = field(default_factory=list)

    @property
    def ours(self) -> dict[str, str]:
        """What sentence-transformers cannot say, for tmft.json."""
        unknown = not all(POOLINGS[part].elsewhere for part in (self.pooling or "mean").split("+"))
        template = "[X" in self.prompt.removesuffix("[X]") or "[M]" in self.prompt
        said = {"pooling": unknown and self.pooling, "layer": self.layer, "tokens": self.tokens}
        return {key: value for key, value in {**said, "prompt": template and self.prompt}.items() if value}

    @property
    def plain_mean(self) -> bool:
        """Whether an embedding is the mean of the last hidden states and nothing else."""
        around = self.modules or self.prompt or self.ours or self.weights is not None
        return self.pooling == "mean" and not around

    @property
    def differs(self) -> str:
        """What sentence-transformers does otherwise, in sentences; '' for nothing."""
        said = {
            "pooling": "has no pooling {!r} and takes the mean",
            "layer": "takes the last hidden state, not the mix {}",
            "tokens": "takes the mean of all tokens, not of the tokens {}",
            "prompt": "leaves out the prompt {!r}",
        }
        words = [said[key].format(value) for key, value in self.ours.items()]
        if self.weights is not None and (self.weights == 0).any():
            words.append("makes a sentence whose words all weigh 0 a vector of zeros, not the plain mean")
        if self.weights is not None and self.pooling != "mean":
            words.append(f"weighs tokens otherwise before the pooling {self.pooling!r}")
        return " ".join(f"sentence-transformers {part}." for part in words)


def read_sentence_folder(folder: Path, modules: bool = True) -> SentenceFolder:
    """modules: whether to read those after the pooling; InputError if tmft cannot run one of them."""

    def content(name: str | Path) -> dict:
        return read_json(folder / name) if (folder / name).is_file() else {}

    def said(name: str, key: str, kind: type = str):
        return value_of(content(name), key, kind, folder / name)

    home, more = home_of(folder).relative_to(folder), "config_sentence_transformers.json"
    settings = content(home / "sentence_bert_config.json") or content("sentence_bert_config.json")
    limit = settings.get("max_seq_length")
    prompts, default = said(more, "prompts", dict) or {}, said(more, "default_prompt_name")
    prompt = value_of(prompts, default, str, folder / more)
    listed, ours = modules_of(folder), content("tmft.json")
    where = next((path for kind, path in listed if kind == "Pooling"), "" if listed else "1_Pooling")
    weights = next((path for kind, path in listed if kind == WEIGHTS and modules), None)
    pooling = content(f"{where}/config.json") if where else {}
    if prompt and pooling.get("include_prompt") is False:
        raise InputError(
            f"{folder} pools without its prompt {default!r} (include_prompt): this is not supported"
        )
    name = said("tmft.json", "pooling") or pooling_name(pooling)
    if name and len(name) > LONGEST_NAME:
        raise InputError(
            f"{folder} has a pooling {short(name)}: its name is longer than {LONGEST_NAME} letters"
        )
    if weights and (name or "mean") != "mean" and not ours:
        raise InputError(
            f"{folder} weighs tokens ({WEIGHTS}) before the pooling {name!r}, which tmft cannot run: name a "
            "pooling to leave out what is around it",
            "pooling",
        )
    return SentenceFolder(
        pooling=name,
        max_length=limit if isinstance(limit, int) and limit > 0 else None,
        lower_case=bool(settings.get("do_lower_case")),
        prompt=said("tmft.json", "prompt") or prompt or "",
        layer=said("tmft.json", "layer"),
        tokens=said("tmft.json", "tokens") if modules else None,
        weights=read_word_weights(folder, weights) if weights else None,
        modules=[read_module(folder, *of) for of in listed if of[0] not in (*FIRST, WEIGHTS) and modules],
    )


def pooling_name(content: dict) -> str | None:
    """1_Pooling/config.json, old form (a key for each pooling) or new one, to a name such as max+mean."""
    said = content.get("pooling_mode") or [m for m in SIDE_BY_SIDE if content.get(POOLINGS[m].elsewhere)]
    return said if isinstance(said, str) else "+".join(map(str, said)) or None


def module_files(folder: Path) -> list[str]:
    """Names of the files, below the folder, that its modules may need."""
    listed = [(kind, path) for kind, path in modules_of(folder) if path]
    configs = [f"{path}/config.json" for kind, path in listed]
    weighty = (*MODULES, WEIGHTS)
    return configs + [f"{path}/{name}" for kind, path in listed if kind in weighty for name in WEIGHT_FILES]


def read_module(folder: Path, kind: str, path: str) -> Module:
    place = folder / path
    settings, cannot = {}, ""
    if kind not in MODULES or not path:
        cannot = f"{folder}/modules.json has a {kind} in {path!r}"
    elif (place / "config.json").is_file():
        settings = read_json(place / "config.json")
        of_tokens = settings.get("module_input_name", "sentence_embedding") != "sentence_embedding"
        if settings.get("use_residual") or of_tokens:
            cannot = f"{place} is a {kind} with a residual or one of tokens"
    if cannot:
        remedy = "name a pooling to leave out what follows it"
        raise InputError(f"{cannot}, which tmft cannot run: {remedy}", "pooling")
    if kind == "Normalize":
        return Module(kind, folder=str(place))
    files = WeightFiles(place)
    return Module(kind, settings, files.read(files.names), str(place))


def read_word_weights(folder: Path, path: str) -> Tensor:
    """The (V,) weights of a WordWeights, V words in the order of their ids."""
    files = WeightFiles(folder / path)
    if files.names != ["emb_layer.weight"]:
        raise InputError(f"{files.path} has {', '.join(files.names)}: a {WEIGHTS} has emb_layer.weight alone")
    return files.read(files.names)["emb_layer.weight"].float().flatten()


def check_static(said: SentenceFolder) -> None:
    """Raises InputError for what a static model cannot be saved with: it has no module but its table."""
    if said.weights is not None or said.tokens or said.pooling != "mean":
        raise InputError("a static model is saved with the plain mean only: without token weights", "tokens")


def write_sentence_folder(
    folder: Path,
    said: SentenceFolder,
    hidden_size: int,
    tokenizer: Tokenizer,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write what sentence-transformers reads beside the encoder, in the keys that all its versions know.

    dtype: of the encoder, and so of what follows, as numbers of one kind have to meet there. InputError where
    they cannot: weights of words make float32 of them, and a Dense is opened in that of the encoder.
    """
    if dtype != torch.float32 and said.weights is not None and any(module.weights for module in said.modules):
        what = f"dtype {dtype}: sentence-transformers cannot run weights of words before a Dense in it"
        raise InputError(f"{what}, choose float32".replace("torch.", ""), "dtype")
    static = tokenizer.bare
    names = said.pooling.split("+")
    theirs = ["mean"] if "pooling" in said.ours else names
    pooling = {"word_embedding_dimension": hidden_size}
    pooling |= {POOLINGS[name].elsewhere: name in theirs for name in dict.fromkeys([*WRITTEN, *theirs])}
    if theirs != [name for name in SIDE_BY_SIDE if name in theirs]:  # of another order, or one twice
        pooling["pooling_mode"] = theirs
    kinds = [STATIC] if static else ["Transformer", "Pooling"]
    following = [
        (f"{number}_{module.kind}", module) for number, module in enumerate(said.modules, start=len(kinds))
    ]
    paths = dict(zip(["", "1_Pooling"][: len(kinds)], kinds, strict=True))
    if said.weights is not None:
        words = tokenizer.words
        values = said.weights[: len(words)]
        known = {"vocab": words, "word_weights": dict(zip(words, values.tolist(), strict=True))}
        weights = Module(WEIGHTS, known, {"emb_layer.weight": values[:, None].clone()})
        following.append(("0_WordWeights", weights))
        paths = {"": kinds[0], "0_WordWeights": WEIGHTS, "1_Pooling": kinds[1]}
    paths |= {path: module.kind for path, module in following if module.kind != WEIGHTS}
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(paths.items())
    ]
    prompt = "" if "prompt" in said.ours else said.prompt.removesuffix("[X]")
    versions = {"sentence_transformers": "2.0.0", "transformers": "4.6.1", "pytorch": "1.8.1"}
    contents = {
        "modules.json": modules,
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": {"max_seq_length": said.max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "__version__": versions,  # the oldest that reads these files: a newer one would make it warn
            "prompts": {"default": prompt} if prompt else {},
            "default_prompt_name": "default" if prompt else None,
            "similarity_fn_name": "cosine",
        },
    }
    if said.ours:
        contents["tmft.json"] = said.ours
    else:
        (folder / "tmft.json").unlink(missing_ok=True)  # of a model that was here before
    if static:
        for name in ("1_Pooling/config.json", "sentence_bert_config.json"):
            del contents[name]
            (folder / name).unlink(missing_ok=True)
    for path, module in following:
        contents[f"{path}/config.json"] = module.settings
        if module.weights:
            save_tensors(module.weights, folder / path / "model.safetensors", dtype)
    for name, content in contents.items():
        write_file(folder / name, json.dumps(content, indent=2) + "\n")
