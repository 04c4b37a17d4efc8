"""What the judges of all checks share: collecting differences, and reading answers of NVML. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from dra_driver.diagnose.hardware.values import Facts, Judgement
from dra_driver.hardware.gpu.nvml.errors import ABSENT, GONE

INVALID_ARGUMENT: Final = 2
IN_USE: Final = 19
MAX_SHOWN: Final = 4
VANISHED: Final = GONE | {INVALID_ARGUMENT}
"""Codes that the backend takes as "this instance is gone"."""
__all__ = [
    "ABSENT",
    "GONE",
    "INVALID_ARGUMENT",
    "IN_USE",
    "VANISHED",
    "alike",
    "code_of",
    "described",
    "few",
    "gpus",
    "judgement",
    "known",
    "survey_gpus",
]


def judgement(differences: Sequence[str], seen: str, *, right: str, wrong: str, unknown: str = "") -> Judgement:
    """``differs`` with the differences, else ``cannot tell`` with ``unknown``, else ``ok``.

    ``right`` and ``wrong`` say what it means for this driver.
    """
    if differences:
        return Judgement(verdict="differs", seen=few(differences), meaning=wrong)
    if unknown:
        return Judgement(verdict="cannot tell", seen=seen, meaning=unknown)
    return Judgement(verdict="ok", seen=seen, meaning=right)


def few(texts: Iterable[str]) -> str:
    """The first texts, and how many more there are."""
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


def gpus(facts: Facts) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Facts by NVML index, of topics that are an index."""
    for topic, value in facts.items():
        if topic.isdecimal():
            yield int(topic), value


def survey_gpus(survey: Facts) -> list[Mapping[str, Any]]:
    """The survey's GPUs that answered."""
    return [gpu for gpu in survey.get("gpus", ()) if "answers" in gpu]


def code_of(answer: Mapping[str, Any]) -> int | None:
    """0 for a value, else NVML's code; None where the binding could not even ask."""
    return 0 if "value" in answer else answer.get("code")


def known(answer: Mapping[str, Any], allowed: Iterable[int]) -> bool:
    """Whether the answer is a value, or one of the ``allowed`` codes; None counts as a function that is missing."""
    code = code_of(answer)
    return code is None or code == 0 or code in set(allowed)


def described(answer: Mapping[str, Any]) -> str:
    """``value 3`` or ``NVMLError_Unknown (999)``."""
    return f"value {answer['value']}" if "value" in answer else f"{answer.get('error', 'code')} ({answer.get('code')})"
