"""Manifests for tests of lint, and the findings about them."""

import textwrap
from typing import Any

from dra_driver.kubectl.lint import Finding, LintReport, lint
from dra_driver.kubectl.lint.manifest import ManifestSource
from dra_driver.kubectl.lint.scope import KnownObjects, known_from_catalog

D = 'device.attributes["gpu.nvidia.com"]'
C = 'device.capacity["gpu.nvidia.com"]'
GUARD = 'device.driver == "gpu.nvidia.com"'


def report(text: str, known: KnownObjects | None = None) -> LintReport:
    source = ManifestSource(name="m.yaml", text=textwrap.dedent(text).lstrip("\n"))
    return lint([source], known or known_from_catalog())


def findings(text: str, known: KnownObjects | None = None) -> list[Finding]:
    return list(report(text, known).findings)


def rules(text: str, known: KnownObjects | None = None) -> list[str]:
    return [finding.rule for finding in findings(text, known)]


def one(text: str, rule: str, known: KnownObjects | None = None) -> Finding:
    """Returns the only finding, which must be of this rule."""
    found = findings(text, known)
    assert [finding.rule for finding in found] == [rule], [(f.rule, f.message) for f in found]
    return found[0]


def template(requests: str, *, rest: str = "", name: str = "t") -> str:
    """Returns a ResourceClaimTemplate; ``requests`` and ``rest`` are YAML with any indentation."""
    below = "\n".join(textwrap.indent(textwrap.dedent(each).strip("\n"), "      ") for each in (requests, rest))
    head = f"apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {{name: {name}}}\n"
    return f"{head}spec:\n  spec:\n    devices:\n      requests:\n{below}\n"


def selecting(expression: str, *, class_name: str = "gpu.nvidia.com") -> str:
    """Returns a template with one request and one selector, written as a literal block."""
    head = f"- name: gpu\n  exactly:\n    deviceClassName: {class_name}\n    selectors:\n    - cel:\n"
    return template(f"{head}        expression: |-\n{textwrap.indent(expression, ' ' * 12)}\n")


def device_class(expression: str, *, name: str = "mine", rest: str = "") -> str:
    return (
        f"apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {{name: {name}}}\nspec:\n  selectors:\n"
        f"  - cel:\n      expression: >-\n        {expression}\n{rest}"
    )


def pod(claims: str, uses: str = "[{name: gpu}]", *, limits: str = "{}") -> str:
    return (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n"
        f"    resources: {{claims: {uses}, limits: {limits}}}\n  resourceClaims: {claims}\n"
    )


def wire_slice(node: str, devices: list[dict[str, Any]], driver: str = "gpu.nvidia.com") -> dict[str, Any]:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    metadata = {"name": f"{node}-0"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
