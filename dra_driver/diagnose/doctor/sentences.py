"""Which layer a sentence of a node process, a kubelet or a container runtime is about. Pure.

Node processes say what is wrong in GpuNodes, logs and events; kubelets and runtimes in events of pods. The sentences
are this project's own (`kubelet.plugin.Plugin.ready`) and those of Kubernetes and containerd; tests hold the texts.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

from dra_driver.core.finding import Layer

_RULES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), layer)
    for pattern, layer in (
        (r"second publisher|devices are withdrawn", Layer.SECOND_PUBLISHER),
        (r"feature gates? (are|is) off", Layer.KUBERNETES),
        (r"unresolvable CDI devices?|CDI device injection|CDI (file|spec|folder|directory)", Layer.CDI),
        (r"not registered|registered this driver|refused to register|registr(y|ar)", Layer.REGISTRATION),
        (r"nvidia-uvm|\bUVM\b", Layer.UVM),
        (r"/dev/|device nodes?\b", Layer.DEVICE_NODES),
        (r"libnvidia-ml|\bNVML|nvmlInit", Layer.NVML),
        (r"driver root|NVIDIA driver|driver's files|kernel module|driver/library version mismatch", Layer.DRIVER),
        (r"CDI hook|nvidia-cdi-hook|toolkit", Layer.TOOLKIT),
        (r"\b(forbidden|403|ClusterRole)\b", Layer.RIGHTS),
        (r"socket", Layer.SOCKETS),
        (r"ResourceSlices?|not published", Layer.SLICES),
        (r"\bpolic(y|ies)\b", Layer.POLICIES),
        (r"\bGPU\b|\bXID\b|fabric|MIG", Layer.GPUS),
        (r"disk|journal|storage|read-only file system", Layer.PREPARE),
    )
)
_LEVELS: Final = frozenset({"warning", "error", "critical"})
_WORDS: Final = ("reason", "error", "problem")
_PASSING: Final = ("starting", "stopping")


def layer_of(sentence: str, otherwise: Layer) -> Layer:
    """The layer that the sentence names first by the order of the rules; ``otherwise`` where none is recognised."""
    return next((layer for pattern, layer in _RULES if pattern.search(sentence)), otherwise)


def last_warning(lines: Sequence[str]) -> str:
    """What the newest warning or error of a log says, with its reason; empty where there is none.

    Lines are those of `telemetry.logs`, as JSON or text; the last line of a traceback counts as well.
    """
    return next((said for line in reversed(lines) if (said := _warning(line))), "")


def _warning(line: str) -> str:
    found = _json(line)
    if found is not None:
        if str(found.get("level", "")).lower() not in _LEVELS:
            return ""
        reasons = [str(found[name]) for name in _WORDS if found.get(name)]
        return ": ".join([str(found.get("message", "")), *reasons])
    match = _TEXT_LINE.match(line)
    if match is not None:
        return match["said"].strip()
    return line.strip() if line.startswith("dra-driver") else ""


_TEXT_LINE: Final = re.compile(r"^\S+Z\s+(?:WARN\w*|ERROR)\s+\S+\s+(?P<said>.+)$")


def _json(line: str) -> dict[str, object] | None:
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
