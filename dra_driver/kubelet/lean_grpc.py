"""Imports grpc without asyncio, which only grpc's asynchronous interface needs: 2 MiB and 20 ms of the node process.

grpc's package imports ``grpc.aio``, and its core imports ``asyncio`` for it. Both get placeholders while they are
imported; the placeholder of asyncio imports the real one at the first use of an attribute. Afterwards nothing of this
is in ``sys.modules``, so a later import gets the real modules. `kube.transport` does the same for the client library.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

_ASYNCIO, _AIO = "asyncio", "grpc.aio"


class _Deferred(ModuleType):
    """A module that is imported when one of its attributes is read."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # the import system reads __spec__ and __path__
            raise AttributeError(attribute)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), attribute)


def load() -> None:
    """Import grpc. Does nothing special when it, or asyncio, has been imported already: the cost is paid then.

    Call it before threads start.
    """
    if "grpc" in sys.modules or _ASYNCIO in sys.modules:
        return
    placeholders: dict[str, ModuleType] = {_ASYNCIO: _Deferred(_ASYNCIO), _AIO: ModuleType(_AIO)}
    sys.modules.update(placeholders)
    try:
        importlib.import_module("grpc")
    finally:
        for name, placeholder in placeholders.items():
            if sys.modules.get(name) is placeholder:
                del sys.modules[name]
