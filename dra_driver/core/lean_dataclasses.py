"""``dataclass`` of the standard library, made in a tenth of the time and a third of the memory.

The standard decorator compiles six methods of each class (Python 3.11): about 1 ms and 13 KiB. The node process has 160
such classes, which was a third of the CPU time of its imports. Here ``__init__`` alone is compiled, at the first
instance; the other methods are the same functions for all classes. The result is a dataclass of the standard library:
``replace``, ``fields`` and ``asdict`` take it, and one suite of tests runs against both decorators. A frozen class of
one kind cannot inherit from one of the other kind.

Modules that the node process loads take their ``dataclass`` from here; for others it makes no difference.
"""

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass  # for mypy: there is no difference
else:

    def dataclass(*, frozen=False, slots=False, kw_only=False, eq=True, order=False):
        """As `dataclasses.dataclass`, with the arguments that this project uses."""

        def decorate(cls):
            if cls.__doc__ is None:
                cls.__doc__ = cls.__name__  # the standard library would look for the signature, in 0.2 ms
            made = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only, slots=slots)(cls)
            methods = {"__init__": _init_of(made, frozen), "__repr__": _repr}
            if eq:
                names = [field.name for field in dataclasses.fields(made) if field.compare]
                made.__dataclass_compared__ = attrgetter(*names) if names else type
                methods |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
            if order:
                methods |= {"__lt__": _lt, "__le__": _le, "__gt__": _gt, "__ge__": _ge}
            if frozen:
                methods |= {"__setattr__": _setattr, "__delattr__": _delattr}
                methods |= {"__getstate__": _getstate, "__setstate__": _setstate}
            for name, method in methods.items():
                if name not in cls.__dict__ or (name == "__hash__" and cls.__dict__[name] is None):
                    setattr(made, name, method)
            return made

        return decorate


def _init_of(cls: Any, frozen: bool) -> Any:
    """An ``__init__`` that compiles the real one at the first instance, which some classes never have."""

    def __init__(self: Any, /, *args: Any, **values: Any) -> None:  # noqa: N807 - it becomes the class's method
        cls.__init__ = _compiled_init(cls, frozen)  # two threads may compile it; the second one takes its place
        cls.__init__(self, *args, **values)

    return __init__


def _compiled_init(cls: Any, frozen: bool) -> Any:
    """``__init__`` with the parameters and defaults that the standard library would give it."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": dataclasses.MISSING}
    positional, named = ["self"], list[str]()
    body: list[str] = []
    for field in dataclasses.fields(cls):
        parameter = value = name = field.name
        if field.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"] = field.default_factory
            parameter, value = f"{name}=_MISSING", f"_make_{name}() if {name} is _MISSING else {name}"
        elif field.default is not dataclasses.MISSING:
            names[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
        if field.init:
            (named if field.kw_only else positional).append(parameter)
        elif parameter == name:
            continue  # set by __post_init__
        else:
            value = parameter.partition("=")[2] if value == name else f"_make_{name}()"
        body.append(f" _set(self, {name!r}, {value})" if frozen else f" self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    parameters = ", ".join([*positional, "*", *named] if named else positional)
    exec("\n".join([f"def __init__({parameters}):", *(body or [" pass"])]), names)  # noqa: S102 - text of this file
    made = names.pop("__init__")
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    compared = self.__dataclass_compared__
    return compared(self) == compared(other)


def _hash(self: Any) -> int:
    return hash(self.__dataclass_compared__(self))


def _lt(self: Any, other: Any) -> Any:
    same = other.__class__ is self.__class__
    return self.__dataclass_compared__(self) < other.__dataclass_compared__(other) if same else NotImplemented


def _le(self: Any, other: Any) -> Any:
    same = other.__class__ is self.__class__
    return self.__dataclass_compared__(self) <= other.__dataclass_compared__(other) if same else NotImplemented


def _gt(self: Any, other: Any) -> Any:
    same = other.__class__ is self.__class__
    return self.__dataclass_compared__(self) > other.__dataclass_compared__(other) if same else NotImplemented


def _ge(self: Any, other: Any) -> Any:
    same = other.__class__ is self.__class__
    return self.__dataclass_compared__(self) >= other.__dataclass_compared__(other) if same else NotImplemented


def _setattr(_self: Any, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(_self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
