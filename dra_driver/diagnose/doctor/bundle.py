"""Write and read support bundles: facts of a cluster, driver logs and the doctor's report, in one file without secrets.

A ``.tar.gz`` of JSON and text files; `MANIFEST` is first and has the version. Reading writes nothing to disk, checks
sizes before it decompresses more, and skips members with other names.
"""

import gzip
import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.errors import (
    ConfigurationError,
    InvalidObjectError,
    KubernetesApiError,
    NotFoundError,
    StorageError,
)
from dra_driver.core.files import replace_file
from dra_driver.core.finding import check_document
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.reduce import redacted
from dra_driver.kube import paths
from dra_driver.kube.state import KINDS, ClusterState, Wire
from dra_driver.kube.state import without_foreign_parameters as without_foreign
from dra_driver.kube.state_file import state_in, text_of

KIND: Final = "SupportBundle"
SCHEMA_VERSION: Final = 1
MANIFEST, STATE, FACTS, REPORT, TEXT = "manifest.json", "state.json", "facts.json", "doctor.json", "doctor.txt"
LOGS: Final = "logs/"
MAX_FILE_BYTES: Final = 256 << 20
"""Limit of the compressed file."""
MAX_MEMBER_BYTES: Final = 1 << 30
MAX_HEADER_BYTES: Final = 1 << 20
"""Limit of the headers of a member, such as a long name."""
MAX_UNPACKED_BYTES: Final = 3 << 30
"""Limit of the whole decompressed file, skipped members included."""
_GZIP: Final = b"\x1f\x8b"


class SupportBundle(Struct, frozen=True, kw_only=True):
    """``logs`` are texts by name (``namespace/pod/container``), ``report`` the doctor's in JSON values and as text."""

    facts: fact.ClusterFacts
    created_at: str
    program_version: str
    report: Mapping[str, object]
    report_text: str
    logs: Mapping[str, str] = field(default_factory=dict)


def is_bundle(path: Path | str) -> bool:
    """Return whether the file begins as a bundle does. False for an unreadable file: `read` reports why."""
    try:
        with Path(path).open("rb") as file:
            return file.read(2) == _GZIP
    except OSError:
        return False


