"""Decode a CDI document as strictly as the runtimes do: unknown, repeated and wrongly typed fields are errors.

It reads JSON only, because this project writes JSON and reads only its own files. The embedded cluster and diagnosis
use it to show the edits of a container.

Source: the reference library decodes with ``UnmarshalStrict`` into the structs of ``specs-go/config.go``, then
checks that the declared version is known and high enough for the fields used (``specs-go/version.go``).
"""

import json

import msgspec

from dra_driver.core.errors import InvalidSpecError
from dra_driver.hardware.cdi.spec import KNOWN_VERSIONS, CdiSpec, minimum_version
from dra_driver.hardware.cdi.validation import spec_problems


def decode(text: str | bytes, source: str) -> CdiSpec:
    """The document in ``text``, valid by the specification's rules.

    Raises `InvalidSpecError`, whose message starts with ``source`` and names the field. The declared version is checked
    and not kept: encoding the document again declares the lowest version that covers it.
    """
    try:
        wire = json.loads(text, object_pairs_hook=_unique_keys)
        declared = wire.pop("cdiVersion", "") if isinstance(wire, dict) else ""
        if not isinstance(declared, str):
            raise ValueError(f"cdiVersion: expected a string, found {declared!r}")  # noqa: TRY004, TRY301 - as all mistakes
        spec = msgspec.convert(wire, CdiSpec)
        problems = (*_version_problems(declared, spec), *spec_problems(spec))
    except (ValueError, RecursionError) as mistake:
        raise InvalidSpecError(f"CDI document {source} cannot be read: {mistake}") from mistake
    if problems:
        raise InvalidSpecError(f"CDI document {source} is invalid: " + "; ".join(problems))
    return spec


def _version_problems(declared: str, spec: CdiSpec) -> tuple[str, ...]:
    version = declared.removeprefix("v")
    if version not in KNOWN_VERSIONS:
        return (f"cdiVersion: {declared!r} is unknown, expected one of {', '.join(KNOWN_VERSIONS)}",)
    needed = minimum_version(spec)
    if KNOWN_VERSIONS.index(version) < KNOWN_VERSIONS.index(needed):
        return (f"cdiVersion: {declared!r} is too low, its fields need at least {needed}",)
    return ()


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is repeated in one object")
    return found
