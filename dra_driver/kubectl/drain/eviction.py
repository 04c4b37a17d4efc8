"""Asks the API server to evict one pod of a node that is drained, and says what that means for the wait."""

from typing import Final, Literal

from msgspec import Struct

from dra_driver.core.errors import ConflictError, ForbiddenError, NotFoundError, ServerBusyError
from dra_driver.kube.evictions import Creator, causes_text, create_eviction
from dra_driver.kubectl.drain.holders import HolderPod

RETRY_S: Final = 5.0
"""Between two tries of one pod; ``kubectl drain`` waits as long."""


class EvictionAnswer(Struct, frozen=True, kw_only=True):
    """``waits``: not now, try again after ``after_s``; ``refused``: it will not be evicted. ``why`` is a phrase."""

    result: Literal["evicted", "gone", "waits", "refused"]
    why: str = ""
    after_s: float = RETRY_S


def evict(api: Creator, pod: HolderPod) -> EvictionAnswer:
    """One request. Raises KubernetesApiError when the API server cannot be reached."""
    try:
        create_eviction(api, pod.namespace, pod.name, pod.uid)
    except (NotFoundError, ConflictError):
        return EvictionAnswer(result="gone")
    except ForbiddenError:
        return EvictionAnswer(
            result="refused", why=f"this user may not create pods/eviction in namespace {pod.namespace}"
        )
    except ServerBusyError as error:
        return EvictionAnswer(
            result="waits", why=causes_text(error) or str(error), after_s=max(RETRY_S, error.retry_after_s)
        )
    return EvictionAnswer(result="evicted")
