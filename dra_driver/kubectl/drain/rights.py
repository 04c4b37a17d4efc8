"""Which rights a drain needs, and which of them the user lacks: all of them are named before anything is changed."""

from collections.abc import Sequence
from typing import Final

from dra_driver.core.errors import DraError
from dra_driver.kube.rights import NeededRight, Reviewer, missing


class MissingRightsError(DraError):
    """The user lacks rights; the message names each of them."""


EVICT: Final = NeededRight(verb="create", resource="pods", subresource="eviction")


def needed(node: str, *, reads_events: bool, reads_holders: bool = True) -> tuple[NeededRight, ...]:
    """What a drain or undrain of ``node`` has to be allowed to do."""
    resource = "resource.k8s.io"
    found = [
        NeededRight(verb="get", resource="nodes", name=node),
        NeededRight(verb="patch", resource="nodes", name=node),
        NeededRight(verb="list", resource="resourceslices", group=resource, cluster_wide=True),
    ]
    if reads_holders:
        found += [
            NeededRight(verb="list", resource="resourceclaims", group=resource),
            NeededRight(verb="list", resource="pods"),
        ]
    if reads_events:
        found.append(NeededRight(verb="list", resource="events", namespace="default"))
    return tuple(found)


def check(api: Reviewer, rights: Sequence[NeededRight], optional: Sequence[NeededRight] = ()) -> None:
    """Raise MissingRightsError unless the user has ``rights``. ``optional`` ones are named with them, not required.

    A server that does not answer such questions is believed to allow everything; it refuses single requests later.
    """
    lacking = missing(api, rights)
    if not lacking:
        return
    lacking += missing(api, optional)
    raise MissingRightsError(
        f"the user of this kubeconfig lacks rights: {'; '.join(map(str, lacking))}. Nothing was changed; ask an "
        "administrator for a ClusterRole with them (docs/upgrade-and-drain.md has one)"
    )
