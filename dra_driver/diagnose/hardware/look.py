"""Read NVML in another process: ``python -m dra_driver.diagnose.hardware.look``, and its caller.

The program gets a `LookRequest` on stdin and prints NVML's answers as one JSON line. It runs in a separate PID
namespace, like a pod without hostPID, or as another user.
"""

import ctypes
import os
import sys
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.convert import decode_json
from dra_driver.diagnose.hardware.child import ask, name_process, say
from dra_driver.hardware.gpu.nvml import probes

LOOK_S: Final = 40.0
UNPRIVILEGED_UID: Final = 65534
_CLONE_NEWPID: Final = 0x20000000


class LookRequest(Struct, frozen=True, kw_only=True):
    """``everything``: every read of this package, else only the usage."""

    library: str | None
    index: int
    own_pids: bool = False
    uid: int | None = None
    everything: bool = False


def look(wanted: LookRequest) -> dict[str, Any]:
    """The answers, or ``error``."""
    return ask("look", wanted, LOOK_S)


def answers(wanted: LookRequest) -> dict[str, Any]:
    begun = probes.load(wanted.library)
    if "value" not in begun and begun.get("code") is not None:
        return {"nvmlInitWithFlags": begun}
    handle = probes.handle_at(wanted.index)
    if not wanted.everything:
        return probes.usage(handle)
    fields = {f"field {key}": value for key, value in probes.fields(handle).items() if isinstance(value, dict)}
    events = {"event set": probes.event_wait(handle, 10)}
    return probes.system() | probes.device(handle) | probes.usage(handle) | fields | events


def main() -> int:
    name_process()
    wanted = decode_json(sys.stdin.buffer.read(), LookRequest)
    if wanted.own_pids:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWPID):
            return say({"error": f"unshare: {os.strerror(ctypes.get_errno())}"})
        child = os.fork()  # only children are in the new namespace
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        if wanted.uid is not None:
            os.setgroups([])
            os.setgid(wanted.uid)
            os.setuid(wanted.uid)
        return say(answers(wanted))
    except Exception as error:  # noqa: BLE001 - the boundary of the process: the caller reports it
        return say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    sys.exit(main())
