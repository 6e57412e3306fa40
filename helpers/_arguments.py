"""Check arguments against a signature: one decorator, and one way to say no.

``@checked`` lets a call through whose arguments are what the annotations say. Any other
raises a TypeError, or a ValueError where the kind is right and the value is not. Either
names the argument, quotes what was given, and says what is accepted.
"""

import functools
import inspect
import math
import numbers
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Annotated, Literal


class Rule(typing.NamedTuple):
    """Say which values of a kind are accepted, and what these are in words."""

    accepts: Callable[[object], bool]
    words: str


# So far from the largest numbers that a margin around a chart has room.
Finite = Annotated[float, Rule(lambda x: abs(x) < 1e100, "a finite number")]
Positive = Annotated[float, Rule(lambda x: 1e-100 < x < 1e100, "a positive number")]
Least0 = Annotated[float, Rule(lambda x: x >= 0, "a number of 0 or more")]
Size = Annotated[int, Rule(lambda n: n >= 0, "an integer of 0 or more")]
Count = Annotated[int, Rule(lambda n: n >= 1, "an integer of 1 or more")]

_WORDS = {str: "a string", int: "an integer", float: "a number", bool: "True or False"}
_WORDS |= {Callable: "a callable", Mapping: "a dict", dict: "a dict"}
_WORDS |= dict.fromkeys((Sequence, list, tuple), "a list or tuple")
_WORDS |= dict.fromkeys((Collection, Iterable), "a list, or the like")


def checked(thing):
    """Decorate a function, or a class, so that its arguments are checked."""
    if inspect.isclass(thing):
        thing.__init__ = checked(thing.__init__)
        return thing
    signature = inspect.signature(thing)

    @functools.cache  # not before a first call: a name may be defined further down
    def annotations() -> dict:
        return typing.get_type_hints(thing, include_extras=True)

    @functools.wraps(thing)
    def checking(*args, **named):
        hints = annotations()
        try:
            given = signature.bind(*args, **named).arguments
        except TypeError:  # too many, or too few: Python itself says it best
            return thing(*args, **named)
        for name, value in given.items():
            if name in hints:
                many = {"": value}
                if signature.parameters[name].kind == inspect.Parameter.VAR_POSITIONAL:
                    many = {f"[{i}]": each for i, each in enumerate(value)}
                elif signature.parameters[name].kind == inspect.Parameter.VAR_KEYWORD:
                    many = {f"[{key!r}]": each for key, each in value.items()}
                for place, each in many.items():
                    check(f"{name}{place}", each, hints[name])
        return thing(*args, **named)

    return checking


def check(name: str, value, hint) -> None:
    """Raise where a value is not what an annotation says; look into containers, too."""
    kind, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is Annotated:
        check(name, value, parts[0])
        if not parts[1].accepts(value):
            raise ValueError(f"{name}={quoted(value)}: give {parts[1].words}")
    elif kind is Literal:
        if not any(type(value) is type(one) and value == one for one in parts):
            error = ValueError if isinstance(value, type(parts[0])) else TypeError
            raise error(f"{name}={quoted(value)}: give {_words(hint)}")
    elif kind in (types.UnionType, typing.Union):
        _check_union(name, value, hint, parts)
    elif not _is(value, kind):
        raise TypeError(f"{name}={quoted(value)}: give {_words(hint)}")
    elif kind is float and abs(value) > sys.float_info.max and not _is_inf(value):
        raise ValueError(f"{name}={quoted(value)}: give a number that FP64 can hold")
    elif parts and kind in (Mapping, dict):
        for key, each in value.items():
            check(f"key of {name}", key, parts[0])
            check(f"{name}[{key!r}]", each, parts[1])
    elif parts and kind in (Sequence, Collection, list, tuple):
        each = value.tolist() if hasattr(value, "tolist") else value
        pairs = len(parts) > 1 and parts[1] is not ...
        if pairs and len(each) != len(parts):
            raise ValueError(f"{name}={quoted(value)}: give {len(parts)} of them")
        for i, one in enumerate(each):
            check(f"{name}[{i}]", one, parts[i if pairs else 0])


def quoted(value) -> str:
    """Write a value on one line, at most 200 characters of it."""
    try:
        words = " ".join(repr(value).split())
    except Exception:  # an integer of over 4300 digits, or an unfinished object
        words = f"a {type(value).__name__} that cannot be written"
    return words if len(words) <= 200 else f"{words[:199]}…"


def _check_union(name: str, value, hint, parts) -> None:
    if value is None and types.NoneType in parts:
        return
    kinds = [part for part in parts if part is not types.NoneType]
    if len(kinds) == 1:
        return check(name, value, kinds[0])  # it says more
    for kind in kinds:
        try:
            return check(name, value, kind)
        except (TypeError, ValueError):
            continue
    raise TypeError(f"{name}={quoted(value)}: give {_words(hint)}")


def _is(value, kind) -> bool:
    if "sparse" in str(getattr(value, "layout", "")):  # such a tensor lists nothing
        return isinstance(kind, type) and kind.__module__ == "torch"
    if kind is float or kind is int:
        number = numbers.Real if kind is float else numbers.Integral
        return isinstance(value, number) and not isinstance(value, bool)
    if kind is list or kind is tuple:
        return isinstance(value, list | tuple)
    if kind is Sequence:  # an array is one, too
        if isinstance(value, str | bytes | bytearray | Mapping | Set | type):
            return False
        if not (hasattr(value, "__getitem__") and hasattr(value, "__len__")):
            return False
        return getattr(value, "ndim", 1) > 0  # an array of one number has no length
    if kind is Iterable or kind is Collection:
        return isinstance(value, kind) and not isinstance(value, str | bytes)
    if kind is Callable:
        return callable(value)
    return not isinstance(kind, type) or isinstance(value, kind)


def _is_inf(value) -> bool:
    return isinstance(value, float) and math.isinf(value)


def _words(hint) -> str:
    kind, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is Annotated:
        return parts[1].words
    if kind is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if kind in (types.UnionType, typing.Union):
        return " or ".join(dict.fromkeys(map(_words, parts)))
    if kind in (Sequence, Collection, list, tuple, Iterable) and parts:
        return f"{_WORDS[kind]}, each {_words(parts[0])}"
    if kind is types.NoneType:
        return "None"
    name = getattr(kind, "__name__", str(kind))
    return _WORDS.get(kind) or f"{'an' if name[0] in 'AEIO' else 'a'} {name}"