def write(bundle: SupportBundle, path: Path) -> int:
    """Write the file, readable only by its owner, whole or not at all; return its bytes. Raises StorageError."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name, content in _members(bundle):
            data = content.encode()
            member = tarfile.TarInfo(f"support-bundle/{name}")
            member.size, member.mode = len(data), 0o600
            tar.addfile(member, io.BytesIO(data))
    try:
        replace_file(path, packed.getvalue(), mode=0o600)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {os.strerror(error.errno or 0)}") from error
    return len(packed.getvalue())


def read(path: Path | str) -> fact.ClusterFacts:
    """Return the facts in a bundle. Raises ConfigurationError, also for a bundle of a newer version."""
    where = str(path)
    found: dict[str, object] = {}
    for name, data in _files_in(Path(path), where):
        found[name] = _json(data, f"{where}: {name}")
        if name == MANIFEST:
            check_document(found[name], KIND, SCHEMA_VERSION, where)
    missing = [name for name in (MANIFEST, STATE, FACTS) if name not in found]
    if missing:
        raise ConfigurationError(
            f"{where}: not a support bundle: {', '.join(missing)} is missing in it",
            reason="MemberMissing",
            missing=missing,
        )
    return _facts(found[FACTS], state_in([fact.mapping(found[STATE])], where), where)


def _members(bundle: SupportBundle) -> Iterator[tuple[str, str]]:
    facts = without_foreign_parameters(bundle.facts)
    manifest = {
        "kind": KIND,
        "schemaVersion": SCHEMA_VERSION,
        "createdAt": bundle.created_at,
        "programVersion": bundle.program_version,
        "source": facts.source,
        "logs": sorted(bundle.logs),
    }
    yield MANIFEST, json.dumps(manifest, indent=2)
    yield TEXT, bundle.report_text
    yield REPORT, json.dumps(bundle.report, indent=2)
    yield STATE, text_of(replace(facts.state(), gpu_nodes=()), as_yaml=False)  # GpuNodes are among the facts
    yield FACTS, json.dumps({"answers": _packed(facts)}, separators=(",", ":"))
    for name, log in sorted(bundle.logs.items()):
        yield f"{LOGS}{name}.log", log


def _packed(facts: fact.ClusterFacts) -> dict[str, object]:
    """The facts that the cluster state does not contain, and the failures of questions."""
    kept = {name: value for name, value in facts.answers.items() if name in fact.EXTRA}
    kept |= facts.unanswered
    return {
        name: {"unanswered": {"seen": value.seen, "do": value.fix}}
        if isinstance(value, fact.Unanswered)
        else {"is": value}
        for name, value in kept.items()
    }


def _facts(document: object, state: ClusterState, where: str) -> fact.ClusterFacts:
    packed = document.get("answers") if isinstance(document, dict) else None
    if not isinstance(packed, dict):
        raise ConfigurationError(f"{where}: {FACTS} has no answers", reason="NoAnswers")
    answers: dict[str, object] = {kind.field: list(getattr(state, kind.field)) for kind in KINDS}
    for name, value in packed.items():
        if name in fact.EXTRA or name in answers:
            answers[name] = _unpacked(value, f"{where}: {FACTS}: {str(name)[:40]}", answers.get(name))
    return fact.ClusterFacts(answers=answers, source=where)


def _unpacked(value: object, where: str, present: object) -> object:
    why = value.get("unanswered") if isinstance(value, dict) else None
    if isinstance(why, dict) and isinstance(why.get("seen"), str) and isinstance(why.get("do"), str):
        return fact.Unanswered(seen=why["seen"][:2000], fix=why["do"][:2000])
    if not isinstance(value, dict) or not isinstance(value.get("is"), dict | list):
        raise ConfigurationError(f"{where}: expected an answer, or the reason for a missing one", reason="NotAnAnswer")
    return value["is"] if present is None else present


def _files_in(path: Path, where: str) -> Iterator[tuple[str, bytes]]:
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ConfigurationError(f"{where} has {size >> 20} MiB; at most {MAX_FILE_BYTES >> 20} MiB are read")
        with gzip.open(path) as unzipped, tarfile.open(fileobj=(file := _Bounded(unzipped)), mode="r:") as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                if not member.isfile() or name not in (MANIFEST, STATE, FACTS):
                    continue
                if member.size > MAX_MEMBER_BYTES:
                    raise ConfigurationError(f"{where}: {name} is larger than {MAX_MEMBER_BYTES >> 20} MiB")
                content = tar.extractfile(member)
                file.longest = max(member.size, MAX_HEADER_BYTES)
                yield name, content.read() if content is not None else b""
                file.longest = MAX_HEADER_BYTES
    except OSError as error:
        raise ConfigurationError(f"cannot read {where}: {error.strerror or error}") from error
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"{where} is not a readable support bundle: {error}", reason="NotABundle") from error


class _Bounded(io.RawIOBase):
    """A file that returns at most ``longest`` bytes per read, and ends at `MAX_UNPACKED_BYTES`.

    `tarfile` reads a header of the length that the header before it names, and skips members of any size.
    """

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self.longest = MAX_HEADER_BYTES

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= self.longest:
            raise tarfile.ReadError(f"a header of it has {size} bytes, expected at most {self.longest}")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence != io.SEEK_SET or offset > MAX_UNPACKED_BYTES:
            raise tarfile.ReadError(f"it has more than {MAX_UNPACKED_BYTES >> 20} MiB when it is decompressed")
        return self._file.seek(offset)

    def tell(self) -> int:
        return self._file.tell()


def _json(data: bytes, where: str) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where} is not readable JSON: {str(error)[:200]}", reason="NotJson") from error


MOST_PODS: Final = 40
MOST_BYTES: Final = 512 * 1024
"""Limit of one log."""
_LINES: Final = 3000


class LogApi(Protocol):
    """Subset of ``kube.rest.RestClient`` that this module uses."""

    def get_text(self, path: str, query: Mapping[str, str] | None = None, *, within_s: float | None = None) -> str: ...


def read_logs(api: LogApi, facts: fact.ClusterFacts, *, within_s: float) -> tuple[dict[str, str], list[str]]:
    """Return logs by ``namespace/pod/container`` and a message for each omitted log. Pods that are not ready come
    first; logs of ended containers are included. ``within_s`` bounds each request."""
    pods = sorted(
        facts.items_or_none(fact.DRIVER_PODS),
        key=lambda pod: (fact.is_ready(pod), fact.namespace_of(pod), fact.name_of(pod)),
    )
    left = [f"logs of {len(pods) - MOST_PODS} of {len(pods)} pods"] if len(pods) > MOST_PODS else []
    found: dict[str, str] = {}
    for pod in pods[:MOST_PODS]:
        for container in fact.dicts(pod, "status", "containerStatuses"):
            for previous in (False, True) if fact.number(container, "restartCount") else (False,):
                _add(found, left, api, pod, fact.text(container, "name"), previous=previous, within_s=within_s)
    return found, left


def _add(
    found: dict[str, str],
    left: list[str],
    api: LogApi,
    pod: Wire,
    container: str,
    *,
    previous: bool,
    within_s: float,
) -> None:
    name = f"{fact.namespace_of(pod)}/{fact.name_of(pod)}/{container}{'-previous' if previous else ''}"
    query = {"container": container, "tailLines": str(_LINES), "limitBytes": str(MOST_BYTES)}
    if previous:
        query["previous"] = "true"
    try:
        log = api.get_text(f"{paths.pod(fact.namespace_of(pod), fact.name_of(pod))}/log", query, within_s=within_s)
    except (InvalidObjectError, NotFoundError):
        return  # the container has not started, or the previous run's log is deleted
    except KubernetesApiError as error:
        left.append(f"the log of {name}: {error}")
        return
    found[name] = redacted(log, MOST_BYTES)


_KINDS: Final = ("claims", "templates", "classes")
"""Kinds with opaque parameters (resource/v1 ``OpaqueDeviceConfiguration``)."""


def without_foreign_parameters(facts: fact.ClusterFacts) -> fact.ClusterFacts:
    """The facts with empty opaque parameters, and empty data of claimed devices, where another driver reads them."""
    own = facts.driver_names
    kept = {name: [without_foreign(item, own) for item in facts.items(name)] for name in _KINDS if facts.knows(name)}
    return facts.with_items(**kept)
