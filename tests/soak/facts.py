"""Reads the facts of `invariants` from a node: API server, journal, CDI files, hardware."""

import json
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import parse_partition_name
from dra_driver.core.quantity import Quantity
from dra_driver.sim.apiserver.kinds import RESOURCE_CLAIMS
from tests.fakes.live_claims import Obj
from tests.fakes.live_node import LiveNode
from tests.soak.invariants import Facts, Grant

_SHARE_ID = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def facts(node: LiveNode, answered: Mapping[str, Sequence[str]]) -> Facts:
    """The node's facts while no call is in work."""
    gpus = node.hardware.snapshot().gpus  # without those that are ill
    minors = {uuid: minor for minor, uuid in enumerate(node.gpus)}
    return Facts(
        answered=answered,
        journal=node.states(),
        journal_devices=journal_devices(node.plugin / "state.db"),
        orphans=[(minors[uuid], *rest) for uuid, *rest in orphans(node.plugin / "state.db")],  # type: ignore[misc, index]
        cdi=cdi_devices(node.cdi_files()),
        api=grants(node.store.list(RESOURCE_CLAIMS).items, gpus),
        instances=[(minors[uuid], *rest) for uuid, *rest in node.instances()],  # type: ignore[misc, index]
        memory={f"{node.name}/gpu.nvidia.com gpu-{minor}": gpus[0].memory_bytes or 0 for minor in minors.values()},
    )


def journal_devices(path: Path) -> dict[str, list[str]]:
    """Devices of each claim in a journal."""
    found: dict[str, list[str]] = {}
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0)) as connection:
        for uid, device in connection.execute("SELECT uid, device FROM device ORDER BY uid, position"):
            found.setdefault(uid, []).append(device)
    return found


def orphans(path: Path) -> list[tuple[str, int, int]]:
    """(GPU, profile, start) of partitions that a journal notes and no claim has: they could not be destroyed yet."""
    query = (
        "SELECT m.gpu_uuid, m.profile, m.start FROM mig AS m WHERE m.made = 1 AND NOT EXISTS"
        " (SELECT 1 FROM device AS d WHERE d.uid = m.uid AND d.position = m.position)"
    )
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0)) as connection:
        return [(str(uuid), int(profile), int(start)) for uuid, profile, start in connection.execute(query)]


def cdi_devices(files: Mapping[str, Path]) -> dict[str, list[str]]:
    """Devices of each claim's CDI file; their names begin with the claim's UID."""
    found = {}
    for uid, path in files.items():
        document = json.loads(path.read_text())
        names = [device["name"].removeprefix(f"{uid}-") for device in document["devices"]]
        found[uid] = [_SHARE_ID.sub("", name) for name in names]
    return found


def grants(claims: Iterable[Obj], gpus: Sequence[Gpu]) -> dict[str, list[Grant]]:
    """What the API server says that each claim has. GPUs of one model: profiles are looked up in the first."""
    sizes = {profile.profile_id: profile.memory_slices for profile in gpus[0].mig_profiles}
    found = {}
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation")
        if allocation is not None:
            results = allocation["devices"]["results"]
            found[claim["metadata"]["uid"]] = [_grant(result, sizes) for result in results]
    return found


def _grant(result: Mapping[str, Any], sizes: Mapping[int, int]) -> Grant:
    name = parse_partition_name(result["device"])
    consumed = result.get("consumedCapacity") or {}
    return Grant(
        pool=result["pool"],
        device=result["device"],
        admin=bool(result.get("adminAccess")),
        share=result.get("shareID") or "",
        memory=_amount(consumed.get("memory")) if consumed else 0,
        percent=_amount(consumed.get("computePercent")) if consumed else 0,
        size=0 if name is None else sizes.get(name.profile_id, 0),
    )


def _amount(text: object) -> int:
    return Quantity.parse(str(text)).as_int() if text is not None else 0
