"""What the driver could leave in a cluster and on this host: objects of all kinds, files, device nodes and mounts."""

from collections.abc import Iterator
from pathlib import Path

from dra_driver.core.errors import KubernetesApiError
from dra_driver.kube.rest import RestClient
from tests.e2e.cluster import DRIVER
from tests.e2e.node import CDI_DIR, KUBELET_ROOT

Trace = tuple[str, str, str]
"""Resource with its group, namespace and name of an object."""

UNRELATED = frozenset(("events", "events.events.k8s.io", "leases.coordination.k8s.io"))
"""Events go by themselves, after an hour; leases of nodes and of the control plane come and go."""

FOLDERS = (
    KUBELET_ROOT / "plugins",
    KUBELET_ROOT / "plugins_registry",
    CDI_DIR,
    *(Path(name) for name in ("/etc/cdi", "/run", "/dev", "/dev/shm", "/dev/char")),
)


def objects(rest: RestClient) -> tuple[set[Trace], int]:
    """All objects that can be listed, and of how many kinds they are."""
    kinds = dict(_listable(rest))
    found = {
        (kind, str(obj["metadata"].get("namespace", "")), str(obj["metadata"]["name"]))
        for kind, path in kinds.items()
        for obj in _listed(rest, path)
    }
    return found, len(kinds)


def host_files() -> set[str]:
    """Paths in the folders that the driver writes to, and mount points, with a name of the driver's or NVIDIA's."""
    names = {str(path) for folder in FOLDERS for path in folder.glob("*")}
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()}
    return {name for name in names | mounts if DRIVER in name or "dra-driver" in name or "nvidia" in name}


def looked_at() -> str:
    return ", ".join([*map(str, FOLDERS), "mount points"])


def _listable(rest: RestClient) -> Iterator[tuple[str, str]]:
    """Each resource once, in its group's preferred version: its name with the group, and its path."""
    roots = [("", "/api/v1")]
    for group in rest.get("/apis")["groups"]:
        roots.append((str(group["name"]), f"/apis/{group['preferredVersion']['groupVersion']}"))
    for group_name, root in roots:
        for resource in rest.get(root)["resources"]:
            kind = f"{resource['name']}.{group_name}".rstrip(".")
            if "list" in resource["verbs"] and "/" not in resource["name"] and kind not in UNRELATED:
                yield kind, f"{root}/{resource['name']}"


def _listed(rest: RestClient, path: str) -> list[dict[str, dict[str, str]]]:
    try:
        return list(rest.list(path)["items"])
    except KubernetesApiError:  # served by nothing any more: a definition was deleted a moment ago
        return []
