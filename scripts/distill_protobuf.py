"""Distil Kubernetes' generated.proto files into the field numbers by which the embedded API server reads protobuf
bodies.

    python scripts/distill_protobuf.py $(find k8s.io/api k8s.io/apimachinery -name generated.proto) \
        > dra_driver/sim/apiserver/protobuf.json

kubectl's and other Go programs' typed clients send protobuf, and the API has no way to ask them for JSON instead. A
field reads ``NAME TYPE`` where TYPE is ``string``, ``bytes``, ``int``, ``bool``, ``double`` or a type's name, behind
``[]`` for repeated and ``{}`` for maps with string keys; NAME is ``+`` for fields that JSON inlines into the object
around them.
"""

import json
import re
import sys
from pathlib import Path

from dra_driver.sim.apiserver.kinds import ALL_KINDS
from dra_driver.sim.apiserver.schema import table, type_of

PACKAGES = ("k8s.io.api.", "k8s.io.apimachinery.pkg.apis.", "k8s.io.apimachinery.pkg.")
SCALARS = {"int32": "int", "int64": "int", "uint32": "int", "uint64": "int", "float": "double"}
# Bodies that are no stored objects.
EXTRA = (
    "meta.v1.DeleteOptions",
    "core.v1.Binding",
    "autoscaling.v1.Scale",
    "authorization.v1.SelfSubjectAccessReview",
)
# No typed client writes these to a simulated cluster: kubectl applies admission policies as JSON.
LEFT_OUT = "admissionregistration."
MESSAGE = re.compile(r"^message (\w+) \{$(.*?)^\}$", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (optional|repeated|map<string, ([\w.]+)>) ?([\w.]*) (\w+) = (\d+);", re.MULTILINE)

Fields = dict[str, str]


def short(name: str, package: str) -> str:
    """A proto type's name as the tables spell it."""
    if name in SCALARS or name in {"string", "bytes", "bool", "double"}:
        return SCALARS.get(name, name)
    full = name.removeprefix(".") if "." in name else f"{package}.{name}"
    return next((full.removeprefix(prefix) for prefix in PACKAGES if full.startswith(prefix)), full)


def read(path: str) -> dict[str, Fields]:
    """Messages of one file."""
    text = Path(path).read_text(encoding="utf-8")
    package = re.findall(r"^package ([\w.]+);", text, re.MULTILINE)[0]
    found: dict[str, Fields] = {}
    for name, body in MESSAGE.findall(text):
        fields: Fields = {}
        for label, map_type, plain_type, field, number in FIELD.findall(body):
            prefix = "{}" if map_type else "[]" if label == "repeated" else ""
            fields[number] = f"{field} {prefix}{short(map_type or plain_type, package)}"
        found[short(name, package)] = fields
    return found


def inline(name: str, fields: Fields) -> Fields:
    """Mark embedded structs: fields that JSON does not have under their own name."""
    known = table().types.get(name)
    marked: Fields = {}
    for number, text in fields.items():
        field, kind = text.split()
        lowered = field[0].lower() + field[1:]
        if known is not None and field not in known:
            field = lowered if lowered in known else "+"
        marked[number] = f"{field} {kind}"
    return marked


def main() -> None:
    """Read the files named on the command line, print the table."""
    messages = {name: fields for path in sys.argv[1:] for name, fields in read(path).items()}
    waiting = [*(name for kind in ALL_KINDS if not (name := type_of(kind).name).startswith(LEFT_OUT)), *EXTRA]
    kept: dict[str, Fields] = {}
    while waiting:
        name = waiting.pop()
        if name in messages and name not in kept:
            kept[name] = inline(name, messages[name])
            waiting += [text.split()[1].lstrip("[]{}") for text in kept[name].values()]
    lines = [f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in sorted(kept.items())]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
