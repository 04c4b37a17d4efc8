"""What a run checks before its first try."""

import pytest

from dra_driver.core.errors import ConfigurationError, ForbiddenError
from dra_driver.diagnose.smoke.report import SmokeOptions
from dra_driver.diagnose.smoke.run import SmokeRun, check_namespace
from dra_driver.kube import paths
from dra_driver.kubectl.commands.smoke import fits_under
from tests.unit.diagnose.smoke.fake_api import FakeSmokeApi, Wire


class AllowingApi(FakeSmokeApi):
    """Grants every right, and tells of a namespace what it was given."""

    def __init__(self, found: Exception | None = None) -> None:
        super().__init__()
        self.found = found

    def get(self, path: str) -> Wire:
        if path == paths.namespace("team-a") and self.found is not None:
            raise self.found
        return super().get(path)

    def create(self, path: str, body: object) -> Wire:
        return {"status": {"allowed": True}}


def test_a_namespace_that_does_not_exist_is_named_before_the_first_try() -> None:
    """With what to do, and not as a failure of each node."""
    api = AllowingApi()
    with pytest.raises(ConfigurationError, match="namespace team-a does not exist: name one with -n"):
        SmokeRun(api, SmokeOptions(namespace="team-a"), fits_under).run()
    assert not api.made


def test_a_user_who_may_not_look_at_namespaces_is_not_held_up() -> None:
    """The Role of docs/smoke.md has no namespaces."""
    check_namespace(AllowingApi(ForbiddenError("GET namespaces", status=403)), "team-a")
