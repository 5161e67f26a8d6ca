"""ModelFolder: the opened folder of a model, which finds each of its files and reads each of them once.

A model is a folder of transformers (config.json, weights and tokenizer), one of sentence-transformers, whose
modules.json lists the modules that are applied to a sentence, each in its own subfolder, or a hub id. The
files of a hub id are downloaded when they are asked for, into the cache of huggingface-hub.
"""

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tmft.checkpoints.hub import HubRepository, is_hub_id
from tmft.checkpoints.weights import WEIGHT_FILES, WeightFiles, parse_index
from tmft.encoder import EncoderConfig
from tmft.errors import InputError, did_you_mean, short_repr
from tmft.io.atomic import WRITING
from tmft.io.files import (
    PACKAGE_DATA,
    UnsupportedError,
    check_symlink,
    file_digest,
    file_state,
    get_typed,
    is_plain_name,
    read_json,
    reading,
)
from tmft.models.families import config_from_dict

ST_CONFIG_FILES = (
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tmft.json",
)
# What a Transformer module says beside config.json; old versions named the file after the class of the model.
TRANSFORMER_CONFIG_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
ADAPTER_FILE = "adapter_config.json"  # weights that are added to those of the model, such as LoRA
TOKENIZER_CONFIG_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# From which a tokenizer is built if there is no tokenizer.json: those of the kinds in tokenizer_kinds.py.
VOCABULARY_FILES = ("vocab.txt", "spm.model", "spiece.model", "vocab.json", "merges.txt")
# Of the run that trained a model: its result, its head and what it predicted.
RUN_FILES = ("result.json", "head.safetensors", "predictions.npz")
# Every file that says what a model is; a folder has those of one save, so that no other one is left in it.
MODEL_FILES = (
    *ST_CONFIG_FILES,
    *TRANSFORMER_CONFIG_FILES,
    ADAPTER_FILE,
    *TOKENIZER_CONFIG_FILES,
    "tokenizer.json",
    *VOCABULARY_FILES,
    *WEIGHT_FILES,
    *RUN_FILES,
)
STATIC_EMBEDDING = "StaticEmbedding"  # the module that takes the place of Transformer in a static model
WORD_WEIGHTS = "WordWeights"  # the module with a weight for each word of the vocabulary
MODULES_WITH_WEIGHTS = ("Dense", "LayerNorm", WORD_WEIGHTS)
OWN_PACKAGE = "sentence_transformers."  # what the class of a module that tmft can run begins with
Parsed = TypeVar("Parsed")


class ModuleEntry(NamedTuple):
    """A line of modules.json: the class of a module and its subfolder ('': none).

    kind: the name of the class without its package, if sentence-transformers has the class; else its full
    name, as another package's class computes something else.
    """

    kind: str
    subfolder: str


