"""Make the ValidatingAdmissionPolicy for opaque parameters of claims, templates and classes, for ``scripts/gen.py``.

It refuses parameters that the node refuses at prepare, with the node's message, and checks only this driver's
configurations.
Claims and templates are checked on create, classes also when their spec changes: an existing claim must still be
updated and deleted. The policy ignores its failures, because the node checks again.

A *finding* is a list of text before the wrong value, the value and text after it; the last two may be missing.
`sentence_of` turns findings into the messages of `config.schema.problems`, in the same order, for the types of opaque
parameters. Three differ: lists of several unknown fields (maps have no order in Kubernetes), values of more than 58
characters, and texts with unprintable characters or both kinds of quotes. Kubernetes' CEL has no ``cel.bind``, so a
value is bound by a list of one: ``[value].map(v, ...)[0]``. Only functions of Kubernetes 1.34 are used.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dra_driver.config.parameters import API_VERSION, KINDS
from dra_driver.config.rules import RULES
from dra_driver.config.schema import MAX_SHOWN_PROBLEMS, path_text
from dra_driver.core.quantity import Quantity

Json = dict[str, Any]

Schema = Mapping[str, Any]
_HAS: Final = re.compile(r"has\((self(?:\.\w+)*)\.(\w+)\)")
_LEAVES: Final = frozenset({"enum", "integer", "quantity"})
_SHOWN: Final = 58  # schema.shown cuts at 60, quotes included


def text(written: str) -> str:
    """A CEL string literal."""
    return '"' + written.replace("\\", "\\\\").replace('"', '\\"') + '"'


def field(owner: str, name: str) -> str:
    """The field's value; null where it is absent."""
    return f"{owner}.?{name}.orValue(null)"


def finding(before: str, value: str = "", after: str = "") -> str:
    """One finding; ``value`` is an expression. Lists of Kubernetes' CEL have items of one type, so all are dyn."""
    parts = [f"dyn({text(before)})", *([value] if value else []), *([f"dyn({text(after)})"] if after else [])]
    return f"[{', '.join(parts)}]"


def findings(schema: Schema, value: str, path: Sequence[str] = ()) -> str:
    """The findings of ``value``, a variable, as an expression."""
    return _CHECKS[schema["type"]](schema, value, path)


def sentence_of(found: str) -> str:
    """The message of a finding: an expression of an expression."""
    return f"{found}[0] + (size({found}) > 1 ? {_shown(f'{found}[1]')} : '') + (size({found}) > 2 ? {found}[2] : '')"


def _shown(value: str) -> str:
    """As `config.schema.shown`."""
    quote = f'({value}.contains("\'") ? "\\"" : "\'")'
    return (
        f"(type({value}) == string"
        f" ? {quote} + (size({value}) > {_SHOWN} ? {value}.substring(0, {_SHOWN}) + '…'"
        f" : {value}.replace('\\\\', '\\\\\\\\') + {quote})\n"
        f"  : type({value}) == map ? 'an object' : type({value}) == list ? 'a list'"
        f" : {value} == null ? 'nothing' : string({value}))"
    )


def _at(path: Sequence[str], problem: str) -> str:
    return f"{path_text(path)}: {problem}" if path else problem


def _given(schema: Schema, owner: str, name: str, path: Sequence[str], *, required: bool) -> str:
    """The findings of a field; of one that is absent or null only that it is required."""
    variable = "v" if schema["type"] in _LEAVES else "self"
    absent = f"[{finding(_at(path, 'is required'))}]" if required else "[]"
    below = findings(schema, variable, path)
    inner = f"\n{_indented(below)}\n" if "\n" in below else f" {below}"
    return f"[{field(owner, name)}].map({variable}, {variable} == null ? {absent} :{inner})[0]"


def _object(schema: Schema, value: str, path: Sequence[str]) -> str:
    required = schema.get("required", ())
    fields: Mapping[str, Schema] = schema["fields"]
    parts = [_given(inner, value, name, (*path, name), required=name in required) for name, inner in fields.items()]
    start, names = text(f"{path_text(path)}." if path else ""), ", ".join(map(text, fields))
    parts.append(f"{value}.filter(k, !(k in [{names}])).map(k, [dyn({start} + k + ': unknown field')])")
    wrong = f"[{finding(_at(path, 'expected an object, got '), value)}]"
    joined = _indented(" +\n".join(parts))
    if not schema.get("rules"):
        return f"type({value}) != map ? {wrong} :\n{joined}"
    rules = _indented(" +\n".join(_rule(name, path) for name in schema["rules"]))
    return f"type({value}) != map ? {wrong} : [\n{joined}\n].map(found, size(found) > 0 ? found :\n{rules}\n)[0]"


def _rule(name: str, path: Sequence[str]) -> str:
    """A null field is absent, and ``has`` would find it."""
    condition = _HAS.sub(lambda found: f"({field(found[1], found[2])} != null)", RULES[name].cel)
    return f"({condition} ? [] : [{finding(_at(path, RULES[name].message))}])"


