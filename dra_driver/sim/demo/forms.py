"""Chapter: claims turn one H100 into a whole GPU, seven MIG devices, and three memory shares. The ResourceSlices stay
the same; claims that exclude each other wait for each other."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dra_driver.core.errors import RetryableError
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo.chapter import Chapter, Say, columns
from dra_driver.sim.demo.expectations import why_unscheduled
from dra_driver.sim.objects import claim_names, is_ready

NODES: Final = {"gpu-x": "1xh100-sxm5-80gb"}
POLICY: Final = Path("examples/shared/mps.yaml")
NAMESPACE: Final = "demo-forms"
_SHARES: Final = {"share-10": ("10Gi", 20), "share-20": ("20Gi", 30), "share-30": ("30Gi", 40)}
_WHOLE: Final = {"deviceClassName": "gpu.nvidia.com"}
_PROFILE: Final = 'device.attributes["gpu.nvidia.com"].profile == "1g.10gb"'
_PARTITION: Final = {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {"expression": _PROFILE}}]}


def run(cluster: Cluster, say: Say) -> str:
    """Run the chapter on a cluster of `NODES` with `POLICY`; returns the first unmet expectation, or ""."""
    chapter = _Forms(cluster, say, NAMESPACE)
    if not chapter.run("--- one GPU in every form", chapter.play):
        say("    The pods are deleted; no GPU instance, daemon, file or journal row is left.\n")
    return chapter.problem


class _Forms(Chapter):
    def play(self) -> None:
        before = self._versions()
        self.say("    The ResourceSlices describe it in every form at once:\n")
        self.show(RESOURCE_SLICES, self.cluster.slices())
        self.say(f"    Its devices by kind:\n\n{self._published()}\n")
        self.make_pod("whole", _WHOLE)
        self.expect_ready(["whole"], "whole to run")
        mig_pods = [f"mig-{number}" for number in range(1, 9)]
        for name in mig_pods:
            self.make_pod(name, _PARTITION)
        self._expect_rejected(mig_pods)
        self._account("1. A pod uses the whole GPU; pods for MIG devices wait.")
        self.delete_pods(["whole"])

        def fewer_ready() -> str | None:
            ready = sum(map(self.is_ready, mig_pods))
            return None if ready >= 7 else f"{ready} of 7 run"

        self.expect(fewer_ready, "seven of eight pods with MIG devices to run")
        (late,) = (name for name in mig_pods if not self.is_ready(name))
        self.make_pod("whole-again", _WHOLE)
        self._expect_rejected([late, "whole-again"])
        self._account(
            "2. The pod was deleted, and the driver created seven MIG devices. The eighth pod and a whole-GPU pod wait."
        )
        self.delete_pods([late, *(name for name in mig_pods if name != late)])
        self.expect_ready(["whole-again"], "whole-again to run")
        self._account(
            "3. The pods with MIG devices were deleted, and the driver switched MIG mode off: the GPU is whole again."
        )
        self.delete_pods(["whole-again"])
        for name, (memory, percent) in _SHARES.items():
            self.make_pod(
                name, {**_WHOLE, "capacity": {"requests": {"memory": memory, "computePercent": str(percent)}}}
            )
        self.expect_ready(list(_SHARES), f"{', '.join(_SHARES)} to run")
        self._account("4. Three pods request parts of its memory and compute; an MPS daemon runs with limits for each.")
        if self._versions() != before:
            raise RetryableError(f"the ResourceSlices changed: expected versions {before}, found {self._versions()}")
        self.say("    The ResourceSlices did not change:\n")
        self.show(RESOURCE_SLICES, self.cluster.slices())
        self.delete_pods(_SHARES)

    def _expect_rejected(self, names: Sequence[str]) -> None:
        def unreported() -> str | None:
            waiting = (name for name in names if not why_unscheduled(self.pod(name)))
            return next((f"the scheduler has not rejected {name} yet" for name in waiting), None)

        self.expect(unreported, "the scheduler to reject the pods that do not fit")

    def _versions(self) -> dict[str, str]:
        return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in self.cluster.slices()}

    def _published(self) -> str:
        counts = Counter(
            (
                *(str(dig(device, *path, default="-")) for path in _KIND),
                ", ".join(use["counterSet"] for use in entries(device, "consumesCounters")) or "-",
            )
            for item in self.cluster.slices()
            for device in entries(item, "spec", "devices")
        )
        head = ["DEVICES", "TYPE", "PROFILE", "MEMORY", "SHARED", "EXCLUDED BY"]
        return columns([head, *([str(count), *kind] for kind, count in counts.items())])

    def _account(self, title: str) -> None:
        lines, waiting = [title], dict[str, list[str]]()
        for pod in self.pods():
            name = pod["metadata"]["name"]
            if is_ready(pod):
                lines.append(f"    pod      {name}: Running with {', '.join(self._allocated(pod))}")
                log = self.cluster.client.log(NAMESPACE, name, "main")
                lines += [f"      log    {line}" for line in log.splitlines()]
            else:
                waiting.setdefault(why_unscheduled(pod), []).append(name)
        for reason, names in waiting.items():
            lines += [f"    pods     {', '.join(names)}: Pending", f"      reason {reason}"]
        self.say("\n".join(lines) + "\n")

    def _allocated(self, pod: Obj) -> list[str]:
        found = []
        for _, name in claim_names(pod):
            claim = self.cluster.store.find(RESOURCE_CLAIMS, name, NAMESPACE) if name else None
            for result in entries(claim, "status", "allocation", "devices", "results"):
                consumed = sorted((result.get("consumedCapacity") or {}).items())
                share = ", ".join(f"{key} {value}" for key, value in consumed)
                found.append(f"{result['device']} ({share})" if share else result["device"])
        return found


_KIND: Final = (
    ("attributes", "type", "string"),
    ("attributes", "profile", "string"),
    ("capacity", "memory", "value"),
    ("attributes", "sharingStrategy", "string"),
)
