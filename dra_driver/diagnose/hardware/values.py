"""Checks, readings and judgements as values, and the report that holds them, with its JSON form."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, get_args

from msgspec import Struct, field

from dra_driver.core.errors import ConfigurationError

Facts = Mapping[str, Any]
"""What a check or the survey read: JSON values by topic."""
Verdict = Literal["ok", "differs", "cannot tell", "skipped"]
Need = Literal["root", "free GPU", "owner"]

KIND: Final = "HardwareCheckReport"
SCHEMA_VERSION: Final = 1


class Judgement(Struct, frozen=True, kw_only=True):
    """What a check found: ``seen`` in the machine's words, ``meaning`` for this driver, both without a full stop."""

    verdict: Verdict
    seen: str
    meaning: str = ""


class HardwareCheck(Struct, frozen=True, kw_only=True):
    """One check. ``expected`` is the assumption of the code that it tests.

    ``reader`` is ``module:function`` in this package: a function from a `Task` (``child.py``) to pairs of topic and
    value. ``judge`` is pure, and gets what the reader read and what the survey read. ``needs``: "root" (user 0 with the
    right to mount), "free GPU" (a GPU without processes and claims, or the owner's consent), "owner" (only with
    ``--i-own-this-gpu``, because it changes MIG mode or instances).
    """

    number: int
    name: str
    expected: str
    reader: str
    judge: Callable[[Facts, Facts], Judgement]
    limit_s: float
    needs: frozenset[Need] = frozenset()

    @property
    def changes_gpu(self) -> bool:
        """Whether it changes MIG mode or instances, which are restored afterwards."""
        return "owner" in self.needs


class Reading(Struct, frozen=True, kw_only=True):
    """What one child process read. ``problem`` is a sentence when it did not get to its end, ``seconds`` how long it
    took. ``skipped`` is the reason for which nothing was read."""

    facts: Facts = field(default_factory=dict)
    problem: str = ""
    skipped: str = ""
    seconds: float = 0.0


class CheckRecord(Struct, frozen=True, kw_only=True):
    """One check of a report."""

    number: int
    name: str
    expected: str
    reading: Reading
    judgement: Judgement


class HardwareReport(Struct, frozen=True, kw_only=True):
    """All checks of one run. ``about`` has version, time, kernel and options; ``survey`` the GPUs (``read_survey.py``).

    ``hashed``: UUIDs, serial numbers and host names are hashed.
    """

    about: Facts
    survey: Reading
    records: tuple[CheckRecord, ...]
    hashed: bool = False

    @property
    def has_driver(self) -> bool:
        """Whether the survey found a usable NVIDIA driver with a GPU."""
        return bool(self.survey.facts.get("gpus"))

    @property
    def exit_status(self) -> int:
        """0 all right or skipped, 1 something differs, 2 no driver or GPU, 3 nothing differs, but a check cannot
        tell."""
        verdicts = {record.judgement.verdict for record in self.records}
        if not self.has_driver:
            return 2
        return 1 if "differs" in verdicts else 3 if "cannot tell" in verdicts else 0

    def to_wire(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "schemaVersion": SCHEMA_VERSION,
            "kind": KIND,
            "hashed": self.hashed,
            "about": dict(self.about),
            "survey": _reading_to_wire(self.survey),
            "checks": [
                {
                    "number": record.number,
                    "name": record.name,
                    "expected": record.expected,
                    "verdict": record.judgement.verdict,
                    "seen": record.judgement.seen,
                    "meaning": record.judgement.meaning,
                    **_reading_to_wire(record.reading),
                }
                for record in self.records
            ],
        }

    @classmethod
    def from_wire(cls, wire: object) -> "HardwareReport":
        """The reverse of `to_wire`. Raises ConfigurationError for any other document."""
        if not isinstance(wire, dict) or wire.get("kind") != KIND:
            raise ConfigurationError(f"this is not a report of hardware-check: expected JSON with kind {KIND}")
        if wire.get("schemaVersion") != SCHEMA_VERSION:
            raise ConfigurationError(
                f"the report has schemaVersion {wire.get('schemaVersion')!r}, expected {SCHEMA_VERSION}: "
                "use the version of dra-driver that wrote it"
            )
        try:
            return cls(
                about=_mapping(wire["about"]),
                survey=_reading(_mapping(wire["survey"])),
                records=tuple(_record(_mapping(one)) for one in wire["checks"]),
                hashed=bool(wire["hashed"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigurationError(f"the report is damaged: {type(error).__name__}: {error}") from error


def printable(text: str) -> str:
    """The text as one line without control characters: names of processes and texts of a report are anybody's."""
    return "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))


def skipped(reason: str) -> Judgement:
    """The judgement of a check that did not run."""
    return Judgement(verdict="skipped", seen=reason)


def judge(check: HardwareCheck, reading: Reading, survey: Facts) -> Judgement:
    """The judgement about a reading, or about the lack of one. Never raises: facts come from files, too."""
    if reading.skipped:
        return skipped(reading.skipped)
    if reading.problem:
        read = ", ".join(reading.facts) or "nothing"
        return Judgement(
            verdict="cannot tell", seen=reading.problem, meaning=f"the check did not finish; it had read: {read}"
        )
    if reason := reading.facts.get("skipped"):
        return skipped(str(reason))
    try:
        return check.judge(reading.facts, survey)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return Judgement(
            verdict="cannot tell",
            seen=f"the facts have another form than expected ({type(error).__name__}: {error})",
            meaning="a defect of the check: please report it with the JSON file",
        )


def _reading_to_wire(reading: Reading) -> dict[str, Any]:
    return {
        "seconds": reading.seconds,
        "problem": reading.problem,
        "skipped": reading.skipped,
        "facts": dict(reading.facts),
    }


def _reading(wire: Mapping[str, Any]) -> Reading:
    return Reading(
        facts=_mapping(wire["facts"]),
        problem=str(wire["problem"]),
        skipped=str(wire["skipped"]),
        seconds=float(wire["seconds"]),
    )


def _record(wire: Mapping[str, Any]) -> CheckRecord:
    if wire["verdict"] not in get_args(Verdict):
        raise ValueError(f"unknown verdict {wire['verdict']!r}")
    judgement = Judgement(verdict=wire["verdict"], seen=str(wire["seen"]), meaning=str(wire["meaning"]))
    return CheckRecord(
        number=int(wire["number"]),
        name=str(wire["name"]),
        expected=str(wire["expected"]),
        reading=_reading(wire),
        judgement=judgement,
    )


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {type(value).__name__}")
    return value
