"""Reads which container runtime a node has, and whether it injects CDI devices.

Sources: containerd prints its CRI configuration as JSON in ``Status(verbose).info["config"]`` (``pkg/cri/config`` of
1.6 and 1.7, ``internal/cri/config`` of 2.x): ``enableCDI`` and ``cdiSpecDirs`` since 1.7.0, on by default since 2.0.
CRI-O injects the CDI devices that the kubelet names since 1.28, always, with ``cdi_spec_dirs`` in ``[crio.runtime]``.
"""

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.diagnose.doctor.node_cri import CriClient, CriError
from dra_driver.diagnose.doctor.node_sockets import is_served, is_socket
from dra_driver.diagnose.doctor.node_view import CRI_SOCKETS, HostView

_MOST: Final = 16


class RuntimeFacts(Struct, frozen=True, kw_only=True):
    """``socket`` is the host's path, None where none was found among ``tried``. ``denied``: this user may not use it.

    ``cdi`` is None where the runtime does not tell, and ``cdi_dirs`` as well. ``not_ready`` are conditions that do not
    hold. ``default_handler`` is the runtime of pods without a runtime class.
    """

    tried: tuple[str, ...] = ()
    socket: str | None = None
    problem: str | None = None
    denied: bool = False
    name: str = ""
    version: str = ""
    not_ready: tuple[str, ...] = ()
    tells_config: bool = False
    cdi: bool | None = None
    cdi_dirs: tuple[str, ...] | None = None
    default_handler: str | None = None


class Runtime(Protocol):
    """The questions of `node_cri.CriClient`."""

    def version(self) -> tuple[str, str]: ...
    def status(self) -> tuple[tuple[str, ...], Mapping[str, str]]: ...
    def crio_config(self) -> str: ...
    def close(self) -> None: ...


Dial = Callable[[str], Runtime]


def read_runtime(view: HostView, named: str | None, dial: Dial = CriClient) -> RuntimeFacts:
    """Ask the runtime on the socket that the view or the kubelet (``named``) names, else on the first usual one."""
    given = view.cri_socket or named
    tried = (given,) if given else CRI_SOCKETS
    found = [path for path in tried if is_socket(view.here(path))]
    served = next((path for path in found if is_served(view.here(path))), None)
    facts = RuntimeFacts(tried=tried, socket=served or next(iter(found), None))
    if served is None:
        return facts if not found else replace(facts, problem=f"no process accepts connections at {found[0]}")
    if not os.access(view.here(served), os.R_OK | os.W_OK):
        return replace(facts, problem="this user may not use it", denied=True)
    client = dial(view.here(served))
    try:
        return _asked(client, facts)
    except CriError as error:
        return replace(facts, problem=str(error))
    finally:
        client.close()


def _asked(client: Runtime, facts: RuntimeFacts) -> RuntimeFacts:
    name, version = client.version()
    not_ready, info = client.status()
    facts = replace(facts, name=name, version=version, not_ready=not_ready)
    if name != "cri-o":
        return with_config(facts, info.get("config", ""))
    try:
        return with_crio_config(facts, client.crio_config())
    except CriError:
        return facts


def with_config(facts: RuntimeFacts, config: str) -> RuntimeFacts:
    """What containerd's configuration says, as it prints it by CRI. A text of another form tells nothing."""
    wire = _json_object(config)
    if not wire:
        return facts
    handlers = wire.get("containerd")
    default = handlers.get("defaultRuntimeName") if isinstance(handlers, dict) else None
    switch, folders = wire.get("enableCDI"), wire.get("cdiSpecDirs")
    return replace(
        facts,
        tells_config=True,
        cdi=switch if isinstance(switch, bool) else None,
        cdi_dirs=_texts(folders),
        default_handler=default if isinstance(default, str) else None,
    )


def with_crio_config(facts: RuntimeFacts, config: str) -> RuntimeFacts:
    """What CRI-O's configuration says."""
    try:
        table = tomllib.loads(config).get("crio", {}).get("runtime", {})
    except (tomllib.TOMLDecodeError, AttributeError, RecursionError):
        return facts
    if not isinstance(table, dict):
        return facts
    default = table.get("default_runtime")
    return replace(
        facts,
        tells_config=True,
        cdi_dirs=_texts(table.get("cdi_spec_dirs")),
        default_handler=default if isinstance(default, str) else None,
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _texts(value: object) -> tuple[str, ...] | None:
    return tuple(str(each) for each in value[:_MOST]) if isinstance(value, list) else None
