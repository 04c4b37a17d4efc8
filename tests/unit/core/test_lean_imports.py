"""`dra_driver.core.lean_imports`: packages without modules that they import for others."""

import importlib
import sys
from pathlib import Path

import pytest

from dra_driver.core.lean_imports import StandIn, without


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``lean_user`` imports a class of ``lean_heavy`` and derives from it."""
    (tmp_path / "lean_heavy.py").write_text("class Server: real = True\n")
    (tmp_path / "lean_user.py").write_text("from lean_heavy import Server\nclass Mine(Server): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("lean_heavy", "lean_user"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_package_is_imported_without_the_module_and_a_later_import_gets_the_real_one() -> None:
    """A library that needs the module must find it."""
    with without("lean_heavy"):
        user = importlib.import_module("lean_user")
    assert "lean_heavy" not in sys.modules
    assert not hasattr(user.Mine, "real")
    assert importlib.import_module("lean_heavy").Server.real


def test_module_that_is_loaded_already_is_used() -> None:
    """Its cost is paid, and others may hold objects of it."""
    heavy = importlib.import_module("lean_heavy")
    with without("lean_heavy"):
        user = importlib.import_module("lean_user")
    assert user.Server is heavy.Server
    assert sys.modules["lean_heavy"] is heavy


def test_stand_in_can_be_given_and_goes_after_an_error() -> None:
    """An import that fails must not leave an empty module to the rest of the process."""
    given = StandIn("lean_heavy")
    vars(given)["Server"] = int
    with without(given):
        assert importlib.import_module("lean_user").Server is int
    del sys.modules["lean_user"]
    with pytest.raises(ImportError), without("lean_heavy"):
        importlib.import_module("lean_missing")
    assert "lean_heavy" not in sys.modules
    assert importlib.import_module("lean_user").Server.real
