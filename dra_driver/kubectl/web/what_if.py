"""What would happen to pasted manifests: the same answer as ``kubectl dra explain -f``. Input of limited size."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.state import ClusterState, with_objects
from dra_driver.kube.state_file import flat, objects_of, read_documents
from dra_driver.kubectl.explain import (
    Explanation,
    explain,
    explain_pods,
    gates_of,
    pods_in,
    scheduler_of,
    subject_of_claim,
)

MAX_BYTES: Final = 64 << 10
MAX_PODS: Final = 8
MAX_CLAIMS: Final = 8
_WHERE: Final = Path("the pasted text")

EXAMPLE: Final = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  name: trial
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: gpu.nvidia.com
        selectors:
        - cel:
            expression: device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0
"""


def tried(state: ClusterState, text: str, namespace: str = "default") -> list[Explanation]:
    """An explanation for each pod in the manifests; without pods, for each claim. Raises ConfigurationError."""
    if len(text.encode()) > MAX_BYTES:
        raise ConfigurationError(f"more than {MAX_BYTES >> 10} KiB: paste fewer objects")
    documents: list[Any] = list(flat(list(read_documents(_WHERE, text)), str(_WHERE)))
    others = [item for item in documents if item.get("kind") != "Pod"]
    objects = objects_of(others, str(_WHERE), namespace)
    pods = pods_in(documents, namespace, str(_WHERE))
    claims = [item for item in objects if item["kind"] == "ResourceClaim"]
    _check(pods, claims)
    state = with_objects(state, objects)
    scheduler = scheduler_of(state.server_version, gates_of(""), state.slices)
    if pods:
        return explain_pods(state, pods, scheduler=scheduler)
    return [explain(state, subject_of_claim(item), scheduler=scheduler) for item in claims]


def _check(pods: Sequence[Any], claims: Sequence[Any]) -> None:
    if not pods and not claims:
        raise ConfigurationError("there is no Pod, no workload that creates pods, and no ResourceClaim in it")
    if len(pods) > MAX_PODS or len(claims) > MAX_CLAIMS:
        raise ConfigurationError(
            f"{len(pods)} pods and {len(claims)} claims: at most {MAX_PODS} of each are tried here"
        )
