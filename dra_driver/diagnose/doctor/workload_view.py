"""Pods, claims and templates as the checks need them: which claim, template, class and extended resource each names.

Pure over facts.
"""

from collections.abc import Iterator, Mapping

from dra_driver.diagnose.doctor.facts import ClusterFacts
from dra_driver.diagnose.doctor.wire import Wire, dicts, mapping, name_of, namespace_of, subject_of, text

Key = tuple[str, str]
"""Namespace and name."""


def key_of(item: Wire) -> Key:
    """Namespace and name of an object."""
    return namespace_of(item), name_of(item)


def waiting_pods(facts: ClusterFacts) -> list[Wire]:
    """Pods that have not begun to run and are not being deleted."""
    return [
        pod
        for pod in facts.items("pods")
        if text(pod, "status", "phase") in ("", "Pending") and not text(pod, "metadata", "deletionTimestamp")
    ]


def classes_in(spec: object) -> list[str]:
    """Classes that the requests of a claim's spec name."""
    found = []
    for request in dicts(spec, "devices", "requests"):
        for part in (request, mapping(request, "exactly"), *dicts(request, "firstAvailable")):
            if name := text(part, "deviceClassName"):
                found.append(name)
    return found


def used_classes(facts: ClusterFacts) -> Mapping[str, list[str]]:
    """Claims without an allocation, and templates of waiting pods, by the class that they name."""
    found: dict[str, list[str]] = {}
    for claim in facts.items_or_none("claims"):
        if not mapping(claim, "status", "allocation"):
            for name in classes_in(mapping(claim, "spec")):
                found.setdefault(name, []).append(subject_of("claim", claim))
    if facts.knows("pods") and facts.knows("templates"):
        wanted = {(namespace_of(pod), name) for pod in waiting_pods(facts) for name in template_names(pod)}
        for template in facts.items("templates"):
            if key_of(template) in wanted:
                for name in classes_in(mapping(template, "spec", "spec")):
                    found.setdefault(name, []).append(subject_of("template", template))
    return found


def template_names(pod: Wire) -> list[str]:
    """Templates that the pod names."""
    return [name for item in dicts(pod, "spec", "resourceClaims") if (name := text(item, "resourceClaimTemplateName"))]


def claim_names(pod: Wire) -> list[str]:
    """Claims that the pod names itself."""
    return [name for item in dicts(pod, "spec", "resourceClaims") if (name := text(item, "resourceClaimName"))]


def extended_resources(pod: Wire) -> Iterator[str]:
    """NVIDIA's extended resources that the pod's containers ask for, each once."""
    seen: set[str] = set()
    for container in (*dicts(pod, "spec", "initContainers"), *dicts(pod, "spec", "containers")):
        for part in ("limits", "requests"):
            for name in mapping(container, "resources", part):
                if str(name).startswith("nvidia.com/") and name not in seen:
                    seen.add(str(name))
                    yield str(name)
