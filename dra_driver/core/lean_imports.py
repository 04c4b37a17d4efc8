"""Imports a package without modules that it imports for functions that this project does not use.

The node process is to be small. grpc imports asyncio, protobuf its implementation in Python beside the one in C, and
prometheus_client a whole HTTP server. While such a package is imported, `without` puts an empty stand-in in place of
such a module. Afterwards the stand-in is not in ``sys.modules`` any more: a later import gets the real module.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class StandIn(ModuleType):
    """An empty module. What is imported from it is an empty class, so that it can be a base class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system asks for __spec__ and __path__
            raise AttributeError(name)
        return type(name, (), {"__doc__": f"Not loaded: {self.__name__}.{name}"})


@contextmanager
def without(*modules: str | ModuleType) -> Iterator[None]:
    """Leave out these modules while the block imports a package. Modules that are loaded already are used.

    A module that is given, not named, is its own stand-in. All threads see the stand-ins: use this at the top of a
    module, or before threads start.
    """
    given = [StandIn(module) if isinstance(module, str) else module for module in modules]
    stand_ins = {module.__name__: module for module in given if module.__name__ not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]
