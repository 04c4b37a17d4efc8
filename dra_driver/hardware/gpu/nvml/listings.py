"""At which reads the MIG instances of a GPU are listed.

A listing walks every profile, GPU instance and compute instance, some ten seconds under load, and each query may take
a subscription of the instance: another process can then not destroy it (open-gpu-kernel-modules,
gpu_instance_subscription.c and kernel_mig_manager.c). So they are listed when something may have changed: after an NVML
event (nvmlEventMigConfigChange), after this process' own change, in a new session, and for safety at every
``LIST_EVERY``-th read. A GPU without events is listed at every read, as nothing else would find a foreign change.

Two node processes overlap during a rolling update. The one that is not to read lists only what it does not know and
what it has changed itself, and ends its session afterwards, which gives its subscriptions back.
"""

import threading
from collections import Counter
from collections.abc import Callable

from dra_driver.core.model.ids import GpuUuid

LIST_EVERY = 6
"""Events of the time without an event set are lost (a switch of MIG mode, a new session); once a minute at the default
poll interval finds them, at a sixth of the cost."""

Token = tuple[int, int, int]
"""The session, and the numbers of changes by any process and by this one, before a listing."""


class Listings:
    """Thread-safe."""

    def __init__(self, may_read: Callable[[], bool]) -> None:
        self.may_read = may_read
        self._lock = threading.Lock()  # guards the fields below
        self._events = 0
        self._own: Counter[GpuUuid] = Counter()
        self._listed: dict[GpuUuid, Token] = {}
        self._reads: Counter[GpuUuid] = Counter()  # since the last listing
        self._asked = 0  # the newest session that asked for instances

    def happened(self) -> None:
        """An event came: the instances of any GPU may have changed."""
        with self._lock:
            self._events += 1

    def changed(self, gpu: GpuUuid) -> None:
        """This process has changed, or tried to change, the GPU's instances or MIG mode."""
        with self._lock:
            self._own[gpu] += 1

    def token(self, gpu: GpuUuid, generation: int) -> Token:
        """To be taken before a listing."""
        with self._lock:
            return generation, self._events, self._own[gpu]

    def is_due(self, gpu: GpuUuid, token: Token, *, has_events: bool) -> bool:
        """Whether this read must list the instances; to be asked once per read."""
        with self._lock:
            last = self._listed.get(gpu)
            self._reads[gpu] += 1
            if last is None or last[2] != token[2]:
                return True
            due = last != token or not has_events or self._reads[gpu] >= LIST_EVERY
        return due and self.may_read()

    def listed(self, gpu: GpuUuid, token: Token) -> None:
        """The listing is done."""
        with self._lock:
            self._listed[gpu] = token
            self._reads[gpu] = 0
            self._asked = token[0]

    def asked(self, generation: int) -> None:
        """That session asks for instances, other than for a listing."""
        with self._lock:
            self._asked = generation

    def must_give_back(self, generation: int) -> bool:
        """Whether that session may have subscriptions that it must not keep."""
        with self._lock:
            asked = self._asked == generation
        return asked and not self.may_read()
