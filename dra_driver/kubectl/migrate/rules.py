"""Tables of fields: what becomes of each field of a configuration. Pure.

A rule is found by the field's path, "*" standing for any key or index; it counts for everything below it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from dra_driver.kubectl.migrate.gathered import Gathered
from dra_driver.kubectl.migrate.input import Path
from dra_driver.kubectl.migrate.ledger import FieldOutcome, Ledger

Act = Callable[[Any, Path, Ledger, Gathered], None]
Rule = tuple[FieldOutcome, str] | Act
Rules = Mapping[str, Rule]

CARRIED: Final = FieldOutcome.CARRIED
CHANGED: Final = FieldOutcome.CHANGED
LOST: Final = FieldOutcome.NOT_CARRIED
_EMPTY: Final[tuple[Any, ...]] = (None, "", {}, [])


def apply(value: Any, rules: Rules, ledger: Ledger, gathered: Gathered, base: Path = ()) -> None:
    """Applies the rule of each field of ``value``; fields without a rule are left to `Ledger.close`."""
    split = [(tuple(pattern.split(".")), rule) for pattern, rule in rules.items()]
    waiting: list[tuple[Path, Any]] = [((), value)]
    while waiting:
        path, found = waiting.pop()
        rule = next((rule for pattern, rule in split if _fits(pattern, path)), None) if path else None
        # An empty mapping has nothing below it for which a longer rule could be.
        deeper = bool(found) and any(
            len(pattern) > len(path) and _fits(pattern[: len(path)], path) for pattern, _ in split
        )
        if rule is not None and not (deeper and isinstance(found, Mapping | list)):
            use(rule, found, (*base, *path), ledger, gathered)
        elif isinstance(found, Mapping):
            waiting += [((*path, key), item) for key, item in reversed(list(found.items()))]
        elif isinstance(found, list):
            waiting += [((*path, index), item) for index, item in reversed(list(enumerate(found)))]


def to_value(*keys: str, text: str = "") -> Act:
    """The field's value becomes the chart's value ``keys``; an empty one is the default there as well.

    A key ``{key}`` is the field's own name.
    """

    def act(value: Any, path: Path, ledger: Ledger, gathered: Gathered) -> None:
        if value in _EMPTY:
            ledger.carried(path, "empty: the chart's default applies")
            return
        place = [str(path[-1]) if key == "{key}" else key for key in keys]
        gathered.set_value(place, value)
        ledger.carried(path, text or f"became {'.'.join(place)} of the chart's values")

    return act


def switch(when_on: Rule, when_off: Rule | None = None) -> Act:
    """``when_on`` for a field that is true; ``when_off`` otherwise, by default nothing to carry."""

    def act(value: Any, path: Path, ledger: Ledger, gathered: Gathered) -> None:
        on = value is True or str(value).lower() == "true"
        use(
            when_on if on else when_off or (CARRIED, "off: there is nothing to carry over"),
            value,
            path,
            ledger,
            gathered,
        )

    return act


def unless_empty(rule: Rule) -> Act:
    """``rule`` for a field with a value; an empty one has nothing to carry."""

    def act(value: Any, path: Path, ledger: Ledger, gathered: Gathered) -> None:
        use(
            (CARRIED, "empty: there is nothing to carry over") if value in _EMPTY else rule,
            value,
            path,
            ledger,
            gathered,
        )

    return act


def use(rule: Rule, value: Any, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    """Applies one rule to the value at ``path``."""
    if isinstance(rule, tuple):
        ledger.note(rule[0], path, rule[1])
    else:
        rule(value, path, ledger, gathered)


def _fits(pattern: tuple[str, ...], path: Path) -> bool:
    return len(pattern) == len(path) and all(part in {"*", str(step)} for part, step in zip(pattern, path, strict=True))
