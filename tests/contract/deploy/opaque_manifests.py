"""A hundred claims, templates and classes with opaque parameters, right and wrong ones, in every version of the API.

Each is as the API server stores it apart from what is tried: its own validation accepts all of them.
"""

import json
from typing import Any

from dra_driver.config.parameters import decode
from dra_driver.core.errors import InvalidParametersError
from dra_driver.kubectl.lint import KnownObjects, ManifestSource, lint
from tests.contract.config import samples

DRIVER = "gpu.nvidia.com"
COUNT = 100
KINDS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass")
PLURALS = {"ResourceClaim": "resourceclaims", "ResourceClaimTemplate": "resourceclaimtemplates"}
VERSIONS = ("v1", "v1beta1", "v1beta2")
_GOOD = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}


def manifests() -> list[dict[str, Any]]:
    return [_manifest(number) for number in range(COUNT)]


def lints(manifest: dict[str, Any]) -> list[str]:
    report = lint([ManifestSource(name="x.yaml", text=json.dumps(manifest))], KnownObjects())
    return [finding.message for finding in report.findings if finding.rule == "DRA035"]


def node_says(manifest: dict[str, Any]) -> str | None:
    """What the node says of the first wrong parameters, after the place of the entry; None if all are right."""
    place, configs = configs_of(manifest)
    for at, config in enumerate(configs):
        if config["opaque"]["driver"] == DRIVER:
            try:
                decode(config["opaque"]["parameters"])
            except InvalidParametersError as error:
                return f"{place}[{at}].opaque.parameters: {error}"
    return None


def configs_of(manifest: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    spec = manifest["spec"]
    if manifest["kind"] == "DeviceClass":
        return "spec.config", spec.get("config", [])
    if manifest["kind"] == "ResourceClaim":
        return "spec.devices.config", spec["devices"].get("config", [])
    return "spec.spec.devices.config", spec["spec"]["devices"].get("config", [])


def _manifest(number: int) -> dict[str, Any]:
    kind, version = KINDS[number % 3], VERSIONS[number // 3 % 3]
    configs = _configs(number)
    devices: dict[str, Any] = {"requests": [_request(version)], **({"config": configs} if configs else {})}
    spec: dict[str, Any] = {"devices": devices}
    if kind == "ResourceClaimTemplate":
        spec = {"spec": spec}
    if kind == "DeviceClass":
        spec = {"config": configs} if configs else {}
    name = f"opaque-{number}"
    return {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _request(version: str) -> dict[str, Any]:
    exactly = {"deviceClassName": DRIVER}
    return {"name": "gpu", **exactly} if version == "v1beta1" else {"name": "gpu", "exactly": exactly}


def _configs(number: int) -> list[dict[str, Any]]:
    """Every tenth is about other drivers, several entries or none."""
    if number % 10 == 9:
        wrong = _config({**_GOOD, "kind": "VfioDeviceConfig"})
        cases = [
            [],
            [_config({"any": ["thing"]}, "x.example")],
            [_config(_GOOD), wrong],
            [_config({}, "x.example"), wrong],
        ]
        return cases[number // 10 % len(cases)]
    kind = ("GpuConfig", "MigDeviceConfig")[number % 2]
    return [_config(_printable(samples.right(kind, number) if number % 3 == 0 else samples.broken(kind, number)))]


def _config(parameters: Any, driver: str = DRIVER) -> dict[str, Any]:
    return {"opaque": {"driver": driver, "parameters": parameters}}


def _printable(value: Any) -> Any:
    """The value without what JSON readers disagree on (half of a surrogate pair, numbers of any length)."""
    if isinstance(value, dict):
        return {str(_printable(key)): _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, str):
        return value.replace("\ud800", "x").replace("\n", " ")
    if isinstance(value, float) or (isinstance(value, int) and not -(2**63) <= value < 2**63):
        return 7.5
    return value
