"""The folder of a sentence-transformers model: what it says beyond the encoder, as plain values.

modules.json lists what a sentence goes through: Transformer, Pooling, then any of MODULES in folders of their
own. A pooling that sentence-transformers does not know stands in tmft.json, and as the mean for others.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from tmft.errors import InputError
from tmft.files.folder import read_json, write_file
from tmft.files.save import save_tensors
from tmft.files.weights import WEIGHT_FILES, WeightFiles
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
FIRST, MODULES = ("Transformer", "Pooling"), ("Dense", "LayerNorm", "Normalize")


@dataclass
class Module:
    """What follows the pooling. kind: of MODULES; settings: its config.json; weights: its tensors."""

    kind: str
    settings: dict = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    folder: str = ""  # where it was read


@dataclass
class SentenceFolder:
    """pooling: as in tmft/pooling.py, None if not said; prompt: what is put before each sentence."""

    pooling: str | None = None
    max_length: int | None = None
    lower_case: bool = False
    prompt: str = ""
    modules: list[Module] = field(default_factory=list)


def read_sentence_folder(folder: Path, modules: bool = True) -> SentenceFolder:
    """modules: whether to read those after the pooling; InputError if tmft cannot run one of them."""

    def content(name: str) -> dict:
        return read_json(folder / name) if (folder / name).is_file() else {}

    settings, more = content("sentence_bert_config.json"), content("config_sentence_transformers.json")
    limit = settings.get("max_seq_length")
    prompts, default = more.get("prompts") or {}, more.get("default_prompt_name")
    listed = modules_of(folder)
    where = next((path for kind, path in listed if kind == "Pooling"), "1_Pooling")
    pooling = content(f"{where}/config.json")
    if default and prompts.get(default) and pooling.get("include_prompt") is False:
        raise InputError(
            f"{folder} pools without its prompt {default!r} (include_prompt): this is not supported"
        )
    return SentenceFolder(
        pooling=content("tmft.json").get("pooling") or pooling_name(pooling),
        max_length=limit if isinstance(limit, int) and limit > 0 else None,
        lower_case=bool(settings.get("do_lower_case")),
        prompt=prompts.get(default) or "",
        modules=[read_module(folder, *module) for module in listed if module[0] not in FIRST and modules],
    )


def pooling_name(content: dict) -> str | None:
    """1_Pooling/config.json, old form (a key for each pooling) or new one, to a name such as max+mean."""
    said = content.get("pooling_mode") or [m for m in SIDE_BY_SIDE if content.get(POOLINGS[m].elsewhere)]
    return said if isinstance(said, str) else "+".join(map(str, said)) or None


def unknown_pooling(name: str) -> str:
    """What sentence-transformers does otherwise with this pooling, in a sentence; '' for nothing."""
    if all(POOLINGS[part].elsewhere for part in name.split("+")):
        return ""
    return f"sentence-transformers has no pooling {name!r} and takes the mean."


def modules_of(folder: Path) -> list[tuple[str, str]]:
    """Kind and folder of each module of modules.json, in order."""
    if not (folder / "modules.json").is_file():
        return []
    entries = read_json(folder / "modules.json", list)
    return [(str(entry.get("type")).rpartition(".")[2], str(entry.get("path"))) for entry in entries]


def module_files(folder: Path) -> list[str]:
    """Names of the files, below the folder, that its modules may need."""
    listed = [(kind, path) for kind, path in modules_of(folder) if Path(path).name == path != ""]
    configs = [f"{path}/config.json" for kind, path in listed]
    return configs + [f"{path}/{name}" for kind, path in listed if kind in MODULES for name in WEIGHT_FILES]


def read_module(folder: Path, kind: str, path: str) -> Module:
    place = folder / path
    settings, cannot = {}, ""
    if kind not in MODULES or Path(path).name != path:
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


def write_sentence_folder(folder: Path, said: SentenceFolder, hidden_size: int) -> None:
    """Write what sentence-transformers reads beside the encoder, in the keys that all its versions know."""
    names = said.pooling.split("+")
    ours = unknown_pooling(said.pooling) != ""
    theirs = ["mean"] if ours else names
    pooling = {"word_embedding_dimension": hidden_size}
    pooling |= {POOLINGS[name].elsewhere: name in theirs for name in dict.fromkeys([*WRITTEN, *theirs])}
    if theirs != [name for name in SIDE_BY_SIDE if name in theirs]:  # of another order, or one twice
        pooling["pooling_mode"] = theirs
    kinds = ["Transformer", "Pooling", *(module.kind for module in said.modules)]
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], start=1))]
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    versions = {"sentence_transformers": "2.0.0", "transformers": "4.6.1", "pytorch": "1.8.1"}
    contents = {
        "modules.json": modules,
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": {"max_seq_length": said.max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "__version__": versions,  # the oldest that reads these files: a newer one would make it warn
            "prompts": {"default": said.prompt} if said.prompt else {},
            "default_prompt_name": "default" if said.prompt else None,
            "similarity_fn_name": "cosine",
        },
    }
    if ours:
        contents["tmft.json"] = {"pooling": said.pooling}
    else:
        (folder / "tmft.json").unlink(missing_ok=True)  # of a model that was here before
    for path, module in zip(paths[2:], said.modules, strict=True):
        contents[f"{path}/config.json"] = module.settings
        if module.weights:
            save_tensors(module.weights, folder / path / "model.safetensors")
    for name, content in contents.items():
        write_file(folder / name, json.dumps(content, indent=2) + "\n")
