"""Objects of every kind that people write, right ones and broken ones, made at random from a seed.

A right object is made by walking a schema; text with a pattern is taken from samples. A broken one is a right one with
one to three places changed, removed or added. Each is JSON: what a claim or a file could really hold.
"""

import copy
import random
from typing import Any

from dra_driver.config.schema import schemas

TEXTS = {
    "a DNS subdomain of lower-case characters": ["pool", "mps.pool-1", "a"],
    "a shell pattern such as NVIDIA H100*": ["NVIDIA H100*", "*", "node-?", "[ab]x"],
    "a shell pattern of MIG profiles such as 1g.*": ["1g.*", "1g.10gb+me", "*"],
    "a profile such as 1g.5gb; not a compute instance": ["1g.5gb", "3g.40gb", "1g.10gb+me"],
    "a GPU UUID such as GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cdb86": ["GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cdb86"],
    "a PCI address such as 0000:65:00.0": ["0000:65:00.0", "00000000:0A:00.0"],
    "a PCI address such as 0000:65:00.0 or a PCIe root such as pci0000:64, in lower case": [
        "0000:65:00.0",
        "pci0000:64",
    ],
    "a label key such as example.com/team": ["example.com/team", "team", "a.b-c/x_y.z"],
    "a label value": ["", "blue", "a_b.c-d"],
    "a name such as example.com/team": [
        "example.com/team",
        "tier",
        "_x",
        "gpu.nvidia.com/tier",
        "rail",
        "gpu.nvidia.com/rail",
    ],
    "printable ASCII text": ["", "blue", "~ x"],
}
JUNK: list[Any] = [
    None, True, False, 0, 1, -1, 50, 101, 2**63, 10**40, 1.0, 0.5, "", "x", "Default", "MPS", "TimeSlicing",
    "Exclusive",
    "Hidden", "1Mi", "1k", "10Gi", "1e99", "-1Gi", "größe", "a\nb", "a\n", "\ud800", "A" * 300, "kubernetes.io/x",
    "uuid",
    "gpu.dra-driver.io/reserved", "GPU-1", "v1", [], [1], ["x"], ["x"] * 70, [None], {}, {"x": 1}, [{}], {"name": "x"},
    [{"key": "a"}, {"key": "a"}], [{"name": "a", "int": 1}], {"whole": False, "migProfiles": []}, {"strategy": "MPS"},
    {str(number): "1Gi" for number in range(70)},
]  # fmt: skip


def right(kind: str, seed: int) -> Any:
    """An object that may be right: rules over several fields may still be broken."""
    return _made(schemas()[kind], random.Random(seed))  # noqa: S311 - samples, not secrets


def broken(kind: str, seed: int) -> Any:
    """A right object with up to three changes."""
    dice = random.Random(seed)  # noqa: S311 - samples, not secrets
    value = copy.deepcopy(_made(schemas()[kind], dice))
    for _ in range(dice.randint(1, 3)):
        _change(value, dice)
    return value


def _made(schema: Any, dice: random.Random) -> Any:
    match schema["type"]:
        case "object":
            required = schema.get("required", ())
            return {
                name: _made(field, dice)
                for name, field in schema["fields"].items()
                if name in required or dice.random() < 0.6
            }
        case "map":
            return {dice.choice("0123456789"): _made(schema["values"], dice) for _ in range(dice.randint(0, 3))}
        case "list":
            return [_made(schema["items"], dice) for _ in range(dice.randint(0, 3))]
        case "string":
            return dice.choice(TEXTS[schema["says"]])
        case "enum":
            return dice.choice(schema["values"])
        case "integer":
            return dice.randint(schema["min"], schema["max"])
        case "quantity":
            return dice.choice(["1Mi", "10Gi", "1.5G", 2**30, "80Gi"])
        case "boolean":
            return dice.random() < 0.5
        case other:
            assert other == "any"
            return {"conditions": []}


def _change(value: Any, dice: random.Random) -> None:
    containers = list(_containers(value))
    target = dice.choice(containers)
    junk = copy.deepcopy(dice.choice(JUNK))
    if isinstance(target, list):
        at = dice.randint(0, len(target))
        target[at : at + dice.randint(0, 1)] = [junk]
        return
    keys = list(target)
    what = dice.random()
    if keys and what < 0.6:
        target[dice.choice(keys)] = junk
    elif keys and what < 0.8:
        del target[dice.choice(keys)]
    else:
        target[dice.choice(["x", "a\nb", "größe", "Spec", "sharing", "interval", "mpsConfig", "int", "string"])] = junk


def _containers(value: Any) -> Any:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _containers(inner)
