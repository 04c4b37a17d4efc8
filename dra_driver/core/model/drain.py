"""The drain annotation of a Node: GPUs that new claims must not get. ``gpu.dra-driver.io/drain`` is ``all`` or GPU
UUIDs separated by commas; ``kubectl dra drain`` and ``undrain`` write it, the node process reads it."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.text import one_line

DRAIN_ANNOTATION: Final = "gpu.dra-driver.io/drain"
DETACH_ANNOTATION: Final = "gpu.dra-driver.io/detach"
"""Requests that the node process detaches from the NVIDIA driver. The value is the reason."""
MAX_REASON: Final = 200  # characters of a reason that are kept: it becomes part of events, which have 1024
DRAINED_TAINT: Final = "gpu.dra-driver.io/drained"
"""Key of the taint, effect NoSchedule, of every device of a GPU that is drained."""
ALL: Final = "all"
MAX_LENGTH: Final = 1024
"""Characters of the annotation that the node process keeps; a longer value counts as `ALL`, because its end is lost."""
_UUID_PREFIX: Final = "GPU-"
_NOTHING: Final = ("", "false")


class DrainRequest(Struct, frozen=True, kw_only=True):
    """``every`` GPU, or the GPUs in ``gpus``. ``unknown``: words of the annotation that are not a UUID of a GPU."""

    every: bool = False
    gpus: frozenset[GpuUuid] = field(default_factory=frozenset)
    unknown: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str | None) -> "DrainRequest":
        """Reads the annotation's value. None, an empty value and ``false`` ask for nothing."""
        words = list(dict.fromkeys(word for part in (text or "").split(",") if (word := part.strip())))
        if text is None or text.strip().lower() in _NOTHING:
            return NOT_DRAINED
        return cls(
            every=len(text) >= MAX_LENGTH or any(word.lower() == ALL for word in words),
            gpus=frozenset(GpuUuid(word) for word in words if word.startswith(_UUID_PREFIX)),
            unknown=tuple(word for word in words if not word.startswith(_UUID_PREFIX) and word.lower() != ALL),
        )

    def covers(self, gpu: GpuUuid) -> bool:
        return self.every or gpu in self.gpus

    @property
    def text(self) -> str | None:
        """The annotation's value without unknown words; None for no request."""
        return ALL if self.every else ",".join(sorted(self.gpus)) or None

    def joined(self, gpus: Iterable[GpuUuid] | None) -> "DrainRequest":
        if gpus is None or self.every:
            return DrainRequest(every=True)
        return DrainRequest(gpus=self.gpus | frozenset(gpus))

    def without(self, gpus: Iterable[GpuUuid] | None) -> "DrainRequest":
        """This request without ``gpus``, None for every GPU. Of `ALL`, single GPUs cannot be taken."""
        if gpus is None:
            return NOT_DRAINED
        return self if self.every else DrainRequest(gpus=self.gpus - frozenset(gpus))


NOT_DRAINED: Final = DrainRequest()


def clean(reason: str) -> str:
    """Return the reason of a detach as one line of printable characters, at most `MAX_REASON`."""
    return one_line(reason, MAX_REASON) or "no reason given"
