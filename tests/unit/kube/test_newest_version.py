"""The version that lists ask for: never older than what was seen, and given up when the server cannot know it."""

import pytest

from dra_driver.core.errors import ApiUnreachableError, ForbiddenError, KubernetesApiError, ServerBusyError
from dra_driver.kube.reflector import MOST_BEHIND, NewestVersion

BEHIND = ServerBusyError("Too large resource version", status=504)


def asked(newest: NewestVersion) -> str:
    return newest.query().get("resourceVersion", "")


def test_the_first_list_is_current_and_later_ones_are_not_older_than_what_was_seen() -> None:
    newest = NewestVersion()
    assert newest.query() == {}
    for version in ("9", "10", "8", "", "x", "٣"):
        newest.saw(version)
    assert newest.query() == {"resourceVersion": "10", "resourceVersionMatch": "NotOlderThan"}
    newest.forget()
    assert newest.query() == {}


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (ApiUnreachableError("refused"), "7"),
        (ServerBusyError("too many requests", status=429), "7"),
        (ServerBusyError("starting", status=503), "7"),
        (BEHIND, "7"),
        (ForbiddenError("no", status=403), ""),
        (KubernetesApiError("bad request", status=400), ""),
    ],
)
def test_a_busy_server_is_not_asked_for_more(error: KubernetesApiError, kept: str) -> None:
    """A current list costs the most just when the server is behind."""
    newest = NewestVersion()
    newest.saw("7")
    newest.failed(error)
    assert asked(newest) == kept


def test_a_version_that_the_server_does_not_reach_is_given_up() -> None:
    """etcd was restored from a backup: the versions that come now are lower and do not count as progress."""
    newest = NewestVersion()
    newest.saw("700")
    for _ in range(MOST_BEHIND - 1):
        newest.failed(BEHIND)
        newest.saw("12")
    assert asked(newest) == "700"
    newest.failed(BEHIND)
    assert asked(newest) == ""


def test_a_server_that_catches_up_is_not_given_up() -> None:
    newest = NewestVersion()
    newest.saw("7")
    for version in range(8, 8 + 3 * MOST_BEHIND):
        newest.failed(BEHIND)
        newest.saw(str(version))
    assert asked(newest) == str(7 + 3 * MOST_BEHIND)
