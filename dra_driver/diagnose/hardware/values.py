"""Checks, readings and judgements, the report that holds them, and its JSON form. No I/O."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.convert import convert
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.finding import Finding, Layer, Status, check_document, exit_status
from dra_driver.hardware.gpu.nvml.errors import GONE

Facts = Mapping[str, Any]
"""Facts of a check or the survey: JSON values by topic. They come from libraries, programs and reports of other users.
A judge that finds another form than it expects returns UNKNOWN."""
Topics = Iterator[tuple[str, object]]
"""The values that a reader yields."""
VERDICTS: Final = {Status.OK: "ok", Status.FAIL: "differs", Status.UNKNOWN: "cannot tell", Status.SKIPPED: "skipped"}
"""Words of the verdict in lines and in JSON."""
Need = Literal["root", "free GPU", "owner", "xid"]

KIND: Final = "HardwareCheckReport"
SCHEMA_VERSION: Final = 1


class HardwareCheck(Struct, frozen=True, kw_only=True):
    """One check. ``expected`` is the assumption of the code that it tests.

    ``reader`` is ``module:function`` in this package, from a `Task` to pairs of topic and value. ``judge`` does no I/O
    and gets the results of reader and survey. ``needs``: "root" (user 0 with permission to mount), "free GPU" (no
    processes and claims, or the owner's consent), "owner" (only with ``--i-own-this-gpu``: it changes MIG mode or
    instances), "xid" (only with ``--allow-xid``). ``decides``: the meaning of an answer for open assumptions.
    """

    number: int
    name: str
    expected: str
    reader: str
    judge: Callable[[Facts, Facts], Finding]
    limit_s: float
    needs: frozenset[Need] = frozenset()
    decides: str = ""

    @property
    def changes_gpu(self) -> bool:
        """Return whether it changes MIG mode or instances, which it restores afterwards."""
        return "owner" in self.needs


ON_FREE_GPU: Final[frozenset[Need]] = frozenset({"root", "free GPU"})
BY_OWNER: Final[frozenset[Need]] = frozenset({"root", "owner"})
Judge = Callable[[Facts, Facts], Finding]


def hardware_check(
    number: int,
    name: str,
    reader: Callable[..., object],
    limit_s: float,
    needs: frozenset[Need] = frozenset(),
    *,
    decides: str = "",
) -> Callable[[Judge], HardwareCheck]:
    """Make a check of the decorated judge: its docstring is the assumption of the code. ``reader`` is a function of the
    same module."""

    def made(judge: Judge) -> HardwareCheck:
        text = " ".join((judge.__doc__ or "").split()).removesuffix(".")
        expected = text if text[1:2].isupper() else f"{text[:1].lower()}{text[1:]}"
        return HardwareCheck(
            number=number,
            name=name,
            expected=expected,
            reader=f"{reader.__module__.rpartition('.')[2]}:{reader.__name__}",
            judge=judge,
            limit_s=limit_s,
            needs=needs,
            decides=decides,
        )

    return made


class Reading(Struct, frozen=True, kw_only=True):
    """Facts from one child process. ``problem`` is the reason if it did not finish, ``seconds`` its duration.
    ``skipped`` is the reason for reading nothing."""

    facts: Facts = field(default_factory=dict)
    problem: str = ""
    skipped: str = ""
    seconds: float = 0.0


class CheckRecord(Struct, frozen=True, kw_only=True):
    """One check of a report: its facts, and the finding about them, with the check's name and expectation."""

    number: int
    reading: Reading
    finding: Finding
    decides: str = ""

    @classmethod
    def unread(cls, why: str) -> "CheckRecord":
        """A record of all checks: none could read facts."""
        finding = Finding(status=Status.UNKNOWN, seen=why, check="hardware check", layer=Layer.HARDWARE)
        return cls(number=0, reading=Reading(problem=why), finding=finding)

    @property
    def verdict(self) -> str:
        return VERDICTS[self.finding.status]


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
        """Return whether the survey found a usable NVIDIA driver with a GPU."""
        return bool(self.survey.facts.get("gpus"))

    @property
    def exit_status(self) -> int:
        """0 all ok or skipped, 1 a difference, 2 no driver or GPU, 3 no difference but an unknown verdict."""
        if not self.has_driver:
            return 2
        return exit_status((record.finding.status for record in self.records), unanswered=3)

    def to_wire(self) -> Facts:
        return {
            "schemaVersion": SCHEMA_VERSION,
            "kind": KIND,
            "hashed": self.hashed,
            "about": dict(self.about),
            "survey": msgspec.to_builtins(self.survey),
            "checks": [
                {
                    "number": record.number,
                    "name": record.finding.check,
                    "expected": record.finding.expected,
                    "verdict": record.verdict,
                    "seen": record.finding.seen,
                    "meaning": record.finding.meaning,
                    **({"decides": record.decides} if record.decides else {}),
                    **msgspec.to_builtins(record.reading),
                }
                for record in self.records
            ],
        }

    @classmethod
    def from_wire(cls, wire: object) -> "HardwareReport":
        """Return the report in a document. Raises ConfigurationError for any other document."""
        document = check_document(wire, KIND, SCHEMA_VERSION, "this is not a readable report of hardware-check")
        try:
            return cls(
                about=_mapping(document["about"]),
                survey=convert(document["survey"], Reading),
                records=tuple(_record(_mapping(one)) for one in document["checks"]),
                hashed=bool(document["hashed"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError, msgspec.ValidationError) as error:
            raise ConfigurationError(
                f"the report is damaged: {type(error).__name__}: {error}", reason="Damaged"
            ) from error


def judged(check: HardwareCheck, reading: Reading, survey: Facts) -> CheckRecord:
    """The record of a reading, or of its absence. Never raises, because facts come from files, too."""
    finding = replace(_finding(check, reading, survey), check=check.name, expected=check.expected, layer=Layer.HARDWARE)
    return CheckRecord(number=check.number, reading=reading, finding=finding, decides=check.decides)


def _finding(check: HardwareCheck, reading: Reading, survey: Facts) -> Finding:
    if reading.problem and not reading.skipped:
        read = ", ".join(reading.facts) or "nothing"
        meaning = f"the check did not finish; its facts so far: {read}"
        return Finding(status=Status.UNKNOWN, seen=reading.problem, meaning=meaning)
    if reason := reading.skipped or reading.facts.get("skipped"):
        return Finding(status=Status.SKIPPED, seen=str(reason))
    try:
        return check.judge(reading.facts, survey)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return Finding(
            status=Status.UNKNOWN,
            seen=f"the facts have another form than expected ({type(error).__name__}: {error})",
            meaning="a defect of the check: please report it with the JSON file",
        )


def _record(wire: Facts) -> CheckRecord:
    status = next((status for status, word in VERDICTS.items() if word == wire["verdict"]), None)
    if status is None:
        raise ValueError(f"unknown verdict {wire['verdict']!r}")
    finding = Finding(
        status=status,
        seen=str(wire["seen"]),
        expected=str(wire["expected"]),
        meaning=str(wire["meaning"]),
        check=str(wire["name"]),
        layer=Layer.HARDWARE,
    )
    return CheckRecord(
        number=int(wire["number"]),
        reading=convert(wire, Reading),
        finding=finding,
        decides=str(wire.get("decides", "")),
    )


def _mapping(value: object) -> Facts:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {type(value).__name__}")
    return value


INVALID_ARGUMENT: Final = 2
IN_USE: Final = 19
MAX_SHOWN: Final = 4
VANISHED: Final = GONE | {INVALID_ARGUMENT}
"""Codes that mean for the backend: this instance no longer exists."""


def judgement(differences: Sequence[str], seen: str, *, right: str, wrong: str, unknown: str = "") -> Finding:
    """FAIL with the differences, else UNKNOWN with ``unknown``, else OK.

    ``right`` and ``wrong`` explain the meaning for this driver.
    """
    if differences:
        return Finding(status=Status.FAIL, seen=few(differences), meaning=wrong)
    if unknown:
        return Finding(status=Status.UNKNOWN, seen=seen, meaning=unknown)
    return Finding(status=Status.OK, seen=seen, meaning=right)


def few(texts: Iterable[str]) -> str:
    """The first texts, and the number of further ones."""
    listed = list(dict.fromkeys(texts))
    more = f"; and {len(listed) - MAX_SHOWN} more" if len(listed) > MAX_SHOWN else ""
    return "; ".join(listed[:MAX_SHOWN]) + more


def alike(texts: Mapping[int, str]) -> str:
    """Texts by NVML index, each once: ``GPUs 0-7: ok; GPU 9: lost``."""
    groups: dict[str, list[int]] = {}
    for index, text in texts.items():
        groups.setdefault(text, []).append(index)
    return few(f"{_indexes(indexes)}: {text}" for text, indexes in groups.items())


def _indexes(indexes: Sequence[int]) -> str:
    if len(indexes) == 1:
        return f"GPU {indexes[0]}"
    is_run = indexes[-1] - indexes[0] + 1 == len(indexes)
    return f"GPUs {indexes[0]}-{indexes[-1]}" if is_run else f"GPUs {', '.join(map(str, indexes))}"


def gpus(facts: Facts) -> Iterator[tuple[int, Facts]]:
    """Facts by NVML index, of topics that are an index."""
    for topic, value in facts.items():
        if topic.isdecimal():
            yield int(topic), value


def survey_gpus(survey: Facts) -> list[Facts]:
    """The survey's GPUs that answered."""
    return [gpu for gpu in survey.get("gpus", ()) if "answers" in gpu]


def known(answer: Facts, allowed: Iterable[int]) -> bool:
    """Return whether the answer is a value, one of the ``allowed`` codes, or empty: the binding lacks the function."""
    return "value" in answer or answer.get("code") in {None, *allowed}


def described(answer: Facts) -> str:
    """``value 3`` or ``NVMLError_Unknown (999)``."""
    return f"value {answer['value']}" if "value" in answer else f"{answer.get('error', 'code')} ({answer.get('code')})"
