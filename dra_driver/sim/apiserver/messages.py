"""Requests, replies and the targets of URL paths as values, independent of the web server.

Paths: k8s.io/apiserver pkg/endpoints/request/requestinfo.go.
"""

import json
from collections.abc import Mapping, Sequence

import yaml
from msgspec import Struct, field

from dra_driver.sim.apiserver.api_errors import bad_request, status_error
from dra_driver.sim.apiserver.jsonvalue import Obj, dump
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.kinds import ALL_KINDS, NAMESPACES
from dra_driver.sim.apiserver.protobody import MEDIA_TYPE as PROTOBUF
from dra_driver.sim.apiserver.protobody import decode_body

JSON = "application/json"
# Replies are JSON only: typed Go clients may prefer protobuf, but accept JSON.
_ACCEPTABLE = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/*", "*/*")
_YAML_TYPES = ("application/yaml", "application/apply-patch+yaml")


class ApiRequest(Struct, frozen=True, kw_only=True):
    """One request. Header names are lower case; a query parameter given twice keeps its first value."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def accept(self) -> str:
        return self.headers.get("accept", "")

    @property
    def content_type(self) -> str:
        """The body's media type without parameters."""
        return self.headers.get("content-type", JSON).partition(";")[0].strip() or JSON

    def wants(self, shape: str) -> bool:
        """Whether the first acceptable form in Accept is ``shape``.

        Shapes are Table, PartialObjectMetadata and PartialObjectMetadataList.
        """
        for choice in self.accept.split(","):
            media_type, *options = [option.strip() for option in choice.split(";")]
            wanted = next((option.removeprefix("as=") for option in options if option.startswith("as=")), "")
            if media_type == JSON and wanted in {"", "Table", "PartialObjectMetadata", "PartialObjectMetadataList"}:
                return wanted == shape
        return False

    def check_accept(self) -> None:
        choices = [choice.partition(";")[0].strip() for choice in self.accept.split(",")]
        if self.accept and not any(choice in _ACCEPTABLE for choice in choices):
            text = f"only the following media types are accepted: {', '.join(_ACCEPTABLE[:3])}"
            raise status_error(406, "NotAcceptable", text)

    def flag(self, name: str) -> bool:
        """A boolean query parameter: ``watch``, ``watch=1`` and ``watch=true`` are true."""
        return name in self.query and self.query[name].lower() not in {"0", "false"}

    def document(self) -> object:
        """The decoded body. Raises InvalidObjectError (400) if it cannot be decoded, 415 for other media types."""
        kind = self.content_type
        if kind == PROTOBUF:
            return decode_body(self.body)
        if kind not in {*_YAML_TYPES, JSON} and not kind.endswith("+json"):
            raise unsupported_media_type([JSON, "application/yaml"])
        try:
            return yaml.safe_load(self.body) if kind in _YAML_TYPES else json.loads(self.body)
        except (ValueError, RecursionError, yaml.YAMLError) as error:
            raise bad_request(f"couldn't parse the request's body as {kind}: {error}") from error

    def object(self) -> Obj:
        """The decoded body, which must be an object. Raises InvalidObjectError (400)."""
        found = self.document()
        if not isinstance(found, dict):
            raise bad_request(f"the body must be a JSON object, got {type(found).__name__}")
        return found


class Reply(Struct, frozen=True, kw_only=True):
    body: bytes
    status: int = 200
    media_type: str = JSON
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: object, status: int = 200, warnings: tuple[str, ...] = ()) -> "Reply":
        return cls(body=dump(value), status=status, warnings=warnings)


def unsupported_media_type(accepted: Sequence[str]) -> Exception:
    text = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return status_error(415, "UnsupportedMediaType", text)


_KINDS = {(kind.group, kind.version, kind.plural): kind for kind in ALL_KINDS}


class Target(Struct, frozen=True, kw_only=True):
    """The object or collection of a path. ``name`` is "" for a collection."""

    kind: ResourceKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def is_known_group(path: str) -> bool:
    """Whether the path is below a served group and version; for other paths the real server returns no Status."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"]:
        return len(parts) > 2 and parts[1] == "v1"
    return len(parts) > 3 and any((group, version) == (parts[1], parts[2]) for group, version, _ in _KINDS)


def target_of(path: str) -> Target | None:
    """Parse ``path``; None if the API has no such path."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"]:
        group, rest = "", parts[1:]
    elif parts[:1] == ["apis"] and len(parts) > 1:
        group, rest = parts[1], parts[2:]
    else:
        return None
    if not rest:
        return None
    version, rest = rest[0], rest[1:]
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2 and rest[2] not in NAMESPACES.subresources:
        namespace, rest = rest[1], rest[2:]
    kind = _KINDS.get((group, version, rest[0])) if rest else None
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
        return None
    if kind.namespaced and not namespace and len(rest) > 1:
        return None
    if len(rest) > 2 and rest[2] not in kind.subresources:
        return None
    name, subresource = (*rest[1:], "", "")[:2]
    return Target(kind=kind, namespace=namespace, name=name, subresource=subresource)
