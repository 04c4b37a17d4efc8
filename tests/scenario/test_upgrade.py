"""The current version takes over a node from version 6bf8a09, whose state is kept in tests/golden/state.

The recording is what ``kill -9`` left: the journal with its write-ahead log, GPU state backups, MPS folders, CDI files
and the state of the simulated GPUs. The test lays it into a new node and replaces the recorded folder, boot id and
claim UIDs by the new node's.

The node had four simulated H100 and these claims when its node process was killed:

    whole        GPU 0
    partitions   1g.10gb and 2g.20gb of GPU 1
    time-sliced  GPU 2, interval Long
    share-10     10 GiB and 10 % of GPU 3, by MPS
    share-20     20 GiB and 20 % of GPU 3, by MPS
    preparing    1g.10gb of GPU 1; killed between the GPU instance and its compute instance

A recording has ``plugin/`` and ``cdi/`` as they were, and ``claims.json``: per claim the API object, and what the
kubelet was answered (device names and CDI ids), null for the last one. In text files the node's folder is written
``@ROOT@`` and the machine's boot id ``@BOOT_ID@``; in the journal, which is a database, the test replaces it by SQL.
"""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dra_driver.sim.apiserver.kinds import RESOURCE_CLAIMS
from tests.fakes.live_claims import Obj
from tests.fakes.live_node import MPS_ON_GPU_3, LiveNode, until

RECORDING = Path(__file__).parents[1] / "golden/state/6bf8a09"
GPU_COUNT = 4
SPEC = "4xh100-sxm5-80gb"
POLICY = MPS_ON_GPU_3.replace("by-mps", "shared-mps")


@dataclass
class Upgraded:
    node: LiveNode
    claims: dict[str, Obj]
    answers: dict[str, list[tuple[str, list[str]]] | None]
    """What the older version answered: device names and CDI ids; None where it died before the answer."""
    files_before: dict[str, bytes]

    def prepared(self) -> dict[str, Obj]:
        return {name: claim for name, claim in self.claims.items() if self.answers[name] is not None}


@pytest.fixture
def upgraded() -> Iterator[Upgraded]:
    node = LiveNode(SPEC, policy=POLICY, mps=True)
    recorded = json.loads((RECORDING / "claims.json").read_text())
    claims = {name: add_claim(node, each["claim"]) for name, each in recorded.items()}
    uids = {each["claim"]["metadata"]["uid"]: claims[name]["uid"] for name, each in recorded.items()}
    lay_out(node, uids)
    answers = {
        name: [(device, sorted(replaced(cdi_id, uids) for cdi_id in ids)) for device, ids in each["answer"]]
        if each["answer"] is not None
        else None
        for name, each in recorded.items()
    }
    files = {uid: path.read_bytes() for uid, path in node.cdi_files().items()}
    with node:
        yield Upgraded(node, claims, answers, files)


def add_claim(node: LiveNode, recorded: Obj) -> Obj:
    """Create the recorded claim with its allocation; the API server gives it another UID."""
    metadata = {key: recorded["metadata"][key] for key in ("name", "namespace")}
    created = node.store.create(RESOURCE_CLAIMS, {"metadata": metadata, "spec": recorded["spec"]})
    node.store.update_status(RESOURCE_CLAIMS, {**created, "status": recorded["status"]})
    return {**metadata, "uid": created["metadata"]["uid"]}


def lay_out(node: LiveNode, uids: dict[str, str]) -> None:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    shutil.copytree(RECORDING / "plugin", node.plugin, dirs_exist_ok=True)
    for path in (RECORDING / "cdi").iterdir():
        shutil.copy(path, node.folders.cdi / replaced(path.name, uids))
    texts = [path for path in node.plugin.rglob("*") if path.is_file() and not path.name.startswith("state.db")]
    for path in (*texts, *node.folders.cdi.iterdir()):
        text = path.read_text().replace("@ROOT@", str(node.root)).replace("@BOOT_ID@", boot_id)
        path.write_text(replaced(text, uids))
    with closing(sqlite3.connect(node.plugin / "state.db", isolation_level=None)) as journal:
        for old, new in uids.items():
            for table in ("claim", "device", "mig", "sharing"):
                journal.execute(f"UPDATE {table} SET uid = ? WHERE uid = ?", (new, old))  # noqa: S608
        for table in ("claim", "gpu_note"):
            journal.execute(f"UPDATE {table} SET boot_id = ?", (boot_id,))  # noqa: S608


def replaced(text: str, words: dict[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text


def answered(answer: Any) -> list[tuple[str, list[str]]]:
    """Devices and their CDI ids, whose order changes nothing in a container; newer versions name the own id first."""
    assert answer.error == ""
    return [(device.device_name, sorted(device.cdi_device_ids)) for device in answer.devices]


def without_masks(document: bytes) -> Any:
    """Without the mounts by which newer versions hide programs from shares, and what finds users of simulated GPUs."""
    found = json.loads(document)
    for device in found["devices"]:
        edits = device["containerEdits"]
        edits["mounts"] = [mount for mount in edits.get("mounts", []) if not mount["hostPath"].endswith("_base.json")]
        if not edits["mounts"]:
            del edits["mounts"]
        edits["env"] = [each for each in edits.get("env", []) if not each.startswith("DRA_SIMULATED_CLAIM")]
    return found


def test_prepared_claims_stay_as_they_were(upgraded: Upgraded) -> None:
    node = upgraded.node
    assert {node.states()[claim["uid"]] for claim in upgraded.prepared().values()} == {"prepared"}
    for name, claim in upgraded.prepared().items():
        before = upgraded.files_before[claim["uid"]]
        assert node.cdi_files()[claim["uid"]].read_bytes() == before, name
        assert answered(node.prepare(claim)) == upgraded.answers[name], name
        assert without_masks(node.cdi_files()[claim["uid"]].read_bytes()) == json.loads(before), name
    assert [(profile, start) for _, profile, start, _ in node.instances()] == [(14, 4), (19, 6)]
    assert sorted(key for _, key in node.notes()) == ["compute-mode", "mig-mode", "time-slice"]
    until(lambda: len(node.mps_processes()) == 1, "one daemon")  # a command to it is another process, for a moment


def test_a_claim_that_was_being_prepared_is_undone_and_prepared_again(upgraded: Upgraded) -> None:
    node, claim = upgraded.node, upgraded.claims["preparing"]
    assert claim["uid"] not in node.states()
    assert all(compute == 1 for *_, compute in node.instances())
    assert [device for device, _ in answered(node.prepare(claim))] == ["gpu-1-mig-1g10gb-19-3"]


def test_every_claim_can_be_unprepared_and_nothing_is_left(upgraded: Upgraded) -> None:
    node = upgraded.node
    for name, claim in upgraded.claims.items():
        assert node.unprepare(claim) == "", name
    until(lambda: node.leftovers() == [], f"a clean node: {node.leftovers()}")
    assert len(node.gpus) == GPU_COUNT
