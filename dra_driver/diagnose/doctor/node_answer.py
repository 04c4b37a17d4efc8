"""What a check says about a node, and making a check of it."""

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from dra_driver.diagnose.doctor.check import LayerCheck
from dra_driver.diagnose.doctor.finding import FindingStatus, Layer, LayerFinding
from dra_driver.diagnose.doctor.node_facts import LocalFacts


class NodeAnswer(Struct, frozen=True, kw_only=True):
    """A finding without check and layer. ``subject`` "" is the node."""

    status: FindingStatus
    seen: str
    expected: str = ""
    do: str = ""
    subject: str = ""


Judge = Callable[[LocalFacts], Iterable[NodeAnswer]]


def well(seen: str, subject: str = "") -> NodeAnswer:
    """All is as expected."""
    return NodeAnswer(status=FindingStatus.OK, seen=seen, subject=subject)


def broken(seen: str, expected: str, do: str, subject: str = "") -> NodeAnswer:
    """GPUs do not work because of it."""
    return NodeAnswer(status=FindingStatus.FAIL, seen=seen, expected=expected, do=do, subject=subject)


def doubtful(seen: str, expected: str, do: str, subject: str = "") -> NodeAnswer:
    """GPUs may not work because of it."""
    return NodeAnswer(status=FindingStatus.WARN, seen=seen, expected=expected, do=do, subject=subject)


def unknown(seen: str, expected: str, do: str, subject: str = "") -> NodeAnswer:
    """It could not be looked at."""
    return NodeAnswer(status=FindingStatus.UNKNOWN, seen=seen, expected=expected, do=do, subject=subject)


def node_check(name: str, layer: Layer, about: str, judge: Judge) -> LayerCheck[LocalFacts]:
    """The check that asks ``judge``; see `LayerCheck` for the texts."""

    def look(facts: LocalFacts) -> Iterator[LayerFinding]:
        for answer in judge(facts):
            yield LayerFinding(
                check=name,
                layer=layer,
                status=answer.status,
                subject=answer.subject or f"node/{facts.node}",
                seen=answer.seen,
                expected=answer.expected,
                do=answer.do,
            )

    return LayerCheck(name=name, layer=layer, about=about, look=look)