class ModelFolder:
    """The opened folder of a model; names of files in it are relative to it, such as "1_Pooling/config.json".

    path: the local folder. name: the hub id or folder that the user gave, for messages. repository: the
    repository on the hub from which missing files are downloaded; None for a local folder.
    """

    def __init__(self, path: Path, name: str = "", repository: HubRepository | None = None):
        self.path, self.name, self.repository = path, name or str(path), repository
        # Of each file that was looked for: what changes when it is replaced, None if it was absent.
        self.states: dict[str, tuple[int, int, int] | None] = {}
        self.contents: dict[str, Any] = {}  # of each JSON file that was read

    @classmethod
    def open(cls, checkpoint: "str | os.PathLike[str] | ModelFolder", weights: bool = True) -> "ModelFolder":
        """Return the folder of a checkpoint; files of a hub id are downloaded if they are not in the cache.

        checkpoint: a folder, a hub id with an optional @revision, or one of the models that come with tmft:
        tiny, small, or a folder such as data/tiny. The owner sentence-transformers may be left out.
        weights: whether the weights are needed.
        Raises InputError if there is no such folder or hub id, if the hub does not answer and the files are
        not in the cache, or if the checkpoint has no configuration or no weights.
        """
        if isinstance(checkpoint, ModelFolder):
            checkpoint.require_files(weights)
            return checkpoint
        name = str(checkpoint)
        with reading(name[:200], "check the path, and the permissions of its folders"):
            path = Path(checkpoint).expanduser()
            shipped = PACKAGE_DATA / name.removeprefix("data/")
            is_shipped = name.startswith("data/") or ("/" not in name and (shipped / "config.json").is_file())
            if not path.exists() and is_shipped and shipped.is_dir():
                path = shipped  # tiny and data/twins come with the package, wherever it is used
            is_local = path.is_dir()
            if not is_local and path.exists():
                raise InputError(f"{name} is a file: name the folder that holds config.json and the weights")
        if is_local:
            folder = cls(path, name)
        elif is_hub_id(name):
            repository, path = HubRepository.find(name)
            folder = cls(path, repository.hub_id, repository)
        else:
            siblings = map(str, path.parent.glob("*/"))
            raise InputError(f"no folder {name}: check the path{did_you_mean(str(path), siblings)}")
        folder.require_files(weights)
        return folder

    def require_files(self, weights: bool) -> None:
        """Raise InputError if the folder has no configuration or, if they are needed, no weights."""
        if not (self.is_static or self.find(self.in_encoder("config.json"))):
            if any(self.path.glob(f"{WRITING}*")):
                raise InputError(f"{self.name} is not complete: wait until it is saved, or save it again")
            raise InputError(f"no config.json in {self.name}: this is not a checkpoint folder")
        if self.find(self.in_encoder(ADAPTER_FILE)):
            raise InputError(
                f"{self.name} has an adapter beside the weights ({ADAPTER_FILE}), which tmft does not apply: "
                "merge the two with merge_and_unload() of peft, and save the result"
            )
        if self.repository is not None:
            self.file_names(weights)  # now: later steps of a program may have no network
        elif weights or self.is_static:
            self.require_weights(self.encoder_subfolder)

    def find(self, file_name: str) -> Path | None:
        """Return the path of a file; None if there is none. A missing file of the hub is downloaded."""
        path = self.path / file_name
        if file_name not in self.states:
            if self.repository is not None:
                self.repository.fetch(file_name)
            self.states[file_name] = read_file_state(path)
        return path if self.states[file_name] is not None else None

    def read_json(self, file_name: str, kind: type[Any] = dict) -> Any:
        """Return the content of a JSON file, of type `kind`; an empty one if there is no such file."""
        if file_name not in self.contents:
            path = self.find(file_name)
            self.contents[file_name] = kind() if path is None else read_json(path, kind)
        return self.contents[file_name]

    def parse_json(self, file_name: str, parse: Callable[[Any], Parsed], kind: type[Any] = dict) -> Parsed:
        """Return parse(content of a JSON file), see read_json; an error of `parse` names the file."""
        content = self.read_json(file_name, kind)
        with reading(self.path / file_name):
            return parse(content)

    @cached_property
    def modules(self) -> list[ModuleEntry]:
        """The modules of modules.json, in order; none if there is no such file."""
        modules = self.parse_json("modules.json", parse_modules, list)
        for module in modules:
            check_symlink(self.path / module.subfolder, self.path)
        return modules

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

    def in_encoder(self, file_name: str) -> str:
        """Return the name, in the model folder, of a file in the folder of the encoder."""
        return f"{self.encoder_subfolder}/{file_name}" if self.encoder_subfolder else file_name

    @property
    def encoder_path(self) -> Path:
        """The folder of the encoder."""
        return self.path / self.encoder_subfolder

    def find_weights(self, subfolder: str) -> str | None:
        """Return the name of the first of WEIGHT_FILES in a subfolder; None if it has none."""
        names = (f"{subfolder}/{name}" if subfolder else name for name in WEIGHT_FILES)
        return next(filter(self.find, names), None)

    def require_weights(self, subfolder: str) -> str:
        """Return the result of find_weights. Raises InputError if the subfolder has no weights."""
        name = self.find_weights(subfolder)
        if name is None:
            where = f"{self.name}/{subfolder}" if subfolder else self.name
            missing = self.repository.problem if self.repository is not None else ""
            problem = f"no weights in {where}{missing and f', and {missing}'}"
            raise InputError(f"{problem}: expected one of {', '.join(WEIGHT_FILES)}")
        return name

    def open_weights(self, subfolder: str) -> WeightFiles:
        """Return the tensors in a subfolder. Raises InputError if it has none."""
        name = self.require_weights(subfolder)
        path, index = self.path / name, {}
        if path.suffix == ".json":
            index = self.parse_json(name, parse_index)
            for shard in dict.fromkeys(index.values()):
                self.find(f"{subfolder}/{shard}" if subfolder else shard)
                check_symlink(path.parent / shard, path.parent)
        return WeightFiles(path, index)

    @cached_property
    def weights(self) -> WeightFiles:
        """The tensors of the encoder."""
        return self.open_weights(self.encoder_subfolder)

    @cached_property
    def config_dict(self) -> dict[str, Any]:
        """The content of config.json; for a static model, which has none, the shape of its one matrix."""
        if not self.is_static:
            return self.read_json(self.in_encoder("config.json"))
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

    @cached_property
    def transformer_config_file(self) -> str:
        """The name of the file that a Transformer module has beside config.json, which may be absent."""
        files = TRANSFORMER_CONFIG_FILES if self.modules else TRANSFORMER_CONFIG_FILES[:1]
        return next(filter(self.find, (*map(self.in_encoder, files), *files)), files[0])

    def tokenizer_files(self) -> list[str]:
        """Return the names, in the folder of the encoder, of the files that hold the vocabulary.

        It is tokenizer.json alone, or else those of VOCABULARY_FILES that are there, which may be none.
        """
        if self.find(self.in_encoder("tokenizer.json")):
            return ["tokenizer.json"]
        return [name for name in VOCABULARY_FILES if self.find(self.in_encoder(name))]

    # ------------------------------------------------------------------------------------ all of its files

    def file_names(self, weights: bool = True) -> list[str]:
        """Return the names of all files that the model is read from, sorted; missing ones are downloaded.

        weights: False leaves out the weights of the encoder, unless the model is static.
        """
        names = {*ST_CONFIG_FILES, "config.json", self.transformer_config_file}
        tokenizer_files = (*TOKENIZER_CONFIG_FILES, *self.tokenizer_files())
        names |= {*map(self.in_encoder, ("config.json", "sentence_bert_config.json", *tokenizer_files))}
        for kind, subfolder in self.modules:
            if subfolder:
                names.add(f"{subfolder}/config.json")
            if subfolder and kind in MODULES_WITH_WEIGHTS:
                names.add(self.find_weights(subfolder) or "")
        if weights or self.is_static:
            names |= {str(path.relative_to(self.path)) for path in self.weights.files}
        return sorted(name for name in names if name and self.find(name))

    def digests(self, weights: bool = True) -> dict[str, str]:
        """Return {name: digest} of all files that the model is read from. weights: see file_names."""
        return {name: file_digest(self.path / name) for name in self.file_names(weights)}

    def is_unchanged(self) -> bool:
        """Return whether every file that was looked for is still as it was: the parts belong together."""
        return all(read_file_state(self.path / name) == state for name, state in self.states.items())


