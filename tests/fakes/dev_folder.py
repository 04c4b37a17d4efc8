"""A ``/dev`` in memory: character devices can be made in it without root."""

import errno
import os
import posixpath
from collections.abc import Callable

from dra_driver.hardware.device_nodes.folder import DevFolder, Found, Seen, Stamp
from dra_driver.hardware.device_nodes.numbers import NodeNumbers


class MemoryDev(DevFolder):
    """``fail`` is the errno of every change; ``stamps`` and ``looks`` list the paths read, ``made`` the changes, in
    order."""

    def __init__(self) -> None:
        self.nodes: dict[str, Seen] = {}
        self.links: dict[str, str] = {}
        self.files: set[str] = set()
        self.folders = {"/dev", "/dev/char"}
        self.fail: int | None = None
        self.fail_links: int | None = None
        self.looks: list[str] = []
        self.stamps: list[str] = []
        self.made: list[str] = []
        self.before_change: Callable[[str], None] = lambda path: None
        self._stamps: dict[str, Stamp] = {}
        self._inodes = 0

    def add(self, path: str, major: int, minor: int, mode: int = 0o666) -> None:
        self.folders.add(posixpath.dirname(path))
        numbers = NodeNumbers(major=major, minor=minor)
        self.nodes[path] = Seen(found=Found.DEVICE, numbers=numbers, mode=mode)
        self._stamp(path)

    def stamp(self, path: str) -> Stamp:
        self.stamps.append(path)
        return self._stamps.get(path) if path in self.nodes else None

    def look(self, path: str) -> Seen:
        self.looks.append(path)
        if path in self.nodes:
            return self.nodes[path]
        if path in self.links:
            return Seen(found=Found.LINK)
        return Seen(found=Found.OTHER if path in self.files | self.folders else Found.MISSING)

    def read_link(self, path: str) -> str | None:
        return self.links.get(path)

    def make_node(self, path: str, numbers: NodeNumbers, *, mode: int, uid: int, gid: int, replace: bool) -> None:
        self._change(path, self.fail)
        if not replace and self.look(path).found is not Found.MISSING:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self.files.discard(path)
        self.links.pop(path, None)
        self.nodes[path] = Seen(found=Found.DEVICE, numbers=numbers, mode=mode, uid=uid, gid=gid)
        self._stamp(path)

    def make_link(self, path: str, target: str) -> None:
        self._change(path, self.fail if self.fail_links is None else self.fail_links)
        self.links[path] = target

    def make_folder(self, path: str) -> None:
        if path not in self.folders:
            self._change(path, self.fail)
            self.folders.add(path)

    def _stamp(self, path: str) -> None:
        self._inodes += 1
        self._stamps[path] = (self._inodes, 0, 0)

    def _change(self, path: str, fail: int | None) -> None:
        self.before_change(path)
        if fail is not None:
            raise OSError(fail, os.strerror(fail))
        if posixpath.dirname(path) not in self.folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self.made.append(path)
