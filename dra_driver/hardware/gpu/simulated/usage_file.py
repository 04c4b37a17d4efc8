"""The file that says which processes use simulated GPUs, ``simulated-usage.json`` beside the state file.

    {"version": 1,
     "uses": [{"key": "…",                        names the entry: a claim's UID and a container
               "gpu": "GPU-…", "gi": null,        or the id of the GPU instance
               "since": 1763800000.0,             when the use began, in seconds since 1970
               "pids": [4711],                    of its processes, the first ones of a step use the GPU
               "claim": null,                     or a claim's UID: then its processes are found in /proc
               "steps": [{"memory": "12Gi", "utilization": 60}]}]}      see ``use_orders.py``

It is replaced by a rename, and changed under ``flock`` of ``<file>.lock``. People and tests may edit it; what is wrong
in it is left out and named. It is not synced: a crash ends processes, too.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.errors import StorageError
from dra_driver.core.files import lock_file, replace_file
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.simulated.use_orders import MAX_PROCESSES, UseStep, as_json, steps_of

NAME: Final = "simulated-usage.json"
VERSION: Final = 1
MAX_BYTES: Final = 4 * 1024 * 1024
MAX_USES: Final = 4096
MAX_PID: Final = 2**22
"""PID_MAX_LIMIT of Linux (include/linux/threads.h)."""
_LOCK_S: Final = 20.0


class SimulatedUse(Struct, frozen=True, kw_only=True):
    """What one container uses of one device; fields as in the module docstring."""

    key: str
    gpu_uuid: GpuUuid
    since: float
    steps: tuple[UseStep, ...]
    gi_id: int | None = None
    pids: tuple[int, ...] = ()
    claim_uid: str | None = None


def read_uses(path: Path) -> tuple[tuple[SimulatedUse, ...], tuple[str, ...]]:
    """The uses, and what is wrong in the file, in words. A missing file has none."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return (), ()
    except OSError as error:
        return (), (f"{path.name} cannot be read: {error.strerror}",)
    if len(data) > MAX_BYTES:
        return (), (f"{path.name} has more than {MAX_BYTES} bytes",)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        return (), (f"{path.name} is no JSON: {error}",)
    items = document.get("uses") if isinstance(document, dict) and document.get("version") == VERSION else None
    if not isinstance(items, list) or len(items) > MAX_USES:
        return (), (f"{path.name}: version {VERSION} with at most {MAX_USES} uses expected",)
    uses, problems = [], []
    for number, item in enumerate(items):
        try:
            uses.append(_use(item))
        except ValueError as error:
            problems.append(f"{path.name}, uses[{number}]: {error}")
    return tuple(uses), tuple(problems[:10])


def change_uses(path: Path, change: Callable[[Sequence[SimulatedUse]], Sequence[SimulatedUse]]) -> None:
    """Replace the uses by what ``change`` makes of them; no write when it changes nothing. Raises StorageError."""
    try:
        descriptor = lock_file(path.with_name(f"{path.name}.lock"), timeout_s=_LOCK_S)
        try:
            former, _ = read_uses(path)
            uses = tuple(change(former))
            if uses != former:
                document = {"version": VERSION, "uses": [_as_json(use) for use in uses[:MAX_USES]]}
                replace_file(path, json.dumps(document, indent=1).encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(f"cannot write {path.name}: {error}: see that its folder can be written") from error


def _use(item: object) -> SimulatedUse:
    item = item if isinstance(item, Mapping) else {}
    key, gpu, since = item.get("key", ""), item.get("gpu"), item.get("since", 0)
    if not (isinstance(key, str) and isinstance(gpu, str)):
        raise ValueError("key and gpu as texts expected")  # noqa: TRY004 - a wrong file, not a wrong call
    if isinstance(since, bool) or not isinstance(since, int | float) or not 0 <= since < 2**40:
        raise ValueError("since: seconds since 1970 expected")
    gi, claim, pids = item.get("gi"), item.get("claim"), item.get("pids", [])
    if gi is not None and (isinstance(gi, bool) or not isinstance(gi, int) or not 0 <= gi < 16):
        raise ValueError("gi: the id of a GPU instance or null expected")
    if claim is not None and not isinstance(claim, str):
        raise ValueError("claim: a UID or null expected")
    if not isinstance(pids, list) or len(pids) > MAX_PROCESSES or not all(_is_pid(pid) for pid in pids):
        raise ValueError(f"pids: at most {MAX_PROCESSES} process ids expected")
    return SimulatedUse(
        key=key,
        gpu_uuid=GpuUuid(gpu),
        since=float(since),
        steps=steps_of(item.get("steps")),
        gi_id=gi,
        pids=tuple(pids),
        claim_uid=claim,
    )


def _is_pid(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_PID


def _as_json(use: SimulatedUse) -> dict[str, Any]:
    found: dict[str, Any] = {"key": use.key, "gpu": use.gpu_uuid, "gi": use.gi_id, "since": use.since}
    return found | {"pids": list(use.pids), "claim": use.claim_uid, "steps": as_json(use.steps)}
