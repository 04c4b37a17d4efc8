"""Validation of metadata, the same for every kind (k8s.io/apimachinery pkg/api/validation/objectmeta.go)."""

from dra_driver.sim.apiserver.jsonvalue import Obj, entries, mapping
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.validation import (
    StatusCause,
    forbidden_field,
    invalid,
    label_key,
    label_value,
    required,
    too_long,
    wrong_type,
)

MAX_ANNOTATION_BYTES = 256 * 1024
_IMMUTABLE = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


def meta_problems(kind: ResourceKind, obj: Obj, path: str = "metadata") -> list[StatusCause]:
    metadata = mapping(obj, "metadata")
    problems: list[StatusCause] = []
    if base := metadata.get("generateName"):
        # generateName may end in "-", because a suffix is appended.
        tried = base.removesuffix("-") or "-"
        problems += [invalid(f"{path}.generateName", base, text) for text in kind.name_rule(tried)]
    if name := metadata.get("name"):
        problems += [invalid(f"{path}.name", name, text) for text in kind.name_rule(name)]
    else:
        problems.append(required(f"{path}.name", "name or generateName is required"))
    return problems + common_problems(metadata, path)


def meta_update_problems(obj: Obj, old: Obj, path: str = "metadata") -> list[StatusCause]:
    new, before = mapping(obj, "metadata"), mapping(old, "metadata")
    problems = [
        invalid(f"{path}.{field}", new.get(field), "field is immutable")
        for field in _IMMUTABLE
        if new.get(field) != before.get(field)
    ]
    added = [name for name in entries(new, "finalizers") if name not in entries(before, "finalizers")]
    if before.get("deletionTimestamp") and added:
        found = ", ".join(f'"{name}"' for name in added)
        text = "no new finalizers can be added if the object is being deleted, found new finalizers"
        problems.append(forbidden_field(f"{path}.finalizers", f"{text} []string{{{found}}}"))
    return problems + common_problems(new, path)


def common_problems(metadata: Obj, path: str) -> list[StatusCause]:
    """Problems of labels, annotations, finalizers and owners, checked on creates and updates."""
    return [
        *label_problems(metadata.get("labels"), f"{path}.labels"),
        *_annotation_problems(metadata.get("annotations"), f"{path}.annotations"),
        *_owner_problems(metadata, f"{path}.ownerReferences"),
        *_finalizer_problems(metadata, f"{path}.finalizers"),
    ]


def label_problems(labels: object, path: str) -> list[StatusCause]:
    problems: list[StatusCause] = []
    for key, value in labels.items() if isinstance(labels, dict) else ():
        problems += [invalid(path, key, text) for text in label_key(key)]
        if not isinstance(value, str):
            problems.append(wrong_type(f"{path}.{key}", value, "a string"))
        else:
            problems += [invalid(path, value, text) for text in label_value(value)]
    return problems


def _annotation_problems(annotations: object, path: str) -> list[StatusCause]:
    problems: list[StatusCause] = []
    size = 0
    for key, value in annotations.items() if isinstance(annotations, dict) else ():
        problems += [invalid(path, key, text) for text in label_key(key.lower())]
        if not isinstance(value, str):
            problems.append(wrong_type(f"{path}.{key}", value, "a string"))
        else:
            size += len(key.encode()) + len(value.encode())
    if size > MAX_ANNOTATION_BYTES:
        problems.append(too_long(path, MAX_ANNOTATION_BYTES))
    return problems


def _finalizer_problems(metadata: Obj, path: str) -> list[StatusCause]:
    problems = []
    for at, name in enumerate(entries(metadata, "finalizers")):
        problems += [invalid(path, name, text) for text in label_key(str(name))]
        if "/" not in str(name) and name not in {"orphan", "foregroundDeletion", "kubernetes"}:
            text = "name is neither a standard finalizer name nor is it fully qualified"
            problems.append(invalid(f"{path}[{at}]", name, text))
    return problems


def _owner_problems(metadata: Obj, path: str) -> list[StatusCause]:
    problems: list[StatusCause] = []
    controllers: list[str] = []
    for reference in entries(metadata, "ownerReferences"):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not reference.get(field):
                text = "version must not be empty" if field == "apiVersion" else "must not be empty"
                problems.append(invalid(f"{path}.{field}", reference.get(field, ""), text))
        if reference.get("controller"):
            controllers.append(f"{reference.get('kind')}/{reference.get('name')}")
    if len(controllers) > 1:
        text = (
            'Only one reference can have Controller set to true. Found "true" in references for '
            f"{controllers[0]} and {controllers[1]}"
        )
        problems.append(invalid(path, entries(metadata, "ownerReferences"), text))
    return problems
