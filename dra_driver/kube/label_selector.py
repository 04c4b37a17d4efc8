"""Label selectors as text, such as ``team=a,tier in (web,db),!old``, as k8s.io/apimachinery pkg/labels/selector.go."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

_SET = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\(\s*(?P<values>[^()]*)\s*\)\s*$")
_EQUAL = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s*(?P<op>==|!=|=|>|<)\s*(?P<value>[^\s!=,()<>]*)\s*$")
_EXISTS = re.compile(r"^\s*(?P<not>!?)\s*(?P<key>[^\s!=,()]+)\s*$")


class LabelTerm(Struct, frozen=True):
    """One requirement. ``op`` is in, notin, =, !=, >, <, exists or missing."""

    key: str
    op: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, Any]) -> bool:
        if self.op == "exists":
            return self.key in labels
        if self.op == "missing":
            return self.key not in labels
        if self.op in {">", "<"}:
            return self._compares(str(labels.get(self.key, "")))
        if self.op in {"in", "="}:
            return self.key in labels and labels[self.key] in self.values
        return self.key not in labels or labels[self.key] not in self.values

    def _compares(self, value: str) -> bool:
        if not (value.lstrip("-").isdigit() and self.values[0].lstrip("-").isdigit()):
            return False
        return int(value) > int(self.values[0]) if self.op == ">" else int(value) < int(self.values[0])


def parse_selector(text: str) -> tuple[LabelTerm, ...]:
    """Return the requirements; none for an empty text. Raises ValueError, which quotes a wrong requirement."""
    return tuple(_term(each) for each in _split(text)) if text.strip() else ()


def selects(terms: Iterable[LabelTerm], item: Mapping[str, Any]) -> bool:
    """Return whether an object has labels that meet all requirements. Malformed labels count as absent."""
    labels = (item.get("metadata") or {}).get("labels")
    return all(term.matches(labels if isinstance(labels, Mapping) else {}) for term in terms)


def _split(text: str) -> list[str]:
    terms, depth, start = [], 0, 0
    for at, mark in enumerate(text):
        depth += (mark == "(") - (mark == ")")
        if mark == "," and depth == 0:
            terms.append(text[start:at])
            start = at + 1
    return [*terms, text[start:]]


def _term(text: str) -> LabelTerm:
    if found := _SET.match(text):
        return LabelTerm(found["key"], found["op"], tuple(value.strip() for value in found["values"].split(",")))
    if found := _EQUAL.match(text):
        return LabelTerm(found["key"], found["op"].replace("==", "="), (found["value"],))
    if found := _EXISTS.match(text):
        return LabelTerm(found["key"], "missing" if found["not"] else "exists")
    raise ValueError(f"{text.strip()!r} is not a label requirement")
