"""Find a checkpoint, read only the tensors of the kept layers, account for every other one, and save.

    folder = find("google/electra-base-discriminator")       # a hub id[@revision] or a folder
    encoder, report = load_encoder(folder, layer=9)

A checkpoint is a stranger's file: nothing in it is ever run. Tensors come from safetensors, or from a
pytorch_model.bin that is unpickled as tensors only.
"""

import json
import os
import pickle
import re
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tmft.deberta import DebertaEncoder
from tmft.encoder import Encoder, EncoderConfig
from tmft.errors import InputError

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
)  # in order of preference
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "spm.model", "tokenizer_config.json")
SENTENCE_FILES = ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json")

# fmt: off
# Module in the checkpoint -> module in tmft.encoder or tmft.deberta; {n} is the number of the layer, from 0.
# load_encoder reads left to right, save_encoder right to left, so no name is written twice.
BERT_NAMES = {
    "embeddings.word_embeddings":                "embeddings.word",
    "embeddings.position_embeddings":            "embeddings.position",
    "embeddings.token_type_embeddings":          "embeddings.token_type",
    "embeddings.LayerNorm":                      "embeddings.norm",
    "encoder.layer.{n}.attention.self.query":    "layers.{n}.attention.query",
    "encoder.layer.{n}.attention.self.key":      "layers.{n}.attention.key",
    "encoder.layer.{n}.attention.self.value":    "layers.{n}.attention.value",
    "encoder.layer.{n}.attention.output.dense":  "layers.{n}.attention.output",
    "encoder.layer.{n}.attention.output.LayerNorm": "layers.{n}.attention_norm",
    "encoder.layer.{n}.intermediate.dense":      "layers.{n}.feed_forward.up",
    "encoder.layer.{n}.output.dense":            "layers.{n}.feed_forward.down",
    "encoder.layer.{n}.output.LayerNorm":        "layers.{n}.feed_forward_norm",
}
ELECTRA_NAMES = BERT_NAMES | {"embeddings_project": "embeddings.project"}  # embedding_size != hidden_size
DEBERTA_NAMES = {
    "embeddings.word_embeddings":                "embeddings.word",
    "embeddings.position_embeddings":            "embeddings.position",
    "embeddings.token_type_embeddings":          "embeddings.token_type",
    "embeddings.embed_proj":                     "embeddings.project",
    "embeddings.LayerNorm":                      "embeddings.norm",
    "encoder.rel_embeddings":                    "rel_embeddings",
    "encoder.LayerNorm":                         "rel_norm",
    "encoder.conv.conv":                         "convolution.conv",
    "encoder.conv.LayerNorm":                    "convolution.norm",
    "encoder.layer.{n}.attention.self.query_proj":     "layers.{n}.attention.query",
    "encoder.layer.{n}.attention.self.key_proj":       "layers.{n}.attention.key",
    "encoder.layer.{n}.attention.self.value_proj":     "layers.{n}.attention.value",
    "encoder.layer.{n}.attention.self.pos_key_proj":   "layers.{n}.attention.pos_key",
    "encoder.layer.{n}.attention.self.pos_query_proj": "layers.{n}.attention.pos_query",
    "encoder.layer.{n}.attention.output.dense":  "layers.{n}.attention.output",
    "encoder.layer.{n}.attention.output.LayerNorm": "layers.{n}.attention_norm",
    "encoder.layer.{n}.intermediate.dense":      "layers.{n}.feed_forward.up",
    "encoder.layer.{n}.output.dense":            "layers.{n}.feed_forward.down",
    "encoder.layer.{n}.output.LayerNorm":        "layers.{n}.feed_forward_norm",
}
# fmt: on


@dataclass(frozen=True)
class Architecture:
    """All that differs between families: the encoder, the names of its weights, what is not part of it."""

    encoder: Callable[[EncoderConfig, int | None], nn.Module]
    names: dict[str, str]
    prefix: str  # of files saved with a head on top; files of a bare encoder have none
    heads: tuple[str, ...]  # modules that are skipped by name where they are not part of the encoder
    class_name: str  # for config.json


