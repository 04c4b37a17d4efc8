"""Tables of this project's own kinds, with the columns of their CustomResourceDefinitions.

Paths are those of ``additionalPrinterColumns``, of which the columns use names, ``[0]`` and one filter by equality.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from dra_driver.config.columns import NODE_COLUMNS, NODE_WIDE, POLICY_COLUMNS, POLICY_WIDE, ShownField
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kind import Column, Printer
from dra_driver.sim.apiserver.printers.common import NAME, age, name

_STEP = re.compile(r'\.(\w+)|\[(\d+)\]|\[\?\(@\.(\w+)=="(\w+)"\)\]')


def value_at(obj: Any, path: str) -> Any:
    """The value at a JSONPath; None where there is none."""
    for field, index, key, wanted in _STEP.findall(path):
        if field:
            obj = obj.get(field) if isinstance(obj, dict) else None
        else:
            items = obj if isinstance(obj, list) else []
            found = items[int(index) : int(index) + 1] if index else [each for each in items if each.get(key) == wanted]
            obj = found[0] if found else None
    return obj


def _printer(columns: Sequence[ShownField], wide: Sequence[ShownField]) -> Printer:
    *shown, last = columns
    fields = [*((each, 0) for each in shown), *((each, 1) for each in wide), (last, 0)]

    def cells(obj: Obj, now: datetime) -> list[object]:
        found = [age(obj, now) if kind == "date" else value_at(obj, path) for (_, kind, path), _ in fields]
        return [name(obj), *("" if value is None else value for value in found)]

    made = [Column(title, "string" if kind == "date" else kind, priority) for (title, kind, _), priority in fields]
    return Printer((NAME, *made), cells)


GPU_POLICIES_PRINTER = _printer(POLICY_COLUMNS, POLICY_WIDE)
GPU_NODES_PRINTER = _printer(NODE_COLUMNS, NODE_WIDE)