def _map(schema: Schema, value: str, path: Sequence[str]) -> str:
    """A value of a map has at most one finding, whose path ends with the key."""
    limit, start = schema["max"], text(f"{path_text(path)}.")
    each = findings(schema["values"], "v", ("",))
    too_many = finding(_at(path, f"expected at most {limit} entries, got "), f"dyn(size({value}))")
    return (
        f"type({value}) != map ? [{finding(_at(path, 'expected an object, got '), value)}] :\n"
        f"size({value}) > {limit} ? [{too_many}] :\n"
        f"{value}.map(k, [{value}[k]].map(v,\n{_indented(each)}\n"
        f")[0].map(f, size(f) > 2 ? [dyn({start} + k + f[0]), f[1], f[2]] : [dyn({start} + k + f[0]), f[1]]))"
        ".filter(f, size(f) > 0).map(f, f[0])"
    )


def _enum(schema: Schema, value: str, path: Sequence[str]) -> str:
    *most, last = map(repr, schema["values"])
    expected = f"{', '.join(most)} or {last}" if most else last
    names = ", ".join(map(text, schema["values"]))
    return f"{value} in [{names}] ? [] : [{finding(_at(path, f'expected {expected}, got '), value)}]"


def _integer(schema: Schema, value: str, path: Sequence[str]) -> str:
    low, high = schema["min"], schema["max"]
    wrong = finding(_at(path, f"expected a whole number from {low} to {high}, got "), value)
    return f"type({value}) == int && {value} >= {low} && {value} <= {high} ? [] : [{wrong}]"


def _quantity(schema: Schema, value: str, path: Sequence[str]) -> str:
    """Fractions are rounded up before they are compared (``Quantity.Value()``)."""
    low, high = schema["min"], schema["max"]
    amount, lowest, highest = f"quantity(string({value}))", text(str(low - 1)), text(str(high))
    other = "is not a quantity: expected a number and a suffix, such as 80Gi or 500m"
    cases = (
        (f"type({value}) != string && type({value}) != int", "expected a quantity such as 10Gi, got ", ""),
        (f"!isQuantity(string({value}))", "", f" {other}"),
        (f"!{amount}.isGreaterThan(quantity({lowest}))", f"expected at least {Quantity.from_bytes(low)}, got ", ""),
        (f"{amount}.isGreaterThan(quantity({highest}))", f"expected at most {Quantity.from_bytes(high)}, got ", ""),
    )
    found = [f"{condition} ? [{finding(_at(path, before), value, after)}] :" for condition, before, after in cases]
    return "\n".join([*found, "[]"])


def _indented(block: str) -> str:
    return "\n".join(f"  {line}" for line in block.splitlines())


_CHECKS: Final[Mapping[str, Callable[[Schema, str, Sequence[str]], str]]] = {
    "object": _object,
    "map": _map,
    "enum": _enum,
    "integer": _integer,
    "quantity": _quantity,
}


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
_SENTENCES: Final = f"variables.found.map(findings, findings.map(f,\n  {sentence_of('f')}))"
# Texts and field names of users can contain control characters, which terminals interpret.
_PRINTABLE: Final = r'"^[\\p{L}\\p{M}\\p{N}\\p{P}\\p{S} ]*$"'
_HIDDEN: Final = text("wrong, in a text with characters that cannot be printed; `kubectl dra lint` says where")


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
                    _resources(["CREATE"], ["resourceclaims", "resourceclaimtemplates", "deviceclasses"]),
                    _resources(["UPDATE"], ["deviceclasses"]),
                ]
            },
            "matchConditions": [
                {
                    "name": "is-new-or-changed",
                    "expression": 'request.operation == "CREATE" || object.spec != oldObject.spec',
                }
            ],
            "variables": [
                {"name": "driver", "expression": text(DRIVER)},
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


def _resources(operations: list[str], resources: list[str]) -> Json:
    return {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": list(VERSIONS),
        "operations": operations,
        "resources": resources,
    }


def _found(schemas: Json) -> str:
    """The findings of each of ``parameters`` (see `parameters.decode`)."""
    version, kind = field("self", "apiVersion"), field("self", "kind")
    expected = " or ".join(KINDS)
    no_object = finding("parameters are ", "self", ", expected an object with apiVersion and kind")
    other_version = finding(f"apiVersion: expected {API_VERSION!r}, got ", version)
    vfio = finding(f"kind: VfioDeviceConfig is not supported by this version; expected {expected}")
    parts = [
        f"type(self) != map ? [{no_object}]",
        f"{version} != {text(API_VERSION)} ? [{other_version}]",
        f'{kind} == "VfioDeviceConfig" ? [{vfio}]',
        *(f"{kind} == {text(name)} ? (\n{findings(schemas[name], 'self')})" for name in KINDS),
        f"[{finding(f'kind: expected {expected}, got ', kind)}]",
    ]
    checked = " :\n".join(parts)
    return f"variables.parameters.map(self,\n{checked})"


def _wrong() -> str:
    """One sentence of each wrong configuration, as the node makes it of the first problems."""
    first = ", ".join(map(str, range(MAX_SHOWN_PROBLEMS)))
    own_kinds = ", ".join(map(text, KINDS))
    given = "variables.parameters[n]"
    kind = (
        f"(type({given}) == map && {field(given, 'apiVersion')} == {text(API_VERSION)}"
        f' && {field(given, "kind")} in [{own_kinds}] ? {given}.kind + ": " : "")'
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
