"""What lint's findings mean for admission. Pure.

Only what is certainly wrong refuses an object: what is wrong on every cluster that this version knows. The rest of
lint's errors and its warnings are told, and the object passes:

- what depends on the cluster: devices of other drivers, boards that the catalog does not have yet;
- all errors, where the object has fields that this version does not know: a newer API may mean something by them;
- unknown names and types of attributes, where the attributes that policies add are not all known.

What the API server checks itself before it asks, and names that only a cluster can know, are left out.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from dra_driver.kubectl.lint import Finding

REFUSING: Final = frozenset({"DRA015", "DRA016", "DRA017", "DRA021", "DRA032", "DRA035", "DRA037", "DRA041"}) | {
    *("DRA043", "DRA044", "DRA060")
}
"""Rules whose errors refuse."""
BY_ATTRIBUTES: Final = frozenset({"DRA015", "DRA016", "DRA017"})
"""Of these, the rules that need to know all attributes."""
LEFT_OUT: Final = frozenset({"DRA001", "DRA002", "DRA003", "DRA004", "DRA005", "DRA006", "DRA007", "DRA010"}) | {
    *("DRA011", "DRA030", "DRA033", "DRA034", "DRA038")
}
_NEWER: Final = frozenset({"DRA003", "DRA004", "DRA005", "DRA010"})
"""An error that the API server does not share: the object is of a newer API."""
MAX_PROBLEMS: Final = 5
MAX_WARNINGS: Final = 8
_MAX_WARNING: Final = 480
"""The API server cuts warnings to 256 characters when all together have more than 4096 (apiserver
pkg/endpoints/filters/warning.go)."""


class ReviewVerdict(Struct, frozen=True, kw_only=True):
    """``message`` says why an object is refused, and is empty when it is not."""

    message: str = ""
    warnings: Sequence[str] = ()


def verdict(findings: Sequence[Finding], *, attributes_known: bool) -> ReviewVerdict:
    """What to answer for one object."""
    newer = any(finding.severity == "error" and finding.rule in _NEWER for finding in findings)
    told = [finding for finding in findings if finding.rule not in LEFT_OUT and finding.severity != "info"]
    refusing = [finding for finding in told if not newer and _refuses(finding, attributes_known=attributes_known)]
    warnings = [f for f in told if f not in refusing]
    more = len(warnings) - MAX_WARNINGS
    shown = [_cut(sentence(finding)) for finding in warnings[:MAX_WARNINGS]]
    return ReviewVerdict(message=_joined(refusing), warnings=[*shown, *([f"and {more} more"] if more > 0 else [])])


def sentence(finding: Finding) -> str:
    """Place, what is wrong, what to do, and the rule, which docs/lint.md explains."""
    # Messages about parameters and policies begin with the end of the place: the sentence of node and admission policy.
    place = finding.path.removesuffix(f".{finding.message.partition(':')[0]}")
    hint = f"; {finding.hint}" if finding.hint else ""
    return f"{f'{place}: ' if place else ''}{finding.message}{hint} ({finding.rule})"


def _refuses(finding: Finding, *, attributes_known: bool) -> bool:
    if finding.severity != "error" or finding.rule not in REFUSING:
        return False
    return attributes_known or finding.rule not in BY_ATTRIBUTES


def _joined(findings: Sequence[Finding]) -> str:
    more = len(findings) - MAX_PROBLEMS
    shown = [sentence(finding) for finding in findings[:MAX_PROBLEMS]]
    return "; ".join([*shown, *([f"and {more} more"] if more > 0 else [])])


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_WARNING else f"{text[: _MAX_WARNING - 1]}…"
