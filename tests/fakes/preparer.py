"""A claim preparer whose answers and delays a test sets."""

import threading
from collections.abc import Callable, Mapping, Sequence

from dra_driver.core.errors import DraError
from dra_driver.core.model.claim import ClaimRef, PreparedDevice
from dra_driver.core.model.ids import ClaimUid, DeviceName, PoolName

Answer = tuple[PreparedDevice, ...] | DraError


def device(name: str = "gpu-0", share_id: str | None = None) -> PreparedDevice:
    return PreparedDevice(
        request_names=("main",),
        pool=PoolName("node/gpu.nvidia.com"),
        device=DeviceName(name),
        cdi_device_ids=(f"k8s.gpu.nvidia.com/claim={name}",),
        share_id=share_id,
    )


class FakePreparer:
    """Answers one GPU for every claim unless ``answers`` says otherwise; remembers every call."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.before: Callable[[ClaimRef], None] = lambda ref: None
        self.prepared: list[ClaimRef] = []
        self.unprepared: list[ClaimRef] = []
        self.time_left: list[float | None] = []
        self.lock = threading.Lock()

    def prepare(self, refs: Sequence[ClaimRef], *, within_s: float | None = None) -> Mapping[ClaimUid, Answer]:
        for ref in refs:
            self.before(ref)
        with self.lock:
            self.time_left.append(within_s)
            self.prepared.extend(refs)
        return {ref.uid: self.answers.get(ref.uid, (device(),)) for ref in refs}

    def unprepare(
        self, refs: Sequence[ClaimRef], *, within_s: float | None = None
    ) -> Mapping[ClaimUid, DraError | None]:
        with self.lock:
            self.time_left.append(within_s)
            self.unprepared.extend(refs)
        found = {ref.uid: self.answers.get(ref.uid) for ref in refs}
        return {uid: answer if isinstance(answer, DraError) else None for uid, answer in found.items()}