def read_file_state(path: Path) -> tuple[int, int, int] | None:
    """Return the size, the time of change and the inode of a regular file; None if there is none there.

    Raises InputError if a folder on the way may not be entered: the file may well be there.
    """
    state = file_state(path)
    if state is None or not stat.S_ISREG(state.st_mode):
        return None
    return state.st_size, state.st_mtime_ns, state.st_ino


def parse_modules(entries: list[dict[str, Any]]) -> list[ModuleEntry]:
    """Return the modules that a modules.json lists; each is in the folder itself or directly below it."""
    modules = []
    for entry in entries:
        check_known_keys(entry, {"idx": None, "name": None, "path": None, "type": None, "kwargs": ([],)})
        kind, subfolder = (get_typed(entry, key, str) or "" for key in ("type", "path"))
        kind = kind.rpartition(".")[2] if kind.startswith(OWN_PACKAGE) else kind
        subfolder = "" if subfolder == "." else subfolder.removeprefix("./").rstrip("/")
        if subfolder and not is_plain_name(subfolder):
            raise ValueError(f"a {kind} is in {short_repr(subfolder)}, not in a folder directly below")
        modules.append(ModuleEntry(kind, subfolder))
    return modules


def check_known_keys(content: dict[str, Any], known: Mapping[str, Sequence[object] | None]) -> dict[str, Any]:
    """Return the content of a file if all its keys are known; raise UnsupportedError otherwise.

    A key that nobody reads may change the result.
    known: key -> the values under which the result is that of a file without the key; None if the caller
    reads the key. Keys whose value is null or {} are as if they were absent.
    """
    for key, value in content.items():
        if value is None or value == {}:
            continue
        if key not in known:
            raise UnsupportedError(
                f"the key {short_repr(key)} is {short_repr(value)}, and tmft does not know it: other "
                "libraries may compute something else, so remove the key if it has no effect"
            )
        supported = known[key]
        if supported is not None and not any(type(value) is type(one) and value == one for one in supported):
            raise UnsupportedError(
                f"{key} is {short_repr(value)}, which tmft does not support: other libraries compute "
                "something else with it, so use a model without it"
            )
    return content
