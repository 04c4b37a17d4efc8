"""What a smoke test is asked to do, and which rights it needs."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from dra_driver.diagnose.smoke.kinds import FORMS, Form
from dra_driver.kube.rights import NeededRight

_RESOURCE: Final = "resource.k8s.io"


class SmokeOptions(Struct, frozen=True, kw_only=True):
    """``nodes`` are names; without any and without ``all_nodes``, each kind is tried once, on one of its nodes.

    ``image`` is "" for that of the DaemonSet. ``parallel`` is the number of nodes at the same time, ``most_nodes`` the
    number of nodes in all (0: no limit), ``timeout_s`` what one pod may take.
    """

    namespace: str
    driver: str = "gpu.nvidia.com"
    nodes: Sequence[str] = ()
    all_nodes: bool = False
    forms: Sequence[Form] = FORMS
    image: str = ""
    daemon_set: str = "dra-driver-node"
    driver_namespace: str = "dra-driver"
    user: int | None = 65532
    timeout_s: int = 120
    parallel: int = 8
    most_nodes: int = 0


def needed_rights(options: SmokeOptions) -> tuple[NeededRight, ...]:
    """What the user has to be allowed to do. Nodes, pods and events are read too where that is allowed."""
    there = options.namespace
    found = [
        NeededRight(verb="list", resource="resourceslices", group=_RESOURCE, cluster_wide=True),
        NeededRight(verb="list", resource="deviceclasses", group=_RESOURCE, cluster_wide=True),
        NeededRight(verb="list", resource="resourceclaims", group=_RESOURCE),
        NeededRight(verb="watch", resource="resourceclaims", group=_RESOURCE, namespace=there),
        *cleanup_rights(there),
        NeededRight(verb="get", resource="resourceclaims", group=_RESOURCE, namespace=there),
        NeededRight(verb="create", resource="resourceclaims", group=_RESOURCE, namespace=there),
        NeededRight(verb="create", resource="jobs", group="batch", namespace=there),
        NeededRight(verb="get", resource="jobs", group="batch", namespace=there),
        NeededRight(verb="list", resource="pods", namespace=there),
        NeededRight(verb="get", resource="pods", subresource="log", namespace=there),
    ]
    if not options.image:
        found.append(NeededRight(verb="get", resource="daemonsets", group="apps", namespace=options.driver_namespace))
    return tuple(found)


def cleanup_rights(namespace: str) -> tuple[NeededRight, ...]:
    """What deleting leftovers needs."""
    return tuple(
        NeededRight(verb=verb, resource=resource, group=group, namespace=namespace)
        for resource, group in (("jobs", "batch"), ("resourceclaims", _RESOURCE))
        for verb in ("list", "delete")
    )
