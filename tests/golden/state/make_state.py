"""Records the state that an older version of the node process leaves on a node, for tests/scenario/test_upgrade.py.

usage, from a checkout of the version to record (6bf8a09), with that checkout's virtual environment:

    PYTHONPATH=. .venv/bin/python .../tests/golden/state/make_state.py OUT

The node has four simulated H100 and these claims when its node process is killed:

    whole        GPU 0
    partitions   1g.10gb and 2g.20gb of GPU 1
    time-sliced  GPU 2, interval Long
    share-10     10 GiB and 10 % of GPU 3, by MPS
    share-20     20 GiB and 20 % of GPU 3, by MPS
    preparing    1g.10gb of GPU 1; killed between the GPU instance and its compute instance

OUT gets ``plugin/`` and ``cdi/`` as they were, and ``claims.json``: per claim the API object, and what the kubelet was
answered (device names and CDI ids), null for the last one. In text files the node's folder is written ``@ROOT@`` and
the machine's boot id ``@BOOT_ID@``; in the journal, which is a database, the boot id stands as text of the same length,
and the test replaces it by SQL.
"""

import json
import shutil
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from dra_driver.sim.apiserver.kinds import RESOURCE_CLAIMS
from tests.fakes.live_claims import Scheduler, gpu, parameters, partition, share
from tests.fakes.live_node import NAMESPACE, LiveNode, until

SPEC = "4xh100-sxm5-80gb"
POLICY = """\
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata:
  name: shared-mps
spec:
  select:
    minors: [3]
  sharing:
    strategy: MPS
"""
FOR_EVER_S = 300.0
KEPT = ("state.db", "state.db-wal", "owner-*.lock", "made", "locks", "mps", "policies-in-force.json")
HARDWARE = ("simulated-gpus.json", "simulated-root/var/lib/nvidia-stub/timeslice")
"""State of the simulated GPUs. All else in the folder of the simulated driver is made anew by each start."""


def record(out: Path) -> None:
    out.mkdir(parents=True)
    with LiveNode(SPEC, policy=POLICY, mps=True) as node:
        scheduler = Scheduler(node)
        gpus = node.gpus
        of = {number: [uuid] for number, uuid in enumerate(gpus)}
        wanted: dict[str, Any] = {
            "whole": scheduler.allocate(gpu(of=of[0])),
            "partitions": scheduler.allocate(
                partition("1g.10gb", "one", of=of[1]), partition("2g.20gb", "two", of=of[1]), together=True
            ),
            "time-sliced": scheduler.allocate(
                gpu(of=of[2]),
                config=[parameters("GpuConfig", strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})],
            ),
            "share-10": scheduler.allocate(share("10Gi", 10, of=of[3])),
            "share-20": scheduler.allocate(share("20Gi", 20, of=of[3])),
        }
        recorded: dict[str, Any] = {}
        for name, claim in wanted.items():
            assert claim is not None, name
            answer = node.prepare(claim)
            assert answer.error == "", (name, answer.error)
            devices = [[device.device_name, list(device.cdi_device_ids)] for device in answer.devices]
            recorded[name] = {"claim": node.store.get(RESOURCE_CLAIMS, claim["name"], NAMESPACE), "answer": devices}
        late = scheduler.allocate(partition("1g.10gb", of=of[1]))
        assert late is not None
        recorded["preparing"] = {"claim": node.store.get(RESOURCE_CLAIMS, late["name"], NAMESPACE), "answer": None}
        die_while_preparing(node, late)
        keep(node, out)
        text = json.dumps(recorded, indent=1, sort_keys=True)
        (out / "claims.json").write_text(text + "\n")


def die_while_preparing(node: LiveNode, claim: dict[str, str]) -> None:
    node.hardware.fail_next("create_compute_instance", delay_s=FOR_EVER_S)

    def call() -> None:
        with suppress(grpc.RpcError):
            node.prepare(claim)

    thread = threading.Thread(target=call)
    thread.start()
    until(lambda: any(compute == 0 for *_, compute in node.instances()), "the GPU instance")
    time.sleep(0.1)
    node.kill()
    thread.join(30.0)
    node.hardware.clear_faults()
    assert node.states()[claim["uid"]] == "preparing"


def keep(node: LiveNode, out: Path) -> None:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for source in (path for name in (*KEPT, *HARDWARE) for path in node.plugin.glob(name)):
        target = out / "plugin" / source.relative_to(node.plugin)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=lambda _, names: [n for n in names if n.endswith((".sock", ".pid"))])
        else:
            shutil.copy(source, target)
    shutil.copytree(node.folders.cdi, out / "cdi")
    for path in out.rglob("*"):
        if path.is_file() and not path.name.startswith("state.db"):
            text = path.read_text().replace(str(node.root), "@ROOT@").replace(boot_id, "@BOOT_ID@")
            path.write_text(text)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
