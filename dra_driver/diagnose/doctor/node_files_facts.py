"""Reads the node's CDI folder, the space on its disks, and NVIDIA's CDI hook. Changes nothing."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from dra_driver.core.errors import ConfigurationError, InvalidSpecError
from dra_driver.diagnose.doctor.node_text import names
from dra_driver.diagnose.doctor.node_view import HostView
from dra_driver.hardware.cdi import CdiNames, CdiSpec, DriverRoot
from dra_driver.hardware.cdi.decode import decode
from dra_driver.hardware.cdi.hook import choose_hook
from dra_driver.hardware.cdi.hook_version import HookVersions

MAX_BYTES: Final = 4 << 20
_MOST_FILES: Final = 4096


class CdiFacts(Struct, frozen=True, kw_only=True):
    """The driver's documents by file name. ``problems`` are sentences about its files that no runtime would load,
    ``gone`` the host's files that its documents mount and that do not exist."""

    folder: str = ""
    exists: bool = False
    base: bool = False
    documents: tuple[CdiSpec, ...] = ()
    problems: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


class DiskFacts(Struct, frozen=True, kw_only=True):
    """Free space of the file system with ``folder``: bytes, and files that could be made (None: no such limit)."""

    folder: str
    what: str
    free_bytes: int
    free_files: int | None


class HookFacts(Struct, frozen=True, kw_only=True):
    """``hook`` is path and version of the hook that containers get, None for none. ``note`` says why one is not used,
    ``problem`` why the wanted one cannot be."""

    hook: str | None = None
    note: str | None = None
    problem: str | None = None


class FileFacts(Struct, frozen=True, kw_only=True):
    """All of them."""

    cdi: CdiFacts = field(default_factory=CdiFacts)
    disks: tuple[DiskFacts, ...] = ()
    hook: HookFacts = field(default_factory=HookFacts)


def read_files(view: HostView) -> FileFacts:
    """Everything that is in files."""
    return FileFacts(cdi=_cdi(view), disks=tuple(_disks(view)), hook=_hook(view))


def _cdi(view: HostView) -> CdiFacts:
    known = CdiNames(view.driver)
    found = names(str(view.cdi))
    own = [
        name
        for name in (found or [])[:_MOST_FILES]
        if not known.is_temporary(name) and (name == known.base_file_name or known.uid_of(name) is not None)
    ]
    documents, problems = [], []
    for name in own:
        try:
            documents.append(_document(view.cdi / name))
        except InvalidSpecError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{view.cdi / name} cannot be read: {error.strerror}")
    return CdiFacts(
        folder=str(view.cdi),
        exists=os.path.lexists(view.cdi),
        base=known.base_file_name in own,
        documents=tuple(documents),
        problems=tuple(problems),
        gone=tuple(sorted({path for document in documents for path in _mounted(document) if _is_gone(view, path)})),
    )


def _document(path: Path) -> CdiSpec:
    with path.open("rb") as file:
        return decode(file.read(MAX_BYTES), str(path))


def _mounted(document: CdiSpec) -> Iterator[str]:
    for edits in (document.container_edits, *(device.container_edits for device in document.devices)):
        for mount in edits.mounts:
            yield mount.host_path


def _is_gone(view: HostView, path: str) -> bool:
    """Whether the file is missing on the host; a link at its place counts as the file, an unreadable folder as well."""
    try:
        os.lstat(view.here(path))
    except (FileNotFoundError, NotADirectoryError):
        return path.startswith("/")
    except OSError:
        return False
    return False


def _disks(view: HostView) -> Iterator[DiskFacts]:
    for folder, what in ((view.own_folder, "the journal"), (view.cdi, "CDI files")):
        try:
            space = os.statvfs(folder)
        except OSError:
            continue
        files = space.f_favail if space.f_files else None
        yield DiskFacts(folder=str(folder), what=what, free_bytes=space.f_bavail * space.f_frsize, free_files=files)


def _hook(view: HostView) -> HookFacts:
    try:
        choice = choose_hook(DriverRoot(root=view.host, host_root="/"), view.hook, HookVersions())
    except ConfigurationError as error:
        return HookFacts(problem=str(error))
    found = f"{choice.hook.path} {choice.hook.version}" if choice.hook else None
    return HookFacts(hook=found, note=choice.note)
