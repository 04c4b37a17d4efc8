"""Split a pod's conditions on nodes (nodeSelector, node affinity) into conditions on devices and the rest.

Source: core/v1 types.go NodeSelector, NodeAffinity: terms are alternatives, the expressions of a term all hold.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from dra_driver.kubectl.migrate.gfd_labels import DeviceForm, UntranslatableLabelError, condition, is_gfd
from dra_driver.kubectl.migrate.ledger import FieldNote, Ledger, Path, at, list_at, mapping_at, text_at

MAX_ALTERNATIVES: Final = 8
"""Maximum of ``firstAvailable`` (resource/v1 types.go, FirstAvailableDeviceRequestMaxSize)."""
_AFFINITY: Final = ("affinity", "nodeAffinity")
_REQUIRED: Final = (*_AFFINITY, "requiredDuringSchedulingIgnoredDuringExecution")
_TERMS: Final = (*_REQUIRED, "nodeSelectorTerms")
_PREFERRED: Final = (*_AFFINITY, "preferredDuringSchedulingIgnoredDuringExecution")
KEPT: Final = "unchanged, requires GPU Feature Discovery"

Texts = Mapping[DeviceForm, str]
"""A condition per form of device; "" if every device of the form meets it."""


def keeps_labels(note: FieldNote) -> bool:
    """Return whether a note says that a pod still requires GFD labels; a preference does not block a pod."""
    return KEPT in note.message and _PREFERRED[-1] not in note.field


class NodeTerms(Struct, frozen=True, kw_only=True):
    """Conditions on devices by form, from a pod's conditions on nodes. ``preferred`` are tried first, in this order."""

    required: Mapping[DeviceForm, tuple[str, ...]] = field(default_factory=dict)
    preferred: Mapping[DeviceForm, tuple[str, ...]] = field(default_factory=dict)