ARCHITECTURES = {
    "bert": Architecture(
        encoder=Encoder,
        names=BERT_NAMES,
        prefix="bert.",
        heads=("cls.predictions", "cls.seq_relationship", "pooler", "classifier", "qa_outputs"),
        class_name="BertModel",
    ),
    "electra": Architecture(
        encoder=Encoder,
        names=ELECTRA_NAMES,
        prefix="electra.",
        heads=(
            "discriminator_predictions",
            "generator_predictions",
            "generator_lm_head",
            "classifier",
            "qa_outputs",
        ),
        class_name="ElectraModel",
    ),
    "deberta-v2": Architecture(
        encoder=DebertaEncoder,
        names=DEBERTA_NAMES,
        prefix="deberta.",
        heads=(
            "mask_predictions",
            "lm_predictions",
            "cls",
            "pooler",
            "classifier",
            "qa_outputs",
            "embeddings.position_embeddings",  # in version 3's files, though position_biased_input is false
        ),
        class_name="DebertaV2Model",
    ),
}
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # counters, not weights
LEGACY = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    "word_embeddings._weight": "word_embeddings.weight",  # in some conversions of DeBERTa
}


# ---------------------------------------------------------------------------------------------- where it is


def find(where: str | os.PathLike, weights: bool = True) -> Path:
    """The folder of a checkpoint: `where` itself, or the local copy of a hub id with an optional @revision.

    Only the files that are needed are downloaded: config, tokenizer, and one set of weights, unless
    weights=False. Cache, tokens and offline mode are huggingface-hub's (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE).
    Raises InputError if there is no such folder or hub id, no answer, or no config or weights in it.
    """
    folder = Path(where).expanduser()
    if not folder.is_dir():
        if folder.exists():
            raise InputError(f"{where} is a file: name the folder that holds config.json and the weights")
        folder = download(str(where), weights)
    if not (folder / "config.json").is_file():
        raise InputError(f"no config.json in {where}: this is not a checkpoint folder")
    if weights and not any((folder / name).is_file() for name in WEIGHT_FILES):
        raise InputError(f"no weights in {where}: expected one of {', '.join(WEIGHT_FILES)}")
    return folder


def download(hub_id: str, weights: bool) -> Path:
    """Fetch the needed files of `owner/name[@revision]` into huggingface-hub's cache -> the folder there."""
    repository, _, revision = hub_id.partition("@")
    revision = revision or None

    def fetch(name: str) -> Path | None:
        """The local path of one file, or None if the repository does not have it."""
        try:
            return Path(hf_hub_download(repository, name, revision=revision))
        except LocalEntryNotFoundError:  # no network, or offline mode, and not in the cache
            return None
        except EntryNotFoundError:
            return None
        except GatedRepoError:
            raise InputError(f"{hub_id} is gated: accept its terms on the hub, then set HF_TOKEN") from None
        except RepositoryNotFoundError:
            raise InputError(
                f"no folder {hub_id}, and no such checkpoint on the hub: check the spelling, "
                "or set HF_TOKEN if it is private"
            ) from None
        except RevisionNotFoundError:
            raise InputError(
                f"{repository} has no revision {revision!r} on the hub: check the part after @"
            ) from None
        except HFValidationError:
            raise InputError(
                f"no folder {hub_id}, and it is not a hub id: write owner/name or an existing folder"
            ) from None
        except (HfHubHTTPError, OSError) as error:
            raise InputError(
                f"{hub_id}: the hub did not answer as expected ({one_line(error)}): try again later"
            ) from None

    config = fetch("config.json")
    if config is None:
        raise InputError(
            f"no folder {hub_id}, and its config.json is neither in the cache nor to be had from the hub: "
            "check the name and the network (HF_HUB_OFFLINE forbids downloads)"
        )
    revision = config.parent.name  # the commit, so that all files are of one version
    for name in TOKENIZER_FILES + SENTENCE_FILES:
        fetch(name)
    if weights:
        found = next((name for name in WEIGHT_FILES if fetch(name)), None)
        if found is None:
            raise InputError(
                f"no weights for {hub_id} on the hub or in the cache: expected {', '.join(WEIGHT_FILES)}"
            )
        if found.endswith(".index.json"):
            for shard in read_index(config.parent / found):
                fetch(shard)
    return config.parent


