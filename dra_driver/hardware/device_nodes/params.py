"""Read how NVIDIA's kernel module wants its device nodes: owner, permission bits, and whether programs may make them.

The module lists this in ``/proc/driver/nvidia/params`` for its nodes, and in an ``access`` file below
``/proc/driver/nvidia/capabilities`` for each capability node (options ``NVreg_DeviceFileUID``, ``...GID``, ``...Mode``
and ``NVreg_ModifyDeviceFiles``). Source: NVIDIA/nvidia-modprobe a9556df9, ``modprobe-utils/nvidia-modprobe-utils.c``
(``init_device_file_parameters``): values are decimal, without a file the defaults apply, and any
other value than 1 forbids programs to touch the nodes. The nodes of nvidia-uvm have no such file.
"""

import re
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

_LIMIT: Final = 65536  # the file has some 60 short lines and the module's RegistryDwords
_LINE: Final = re.compile(r"^(\w{1,64}):[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_NUMBER: Final = re.compile(r"\d{1,10}")
_MODIFY: Final = frozenset({"ModifyDeviceFiles", "DeviceFileModify"})
_LIMITS: Final = {"DeviceFileUID": 2**32 - 2, "DeviceFileGID": 2**32 - 2, "DeviceFileMode": 0o777}
_OTHERS: Final = 0o006


class NodeParams(Struct, frozen=True, kw_only=True):
    """Owner and mode of nodes. ``modify``: whether programs may make and change them; False with a ``problem``, because
    the administrator may have restricted the nodes."""

    uid: int = 0
    gid: int = 0
    mode: int = 0o666
    modify: bool = True
    problem: str | None = None

    @property
    def open_to_all(self) -> bool:
        return self.mode & _OTHERS == _OTHERS


def params_path(proc_driver: str = "/proc/driver") -> str:
    return f"{proc_driver}/nvidia/params"


def read_params(path: str, *, mode: int = 0o666) -> NodeParams:
    """What the file at ``path`` asks for; ``mode`` is the default of these nodes. Never raises.

    A missing file gives the defaults, as in NVIDIA's own tool: modules have written it since long before MIG.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - twice as fast as Path
            text = file.read(_LIMIT)
    except FileNotFoundError:
        return NodeParams(mode=mode)
    except OSError as error:
        return NodeParams(mode=mode, modify=False, problem=f"{path} cannot be read: {error.strerror}")
    params = parse_params(text, mode=mode)
    return params if params.problem is None else replace(params, problem=f"{path} {params.problem}")


def parse_params(text: str, *, mode: int = 0o666) -> NodeParams:
    """What the text asks for; lines about anything else are skipped. A repeated line counts as its last value."""
    values: dict[str, int] = {"DeviceFileMode": mode}
    modify, wrong = True, []
    for name, value in _LINE.findall(text):
        if name in _MODIFY:
            modify = value == "1"
            if value not in ("0", "1"):
                wrong.append(f"{name}: {value[:40]!r}")
        elif name in _LIMITS:
            if _NUMBER.fullmatch(value) and int(value) <= _LIMITS[name]:
                values[name] = int(value)
            else:
                wrong.append(f"{name}: {value[:40]!r}")
    problem = f"has {', '.join(wrong[:4])}, which is not understood" if wrong else None
    return NodeParams(
        uid=values.get("DeviceFileUID", 0),
        gid=values.get("DeviceFileGID", 0),
        mode=values["DeviceFileMode"],
        modify=modify and problem is None,
        problem=problem,
    )
