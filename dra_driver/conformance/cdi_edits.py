"""Read CDI files as a container runtime does, and compare their edits with this host.

Sources: SPEC.md, specs-go/version.go and pkg/cdi/container-edits*.go of cncf-tags/container-device-interface. A runtime
refuses a malformed file as a whole. It reads the host's node only if type and major are absent, so a wrong node
starts a container without its device.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from dra_driver.core.text import quoted

_Text = Annotated[str, Meta(min_length=1)]
_Variable = Annotated[str, Meta(pattern="^[^=]+=")]
_HookName = Literal["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
METADATA: Final = "/var/run/kubernetes.io/dra-device-attributes"
"""Directory of device metadata files in containers (KEP-5304)."""
_MEMORY: Final = {(1, 1): "/dev/mem", (1, 2): "/dev/kmem", (1, 4): "/dev/port"}


class AnsweredNode(Struct, frozen=True, rename="camel"):
    path: _Text
    host_path: str | None = None
    type: Literal["", "b", "c", "u", "p"] | None = None
    major: int | None = None
    minor: int | None = None
    permissions: Annotated[str, Meta(pattern="^[rwm]*$")] | None = None

    @property
    def source(self) -> str:
        return self.host_path or self.path


class AnsweredHook(Struct, frozen=True, rename="camel"):
    hook_name: _HookName
    path: Annotated[str, Meta(pattern="^/")]
    args: tuple[str, ...] | None = None
    env: tuple[_Variable, ...] | None = None


class AnsweredMount(Struct, frozen=True, rename="camel"):
    host_path: _Text
    container_path: _Text
    options: tuple[str, ...] | None = None
    type: str | None = None


class AnsweredEdits(Struct, frozen=True, rename="camel"):
    env: tuple[_Variable, ...] | None = None
    device_nodes: tuple[AnsweredNode, ...] | None = None
    hooks: tuple[AnsweredHook, ...] | None = None
    mounts: tuple[AnsweredMount, ...] | None = None
    net_devices: tuple[Any, ...] | None = None
    intel_rdt: Any = None
    additional_gids: tuple[int, ...] | None = None


NO_EDITS: Final = AnsweredEdits()


class AnsweredCdiDevice(Struct, frozen=True, rename="camel"):
    name: _Text
    container_edits: AnsweredEdits
    annotations: dict[str, str] | None = None


class CdiDocument(Struct, frozen=True, rename="camel"):
    cdi_version: str
    kind: str
    devices: Annotated[tuple[AnsweredCdiDevice, ...], Meta(min_length=1)]
    container_edits: AnsweredEdits | None = None
    annotations: dict[str, str] | None = None

    def least_version(self) -> str:
        """The oldest cdiVersion that has all fields of this document."""
        parts = [self.container_edits or NO_EDITS, *(device.container_edits for device in self.devices)]
        nodes = chain.from_iterable(part.device_nodes or () for part in parts)
        mounts = chain.from_iterable(part.mounts or () for part in parts)
        annotated = bool(self.annotations) or any(device.annotations for device in self.devices)
        for version, is_needed in (
            ("1.1.0", any(part.net_devices for part in parts)),
            ("0.7.0", any(part.intel_rdt or part.additional_gids for part in parts)),
            ("0.6.0", "." in self.kind.partition("/")[2] or annotated),
            ("0.5.0", any(one.host_path for one in nodes) or any(one.name[0].isdigit() for one in self.devices)),
            ("0.4.0", any(one.type for one in mounts)),
        ):
            if is_needed:
                return version
        return "0.3.0"


class MergedEdits(Struct, frozen=True):
    """The edits of devices, and of the files that define them."""

    parts: tuple[AnsweredEdits, ...] = ()

    @property
    def nodes(self) -> tuple[AnsweredNode, ...]:
        return tuple(dict.fromkeys(node for part in self.parts for node in part.device_nodes or ()))

    @property
    def mounts(self) -> tuple[AnsweredMount, ...]:
        return tuple(dict.fromkeys(mount for part in self.parts for mount in part.mounts or ()))

    def _apart_from_nodes(self, uid: str) -> tuple[set[str], set[str]]:
        """The variables, and all edits except variables, device nodes and metadata files, whose path names the claim;
        both without the UID of the claim."""
        env = {each for part in self.parts for each in part.env or ()}
        rest = {repr(replace(part, env=None, device_nodes=None, mounts=_devices_own(part))) for part in self.parts}
        forms = (uid, uid.replace("-", "_"), uid.replace("-", ""))
        return {_without(one, forms) for one in env}, {_without(one, forms) for one in rest}


def _devices_own(part: AnsweredEdits) -> tuple[AnsweredMount, ...]:
    return tuple(mount for mount in part.mounts or () if not mount.container_path.startswith(f"{METADATA}/"))


def _without(text: str, forms: Iterable[str]) -> str:
    for form in forms:
        text = text.replace(form, "")
    return text


def sameness(sides: Sequence[tuple[str, MergedEdits]]) -> str:
    """The reason for which edits do not separate two claims, by UID; "" if they do.

    A variable separates processes only in a driver without device nodes.
    """
    (uid, one), (other_uid, other) = sides
    paths, other_paths = ({node.source for node in each.nodes} for each in (one, other))
    (env, rest), (other_env, other_rest) = one._apart_from_nodes(uid), other._apart_from_nodes(other_uid)
    if (paths - other_paths and other_paths - paths) or rest != other_rest:
        return ""
    if env != other_env and not (paths or other_paths):
        return ""
    shared = ", ".join(sorted(map(quoted, paths & other_paths))[:4])
    return f"both claims get device nodes {shared}" if shared else "the edits of both claims are equal"


class Host(Struct, frozen=True, kw_only=True):
    """The host of the containers. ``roots`` are directories that contain its paths, in the order of search."""

    roots: tuple[Path, ...] = (Path("/"),)

    def node_problems(self, edits: MergedEdits) -> Iterator[str]:
        return (problem for node in edits.nodes if (problem := self._node_problem(node)))

    def hook_problems(self, edits: MergedEdits) -> Iterator[str]:
        """Problems of hooks and of mounts, whose sources must exist."""
        for hook in (hook for part in edits.parts for hook in part.hooks or ()):
            # The runtime runs a startContainer hook in the container, so its file is in the image (runtime-spec).
            if hook.hook_name != "startContainer" and not _is_program(found := self._find(hook.path, os.stat)):
                what = "does not exist" if found is None else "is not an executable file"
                yield f"hook {hook.hook_name}: path {quoted(hook.path)} {what} on this host"
        for mount in (mount for part in edits.parts for mount in part.mounts or ()):
            if mount.type in {None, "", "bind"} and self._find(mount.host_path, os.stat) is None:
                yield f"mount: hostPath {quoted(mount.host_path)} does not exist on this host"

    def dangers(self, edits: MergedEdits) -> Iterator[tuple[str, str]]:
        """Device nodes that give access to the host, with the reason: memory, and block devices."""
        for node in edits.nodes:
            kind, numbers = self._identity(node, self._find(node.source, os.lstat))
            if kind == "b":
                yield node.source, "a block device"
            elif numbers in _MEMORY:
                yield node.source, f"the memory or ports of the host ({_MEMORY[numbers]})"

    def content(self, path: str, limit: int) -> bytes | None:
        """At most ``limit`` bytes of a file that every user can read; None for anything else."""
        for root in self.roots:
            with suppress(OSError, ValueError), (root / path.lstrip("/")).open("rb") as file:
                status = os.fstat(file.fileno())
                if stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH:
                    return file.read(limit)
        return None

    def _node_problem(self, node: AnsweredNode) -> str:
        what, found = f"deviceNodes: {quoted(node.source)}", self._find(node.source, os.lstat)
        kind, numbers = self._identity(node, found)
        if found is None:
            if not node.type or not (node.major or kind == "p"):
                return f"{what} does not exist on this host, and its type and major are not given"
            is_served = kind == "p" or numbers[0] in self._majors(kind)
            return (
                "" if is_served else f"{what} does not exist, and this host's /proc/devices has no {kind} {numbers[0]}"
            )
        real, real_numbers = _real(found)
        if not real:
            return f"{what} is not a device node on this host"
        if kind != real or (kind != "p" and numbers != real_numbers):
            return (
                f"{what} is {kind} {numbers[0]}:{numbers[1]} in the CDI file and {real} "
                f"{real_numbers[0]}:{real_numbers[1]} on this host"
            )
        return ""

    @staticmethod
    def _identity(node: AnsweredNode, found: os.stat_result | None) -> tuple[str, tuple[int, int]]:
        """Type and numbers of the node in the container."""
        kind = (node.type or "").replace("u", "c")
        if kind and (node.major or kind == "p"):
            return kind, (node.major or 0, node.minor or 0)
        real, numbers = ("", (0, 0)) if found is None else _real(found)
        return kind or real, numbers

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
            with suppress(OSError, ValueError):
                found: os.stat_result = look(root / path.lstrip("/"))
                return found
        return None


def _is_program(found: os.stat_result | None) -> bool:
    return found is not None and stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)


def _real(found: os.stat_result) -> tuple[str, tuple[int, int]]:
    kinds = {stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFIFO: "p"}
    return kinds.get(stat.S_IFMT(found.st_mode), ""), (os.major(found.st_rdev), os.minor(found.st_rdev))
