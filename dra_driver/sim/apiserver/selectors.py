"""Label and field selectors, as k8s.io/apimachinery pkg/labels/selector.go and pkg/fields/selector.go."""

from collections.abc import Callable, Sequence

from dra_driver.kube.label_selector import LabelTerm, parse_selector
from dra_driver.sim.apiserver.api_errors import bad_request
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, mapping
from dra_driver.sim.apiserver.validation import label_key, label_value

Match = Callable[[Obj], bool]


def label_match(selector: str) -> Match | None:
    """A predicate on objects; None for an empty selector. Raises InvalidObjectError (400) on bad syntax."""
    if not selector.strip():
        return None
    try:
        terms = parse_selector(selector)
    except ValueError as error:
        raise bad_request(f"unable to parse requirement: {error}") from error
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
    terms = [LabelTerm(key, "=", (value,)) for key, value in mapping(selector, "matchLabels").items()]
    for item in selector.get("matchExpressions") or ():
        terms.append(LabelTerm(item["key"], ops.get(item.get("operator", ""), "in"), tuple(item.get("values") or ())))
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
