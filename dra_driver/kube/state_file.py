"""Cluster states as files: one ``v1 List`` in YAML or JSON, so ``kubectl get -o yaml`` output can be read. JSON files
store equal contents of ResourceSlices once (``state_templates.py``). Reading limits size and depth and checks all
shapes (``shapes.py``): a file is hostile."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dra_driver.core import yaml_text
from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.files import replace_file
from dra_driver.kube import state_templates
from dra_driver.kube.shapes import misfit
from dra_driver.kube.state import FILE_KINDS, ClusterState
from dra_driver.kube.state_parts import reduced

Wire = Mapping[str, Any]

SCHEMA_VERSION: Final = 1
TEMPLATES_VERSION: Final = 2
"""The version of files whose ResourceSlices refer to templates; earlier programs refuse to read them."""

MAX_FILE_BYTES: Final = 1 << 30
_MAX_YAML_BYTES: Final = 64 << 20
"""The YAML parser needs about fifty bytes of memory per byte; larger states are written and read as JSON."""


_HEADER: Final = "draState"


def load(path: Path | str) -> ClusterState:
    """The state in a file that `dump` or kubectl wrote. Raises ConfigurationError with a sentence."""
    file = Path(path)
    return state_in(list(read_documents(file)), str(file))


def state_in(documents: Sequence[Wire], where: str) -> ClusterState:
    """The state in documents that were read from ``where``. Raises ConfigurationError."""
    header = next((found for item in documents if isinstance(found := item.get(_HEADER), dict)), {})
    version = header.get("schemaVersion", SCHEMA_VERSION)
    if version not in (SCHEMA_VERSION, TEMPLATES_VERSION):
        known = f"{SCHEMA_VERSION} and {TEMPLATES_VERSION}"
        raise ConfigurationError(f"{where}: a state of schemaVersion {version}, this program reads {known}")
    gaps = header.get("gaps")
    objects = objects_of(documents, where)
    if version == TEMPLATES_VERSION:
        objects = _filled(objects, header, where)
    return ClusterState(
        server_version=str(header.get("serverVersion") or ""),
        gaps=tuple(map(str, gaps)) if isinstance(gaps, list) else (),
        source=where,
        **_by_kind(objects),
    )


def dump(state: ClusterState, path: Path | str) -> None:
    """Writes the state, as YAML when the name ends so, else JSON; whole or not at all. Raises StorageError."""
    file = Path(path)
    text = text_of(state, as_yaml=file.suffix in (".yaml", ".yml"))
    try:
        replace_file(file, text.encode())
    except OSError as error:
        raise StorageError(f"cannot write {file}: {os.strerror(error.errno or 0)}") from error


def text_of(state: ClusterState, *, as_yaml: bool) -> str:
    document = to_document(state, templates=not as_yaml)
    if as_yaml:
        return yaml_text.dump(document)
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False) + "\n"


def to_document(state: ClusterState, *, templates: bool = False) -> dict[str, object]:
    """The state as one List whose items have kind and version. With ``templates``, equal contents of ResourceSlices are
    stored once."""
    pulled_out, slices = (
        state_templates.pull_out(state.slices) if templates else ([], [_plain_slice(item) for item in state.slices])
    )
    items = [
        {"apiVersion": kind.api_version, "kind": kind.kind, **reduced(kind.kind, item)}
        for kind in FILE_KINDS
        for item in (slices if kind.field == "slices" else getattr(state, kind.field))
    ]
    header: dict[str, object] = {"schemaVersion": TEMPLATES_VERSION if pulled_out else SCHEMA_VERSION}
    header |= {"serverVersion": state.server_version, "gaps": list(state.gaps)}
    if pulled_out:
        header["templates"] = pulled_out
    return {"apiVersion": "v1", "kind": "List", _HEADER: header, "items": items}


def read_documents(file: Path, text: str | None = None) -> Iterator[Wire]:
    """The objects among the documents of a YAML or JSON file (or of ``text`` in its place)."""
    content = _text(file) if text is None else text
    try:
        found = [json.loads(content)] if content.lstrip()[:1] == "{" and _is_json(content) else _yaml(file, content)
    except (ValueError, RecursionError) as error:
        problem = " ".join(str(error).split()) or "nested too deeply"
        raise ConfigurationError(f"{file} is neither YAML nor JSON that can be read: {problem[:300]}") from error
    for document in found:
        if isinstance(document, dict):
            yield document
        elif document is not None:
            raise ConfigurationError(f"{file}: a document is {type(document).__name__}, expected an object")


def objects_of(documents: Sequence[Wire], where: str, namespace: str = "default") -> list[dict[str, Any]]:
    """Single objects and those in lists, of the kinds of a state, with name and shape checked; ``namespace`` is the
    default of namespaced kinds. Raises ConfigurationError that names the object and the field."""
    kinds = {kind.kind: kind for kind in FILE_KINDS}
    found = []
    for item in flat(documents, where):
        kind = kinds.get(str(item.get("kind")))
        if kind is None:
            continue
        problem = misfit(kind.kind, item)
        if problem:
            raise ConfigurationError(f"{where}: {kind.kind} {_name(item)}: {problem}")
        metadata = {**({"namespace": namespace} if kind.namespaced else {}), **item["metadata"]}
        found.append({**item, "metadata": metadata})
    return found


def flat(documents: Sequence[Wire], where: str) -> Iterator[Wire]:
    """Yield the objects, and the items of lists. Raises ConfigurationError on a value without kind and metadata."""
    for document in documents:
        kind = document.get("kind")
        if not isinstance(kind, str) or not kind:
            raise ConfigurationError(f"{where}: an object has no kind; expected Kubernetes objects")
        if not kind.endswith("List") or "items" not in document:
            yield document
            continue
        items = document["items"] or []
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise ConfigurationError(f"{where}: items of a {kind} are not objects")
        for item in items:
            yield item if item.get("kind") else {**item, "kind": kind.removesuffix("List")}


def _filled(objects: Sequence[dict[str, Any]], header: Wire, where: str) -> list[dict[str, object]]:
    templates = state_templates.read_templates(header.get("templates"), where)
    for number, (name, template) in enumerate(templates):
        _check_template(name, template, f"{where}: draState.templates[{number}]")
    found = []
    devices = 0
    for item in objects:
        if item["kind"] != "ResourceSlice" or state_templates.USE_FIELD not in item["spec"]:
            found.append(item)
            continue
        try:
            spec = state_templates.use_templates(item["spec"], templates)
        except ValueError as error:
            raise ConfigurationError(f"{where}: ResourceSlice {_name(item)}: {error}") from error
        devices += sum(len(spec.get(name) or ()) for name in state_templates.FIELDS)
        if devices > state_templates.MAX_DEVICES:
            raise ConfigurationError(
                f"{where}: its templates stand for more than {state_templates.MAX_DEVICES:,} devices"
            )
        found.append({**item, "spec": spec})
    return found


def _check_template(name: str, template: state_templates.Template, where: str) -> None:
    pool = {"driver": "-", "pool": {"name": "-"}}
    problem = misfit("ResourceSlice", {"metadata": {"name": "-"}, "spec": {**pool, name: template.items}})
    if problem:
        raise ConfigurationError(f"{where}: {problem}")


def _plain_slice(item: Wire) -> Wire:
    return {**item, "spec": {name: state_templates.plain(value) for name, value in item["spec"].items()}}


def _by_kind(objects: list[dict[str, Any]]) -> dict[str, tuple[Wire, ...]]:
    fields = {kind.kind: kind.field for kind in FILE_KINDS}
    found: dict[str, list[Wire]] = {kind.field: [] for kind in FILE_KINDS}
    for item in objects:
        found[fields[item["kind"]]].append(reduced(item["kind"], item))
    return {field: tuple(items) for field, items in found.items()}


def _name(item: Wire) -> str:
    metadata = item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return repr(name)[:80] if name else "without a name"


def _text(file: Path) -> str:
    try:
        size = file.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ConfigurationError(f"{file} has {size >> 20} MiB; at most {MAX_FILE_BYTES >> 20} MiB are read")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {os.strerror(error.errno or 0)}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is not UTF-8 text") from error


def _is_json(content: str) -> bool:
    """Return whether to read as JSON: as YAML it would take fifty times longer. YAML may start with ``{`` as well."""
    start = content.lstrip()[1:].lstrip()[:1]
    return start in ('"', "}")


def _yaml(file: Path, content: str) -> list[object]:
    if len(content) > _MAX_YAML_BYTES:
        raise ConfigurationError(
            f"{file} has more than {_MAX_YAML_BYTES >> 20} MiB of YAML; write large states as JSON"
        )
    return list(yaml_text.load_all(content))
