"""Imports grpc and protobuf without what they import for others: some 3 MiB of the node process.

- asyncio: grpc's package imports ``grpc.aio``, its asynchronous interface, and its core imports asyncio for it
- protobuf's implementation in Python, with its text format and pickle, where the one in C is in use
- typing_extensions, of which grpc's server uses one decorator without effect
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from dra_driver.core.lean_imports import StandIn, without

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
    """Import both. What has been imported already stays: its cost is paid.

    Call it before threads start.
    """
    if "grpc" not in sys.modules and _ASYNCIO not in sys.modules:
        typing_extensions = StandIn("typing_extensions")
        vars(typing_extensions)["override"] = lambda method: method
        # grpc's core keeps the module asyncio for calls of its asynchronous interface: they get the real one.
        with without(_Deferred(_ASYNCIO), StandIn(_AIO), typing_extensions):
            importlib.import_module("grpc._server")
    api = importlib.import_module("google.protobuf.internal.api_implementation")
    if api.Type() == "upb":
        with without(StandIn("google.protobuf.internal.python_message")):
            importlib.import_module("google.protobuf.internal.builder")
