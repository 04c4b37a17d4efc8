"""Remove possible secrets, and fields that no check needs, from texts and objects. No I/O.

Environment is dropped except for a few settings by name with a literal value; so are arguments, commands and volumes.
No filter finds every secret in a text: this one replaces known forms of tokens, passwords and keys, and truncates."""

import re
from collections.abc import Mapping
from typing import Final

from dra_driver.core.text import cut
from dra_driver.diagnose.doctor.facts import at, dicts, mapping, text
from dra_driver.kube.state import Wire

GONE: Final = "<redacted>"
_NAMES_OF_SECRETS: Final = (
    r"(?:authorization|bearer|passw(?:or)?d|secret|token|api[-_ ]?key|access[-_ ]?key|private[-_ ]?key|credential)s?"
)
_PATTERNS: Final = (
    # PEM blocks, whole or truncated.
    (re.compile(r"-----BEGIN [A-Z ]{0,40}-----.*?(?:-----END [A-Z ]{0,40}-----|\Z)", re.DOTALL), GONE),
    # JSON Web Tokens (service accounts) and other text of three such parts. The look-behind limits it to one try
    # per run of these characters: `eyJ-eyJ-eyJ-...` takes linear time.
    (re.compile(r"(?<![\w-])(?=[\w-]*?\beyJ[\w-]{8})[\w-]++\.[\w-]{8,}+(?:\.[\w-]*+)?"), GONE),
    # user:password@ in URLs.
    (re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://)[^/\s:@]{1,200}:[^/\s@]{1,200}@", re.IGNORECASE), rf"\1{GONE}@"),
    # "Authorization: Bearer x", "token=x", "password": "x".
    (re.compile(r"(\bbearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1{GONE}"),
    (
        re.compile(
            rf"({_NAMES_OF_SECRETS}\w{{0,20}}[\"']?\s*[:=]\s*)(\"[^\"]{{1,4000}}\"|'[^']{{1,4000}}'|[^\s,;}}\]]{{4,4000}})",
            re.IGNORECASE,
        ),
        rf"\1{GONE}",
    ),
    # Cloud keys by their prefix.
    (re.compile(r"\b(?:AKIA|ASIA|ghp_|gho_|glpat-|xox[bp]-|hf_|nvapi-)[\w-]{12,}"), GONE),
)


_LONGEST_LINE: Final = 16 * 1024


def redacted(text: str, longest: int) -> str:
    """The text without possible secrets, of at most ``longest`` characters and `_LONGEST_LINE` per line."""
    kept = "\n".join(cut(line, _LONGEST_LINE) for line in text[: longest * 2].split("\n"))
    for pattern, replacement in _PATTERNS:
        kept = pattern.sub(replacement, kept)
    return cut(kept, longest)


_METADATA: Final = ("name", "namespace", "uid", "labels", "generation", "creationTimestamp", "deletionTimestamp")
_SETTINGS: Final = frozenset(
    {
        "ALLOW_SECOND_PUBLISHER",
        "CDI_DIR",
        "CONTAINERD_SET_AS_DEFAULT",
        "CRIO_SET_AS_DEFAULT",
        "DRIVER_NAME",
        "DRIVER_ROOT",
        "GPU_NODE",
        "POLICY_OBJECTS",
        "RUNTIME",
        "SIMULATE",
        "USAGE",
    }
)
"""Settings of this driver, and of NVIDIA Container Toolkit's DaemonSet, that checks evaluate."""
_STATUS: Final = (
    "currentNumberScheduled",
    "desiredNumberScheduled",
    "numberReady",
    "numberUnavailable",
    "numberMisscheduled",
    "observedGeneration",
)
_CONDITION: Final = ("type", "status", "reason", "message", "lastTransitionTime")
_LONGEST: Final = 1024
VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
_NO_DEVICES: Final = frozenset({"", "void", "none"})


def reduced_daemonset(item: Wire) -> dict[str, object]:
    """The DaemonSet's node selection, images, settings and number of pods."""
    template = mapping(item, "spec", "template", "spec")
    affinity = mapping(template, "affinity", "nodeAffinity")
    containers = dicts(template, "containers")
    return {
        "metadata": _picked(mapping(item, "metadata"), _METADATA),
        "spec": {
            "nodeSelector": dict(mapping(template, "nodeSelector")),
            "nodeAffinity": dict(mapping(affinity, "requiredDuringSchedulingIgnoredDuringExecution")),
            "tolerations": dicts(template, "tolerations"),
            "images": [text(container, "image") for container in containers],
            "settings": {name: value for container in containers for name, value in _settings(container)},
            "serviceAccountName": text(template, "serviceAccountName"),
        },
        "status": _picked(mapping(item, "status"), _STATUS),
    }


def without_notes(item: Wire) -> dict[str, object]:
    """An object of the driver's kinds without annotations and managed fields."""
    return {**item, "metadata": _picked(mapping(item, "metadata"), (*_METADATA, "resourceVersion"))}


def reduced_driver_pod(item: Wire) -> dict[str, object]:
    """The pod's node and the states of its containers."""
    status = mapping(item, "status")
    return {
        "metadata": _picked(mapping(item, "metadata"), _METADATA),
        "spec": {"nodeName": text(item, "spec", "nodeName"), "containers": _names(dicts(item, "spec", "containers"))},
        "status": {
            **{name: redacted(text(status, name), _LONGEST) for name in ("phase", "reason", "message")},
            "conditions": [_worded(_picked(each, _CONDITION)) for each in dicts(status, "conditions")],
            "containerStatuses": [_container(each) for each in dicts(status, "containerStatuses")],
        },
    }


def visible_devices(pod: Wire) -> dict[str, object] | None:
    """The pod's NVIDIA_VISIBLE_DEVICES if its containers set it to devices, else None."""
    containers = [*dicts(pod, "spec", "initContainers"), *dicts(pod, "spec", "containers")]
    values = [
        text(each, "value") for item in containers for each in dicts(item, "env") if each.get("name") == VISIBLE_DEVICES
    ]
    found = next((value for value in values if value not in _NO_DEVICES), None)
    if found is None or text(pod, "status", "phase") in ("Succeeded", "Failed"):
        return None
    return {
        "metadata": _picked(mapping(pod, "metadata"), ("name", "namespace", "labels")),
        "spec": {"nodeName": text(pod, "spec", "nodeName"), "runtimeClassName": text(pod, "spec", "runtimeClassName")},
        "value": found[:80],
        "claims": bool(dicts(pod, "spec", "resourceClaims")),
        "owner": next((text(each, "kind") for each in dicts(pod, "metadata", "ownerReferences")), ""),
    }


def is_about_devices(event: Wire) -> bool:
    """Return whether an event is about this driver's objects, or about a container that failed by a CDI device."""
    about = text(event, "involvedObject", "name")
    if about.startswith("dra-driver-") or text(event, "source", "component").startswith("dra-driver"):
        return True
    message = text(event, "message")
    return "CDI device" in message or "DRA driver" in message or "dra-driver" in message


def _container(item: Wire) -> dict[str, object]:
    found: dict[str, object] = _picked(item, ("name", "ready", "restartCount", "image", "imageID"))
    for part in ("state", "lastState"):
        states = mapping(item, part)
        found[part] = {
            name: _worded(_picked(mapping(states, name), ("reason", "message", "exitCode", "signal", "finishedAt")))
            for name in ("waiting", "running", "terminated")
            if isinstance(at(states, name), Mapping)
        }
    return found


def _settings(container: Wire) -> list[tuple[str, str]]:
    named = [(text(each, "name"), text(each, "value")) for each in dicts(container, "env")]
    return [(name, value[:200]) for name, value in named if name in _SETTINGS and value]


def _names(containers: list[Wire]) -> list[dict[str, str]]:
    return [{"name": text(each, "name"), "image": text(each, "image")} for each in containers]


def _worded(item: dict[str, object]) -> dict[str, object]:
    return {**item, "message": redacted(text(item, "message"), _LONGEST)} if "message" in item else item


def _picked(item: Wire, names: tuple[str, ...]) -> dict[str, object]:
    return {name: item[name] for name in names if item.get(name) is not None}
