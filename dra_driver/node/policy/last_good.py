"""The file with the last policies that could be applied.

A restart uses them while the policy folder is broken or the API server is away.

It is JSON with mode 0600, replaced atomically. A crash leaves the old file and at most a temporary one beside it.
``objects`` has the generations of those policies that are objects of the API server. It is left out where those are not
known, and earlier builds neither write nor read it: to them all policies come from files.
``source.py`` decides when a set is good.
"""

import json
from pathlib import Path
from typing import Final

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.files import remove_unfinished, replace_file
from dra_driver.node.policy.policy_set import PolicySet, decode_set

MAX_BYTES: Final = 8 * 1024 * 1024
_FORMAT: Final = 1


def save(path: Path, found: PolicySet) -> None:
    """Save the set, durable on return. Raises StorageError."""
    content: dict[str, object] = {"format": _FORMAT, "policies": found.written}
    if found.generations is not None:
        content["objects"] = dict(found.generations)
    data = json.dumps(content, separators=(",", ":")).encode()
    try:
        remove_unfinished(path)
        replace_file(path, data, durable=True)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error


def load(path: Path) -> PolicySet | None:
    """The saved set, or None. Raises StorageError or ConfigurationError for a file that cannot be used."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    try:
        found = json.loads(data) if len(data) <= MAX_BYTES else None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict) or found.get("format") != _FORMAT or not isinstance(found.get("policies"), list):
        raise ConfigurationError(f"{path} does not contain policies of format {_FORMAT}")
    try:
        return decode_set(found["policies"], found.get("objects"))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