class NodeConditions:
    """The conditions of one pod, whose ``spec`` is at path ``base``."""

    def __init__(
        self, spec: dict[str, object], forms: Sequence[DeviceForm], driver: str, ledger: Ledger, base: Path
    ) -> None:
        self._spec = spec
        self._driver = driver
        self._ledger = ledger
        self._base = base
        self._found: dict[DeviceForm, list[str]] = {form: [] for form in forms}

    def take(self) -> NodeTerms:
        """Remove the conditions that devices can meet from the spec, and return them."""
        self._selector()
        self._required()
        preferred = self._preferred()
        for index, each in enumerate(list_at(self._spec, "topologySpreadConstraints")):
            if is_gfd(text_at(each, "topologyKey")):
                path = (*self._base, "topologySpreadConstraints", index)
                self._ledger.lost(path, f"pods cannot be spread over device attributes; {KEPT}")
        self._drop_empty(*_AFFINITY)
        return NodeTerms(
            required={form: tuple(dict.fromkeys(texts)) for form, texts in self._found.items()},
            preferred={form: tuple(each[form] for each in preferred) for form in self._found},
        )

    def _selector(self) -> None:
        selector = mapping_at(self._spec, "nodeSelector")
        for key, value in list(selector.items()):
            path = (*self._base, "nodeSelector", key)
            if is_gfd(key) and self._translated({"key": key, "operator": "In", "values": [value]}, path):
                del selector[key]
        self._drop_empty("nodeSelector")

    def _required(self) -> None:
        terms = list_at(self._spec, *_TERMS)
        if not any(is_gfd(text_at(each, "key")) for term in terms for each in list_at(term, "matchExpressions")):
            return
        path = (*self._base, *_TERMS)
        if len(terms) == 1:
            # A single term: translate each expression separately, and keep untranslatable expressions.
            mapping_at(terms[0])["matchExpressions"] = [
                each
                for index, each in enumerate(list_at(terms[0], "matchExpressions"))
                if not is_gfd(text_at(each, "key")) or not self._translated(each, (*path, 0, "matchExpressions", index))
            ]
            self._keep_terms(terms)
            return
        try:
            split = [self._split(term) for term in terms]
        except UntranslatableLabelError as error:
            self._ledger.lost(path, f"{error}; {KEPT}, like all alternatives")
            return
        rest = split[0][0]
        if any(each != rest for each, _ in split):
            self._ledger.lost(path, f"the alternatives mix GPU labels with other labels; {KEPT}")
            return
        texts = {form: _alternatives([each[form] for _, each in split]) for form in self._found}
        self._keep(texts, path, "; the common node conditions are kept" if rest else "")
        self._keep_terms([rest])

    def _preferred(self) -> list[Texts]:
        terms = list_at(self._spec, *_PREFERRED)
        kept: list[object] = []
        found: list[tuple[int, Texts]] = []
        for index, term in enumerate(terms):
            path, preference = (*self._base, *_PREFERRED, index), mapping_at(term, "preference")
            if not any(is_gfd(text_at(each, "key")) for each in list_at(preference, "matchExpressions")):
                kept.append(term)
                continue
            try:
                rest, texts = self._split(preference)
                reason = "it mixes GPU labels with other labels" if rest else ""
            except UntranslatableLabelError as error:
                reason = str(error)
            if not reason and len(found) == MAX_ALTERNATIVES - 1:
                reason = "a request has at most 8 alternatives"
            if reason:
                self._ledger.lost(path, f"{reason}; {KEPT}")
                kept.append(term)
                continue
            weight = at(term, "weight")
            found.append((weight if isinstance(weight, int) else 0, texts))
            self._ledger.changed(
                path,
                f"{_became(texts)}, an alternative with precedence on each node; the weight {weight} orders the"
                " alternatives and does not change node scores",
            )
        if terms:
            mapping_at(self._spec, *_AFFINITY)[_PREFERRED[-1]] = kept
            self._drop_empty(*_PREFERRED)
        return [texts for _, texts in sorted(found, key=lambda each: -each[0])]

    def _split(self, term: object) -> tuple[dict[str, object], Texts]:
        """Return the node part of a term, and the combined device condition of its other expressions."""
        expressions = list_at(term, "matchExpressions")
        rest = [each for each in expressions if not is_gfd(text_at(each, "key"))]
        found = [self._condition(each) for each in expressions if is_gfd(text_at(each, "key"))]
        others = {key: value for key, value in mapping_at(term).items() if key != "matchExpressions"}
        node_part = {**({"matchExpressions": rest} if rest else {}), **others}
        return node_part, {form: _all_of([each[form] for each in found if each[form]]) for form in self._found}

    def _condition(self, expression: object) -> Texts:
        key, operator = text_at(expression, "key"), str(at(expression, "operator") or "")
        values = [str(value) for value in list_at(expression, "values")]
        return {form: condition(key, operator, values, form, self._driver) for form in self._found}

    def _translated(self, expression: object, path: Path) -> bool:
        """Add the device condition of one expression; False, with a note, if it has none."""
        try:
            self._keep(self._condition(expression), path)
        except UntranslatableLabelError as error:
            self._ledger.lost(path, f"{error}; {KEPT}")
            return False
        return True

    def _keep(self, texts: Texts, path: Path, more: str = "") -> None:
        for form, text in texts.items():
            if text:
                self._found[form].append(text)
        self._ledger.carried(path, f"{_became(texts)}{more}")

    def _keep_terms(self, terms: Sequence[object]) -> None:
        kept = [
            {key: value for key, value in mapping_at(term).items() if value or key != "matchExpressions"}
            for term in terms
            if any(mapping_at(term).values())
        ]
        mapping_at(self._spec, *_REQUIRED)["nodeSelectorTerms"] = kept
        if not kept:
            mapping_at(self._spec, *_AFFINITY).pop(_REQUIRED[-1])

    def _drop_empty(self, *path: str) -> None:
        for length in range(len(path), 0, -1):
            parent = mapping_at(self._spec, *path[: length - 1])
            if not parent.get(path[length - 1], True):
                del parent[path[length - 1]]


def _all_of(texts: Sequence[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    return " && ".join(f"({each})" if " || " in each else each for each in texts)


def _alternatives(texts: Sequence[str]) -> str:
    """Return one of ``texts``; "" if one of them always holds."""
    if "" in texts:
        return ""
    distinct = list(dict.fromkeys(texts))
    return distinct[0] if len(distinct) == 1 else " || ".join(f"({each})" for each in distinct)


def _became(texts: Texts) -> str:
    shown = list(dict.fromkeys(text for text in texts.values() if text))
    return f"became the selector {'; '.join(shown)}" if shown else "implied by every claim for a GPU"
