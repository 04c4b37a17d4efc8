"""Conditions on nodes in a pod (nodeSelector, node affinity), split into conditions on devices and the rest. Pure.

Source: core/v1 types.go NodeSelector, NodeAffinity: terms are alternatives, the expressions of a term all hold.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from dra_driver.kubectl.migrate.gfd_labels import DeviceForm, UntranslatableLabelError, condition, is_gfd
from dra_driver.kubectl.migrate.ledger import Ledger, Path, at, list_at, mapping_at

MAX_ALTERNATIVES: Final = 8
"""Of ``firstAvailable`` (resource/v1 types.go, FirstAvailableDeviceRequestMaxSize)."""
_REQUIRED: Final = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
_PREFERRED: Final = ("affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
KEPT: Final = "it stays as it is and means something only while GPU Feature Discovery labels the nodes"


def keeps_labels(path: Path, text: str) -> bool:
    """Whether a note says that a pod still requires labels of GPU Feature Discovery; a preference holds up no pod."""
    return KEPT in text and _PREFERRED[-1] not in path


Translate = Callable[[str, str, Sequence[str]], Mapping[DeviceForm, str]]


class NodeTerms(Struct, frozen=True, kw_only=True):
    """What a pod's conditions on nodes became, for each form of device that it asks for.

    ``required`` all hold. ``preferred`` are tried first, in this order.
    """

    required: Mapping[DeviceForm, tuple[str, ...]] = field(default_factory=dict)
    preferred: Mapping[DeviceForm, tuple[str, ...]] = field(default_factory=dict)


def take(spec: dict[str, Any], forms: Sequence[DeviceForm], driver: str, ledger: Ledger, base: Path) -> NodeTerms:
    """Removes from a pod's ``spec`` what conditions on devices replace, and returns these.

    ``base`` is the path of the spec in the document of ``ledger``.
    """

    def translate(key: str, operator: str, values: Sequence[str]) -> Mapping[DeviceForm, str]:
        return {form: condition(key, operator, values, form, driver) for form in forms}

    found: dict[DeviceForm, list[str]] = {form: [] for form in forms}
    _selector(spec, translate, found, ledger, base)
    _required(spec, translate, found, ledger, base)
    preferred = _preferred(spec, translate, ledger, base)
    _spread(spec, ledger, base)
    _drop_empty(spec, ("affinity", "nodeAffinity"))
    return NodeTerms(
        required={form: tuple(dict.fromkeys(texts)) for form, texts in found.items()},
        preferred={form: tuple(each[form] for each in preferred) for form in forms},
    )


def _selector(
    spec: dict[str, Any], translate: Translate, found: dict[DeviceForm, list[str]], ledger: Ledger, base: Path
) -> None:
    for key, value in list(mapping_at(spec, "nodeSelector").items()):
        path = (*base, "nodeSelector", key)
        if not is_gfd(key):
            continue
        try:
            texts = translate(key, "In", [str(value)])
        except UntranslatableLabelError as error:
            ledger.lost(path, f"{error}; {KEPT}")
            continue
        del spec["nodeSelector"][key]
        _keep(texts, found)
        ledger.carried(path, _became(texts))
    _drop_empty(spec, ("nodeSelector",))


def _required(
    spec: dict[str, Any], translate: Translate, found: dict[DeviceForm, list[str]], ledger: Ledger, base: Path
) -> None:
    terms = list_at(spec, *_REQUIRED)
    if not any(is_gfd(_key(each)) for term in terms for each in list_at(term, "matchExpressions")):
        return
    path = (*base, *_REQUIRED)
    if len(terms) == 1:
        _one_term(terms[0], translate, found, ledger, (*path, 0))
        _forget_empty_term(spec)
        return
    try:
        split = [_split(term, translate) for term in terms]
    except UntranslatableLabelError as error:
        ledger.lost(path, f"{error}; {KEPT}, and so do the other alternatives")
        return
    rests = [rest for rest, _ in split]
    if any(rest != rests[0] for rest in rests):
        ledger.lost(path, f"the alternatives mix labels of GPUs with other labels; {KEPT}")
        return
    texts = {form: _alternatives([_all_of(each[form]) for _, each in split]) for form in found}
    _keep(texts, found)
    ledger.carried(path, f"{_became(texts)}{'; what all alternatives say of nodes stays' if rests[0] else ''}")
    parent = at(spec, *_REQUIRED[:-1])
    parent["nodeSelectorTerms"] = [rests[0]] if rests[0] else []
    _forget_empty_term(spec)


def _one_term(
    term: dict[str, Any], translate: Translate, found: dict[DeviceForm, list[str]], ledger: Ledger, path: Path
) -> None:
    """Of a single term, each expression counts alone: those that can be translated go, the others stay."""
    kept = []
    for index, each in enumerate(list_at(term, "matchExpressions")):
        place = (*path, "matchExpressions", index)
        if not is_gfd(_key(each)):
            kept.append(each)
            continue
        try:
            texts = translate(*_parts(each))
        except UntranslatableLabelError as error:
            ledger.lost(place, f"{error}; {KEPT}")
            kept.append(each)
            continue
        _keep(texts, found)
        ledger.carried(place, _became(texts))
    term["matchExpressions"] = kept


def _preferred(
    spec: dict[str, Any], translate: Translate, ledger: Ledger, base: Path
) -> list[Mapping[DeviceForm, str]]:
    """Conditions of the preferred terms that are of GPUs alone, the heaviest first; the others stay."""
    terms = list_at(spec, *_PREFERRED)
    kept: list[Any] = []
    found: list[tuple[int, Mapping[DeviceForm, str]]] = []
    for index, term in enumerate(terms):
        path, preference = (*base, *_PREFERRED, index), mapping_at(term, "preference")
        if not any(is_gfd(_key(each)) for each in list_at(preference, "matchExpressions")):
            kept.append(term)
            continue
        try:
            rest, texts = _split(preference, translate)
        except UntranslatableLabelError as error:
            ledger.lost(path, f"{error}; {KEPT}")
            kept.append(term)
            continue
        if rest or len(found) == MAX_ALTERNATIVES - 1:
            reason = "it mixes labels of GPUs with other labels" if rest else "a request has 8 alternatives at most"
            ledger.lost(path, f"{reason}; {KEPT}")
            kept.append(term)
            continue
        joined = {form: _all_of(each) for form, each in texts.items()}
        weight = at(term, "weight")
        found.append((weight if isinstance(weight, int) else 0, joined))
        ledger.changed(
            path,
            f"{_became(joined)}, as an alternative that is tried first on each node; the weight {weight} gives the"
            " order of the alternatives and is no longer added to scores of nodes",
        )
    if terms:
        at(spec, *_PREFERRED[:-1])[_PREFERRED[-1]] = kept
        _drop_empty(spec, _PREFERRED)
    return [texts for _, texts in sorted(found, key=lambda each: -each[0])]


def _spread(spec: Mapping[str, Any], ledger: Ledger, base: Path) -> None:
    """Spreading over a label of GFD."""
    for index, each in enumerate(list_at(spec, "topologySpreadConstraints")):
        if is_gfd(str(at(each, "topologyKey") or "")):
            path = (*base, "topologySpreadConstraints", index)
            ledger.lost(path, f"pods cannot be spread over properties of devices; {KEPT}")


def _split(term: Mapping[str, Any], translate: Translate) -> tuple[dict[str, Any], Mapping[DeviceForm, list[str]]]:
    rest, texts = [], []
    for each in list_at(term, "matchExpressions"):
        if is_gfd(_key(each)):
            texts.append(translate(*_parts(each)))
        else:
            rest.append(each)
    forms = translate("nvidia.com/gpu.present", "Exists", ())
    others = {key: value for key, value in term.items() if key != "matchExpressions"}
    node_part = {**({"matchExpressions": rest} if rest else {}), **others}
    return node_part, {form: [each[form] for each in texts if each[form]] for form in forms}


def _key(expression: Any) -> str:
    found = at(expression, "key")
    return found if isinstance(found, str) else ""


def _parts(expression: Any) -> tuple[str, str, list[str]]:
    values = [str(value) for value in list_at(expression, "values")]
    return _key(expression), str(at(expression, "operator") or ""), values


def _keep(texts: Mapping[DeviceForm, str], found: Mapping[DeviceForm, list[str]]) -> None:
    for form, text in texts.items():
        if text:
            found[form].append(text)


def _all_of(texts: Sequence[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    return " && ".join(f"({each})" if " || " in each else each for each in texts)


def _alternatives(texts: Sequence[str]) -> str:
    """One of ``texts``; "" where one of them always holds."""
    if "" in texts:
        return ""
    distinct = list(dict.fromkeys(texts))
    return distinct[0] if len(distinct) == 1 else " || ".join(f"({each})" for each in distinct)


def _became(texts: Mapping[DeviceForm, str]) -> str:
    shown = list(dict.fromkeys(text for text in texts.values() if text))
    return f"became the selector {'; '.join(shown)}" if shown else "every claim for a GPU implies it"


def _forget_empty_term(spec: dict[str, Any]) -> None:
    parent = at(spec, *_REQUIRED[:-1])
    parent["nodeSelectorTerms"] = [
        {key: value for key, value in term.items() if value or key != "matchExpressions"}
        for term in parent["nodeSelectorTerms"]
        if any(term.values())
    ]
    if not parent["nodeSelectorTerms"]:
        at(spec, *_REQUIRED[:-2]).pop(_REQUIRED[-2])


def _drop_empty(spec: dict[str, Any], path: Sequence[str]) -> None:
    """Removes a mapping or list below ``path`` that has become empty, and those above it."""
    for length in range(len(path), 0, -1):
        parent = at(spec, *path[: length - 1])
        if isinstance(parent, dict) and path[length - 1] in parent and not parent[path[length - 1]]:
            del parent[path[length - 1]]
