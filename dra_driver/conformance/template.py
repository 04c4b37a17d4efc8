"""The claim that checks use: from --claim-template, or one device of the driver."""

from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct

from dra_driver.core.errors import ConfigurationError

MAX_BYTES: Final = 1 << 20
_CLAIM_KINDS: Final = ("ResourceClaimTemplate", "ResourceClaim")


class ClaimTemplate(Struct, frozen=True, kw_only=True):
    """The spec of a claim, and the DeviceClasses of the same file."""

    spec: dict[str, Any]
    classes: tuple[dict[str, Any], ...] = ()


def default_spec(class_name: str, *, count: int = 1, **fields: Any) -> dict[str, Any]:
    """A claim for ``count`` devices; ``fields`` are further fields of the request, such as ``adminAccess``."""
    exactly = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": count, **fields}
    return {"devices": {"requests": [{"name": "device", "exactly": exactly}]}}


def read_template(path: Path) -> ClaimTemplate:
    """A file with one ResourceClaimTemplate or ResourceClaim, and any DeviceClasses. Raises ConfigurationError."""
    documents = [one for one in _documents(path) if one is not None]
    claims = [one for one in documents if isinstance(one, dict) and one.get("kind") in _CLAIM_KINDS]
    classes = [one for one in documents if isinstance(one, dict) and one.get("kind") == "DeviceClass"]
    if len(claims) != 1 or len(claims) + len(classes) != len(documents):
        raise ConfigurationError(
            f"--claim-template {path}: expected one ResourceClaimTemplate or ResourceClaim, and DeviceClasses that it "
            f"needs; it has {len(documents)} documents, {len(claims)} of them claims or templates"
        )
    spec = claims[0].get("spec")
    if isinstance(spec, dict) and claims[0]["kind"] == "ResourceClaimTemplate":
        spec = spec.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("devices"), dict):
        raise ConfigurationError(f"--claim-template {path}: the {claims[0]['kind']} has no spec with devices")
    return ClaimTemplate(spec=spec, classes=tuple(classes))


def _documents(path: Path) -> list[Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ConfigurationError(f"--claim-template {path} is larger than {MAX_BYTES >> 20} MiB")
        return list(yaml.safe_load_all(text))
    except (OSError, yaml.YAMLError, RecursionError) as error:
        raise ConfigurationError(f"--claim-template {path} cannot be read: {error}") from error