def read_json(path: Path, kind: type = dict) -> dict | list:
    """A JSON object (or list) from a file; InputError if it is no such thing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read as JSON ({one_line(error)}): restore the file") from None
    if not isinstance(content, kind):
        raise InputError(f"{path} holds a {type(content).__name__}: expected a {kind.__name__}")
    return content


def read_config(folder: Path) -> EncoderConfig:
    return EncoderConfig.from_dict(read_json(folder / "config.json"))


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


# ------------------------------------------------------------------------------------------- what is inside


class WeightFiles:
    """Names and tensors of a checkpoint, in whatever files they are; a tensor is read when asked for."""

    def __init__(self, folder: Path):
        self.path = next(folder / name for name in WEIGHT_FILES if (folder / name).is_file())
        if self.path.suffix == ".bin":
            self.tensors = read_bin(self.path)
            self.names = list(self.tensors)
        elif self.path.suffix == ".json":
            index = read_index(self.path)
            self.file_of = {name: folder / shard for shard, names in index.items() for name in names}
            self.names = list(self.file_of)
        else:
            self.file_of = dict.fromkeys(open_safetensors(self.path).keys(), self.path)
            self.names = list(self.file_of)

    def read(self, wanted: list[str]) -> dict[str, Tensor]:
        """The wanted tensors, as pages of their file that are read when touched and copied when changed."""
        if self.path.suffix == ".bin":
            return {name: self.tensors[name] for name in wanted}
        tensors = {}
        for path in sorted({self.file_of[name] for name in wanted}):
            with open_safetensors(path) as file:
                for name in wanted:
                    if self.file_of[name] == path:
                        try:
                            tensors[name] = file.get_tensor(name)
                        except SafetensorError as error:
                            raise InputError(f"{path} has no readable {name} ({one_line(error)})") from None
        return tensors


def open_safetensors(path: Path):
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise InputError(f"{path} is missing: download the checkpoint again") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is cut short or damaged ({one_line(error)}): download it again") from None


def read_index(path: Path) -> dict[str, list[str]]:
    """model.safetensors.index.json -> {file name: names of its tensors}"""
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise InputError(f"{path} has no weight_map: restore the file")
    files: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        if Path(file).name != file:
            raise InputError(f"{path} points outside its folder ({file}): refused")
        files.setdefault(file, []).append(name)
    return files


def read_bin(path: Path) -> dict[str, Tensor]:
    """The state dict in a pytorch_model.bin, memory-mapped if its format allows; nothing in it is run."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        if "Unsupported global" not in str(error):  # the words for anything that is not a tensor
            raise InputError(
                f"{path} is cut short or damaged ({one_line(error)}): download it again"
            ) from None
        raise InputError(
            f"{path} holds Python objects, not only tensors; reading it could run a stranger's code: "
            "ask for model.safetensors, or for a state dict"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is cut short or damaged ({one_line(error)}): download it again") from None
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise InputError(f"{path} is not a plain state dict of tensors: save it as model.safetensors")
    return content


@dataclass
class LoadReport:
    """Which tensors of the file became part of the encoder, and why each of the others did not."""

    kept: int
    parameters: int
    layers: str  # "9 of 12 layers"
    above: int  # tensors of layers that were cut off
    heads: Counter  # name of a head -> number of its tensors

    def __str__(self) -> str:
        left = [f"{self.above} tensors of the layers above"] if self.above else []
        left += [f"{name} ({count})" for name, count in self.heads.items()]
        kept = f"kept the embeddings and {self.layers}: {self.kept} tensors, {self.parameters:,} parameters"
        return f"{kept}; left {', '.join(left) or 'nothing'}"


def load_encoder(where: str | os.PathLike, layer: int | None = None) -> Encoder:
    """The first `layer` layers (None: all) with the weights of a checkpoint, float32, in evaluation mode.

    where: hub id with optional @revision, or folder. Tensors of higher layers are never read.
    Raises InputError if a tensor is missing, unknown or of the wrong shape, or a file cannot be read.
    """
    return read_encoder(find(where), layer)[0]


def read_encoder(folder: Path, layer: int | None = None) -> tuple[Encoder, LoadReport]:
    """load_encoder for a folder that was found, with the account of every tensor in its files."""
    config = read_config(folder)
    layer = config.check_layer(layer)
    architecture = ARCHITECTURES[config.model_type]
    encoder = empty_encoder(config, layer)  # the tensors of the file take the place of its own below
    expected = encoder.state_dict()
    files = WeightFiles(folder)

    kept: dict[str, str] = {}  # our name -> name in the file
    above, heads = 0, Counter()
    for name in files.names:
        bare = name.removeprefix(architecture.prefix)
        head = next((head for head in architecture.heads if bare.startswith(head + ".")), None)
        ours, number = translate(bare, architecture.names)
        if bare in BUFFERS:
            continue
        elif ours is not None and ours in kept:
            raise InputError(
                f"{kept[ours]} and {name} are the same weight ({files.path}): remove one of them"
            )
        elif ours in expected:
            kept[ours] = name
        elif head is not None:
            heads[head] += 1
        elif ours is not None and number is not None and layer <= number < config.num_hidden_layers:
            above += 1
        elif ours is not None and number is not None and number >= config.num_hidden_layers:
            raise InputError(
                f"{name} is above the {config.num_hidden_layers} layers of config.json ({files.path}): "
                "correct num_hidden_layers there"
            )
        else:
            raise InputError(
                f"unknown tensor {name} ({files.path}): it belongs neither to a {config.model_type} encoder "
                "nor to a known head; is model_type in config.json right?"
            )
    if missing := [name for name in expected if name not in kept]:
        theirs = checkpoint_name(missing[0], architecture.names)
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(
            f"missing tensor {theirs}{more} ({files.path}): config.json or the weights are incomplete"
        )

    read = files.read(list(kept.values()))
    weights = {}
    for ours, name in kept.items():
        tensor = read.pop(name)
        if tensor.shape != expected[ours].shape:
            found, wanted = tuple(tensor.shape), tuple(expected[ours].shape)
            raise InputError(f"{name} has shape {found} ({files.path}): config.json asks for {wanted}")
        if not tensor.is_floating_point():
            raise InputError(
                f"{name} has dtype {tensor.dtype} ({files.path}): expected floating point numbers"
            )
        weights[ours] = tensor.float()
    encoder.load_state_dict(weights, assign=True)

    layers = f"{layer} of {config.num_hidden_layers} layers"
    parameters = sum(weight.numel() for weight in weights.values())
    return encoder.eval(), LoadReport(len(kept), parameters, layers, above, heads)


def translate(name: str, names: dict[str, str]) -> tuple[str | None, int | None]:
    """Name of a weight in the file -> (our name, number of its layer), None where there is none.

    "encoder.layer.3.output.LayerNorm.gamma" -> ("layers.3.feed_forward_norm.weight", 3)
    """
    for old, new in LEGACY.items():
        name = name.replace(old, new)
    module, _, parameter = name.rpartition(".")
    number = re.search(r"\.(\d+)\.", module)
    if number is None:
        return (f"{names[module]}.{parameter}", None) if module in names else (None, None)
    n = number[1]
    module = module.replace(f".{n}.", ".{n}.", 1)
    return (f"{names[module]}.{parameter}".format(n=n), int(n)) if module in names else (None, int(n))


def checkpoint_name(ours: str, names: dict[str, str]) -> str:
    """Our name of a weight -> its name in a checkpoint, without prefix; the way back from translate."""
    module, _, parameter = ours.rpartition(".")
    number = re.search(r"\.(\d+)\.", module)
    if number is not None:
        module = module.replace(f".{number[1]}.", ".{n}.", 1)
    theirs = next(theirs for theirs, our in names.items() if our == module)
    return f"{theirs}.{parameter}".format(n=number and number[1])


def random_encoder(config: EncoderConfig, layer: int | None = None) -> Encoder:
    """An untrained encoder of the same shape, with random weights from torch's global generator."""
    return ARCHITECTURES[config.model_type].encoder(config, layer)


class NoInitialisation(TorchFunctionMode):
    """Inside this context torch.nn.init does nothing (on the meta device it would take a second)."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return func(*args, **(kwargs or {}))


def empty_encoder(config: EncoderConfig, layer: int | None = None) -> Encoder:
    """An encoder of shapes without memory, for counting and for load_encoder to fill."""
    with NoInitialisation(), torch.device("meta"):
        return random_encoder(config, layer)


def parameter_counts(config: EncoderConfig, layer: int | None = None) -> dict[str, int]:
    """Number of parameters with the first `layer` layers, from a config alone: {"paper": n, "stored": n}.

    "paper" is what the TMFT paper counts: embeddings and encoder layers. "stored" is every parameter of the
    truncated encoder, so ELECTRA's projection and DeBERTa's embeddings of relative positions as well.
    """
    encoder = empty_encoder(config, layer)
    embeddings = sum(
        weight.numel()
        for name, weight in encoder.embeddings.named_parameters()
        if not name.startswith("project")
    )
    layers = sum(weight.numel() for weight in encoder.layers.parameters())
    return {"paper": embeddings + layers, "stored": sum(weight.numel() for weight in encoder.parameters())}


# ------------------------------------------------------------------------------------------------------ save


def save_encoder(encoder: Encoder, folder: Path) -> None:
    """Write config.json and model.safetensors as transformers would for the truncated encoder, float32.

    Raises InputError if the folder cannot be written, or for a DeBERTa without layers.
    """
    config = encoder.config
    if config.model_type == "deberta-v2" and len(encoder.layers) == 0:
        raise InputError(
            f"a DeBERTa of 0 layers is not saved ({folder}): transformers cannot run one, keep 1 or more"
        )
    architecture = ARCHITECTURES[config.model_type]
    content = config.to_dict() | {
        "architectures": [architecture.class_name],
        "num_hidden_layers": len(encoder.layers),
        "dtype": "float32",
    }
    if config.model_type == "bert":
        del content["embedding_size"]  # not a key of BERT
    if config.model_type != "deberta-v2":
        content["position_embedding_type"] = "absolute"
    weights = {
        checkpoint_name(name, architecture.names): weight.detach().float().cpu().contiguous()
        for name, weight in encoder.state_dict().items()
    }
    write_file(folder / "config.json", json.dumps(content, indent=2) + "\n")
    write_file(folder / "model.safetensors", lambda path: save_file(weights, path, metadata={"format": "pt"}))


def write_file(path: Path, content: str | Callable[[Path], None]) -> None:
    """Write a file so that a crash at any moment leaves the old one or the new one, never a torn one.

    content: the text, or a function that writes to the path it is given.
    Raises InputError if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as scratch:
            new = Path(scratch) / path.name
            new.write_text("" if callable(content) else content, encoding="utf-8", newline="\n")
            mode = (
                new.stat().st_mode
            )  # as the user's umask wants it; safetensors makes files that only he can read
            if callable(content):
                content(new)
                new.chmod(mode)
            with open(new, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(new, path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot write {path} ({one_line(error)}): check space and permissions") from None
