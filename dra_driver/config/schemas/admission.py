"""Make the ValidatingAdmissionPolicy for opaque parameters of claims, templates and classes, for ``scripts/gen.py``.

It refuses what the node would refuse at prepare, with the node's message, and only configurations for this driver.
Claims and templates are checked on create, classes also when their spec changes: an existing claim must still be
updated and deleted. The policy ignores its failures, because the node checks again.
"""

from typing import Any, Final

from dra_driver.config.parameters import API_VERSION, KINDS
from dra_driver.config.schema import MAX_SHOWN_PROBLEMS
from dra_driver.config.schemas import cel_checks as cel

Json = dict[str, Any]

NAME: Final = "dra-driver-parameters"
DRIVER: Final = "gpu.nvidia.com"
"""The driver's default name, the value of the variable ``driver``."""
VERSIONS: Final = ("v1", "v1beta1", "v1beta2")
MOST_CONFIGS: Final = 32
"""Entries of a claim or class (resource/v1 DeviceConfigMaxSize)."""

_POSITIONS: Final = ", ".join(map(str, range(MOST_CONFIGS)))
_CONFIGS: Final = """\
(request.resource.resource == "deviceclasses" ? dyn(object).spec.?config
: request.resource.resource == "resourceclaims" ? dyn(object).spec.?devices.?config
: dyn(object).spec.spec.?devices.?config).orValue([])"""
_PLACE: Final = """\
request.resource.resource == "deviceclasses" ? "spec.config"
: request.resource.resource == "resourceclaims" ? "spec.devices.config"
: "spec.spec.devices.config\""""
_OWN: Final = f"""\
[{_POSITIONS}].filter(i,
  i < size(variables.configs) && variables.configs[i].?opaque.?driver.orValue("") == variables.driver)"""
_PARAMETERS: Final = "variables.own.map(i, variables.configs[i].opaque.?parameters.orValue(null))"
_SENTENCES: Final = f"variables.found.map(findings, findings.map(f,\n  {cel.sentence_of('f')}))"
# Terminals would obey some of the characters that users can put in texts and names of fields.
_PRINTABLE: Final = r'"^[\\p{L}\\p{M}\\p{N}\\p{P}\\p{S} ]*$"'
_HIDDEN: Final = cel.text("wrong, in a text with characters that cannot be printed; `kubectl dra lint` says where")


def parameters_policy(schemas: Json) -> list[Json]:
    """The policy and its binding; ``schemas`` are the compact schemas by kind (`export.compact`)."""
    binding: Json = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": NAME},
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    }
    return [_policy(schemas), binding]


def _policy(schemas: Json) -> Json:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME},
        "spec": {
            "failurePolicy": "Ignore",
            "matchConstraints": {
                "resourceRules": [
                    _rule(["CREATE"], ["resourceclaims", "resourceclaimtemplates", "deviceclasses"]),
                    _rule(["UPDATE"], ["deviceclasses"]),
                ]
            },
            "matchConditions": [
                {
                    "name": "is-new-or-changed",
                    "expression": 'request.operation == "CREATE" || object.spec != oldObject.spec',
                }
            ],
            "variables": [
                {"name": "driver", "expression": cel.text(DRIVER)},
                {"name": "configs", "expression": _CONFIGS},
                {"name": "place", "expression": _PLACE},
                {"name": "own", "expression": _OWN},
                {"name": "parameters", "expression": _PARAMETERS},
                {"name": "found", "expression": _found(schemas)},
                {"name": "sentences", "expression": _SENTENCES},
                {"name": "wrong", "expression": _wrong()},
            ],
            "validations": [
                {
                    "expression": "size(variables.wrong) == 0",
                    "reason": "Invalid",
                    "message": "the opaque parameters are wrong; `kubectl dra lint` says where",
                    "messageExpression": "variables.wrong[0]",
                }
            ],
        },
    }


def _rule(operations: list[str], resources: list[str]) -> Json:
    return {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": list(VERSIONS),
        "operations": operations,
        "resources": resources,
    }


def _found(schemas: Json) -> str:
    """The findings of each of ``parameters`` (see `parameters.decode`)."""
    version, kind = cel.field("self", "apiVersion"), cel.field("self", "kind")
    expected = " or ".join(KINDS)
    no_object = cel.finding("parameters are ", "self", ", expected an object with apiVersion and kind")
    other_version = cel.finding(f"apiVersion: expected {API_VERSION!r}, got ", version)
    vfio = cel.finding(f"kind: VfioDeviceConfig is not supported by this version; expected {expected}")
    parts = [
        f"type(self) != map ? [{no_object}]",
        f"{version} != {cel.text(API_VERSION)} ? [{other_version}]",
        f'{kind} == "VfioDeviceConfig" ? [{vfio}]',
        *(f"{kind} == {cel.text(name)} ? (\n{cel.findings(schemas[name], 'self')})" for name in KINDS),
        f"[{cel.finding(f'kind: expected {expected}, got ', kind)}]",
    ]
    checked = " :\n".join(parts)
    return f"variables.parameters.map(self,\n{checked})"


def _wrong() -> str:
    """One sentence of each wrong configuration, as the node makes it of the first problems."""
    first = ", ".join(map(str, range(MAX_SHOWN_PROBLEMS)))
    own_kinds = ", ".join(map(cel.text, KINDS))
    given = "variables.parameters[n]"
    kind = (
        f"(type({given}) == map && {cel.field(given, 'apiVersion')} == {cel.text(API_VERSION)}"
        f' && {cel.field(given, "kind")} in [{own_kinds}] ? {given}.kind + ": " : "")'
    )
    return (
        f"[{_POSITIONS}]\n"
        ".filter(n, n < size(variables.own) && size(variables.found[n]) > 0)\n"
        f".map(n, [variables.sentences[n]].map(all, {kind}\n"
        f'  + [{first}].filter(m, m < size(all)).map(m, all[m]).join("; ")\n'
        f"  + (size(all) > {MAX_SHOWN_PROBLEMS}"
        f' ? "; and " + string(size(all) - {MAX_SHOWN_PROBLEMS}) + " more" : ""))\n'
        f'.map(s, variables.place + "[" + string(variables.own[n]) + "].opaque.parameters: "\n'
        f"  + (s.matches({_PRINTABLE}) ? s : {_HIDDEN}))[0])"
    )
