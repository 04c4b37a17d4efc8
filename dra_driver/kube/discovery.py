"""Read the API server's version. No endpoint reports feature gates; ``node/slices/features.py`` probes for their
effects."""

import re

from msgspec import Struct

from dra_driver.core.errors import KubernetesApiError
from dra_driver.kube.claims import Getter
from dra_driver.kube.paths import version

_LEADING_NUMBER = re.compile(r"\d{1,4}")


class ServerVersion(Struct, frozen=True, kw_only=True):
    """``git_version`` as the server prints it (``v1.36.2+k3s1``); ``minor`` of ``36+`` is 36."""

    git_version: str
    major: int
    minor: int

    def __str__(self) -> str:
        return self.git_version


def server_version(rest: Getter) -> ServerVersion:
    """Reads ``/version``. Raises KubernetesApiError when it cannot be read or understood."""
    answer = rest.get(version())
    git_version = answer.get("gitVersion")
    major, minor = _number(answer.get("major")), _number(answer.get("minor"))
    if not isinstance(git_version, str) or major is None or minor is None:
        raise KubernetesApiError(f"GET /version: expected gitVersion, major and minor, got {str(answer)[:120]}")
    return ServerVersion(git_version=git_version[:64], major=major, minor=minor)


def _number(value: object) -> int | None:
    match = _LEADING_NUMBER.match(value) if isinstance(value, str) else None
    return int(match.group()) if match else None
