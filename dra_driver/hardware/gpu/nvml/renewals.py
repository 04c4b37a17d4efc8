"""End an NVML session that no longer shows the node as it is.

Reasons: GPUs were bound or unbound, or the driver was replaced (`session.DriverEnvironment`); NVML counted no GPU at
the last read; or a GPU was left out of ``LEFT_OUT_LOOKS`` reads. The last reason repeats at twice the number of reads
each time, because a renewal does not repair a broken board.

The other GPUs stay initialised: without persistence mode the kernel module stops a GPU when its last device file is
closed (open-gpu-kernel-modules, nv.c, nv_close_device). Its next user restarts it, which takes seconds and loses
settings such as the compute mode of a claim whose pod has not started. An open device file prevents that.
"""

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator

from dra_driver.core.model.gpu import Snapshot
from dra_driver.hardware.gpu.nvml.session import DriverEnvironment, Session


@contextlib.contextmanager
def keep_initialized(minors: Iterable[int], dev_folder: str) -> Iterator[None]:
    """Have ``<dev_folder>/nvidia<minor>`` open inside the block, where that is possible. Never raises."""
    descriptors = []
    try:
        for minor in minors:
            with contextlib.suppress(OSError):
                # NONBLOCK: the kernel module does not wait for a GPU that is being started (nv.c, nvidia_open).
                flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
                descriptors.append(os.open(f"{dev_folder}/nvidia{minor}", flags))
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


log = logging.getLogger(__name__)

LEFT_OUT_LOOKS = 6  # a minute at the default poll interval
MAX_LOOKS = 360  # an hour


class Renewals:
    def __init__(self, session: Session, dev_folder: str) -> None:
        self._session = session
        self._dev_folder = dev_folder
        self._last: Snapshot | None = None
        self._left_out: frozenset[str] = frozenset()
        self._looks = 0
        self._limit = LEFT_OUT_LOOKS
        self._replaced = False
        self._reason: str | None = None  # of the last renewal, which repeats at every look of a node without GPUs

    @contextlib.contextmanager
    def before_look(self) -> Iterator[None]:
        """End a session that is outdated, and keep the GPUs awake inside the block, in which the next one reads them.

        One directory listing, one small read and a search for the library, which is some ten calls of stat.
        """
        outlook = self._session.outlook()
        reason = None
        if outlook is not None:
            generation, began, now = outlook
            self._report_library(began, now)
            reason = began.outdated(now) or self._why_renew()
        if outlook is None or reason is None:
            self._reason = None
            yield
            return
        addresses = None if now.bound is None else {address for address, _ in now.bound}
        gpus = () if self._last is None else self._last.gpus
        minors = [one.minor for one in gpus if addresses is None or one.pci_bus_id in addresses]
        with keep_initialized(minors, self._dev_folder):
            if self._session.renew(generation):
                level = logging.DEBUG if reason == self._reason else logging.INFO
                log.log(level, "NVML session is outdated and begins again", extra={"reason": reason})
                self._reason = reason
                self._renewed()
            yield

    def after_look(self, found: Snapshot) -> None:
        missing = frozenset(gpu.label for gpu in found.left_out)
        if missing - self._left_out or not missing:
            self._looks, self._limit = 0, LEFT_OUT_LOOKS
        self._left_out = missing
        self._looks += bool(missing)
        self._last = found

    def _why_renew(self) -> str | None:
        if self._last is not None and not self._last.gpus and not self._left_out:
            return "NVML counted no GPU"  # without GPUs it opens in milliseconds
        if self._looks >= self._limit:
            return f"left out for {self._looks} looks: {', '.join(sorted(self._left_out))}"
        return None

    def _renewed(self) -> None:
        if self._looks >= self._limit:
            self._looks, self._limit = 0, min(2 * self._limit, MAX_LOOKS)

    def _report_library(self, began: DriverEnvironment, now: DriverEnvironment) -> None:
        replaced = began.replaced(now) and began.outdated(now) is None
        if replaced and not self._replaced:
            log.warning(
                "the driver's library was replaced while its kernel module is in use: finish the upgrade or reboot the "
                "node; the NVML session goes on with the former library",
                extra={"library": now.release, "loaded": now.module},
            )
        self._replaced = replaced
