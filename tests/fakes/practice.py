"""The examples from practice and for workload operators (``examples/practice``, ``examples/workloads``): all of their
objects, and what the embedded cluster can run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from dra_driver.kubectl.explain import pods_in
from dra_driver.sim.apiserver.kinds import ALL_KINDS

ROOT: Final = Path(__file__).resolve().parents[2]
PRACTICE: Final = sorted((ROOT / "examples" / "practice").glob("*.yaml"))
WORKLOADS: Final = sorted((ROOT / "examples" / "workloads").glob("*.yaml"))
NEEDS: Final = "# needs: "
"""Begins a line that names an API which clusters may not serve."""
EXPANDED: Final = frozenset({"StatefulSet"})  # run on the embedded cluster as the pods that their controller would make
SKIPPED: Final = frozenset({"HorizontalPodAutoscaler", "ResourceQuota", "LimitRange", "ConfigMap"})
"""The embedded cluster has no controller and no admission for them, and does not serve ConfigMaps."""
_SERVED: Final = frozenset((kind.api_version, kind.kind) for kind in ALL_KINDS)
Wire = dict[str, Any]


def objects_of(path: Path) -> list[Wire]:
    return [item for item in yaml.safe_load_all(path.read_text(encoding="utf-8")) if item]


def needed_api(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.removeprefix(NEEDS) for line in lines if line.startswith(NEEDS)), "")


def job_of(cron_job: Wire) -> Wire:
    metadata = {"name": cron_job["metadata"]["name"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": cron_job["spec"]["jobTemplate"]["spec"],
    }


def for_embedded(path: Path) -> str:
    """The example's text with the objects that the embedded cluster runs, its first comments included."""
    kept: list[Wire] = []
    for item in objects_of(path):
        if item["kind"] == "CronJob":
            kept.append(job_of(item))
        elif item["kind"] in EXPANDED:
            kept += [_pod(pod) for pod in pods_in([item], "default", str(path))]
        elif item["kind"] not in SKIPPED:
            assert (item["apiVersion"], item["kind"]) in _SERVED, f"{path.name}: what runs a {item['kind']}?"
            kept.append(item)
    comments = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return "\n".join([*comments, yaml.safe_dump_all(kept, sort_keys=False)])


def _pod(pod: Wire) -> Wire:
    metadata = {key: value for key, value in pod["metadata"].items() if key not in {"namespace", "ownerReferences"}}
    return {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": metadata}


def pod_specs(item: Any) -> list[Wire]:
    parts = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    own = [item] if isinstance(item, dict) and isinstance(item.get("containers"), list) else []
    return own + [found for part in parts for found in pod_specs(part)]


def without_operators(path: Path, seen: Sequence[str]) -> str:
    """The claim templates of the file, and a pod of each pod spec with claims, which sees the devices of ``seen``."""
    objects = objects_of(path)
    kept = [item for item in objects if item["kind"] == "ResourceClaimTemplate"]
    specs = [spec for item in objects for spec in pod_specs(item) if spec.get("resourceClaims")]
    expected = ""
    for index, (spec, devices) in enumerate(zip(specs, seen, strict=True)):
        container = {**spec["containers"][0], "image": "ubuntu:24.04", "args": []}
        container["command"] = ["bash", "-c", "nvidia-smi -L; trap 'exit 0' TERM; sleep infinity & wait"]
        inside = {"containers": [container], "resourceClaims": spec["resourceClaims"]}
        kept.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{index}"}, "spec": inside})
        expected += f"# expect: pod/pod-{index} Running sees {devices}\n"
    return expected + yaml.safe_dump_all(kept, sort_keys=False)
