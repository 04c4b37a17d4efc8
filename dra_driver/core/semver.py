"""Versions by Semantic Versioning 2.0.0, and their loose forms. The API server requires the strict form of a device
attribute of type version (k8s.io/api resource/v1, DeviceAttribute.version): three numbers without leading zeros, each
below 2**64, then optional pre-release and build parts."""

import re
from functools import lru_cache
from typing import Final

from msgspec import Struct

_NUMBER: Final = r"0|[1-9][0-9]*"
_IDENTIFIER: Final = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_STRICT: Final = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})"
    rf"(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?\Z"
)
_LOOSE: Final = re.compile(r"[vV]?([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?([-+].*)?\Z")
# Longer than any version that an attribute may hold (64 bytes); bounds the cost of a hostile text.
_MAX_TEXT: Final = 256

_Rank = tuple[int, int, int, int, tuple[tuple[int, int, str], ...]]


class Semver(Struct, frozen=True, eq=False):
    """One version. Order and equality are the specification's precedence: build metadata does not count."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[str, ...] = ()
    build: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Semver":
        """The version that ``text`` denotes, strictly. Raises ValueError with a sentence that quotes the text."""
        match = _STRICT.match(text) if len(text) <= _MAX_TEXT else None
        if match is None:
            shown = repr(text if len(text) <= 64 else text[:64] + "…")
            raise ValueError(f"{shown} is not a semantic version: expected MAJOR.MINOR.PATCH without leading zeros")
        numbers = (int(match[1]), int(match[2]), int(match[3]))
        prerelease = tuple(match[4].split(".")) if match[4] else ()
        if any(number >= 2**64 for number in (*numbers, *(int(part) for part in prerelease if part.isdecimal()))):
            raise ValueError(f"{text!r} is not a semantic version: a number is not below 2**64")
        return cls(*numbers, prerelease, tuple(match[5].split(".")) if match[5] else ())

    def compare(self, other: "Semver") -> int:
        mine, theirs = self._rank(), other._rank()
        return (mine > theirs) - (mine < theirs)

    def __eq__(self, other: object) -> bool:
        return self._rank() == other._rank() if isinstance(other, Semver) else NotImplemented

    def __lt__(self, other: "Semver") -> bool:
        return self._rank() < other._rank()

    def __le__(self, other: "Semver") -> bool:  # > and >= swap the sides of < and <=
        return self._rank() <= other._rank()

    def __hash__(self) -> int:
        return hash(self._rank())

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.prerelease:
            text += "-" + ".".join(self.prerelease)
        return text + "+" + ".".join(self.build) if self.build else text

    def _rank(self) -> _Rank:
        """A release ranks above its pre-releases; numeric identifiers rank below others; longer lists rank above."""
        parts = tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in self.prerelease)
        return (self.major, self.minor, self.patch, 0 if parts else 1, parts)


@lru_cache(maxsize=64)  # attributes of each prepared claim have the same three versions
def from_loose(text: str) -> str | None:
    """A strict version for ``580.65.06`` (580.65.6), ``8.0`` (8.0.0) or ``v1.2``; None for other texts. Pre-release and
    build parts stay."""
    match = _LOOSE.match(text.strip()) if len(text) <= _MAX_TEXT else None
    if match is None:
        return None
    numbers = ".".join(str(int(part or "0")) for part in match.group(1, 2, 3))
    try:
        return str(Semver.parse(numbers + (match[4] or "")))
    except ValueError:
        return None
