"""The claims service over one directory."""

from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.node.claims.processes import read_boot_id
from dra_driver.node.claims.workflow.service import Claims, open_claims
from tests.fakes.claims import NAMES, POOL, FakeCdiProvider, FakeCdiWriter, FakeClaims, claim, machine, ref, uid


def open_at(folder: Path, api: FakeClaims, writer: FakeCdiWriter) -> Claims:
    return open_claims(
        folder,
        pool=POOL,
        names=NAMES,
        reader=api,
        writer=writer,  # type: ignore[arg-type]
        provider=FakeCdiProvider(),
        snapshot=lambda: machine(2),
    )


def test_a_closed_service_opens_again_with_all_claims(tmp_path: Path) -> None:
    """Files are where the documentation says, and only the journal and its backup stay."""
    api, writer = FakeClaims(claim(1)), FakeCdiWriter()
    folder = tmp_path / "plugins" / "gpu.nvidia.com"
    first = open_at(folder, api, writer)
    first.service.recover()
    answer = first.service.prepare([ref(1)])
    first.close()
    first.close()
    assert sorted(path.name for path in folder.iterdir()) == ["claim-names", "state.db", "state.db.lock"]
    again = open_at(folder, api, writer)
    again.service.recover()
    api.remove(ref(1))
    assert again.service.prepare([ref(1)]) == answer
    again.close()


def test_a_start_that_fails_leaves_no_living_run_behind(tmp_path: Path) -> None:
    """The next start must not count the failed one as alive."""
    (tmp_path / "state.db").mkdir()
    with pytest.raises((StorageError, ConfigurationError)):
        open_at(tmp_path, FakeClaims(), FakeCdiWriter())
    assert list(tmp_path.glob("owner-*")) == []


def test_the_boot_id_is_read_from_the_kernel(tmp_path: Path) -> None:
    """It is the same within a boot, and empty when it cannot be read."""
    assert read_boot_id() == read_boot_id() != ""
    assert read_boot_id(tmp_path / "missing") == ""
    (tmp_path / "odd").write_bytes(b"\xff\xfe")
    assert read_boot_id(tmp_path / "odd") == ""
    assert str(ref(1).uid) == uid(1)
