"""Loads only the modules of the ``kubernetes`` client that this project uses.

These are its ``Configuration``, its transport (``client.rest``) and its two configuration loaders.

Why not ``from kubernetes import client, config``: the package's ``__init__`` imports stream, dynamic, informer, utils
and kube_config, which pull in requests, oauthlib, websocket and multiprocessing. Measured with kubernetes 37.0.2 on
top of grpc, pydantic, pynvml and prometheus_client, in VmRSS: 11.1 MiB and 232 ms that way, 1.7 MiB and 32 ms this
way (2.8 MiB and 51 ms with a kubeconfig). The whole node process may use 60 MiB.

How: a package whose ``__init__`` has not run is an ordinary module object with a ``__path__``, which is all that
importing a submodule needs (importlib's ``module_from_spec`` without ``exec_module``). The placeholders are taken out
of ``sys.modules`` afterwards, so a later import of ``kubernetes`` in the same process gets the real package. Rejected:
a kubeconfig reader of this project (it would have to follow exec plugins, merging and relative paths).
"""

import contextlib
import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Literal

from msgspec import Struct

_PACKAGES = ("kubernetes", "kubernetes.client", "kubernetes.config", "kubernetes.utils")

# Guards sys.modules while the placeholders are in it.
_import_lock = threading.Lock()


class ClientParts(Struct, frozen=True, kw_only=True):
    """The client's parts. ``load_config`` is ``InClusterConfigLoader`` or ``load_kube_config``."""

    configuration: Any
    rest_client: Any
    keepalive_options: Any
    load_config: Any


@functools.cache
def client_parts(source: Literal["in-cluster", "kubeconfig"]) -> ClientParts:
    """The client's classes for that source of configuration; loaded once per process. Thread-safe."""
    deferred = contextlib.nullcontext() if source == "in-cluster" else _deferred_oauth()
    with _import_lock, _bare_packages(), deferred:
        load = importlib.import_module
        if source == "in-cluster":
            loader = load("kubernetes.config.incluster_config").InClusterConfigLoader
        else:
            loader = load("kubernetes.config.kube_config").load_kube_config
        return ClientParts(
            configuration=load("kubernetes.client.configuration").Configuration,
            rest_client=load("kubernetes.client.rest").RESTClientObject,
            keepalive_options=load("kubernetes.utils.keepalive").tcp_keepalive_socket_options,
            load_config=loader,
        )


@contextlib.contextmanager
def _bare_packages() -> Iterator[None]:
    """Puts placeholders of the parent packages into ``sys.modules`` without executing them; removes them afterwards.

    Does nothing when the real package has been imported already: its cost is paid then.
    """
    if "kubernetes" in sys.modules:
        yield
        return
    for name in _PACKAGES:
        sys.modules[name] = _placeholder(name)
    _fill(sys.modules["kubernetes.client"])
    try:
        yield
    finally:
        _forget("kubernetes")


def _placeholder(name: str) -> ModuleType:
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"the package {name} is not installed", name=name)
    return importlib.util.module_from_spec(spec)


def _fill(client: ModuleType) -> None:
    """The names that the configuration loaders take from ``kubernetes.client`` when they are imported."""
    configuration = importlib.import_module("kubernetes.client.configuration")
    client.Configuration = configuration.Configuration  # type: ignore[attr-defined]
    # kube_config uses ApiClient only in new_client_from_config(), which this project never calls.
    client.ApiClient = None  # type: ignore[attr-defined]


@contextlib.contextmanager
def _deferred_oauth() -> Iterator[None]:
    """Defers ``requests_oauthlib`` and ``oauthlib``, 5 MiB that only the refresh of an OIDC token needs.

    kube_config imports them on its first lines; it gets stand-ins that import the real modules at first use.
    """
    names = ("oauthlib", "oauthlib.oauth2", "requests_oauthlib")
    if any(name in sys.modules for name in names):
        yield
        return
    oauth = _Deferred("oauthlib")
    sys.modules["oauthlib"] = oauth
    sys.modules["oauthlib.oauth2"] = oauth
    sys.modules["requests_oauthlib"] = session = ModuleType("requests_oauthlib")
    session.OAuth2Session = _oauth_session  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)


class _Deferred(ModuleType):
    """A module that is imported when one of its attributes is read."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # the import system reads __spec__ and __path__
            raise AttributeError(attribute)
        importlib.import_module("oauthlib.oauth2")
        return getattr(importlib.import_module(self.__name__), attribute)


def _oauth_session(*args: Any, **kwargs: Any) -> Any:
    return importlib.import_module("requests_oauthlib").OAuth2Session(*args, **kwargs)


def _forget(package: str) -> None:
    """Removes the modules from ``sys.modules``; callers keep them alive, and later imports load the real package."""
    for name in [n for n in sys.modules if n == package or n.startswith(package + ".")]:
        del sys.modules[name]
