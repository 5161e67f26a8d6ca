"""ModelFolder: the opened folder of a model, which finds each of its files and reads each of them once.

A model is a folder of transformers (config.json, weights and tokenizer), one of sentence-transformers, whose
modules.json lists the modules that are applied to a sentence, each in its own subfolder, or a hub id. The
files of a hub id are downloaded when they are asked for, into the cache of huggingface-hub.
"""

import os
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tmft.checkpoints.hub import HubRepository, is_hub_id
from tmft.checkpoints.weights import WEIGHT_FILES, WeightFiles
from tmft.errors import InputError, did_you_mean, short_repr
from tmft.io.files import (
    FileState,
    check_symlink,
    file_digest,
    file_state,
    get_typed,
    is_plain_name,
    read_json,
    reading,
)
from tmft.io.paths import PACKAGE_DATA
from tmft.models.base import EncoderConfig
from tmft.models.registry import config_from_dict

ST_CONFIG_FILES = (
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tmft.json",
)
TOKENIZER_CONFIG_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# From which a tokenizer is built if there is no tokenizer.json: the files of all kinds in tokenizer_kinds.py.
VOCABULARY_FILES = (
    *("vocab.txt", "spm.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "merges.txt"),
)
STATIC_EMBEDDING = "StaticEmbedding"  # the module that takes the place of Transformer in a static model
MODULES_WITH_WEIGHTS = ("Dense", "LayerNorm", "WordWeights")
Parsed = TypeVar("Parsed")
MAX_MODULES = 50  # of one model; the files of each of them are requests to the hub


class ModuleEntry(NamedTuple):
    """A line of modules.json: the class of a module, without its package, and its subfolder ('': none)."""

    kind: str
    subfolder: str


class ModelFolder:
    """The opened folder of a model; names of files in it are relative to it, such as "1_Pooling/config.json".

    path: the local folder. name: the hub id or folder that the user gave, for messages. repository: the
    repository on the hub from which missing files are downloaded; None for a local folder.
    """

    path: Path
    name: str
    repository: HubRepository | None
    states: dict[str, FileState | None]  # of each file that was looked for: its state then, None if absent
    contents: dict[str, Any]  # of each JSON file that was read

    def __init__(self, path: Path, name: str = "", repository: HubRepository | None = None):
        self.path, self.name, self.repository = path, name or str(path), repository
        self.states, self.contents = {}, {}

    @classmethod
    def open(cls, checkpoint: "str | os.PathLike[str] | ModelFolder", weights: bool = True) -> "ModelFolder":
        """Return the folder of a checkpoint; files of a hub id are downloaded if they are not in the cache.

        checkpoint: a folder, a hub id with an optional @revision, or one of the models that come with tmft,
        such as data/tiny. weights: whether the weights are needed.
        Raises InputError if there is no such folder or hub id, if the hub does not answer and the files are
        not in the cache, or if the checkpoint has no configuration or no weights.
        """
        if isinstance(checkpoint, ModelFolder):
            return checkpoint
        name = str(checkpoint)
        with reading(name[:200], "check the path, and the permissions of its folders"):
            path = Path(checkpoint).expanduser()
            shipped = PACKAGE_DATA / name.removeprefix("data/")
            if not path.exists() and name.startswith("data/") and shipped.is_dir():
                path = shipped  # data/tiny and data/twins come with the package, wherever it is used
            is_local = path.is_dir()
            if not is_local and path.exists():
                raise InputError(f"{name} is a file: name the folder that holds config.json and the weights")
        if is_local:
            folder = cls(path, name)
        elif is_hub_id(name):
            repository = HubRepository(name)
            folder = cls(repository.open(), name, repository)
        else:
            siblings = map(str, path.parent.glob("*/"))
            raise InputError(f"no folder {name}: check the path{did_you_mean(str(path), siblings)}")
        if not (folder.is_static or folder.find(folder.in_encoder("config.json"))):
            raise InputError(f"no config.json in {name}: this is not a checkpoint folder")
        if folder.repository is not None:
            folder.file_names(weights)  # now: later steps of a program may have no network
        elif weights or folder.is_static:
            folder.find_weights(folder.encoder_subfolder)
        return folder

    def find(self, name: str) -> Path | None:
        """Return the path of a file; None if there is none. A missing file of the hub is downloaded."""
        path = self.path / name
        if name not in self.states:
            if self.repository is not None:
                self.repository.fetch(name)
            self.states[name] = file_state(path)
        return path if self.states[name] is not None else None

    def read_json(self, name: str, kind: type[Any] = dict) -> Any:
        """Return the content of a JSON file, of type `kind`; an empty one if there is no such file."""
        if name not in self.contents:
            path = self.find(name)
            self.contents[name] = kind() if path is None else read_json(path, kind)
        return self.contents[name]

    def parse_json(self, name: str, parse: Callable[[Any], Parsed], kind: type[Any] = dict) -> Parsed:
        """Return parse(content of a JSON file), see read_json; an error of `parse` names the file."""
        content = self.read_json(name, kind)
        with reading(self.path / name):
            return parse(content)

    @cached_property
    def modules(self) -> list[ModuleEntry]:
        """The modules of modules.json, in order; none if there is no such file.

        Raises InputError if a module is neither in the folder nor directly below it.
        """
        return self.parse_json("modules.json", self.parse_modules, list)

    def parse_modules(self, entries: list[dict[str, Any]]) -> list[ModuleEntry]:
        """Return the modules that modules.json lists."""
        path, modules = self.path / "modules.json", []
        if len(entries) > MAX_MODULES:
            raise InputError(f"{path} lists {len(entries)} modules: at most {MAX_MODULES} are supported")
        for entry in entries:
            kind, subfolder = (get_typed(entry, key, str) or "" for key in ("type", "path"))
            kind, subfolder = kind.rpartition(".")[2], "" if subfolder == "." else subfolder
            if subfolder and not is_plain_name(subfolder):
                where = short_repr(subfolder)
                raise InputError(f"{path} has a {kind} in {where}: expected a folder directly below")
            check_symlink(self.path / subfolder, self.path)
            modules.append(ModuleEntry(kind, subfolder))
        return modules

    def subfolder_of(self, kind: str) -> str | None:
        """Return the subfolder of the first module of a class; None if there is no such module."""
        return next((module.subfolder for module in self.modules if module.kind == kind), None)

    @property
    def is_static(self) -> bool:
        """Whether this is a static model: its first module is a StaticEmbedding."""
        return bool(self.modules) and self.modules[0].kind == STATIC_EMBEDDING

    @cached_property
    def encoder_subfolder(self) -> str:
        """Where the configuration, the weights and the tokenizer of the encoder are: '' or a subfolder.

        It is the subfolder of the first module in modules.json, unless the encoder is at the top. A
        config.json at the top is ignored if it is not the configuration of an encoder: old versions of
        sentence-transformers wrote one that says which version they are.
        """
        kind, subfolder = next(iter(self.modules), ("", ""))
        if not subfolder or kind not in ("Transformer", STATIC_EMBEDDING):
            return ""
        has_config = self.read_json("config.json").keys() & {"model_type", "hidden_size", "vocab_size"}
        return "" if has_config or any(self.find(name) for name in WEIGHT_FILES) else subfolder

    def in_encoder(self, name: str) -> str:
        """Return the name, in the model folder, of a file in the folder of the encoder."""
        return f"{self.encoder_subfolder}/{name}" if self.encoder_subfolder else name

    @property
    def encoder_path(self) -> Path:
        """The folder of the encoder."""
        return self.path / self.encoder_subfolder

    def find_weights(self, subfolder: str) -> str:
        """Return the name of the first of WEIGHT_FILES in a subfolder. Raises InputError if it has none."""
        names = [f"{subfolder}/{name}" if subfolder else name for name in WEIGHT_FILES]
        name = next(filter(self.find, names), None)
        if name is None:
            where = f"{self.name}/{subfolder}" if subfolder else self.name
            missing = self.repository.problem if self.repository is not None else ""
            problem = f"no weights in {where}{missing and f', and {missing}'}"
            raise InputError(f"{problem}: expected one of {', '.join(WEIGHT_FILES)}")
        return name

    def open_weights(self, subfolder: str) -> WeightFiles:
        """Return the tensors in a subfolder."""
        return WeightFiles(self.path / self.find_weights(subfolder), self.find_shard)

    def find_shard(self, path: Path) -> None:
        """Look for a file with a part of the weights, which is downloaded if it is missing."""
        self.find(str(path.relative_to(self.path)))

    @cached_property
    def weights(self) -> WeightFiles:
        """The tensors of the encoder."""
        return self.open_weights(self.encoder_subfolder)

    @cached_property
    def config_dict(self) -> dict[str, Any]:
        """The content of config.json; for a static model, which has none, the shape of its one matrix."""
        if not self.is_static:
            name = self.in_encoder("config.json")
            return read_json(self.path / name) if self.find(name) is None else self.read_json(name)
        shapes = [tuple(tensor.shape) for tensor in self.weights.read_tensors(self.weights.names).values()]
        if len(shapes) != 1 or len(shapes[0]) != 2:
            expected = f"a {STATIC_EMBEDDING} has one, embedding.weight, of words by dimensions"
            raise InputError(f"{self.weights.path} holds tensors of shapes {shapes}: {expected}")
        return {"model_type": "static", "vocab_size": shapes[0][0], "hidden_size": shapes[0][1]}

    def config(self, components: Iterable[str] = ()) -> EncoderConfig:
        """Return the configuration of the encoder.

        components: what is to be loaded besides the encoder, such as ["decoder"] for a T5.
        """
        with reading(self.path / self.in_encoder("config.json")):
            return config_from_dict(self.config_dict, components)

    def file_names(self, weights: bool = True) -> list[str]:
        """Return the names of all files that the model is read from, sorted; missing ones are downloaded.

        weights: False leaves out the weights of the encoder, unless the model is static.
        """
        names = {*ST_CONFIG_FILES, "config.json"}
        names |= {
            self.in_encoder(name)
            for name in ("config.json", "sentence_bert_config.json", *TOKENIZER_CONFIG_FILES)
        }
        tokenizer_json = self.in_encoder("tokenizer.json")
        vocabulary = [] if self.find(tokenizer_json) else map(self.in_encoder, VOCABULARY_FILES)
        names |= {tokenizer_json, *vocabulary}
        for kind, subfolder in self.modules:
            if subfolder:
                names.add(f"{subfolder}/config.json")
            if subfolder and kind in MODULES_WITH_WEIGHTS:
                names.add(next(filter(self.find, (f"{subfolder}/{name}" for name in WEIGHT_FILES)), ""))
        if weights or self.is_static:
            names |= {str(path.relative_to(self.path)) for path in self.weights.files}
        return sorted(name for name in names if name and self.find(name))

    def digests(self, weights: bool = True) -> dict[str, str]:
        """Return {name: digest} of all files that the model is read from. weights: see file_names."""
        return {name: file_digest(self.path / name) for name in self.file_names(weights)}

    def is_unchanged(self) -> bool:
        """Return whether every file that was looked for is still as it was: the parts belong together."""
        return all(file_state(self.path / name) == state for name, state in self.states.items())
