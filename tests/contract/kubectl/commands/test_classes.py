"""``kubectl dra classes`` against the embedded API server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.hardware.gpu.simulated.spec import parse_groups
from dra_driver.kubectl.commands import kubectl
from dra_driver.sim.apiserver.kinds import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES
from dra_driver.sim.apiserver.server import ApiServer
from tests.fakes.dra_objects import gpu, resource_slice
from tests.fakes.published import built, published
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.harness.shown import holds

SMALL, LARGE = "mig-1g.10gb.nvidia.com", "mig-3g.40gb.nvidia.com"


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    server = ApiServer()
    server.start()
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "admin.conf")))
    yield server
    server.stop()


def publish(api: ApiServer, *profiles: str) -> None:
    devices = [gpu(f"gpu-0-mig-{number}", profile=profile) for number, profile in enumerate(profiles)]
    if "slice-a" in {item["metadata"]["name"] for item in api.store.list(RESOURCE_SLICES).items}:
        api.store.delete(RESOURCE_SLICES, "slice-a")
    api.store.create(RESOURCE_SLICES, resource_slice("a", *devices, name="slice-a"))


def classes(api: ApiServer) -> dict[str, Any]:
    return {item["metadata"]["name"]: item for item in api.store.list(DEVICE_CLASSES).items}


def run(*arguments: str) -> int:
    return kubectl.main(["classes", *arguments])


def test_apply_makes_one_class_per_profile_and_deletes_none(api: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    publish(api, "1g.10gb", "3g.40gb")
    assert run("apply") == 0
    assert classes(api)[SMALL]["spec"]["extendedResourceName"] == "nvidia.com/mig-1g.10gb"
    publish(api, "1g.10gb")
    assert run("apply") == 0
    assert {SMALL, LARGE} <= classes(api).keys()
    capsys.readouterr()
    assert run("list") == 0
    assert "unused" in capsys.readouterr().out


def test_the_page_shows_the_classes_of_two_h100(api: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    for item in published(built(SimulatedBackend(parse_groups("2xh100-sxm5-80gb", "a")).snapshot()), on="a"):
        api.store.create(RESOURCE_SLICES, item)
    assert run("list") == 0
    holds("docs/mig.md", "kubectl dra classes list", capsys.readouterr().out)
    assert run("apply") == 0
    holds("docs/mig.md", "kubectl dra classes apply", capsys.readouterr().out)


def test_prune_deletes_own_unused_classes_that_are_not_named(
    api: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(api, "1g.10gb", "3g.40gb", "2g.20gb")
    run("apply")
    devices = {"requests": [{"name": "r", "exactly": {"deviceClassName": LARGE}}]}
    template = {"metadata": {"name": "t"}, "spec": {"spec": {"devices": devices}}}
    api.store.create(RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
    publish(api, "1g.10gb")
    assert run("prune", "--dry-run") == 0
    assert {SMALL, LARGE, "mig-2g.20gb.nvidia.com"} <= classes(api).keys()
    assert run("prune") == 0  # one is named by a template, and stays
    assert {SMALL, LARGE} <= classes(api).keys()
    assert "mig-2g.20gb.nvidia.com" not in classes(api)
    assert f"{LARGE}: kept: template default/t names it" in capsys.readouterr().out


def test_a_class_of_another_stays_as_it_is(api: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    publish(api, "1g.10gb")
    mine = {"metadata": {"name": SMALL}, "spec": {"selectors": [{"cel": {"expression": "false"}}]}}
    before = api.store.create(DEVICE_CLASSES, mine)
    assert run("apply") == 0
    assert classes(api)[SMALL] == before
    assert "unchanged: it has no label" in capsys.readouterr().out
    publish(api)
    run("prune")
    assert classes(api)[SMALL] == before


def test_a_dry_run_writes_nothing(api: ApiServer) -> None:
    publish(api, "1g.10gb")
    assert run("apply", "--dry-run") == 0
    assert SMALL not in classes(api)
