"""Label and field selectors, as k8s.io/apimachinery pkg/labels/selector.go and pkg/fields/selector.go."""

import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from dra_driver.sim.apiserver.api_errors import bad_request
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, mapping
from dra_driver.sim.apiserver.validation import label_key, label_value

Match = Callable[[Obj], bool]

_SET = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\(\s*(?P<values>[^()]*)\s*\)\s*$")
_EQUAL = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s*(?P<op>==|!=|=|>|<)\s*(?P<value>[^\s!=,()<>]*)\s*$")
_EXISTS = re.compile(r"^\s*(?P<not>!?)\s*(?P<key>[^\s!=,()]+)\s*$")


class _Term(Struct, frozen=True):
    key: str
    op: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        if self.op == "exists":
            return self.key in labels
        if self.op == "missing":
            return self.key not in labels
        if self.op in {">", "<"}:
            return self._compares(labels.get(self.key, ""))
        if self.op in {"in", "="}:
            return self.key in labels and labels[self.key] in self.values
        return self.key not in labels or labels[self.key] not in self.values

    def _compares(self, value: str) -> bool:
        if not (value.lstrip("-").isdigit() and self.values[0].lstrip("-").isdigit()):
            return False
        return int(value) > int(self.values[0]) if self.op == ">" else int(value) < int(self.values[0])


def _split(text: str) -> list[str]:
    terms, depth, start = [], 0, 0
    for at, mark in enumerate(text):
        depth += (mark == "(") - (mark == ")")
        if mark == "," and depth == 0:
            terms.append(text[start:at])
            start = at + 1
    return [*terms, text[start:]]


def _term(text: str) -> _Term:
    if found := _SET.match(text):
        values = tuple(value.strip() for value in found["values"].split(","))
        return _Term(found["key"], found["op"], values)
    if found := _EQUAL.match(text):
        return _Term(found["key"], found["op"].replace("==", "="), (found["value"],))
    if found := _EXISTS.match(text):
        return _Term(found["key"], "missing" if found["not"] else "exists")
    raise bad_request(f"unable to parse requirement: {text.strip()!r} is not a label requirement")


def label_match(selector: str) -> Match | None:
    """A predicate on objects; None for an empty selector. Raises InvalidObjectError (400) on bad syntax."""
    if not selector.strip():
        return None
    terms = [_term(text) for text in _split(selector)]
    for term in terms:
        texts = label_key(term.key) + [text for value in term.values for text in label_value(value)]
        if texts:
            raise bad_request(f"unable to parse requirement: <nil>: Invalid value: {term.key!r}: {'; '.join(texts)}")
    return lambda obj: all(term.matches(mapping(obj, "metadata", "labels")) for term in terms)


def object_match(selector: Obj | None) -> Match:
    """A metav1.LabelSelector as a predicate: None matches nothing, ``{}`` everything."""
    if selector is None:
        return lambda _obj: False
    ops = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "missing"}
    terms = [_Term(key, "=", (value,)) for key, value in mapping(selector, "matchLabels").items()]
    for item in selector.get("matchExpressions") or ():
        terms.append(_Term(item["key"], ops.get(item.get("operator", ""), "in"), tuple(item.get("values") or ())))
    return lambda obj: all(term.matches(mapping(obj, "metadata", "labels")) for term in terms)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def field_match(
    selector: str, allowed: Sequence[str] | None = None, unsupported: str = "field label not supported: {key}"
) -> Match | None:
    """A predicate for ``a.b=x,c!=y``; None for an empty selector. ``allowed`` are the supported paths, None for any. A
    missing field has the value "". Raises InvalidObjectError (400) on bad syntax or an unsupported path."""
    if not selector.strip():
        return None
    terms: list[tuple[list[str], bool, str]] = []
    for text in selector.split(","):
        key, operator, value = _field_term(text)
        if allowed is not None and key not in allowed:
            raise bad_request(unsupported.format(key=key))
        terms.append((key.split("."), operator != "!=", value))
    return lambda obj: all((_text(dig(obj, *path)) == value) is equal for path, equal, value in terms)


def _field_term(text: str) -> tuple[str, str, str]:
    for operator in ("!=", "==", "="):
        key, found, value = text.partition(operator)
        if found:
            return key.strip(), operator, value.strip()
    raise bad_request(f"invalid selector: '{text}'; can't understand '{text}'")
