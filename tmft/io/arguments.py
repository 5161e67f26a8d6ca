"""Check the types of arguments and of fields of dataclasses by their annotations, before any work begins."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from tmft.errors import InputError, check_choice, check_range, short_repr

TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "True or False",
    Iterable: "a list",
    NoneType: "None",
}


def check_arguments(values: Mapping[str, Any], annotations: Mapping[str, Any]) -> None:
    """Raise InputError unless each value has the type that its parameter is annotated with.

    Numbers of NumPy are numbers, True and False are none. Any sequence may stand for a tuple.
    values: name of a parameter -> its value. annotations: name -> type, see typing.get_type_hints.
    """
    for name, value in values.items():
        if not fits_annotation(value, annotations[name]):
            raise InputError(f"{name} {short_repr(value)}: give {describe_type(annotations[name])}", name)


def fits_annotation(value: object, annotation: Any) -> bool:
    """Return whether a value has the type that a parameter is annotated with."""
    kind, parts = get_origin(annotation) or annotation, get_args(annotation)
    if kind in (Union, UnionType):
        return any(fits_annotation(value, part) for part in parts)
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind in (tuple, Sequence):
        if not isinstance(value, Sequence) or isinstance(value, str):
            return False
        fits = kind is Sequence or Ellipsis in parts or len(value) == len(parts)
        return fits and all(fits_annotation(item, parts[0]) for item in value)
    if kind is dict and parts:
        return isinstance(value, dict) and all(fits_annotation(item, parts[1]) for item in value.values())
    return kind is Any or isinstance(value, kind)


def describe_type(annotation: Any) -> str:
    """Return what to give for a parameter with this annotation: int | None -> "a whole number or None"."""
    kind, parts = get_origin(annotation) or annotation, get_args(annotation)
    if kind in (Union, UnionType):
        *first, last = map(describe_type, parts)
        return f"{', '.join(first)} or {last}"
    if kind in (tuple, Sequence):
        number = "a list of" if kind is Sequence or Ellipsis in parts else len(parts)
        return f"{number} {describe_type(parts[0]).removeprefix('a ')}s"
    return TYPE_NAMES.get(kind, f"a {kind.__name__}")


def choice(default: Any, choices: Iterable[str]) -> Any:
    """Return a field of a dataclass whose value is one of the choices, or the default, which may be None."""
    return field(default=default, metadata={"choices": choices})


def in_range(default: Any, low: float, high: float = math.inf) -> Any:
    """Return a field of a dataclass whose value is None or from low to high, or has only such numbers."""
    return field(default=default, metadata={"range": (low, high)})


def check_fields(config: Any) -> None:
    """Raise InputError unless each field of a dataclass has its type, and a value that its metadata allow."""
    check_arguments(vars(config), get_type_hints(type(config)))
    for one in fields(config):
        value = getattr(config, one.name)
        if "choices" in one.metadata and value != one.default:
            check_choice(one.name, value, one.metadata["choices"])
        if "range" in one.metadata and value is not None:
            for number in value if isinstance(value, Sequence) else [value]:
                check_range(one.name, number, *one.metadata["range"])
