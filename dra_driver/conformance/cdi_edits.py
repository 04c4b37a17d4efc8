"""Check the edits of CDI devices: their form, as a container runtime does, and what they name on this host.

Sources: SPEC.md, specs-go/version.go and pkg/cdi/container-edits*.go of cncf-tags/container-device-interface. A runtime
refuses a file of wrong form as a whole. It reads the host's node only where type and major are absent, so a wrong node
starts a container without its device.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.text import quoted

HOOKS: Final = frozenset({"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"})
_IN_CONTAINER: Final = "startContainer"
"""The runtime starts this hook in the container, so its file is in the image (runtime-spec config.md)."""
_TYPES: Final = ("", "b", "c", "u", "p")
_MEMORY: Final = {(1, 1): "/dev/mem", (1, 2): "/dev/kmem", (1, 4): "/dev/port"}
_FIELDS: Final = ("deviceNodes", "hooks", "mounts")
Wire = Mapping[str, Any]


class Edits(Struct, frozen=True, kw_only=True):
    """The merged edits of devices and of their files."""

    nodes: tuple[Wire, ...] = ()
    hooks: tuple[Wire, ...] = ()
    mounts: tuple[Wire, ...] = ()
    env: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @classmethod
    def merged(cls, parts: Iterable[Wire]) -> "Edits":
        """From ``containerEdits`` of valid form; equal edits count once."""
        found: dict[str, dict[str, Any]] = {name: {} for name in ("env", "others", *_FIELDS)}
        for part in parts:
            for name, value in part.items():
                if name == "env" or name in _FIELDS:
                    found[name] |= {repr(each): each for each in value or ()}
                else:
                    found["others"][f"{name}={value}"] = f"{name}={value}"
        nodes, hooks, mounts = (tuple(found[name].values()) for name in _FIELDS)
        others = tuple(found["others"].values())
        return cls(nodes=nodes, hooks=hooks, mounts=mounts, env=tuple(found["env"].values()), others=others)

    def node_paths(self) -> set[str]:
        return {host_path(node) for node in self.nodes}

    def apart_from_nodes(self, uid: str) -> tuple[set[str], set[str]]:
        """The variables, and the other edits without device nodes; both without the UID of the claim."""
        rest = [*map(repr, self.hooks), *map(repr, self.mounts), *self.others]
        return {_without(one, uid) for one in self.env}, {_without(one, uid) for one in rest}


def _without(text: str, uid: str) -> str:
    return text.replace(uid, "").replace(uid.replace("-", "_"), "").replace(uid.replace("-", ""), "")


def host_path(node: Wire) -> str:
    return str(node.get("hostPath") or node["path"])


def form_problem(edits: object) -> str:
    """Return why a runtime refuses these ``containerEdits``; "" if it takes them."""
    if not isinstance(edits, dict):
        return "containerEdits is not an object"
    lists = {name: edits.get(name) or [] for name in ("env", *_FIELDS)}
    for name, found in lists.items():
        kind = str if name == "env" else dict
        if not isinstance(found, list) or not all(isinstance(one, kind) for one in found):
            return f"containerEdits.{name} is not a list of {'texts' if kind is str else 'objects'}"
    problems = (
        *(_variable(name, "containerEdits.env") for name in lists["env"]),
        *map(_node_form, lists["deviceNodes"]),
        *map(_hook_form, lists["hooks"]),
        *(
            f"a mount has no {name}"
            for mount in lists["mounts"]
            for name in ("hostPath", "containerPath")
            if not isinstance(mount.get(name), str) or not mount[name]
        ),
    )
    return next(filter(None, problems), "")


def _variable(value: object, field: str) -> str:
    is_right = isinstance(value, str) and value.find("=") > 0
    return "" if is_right else f"{field} has {quoted(value)}, expected NAME=VALUE"


def _node_form(node: Wire) -> str:
    path, numbers = node.get("path"), [node.get(name, 0) for name in ("major", "minor")]
    if not isinstance(path, str) or not path or not isinstance(node.get("hostPath") or "", str):
        return "a device node has no path"
    if (node.get("type") or "") not in _TYPES:
        return f"device node {quoted(path)} has type {quoted(node.get('type'))}, expected one of b, c, u, p"
    if not all(isinstance(one, int) for one in numbers):
        return f"device node {quoted(path)} has major and minor {quoted(numbers)}, expected numbers"
    if set(str(node.get("permissions") or "")) - set("rwm"):
        return f"device node {quoted(path)} has permissions {quoted(node.get('permissions'))}, expected some of r, w, m"
    return ""


def _hook_form(hook: Wire) -> str:
    name, path, env = hook.get("hookName"), hook.get("path"), hook.get("env") or []
    if name not in HOOKS:
        return f"a hook has hookName {quoted(name)}, expected one of {', '.join(sorted(HOOKS))}"
    if not isinstance(path, str) or not path.startswith("/"):
        return f"hook {name} has path {quoted(path)}, expected an absolute path"
    problems = (_variable(each, f"hook {name}: env") for each in env) if isinstance(env, list) else ("env is no list",)
    return next(filter(None, problems), "")


def least_version(document: Wire) -> str:
    """The oldest cdiVersion that has all fields of this document of valid form."""
    devices = document["devices"]
    parts = [document.get("containerEdits") or {}, *(device["containerEdits"] for device in devices)]

    def has(name: str, field: str) -> bool:
        return any(one.get(field) for part in parts for one in part.get(name) or ())

    class_name = document["kind"].partition("/")[2]
    for version, is_needed in (
        ("1.1.0", any(part.get("netDevices") for part in parts)),
        ("0.7.0", any(part.get("intelRdt") or part.get("additionalGids") for part in parts)),
        ("0.6.0", "." in class_name or any(one.get("annotations") for one in (document, *devices))),
        ("0.5.0", has("deviceNodes", "hostPath") or any(one["name"][0].isdigit() for one in devices)),
        ("0.4.0", has("mounts", "type")),
    ):
        if is_needed:
            return version
    return "0.3.0"


class Host(Struct, frozen=True, kw_only=True):
    """The host on which containers run. ``roots`` are directories below which its paths are, in the order of search."""

    roots: tuple[Path, ...] = (Path("/"),)

    def node_problems(self, nodes: Iterable[Wire]) -> Iterator[str]:
        for node in nodes:
            if problem := self._node_problem(node):
                yield problem

    def hook_problems(self, hooks: Iterable[Wire], mounts: Iterable[Wire]) -> Iterator[str]:
        """Problems of hooks, and of mounts, whose sources have to exist."""
        for hook in hooks:
            what = f"hook {hook['hookName']}: path {quoted(hook['path'])}"
            found = self._find(hook["path"], os.stat)
            if hook["hookName"] == _IN_CONTAINER or (found is not None and _is_program(found)):
                continue
            yield f"{what} {'does not exist' if found is None else 'is not an executable file'} on this host"
        for mount in mounts:
            if mount.get("type") in {None, "", "bind"} and self._find(mount["hostPath"], os.stat) is None:
                yield f"mount: hostPath {quoted(mount['hostPath'])} does not exist on this host"

    def dangers(self, nodes: Iterable[Wire]) -> Iterator[tuple[str, str]]:
        """Device nodes that open the host, with the reason: memory, and block devices."""
        for node in nodes:
            kind, numbers = self._identity(node)
            if kind == "b":
                yield host_path(node), "a block device"
            elif numbers in _MEMORY:
                yield host_path(node), f"the memory or ports of the host ({_MEMORY[numbers]})"

    def _node_problem(self, node: Wire) -> str:
        path, found = quoted(host_path(node)), self._find(host_path(node), os.lstat)
        kind, numbers = self._identity(node)
        if found is None:
            if not node.get("type") or not (node.get("major") or kind == "p"):
                return f"deviceNodes: {path} does not exist on this host, and its type and major are not given"
            if kind != "p" and numbers[0] not in self._majors(kind):
                return (
                    f"deviceNodes: {path} does not exist on this host, whose /proc/devices lists no {kind} {numbers[0]}"
                )
            return ""
        real = _kind(found), (os.major(found.st_rdev), os.minor(found.st_rdev))
        if not real[0]:
            return f"deviceNodes: {path} is not a device node on this host"
        if kind != real[0] or (kind != "p" and numbers != real[1]):
            return f"deviceNodes: {path} is {_named(kind, numbers)} in the CDI file and {_named(*real)} on this host"
        return ""

    def _identity(self, node: Wire) -> tuple[str, tuple[int, int]]:
        """Type and numbers as the runtime gives them to the container."""
        kind = str(node.get("type") or "").replace("u", "c")
        if kind and (node.get("major") or kind == "p"):
            return kind, (node.get("major", 0), node.get("minor", 0))
        found = self._find(host_path(node), os.lstat)
        real = (0, 0) if found is None else (os.major(found.st_rdev), os.minor(found.st_rdev))
        return kind or (_kind(found) if found is not None else ""), real

    def _majors(self, kind: str) -> set[int]:
        found = set()
        for root in self.roots:
            with suppress(OSError):
                characters, _, blocks = (root / "proc/devices").read_text().partition("Block devices:")
                lines = (line.split() for line in (blocks if kind == "b" else characters).splitlines())
                found |= {int(words[0]) for words in lines if words and words[0].isdigit()}
        return found

    def _find(self, path: str, look: Any) -> os.stat_result | None:
        for root in self.roots:
            try:
                found: os.stat_result = look(root / path.lstrip("/"))
            except (OSError, ValueError):
                continue
            return found
        return None


def _is_program(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)


def _kind(found: os.stat_result) -> str:
    kinds = {stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFIFO: "p"}
    return kinds.get(stat.S_IFMT(found.st_mode), "")


def _named(kind: str, numbers: tuple[int, int]) -> str:
    return f"{kind} {numbers[0]}:{numbers[1]}"


def sameness(sides: Sequence[tuple[str, Edits]]) -> str:
    """Why two claims, by UID, are not kept apart by their edits; "" if they are.

    A variable keeps processes apart only in a driver without device nodes.
    """
    (uid, one), (other_uid, other) = sides
    if one.node_paths() - other.node_paths() and other.node_paths() - one.node_paths():
        return ""
    (env, rest), (other_env, other_rest) = one.apart_from_nodes(uid), other.apart_from_nodes(other_uid)
    if rest != other_rest or (env != other_env and not (one.nodes or other.nodes)):
        return ""
    shared = ", ".join(sorted(map(quoted, one.node_paths() & other.node_paths()))[:4])
    return f"both claims get device nodes {shared}" if shared else "the edits of both claims are equal"
