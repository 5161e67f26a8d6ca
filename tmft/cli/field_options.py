"""Options that are fields of dataclasses, such as Recipe, in which each is declared once.

An option has the name, the type, the default and the choices of its field. Its help is the line of the field
in the docstring of the dataclass, `field: text`. There `name` in backticks becomes --name, and a last part
such as "; None: the whole batch" explains the default. A bool that is True by default becomes --no-NAME, and
its help is what follows "; False: ".
"""

import inspect
import re
from argparse import Namespace, _ArgumentGroup
from collections.abc import Iterable, Sequence
from dataclasses import Field, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from tmft.embedding.token_weights import TOKEN_WEIGHTS
from tmft.pooling import POOLINGS

METAVARS = {int: "N", float: "X", str: "NAME", Path: "FILE"}
# "an entry of POOLINGS" in a text becomes the names.
REGISTRIES: dict[str, Iterable[str]] = {"POOLINGS": POOLINGS, "TOKEN_WEIGHTS": TOKEN_WEIGHTS}


def add_field_option(
    group: _ArgumentGroup,
    config_class: type[Any],
    name: str,
    default_text: str = "{}",
    other_flags: Sequence[str] = (),
    **syntax: Any,
) -> None:
    """Add the option of a field. Its default is None, which stands for that of the field.

    default_text: what the help says of the default, in place of {}. other_flags: further names of the option.
    syntax: arguments of add_argument that replace those that follow from the type.
    """
    [field] = [field for field in fields(config_class) if field.name == name]
    value_type, nargs = option_type(get_type_hints(config_class)[name])
    flag = f"--{name.replace('_', '-')}"
    usual: dict[str, Any]
    if value_type is bool:
        flag = flag.replace("--", "--no-") if field.default else flag
        usual = {"action": "store_const", "const": not field.default}
    else:
        choices = field.metadata.get("choices")
        usual = {"type": value_type, "choices": choices, "metavar": None if choices else METAVARS[value_type]}
        usual |= {"nargs": nargs} if nargs else {}
    text = option_help(field, field_texts(config_class).get(name, ""), default_text)
    group.add_argument(flag, *other_flags, dest=name, help=text, **usual | syntax)


def option_type(annotation: Any) -> tuple[type[Any], str | None]:
    """Return the type of one value and argparse's nargs: tuple[int, ...] | None -> (int, "+")."""
    if NoneType in get_args(annotation):
        [annotation] = [one for one in get_args(annotation) if one is not NoneType]
    return (get_args(annotation)[0], "+") if get_origin(annotation) is tuple else (annotation, None)


def field_texts(config_class: type[Any]) -> dict[str, str]:
    """Return {field: text} from the lines `field: text` in the docstrings of a dataclass and its bases.

    The further lines of a text are indented.
    """
    texts: dict[str, str] = {}
    for one in reversed(config_class.__mro__):
        lines = re.findall(r"^(\w+): (.*(?:\n +.*)*)", inspect.cleandoc(one.__doc__ or ""), re.MULTILINE)
        texts |= {name: " ".join(text.split()) for name, text in lines}
    return texts


def option_help(field: Field[Any], text: str, default_text: str = "{}") -> str:
    """Return the help of an option: the text of its field and, if there is one, the default."""
    for registry, entries in REGISTRIES.items():
        text = text.replace(f"an entry of {registry}", ", ".join(entries))
    text = text.removesuffix(".")
    text = re.sub(r"`(\w+)`", lambda match: f"--{match[1].replace('_', '-')}", text).replace("%", "%%")
    text, _, explained = text.partition(f"; {False if field.default is True else field.default}: ")
    if field.default is True:
        text, explained = explained, text
    if not explained and type(field.default) in (int, float, str):  # not None, False or ()
        explained = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
    return f"{text}; default: {default_text.format(explained)}" if explained else text


def fields_from_args(args: Namespace, config_class: type[Any]) -> dict[str, Any]:
    """Return {field: value} for the fields of a dataclass whose option was given, or has a default.

    A field without an option, or whose option is None, is left out.
    """
    values = {field.name: getattr(args, field.name, None) for field in fields(config_class)}
    return {name: value for name, value in values.items() if value is not None}
