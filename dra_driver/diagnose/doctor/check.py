"""A check as a value, and running checks so that one that cannot be answered stops no other."""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from dra_driver.core.errors import DraError
from dra_driver.diagnose.doctor.finding import ORDER, FindingStatus, Layer, LayerFinding

Facts = TypeVar("Facts")


class UnansweredError(DraError):
    """A fact that a check needs could not be read.

    ``seen`` is what happened to the question, ``do`` the next step, such as the right that is missing.
    """

    def __init__(self, seen: str, do: str) -> None:
        super().__init__(f"{seen}; {do}")
        self.seen = seen
        self.do = do


class LayerCheck(Struct, Generic[Facts], frozen=True, kw_only=True):
    """``look`` is pure over the facts: it returns findings, or raises `UnansweredError` where a fact is missing.

    ``about`` says in a few words what is checked; it is the expectation of a check that could not look. ``name`` is
    unique and lower case with hyphens. A check that finds nothing to look at returns nothing.
    """

    name: str
    layer: Layer
    about: str
    look: Callable[[Facts], Iterable[LayerFinding]]

    def run(self, facts: Facts) -> tuple[LayerFinding, ...]:
        """The findings; one of status unknown where the check cannot look. Never raises."""
        try:
            return tuple(self.look(facts))
        except UnansweredError as error:
            return (self._unknown(error.seen, error.do),)
        except Exception as error:  # noqa: BLE001 - a fence: an object of an unforeseen shape ends one check alone
            what = f"{type(error).__name__}: {error}"[:200]
            return (self._unknown(f"the check failed: {what}", "Report this as a defect of kubectl dra doctor."),)

    def finding(
        self,
        status: FindingStatus,
        subject: str,
        seen: str,
        *,
        expected: str = "",
        do: str = "",
        layer: Layer | None = None,
    ) -> LayerFinding:
        """A finding of this check."""
        return LayerFinding(
            check=self.name,
            layer=layer or self.layer,
            status=status,
            subject=subject,
            seen=seen,
            expected=expected,
            do=do,
        )

    def _unknown(self, seen: str, do: str) -> LayerFinding:
        return self.finding(FindingStatus.UNKNOWN, "cluster", seen, expected=self.about, do=do)


def run_all(checks: Sequence[LayerCheck[Facts]], facts: Facts) -> tuple[LayerFinding, ...]:
    """The findings of all checks, in the order of layers; within a layer those of the layer's own checks come first."""
    found = [(finding, finding.layer is not check.layer) for check in checks for finding in check.run(facts)]
    return tuple(finding for finding, _ in sorted(found, key=lambda item: (ORDER[item[0].layer], item[1])))
