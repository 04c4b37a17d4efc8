"""Where this driver has files, sockets and mounts on a node."""

from pathlib import Path

from msgspec import Struct

from dra_driver.config.settings import NodeSettings
from dra_driver.node.claims.inspection import BOOT_ID


class Places(Struct, frozen=True, kw_only=True):
    """The folders as this process sees them. ``run`` and ``shm`` are of the MPS host."""

    driver: str
    plugin: Path
    registry: Path
    cdi: Path
    run: Path
    shm: Path
    boot_id: Path = BOOT_ID

    @classmethod
    def of(cls, settings: NodeSettings, *, run_dir: Path, shm_dir: Path) -> "Places":
        """``run_dir`` and ``shm_dir`` are the settings of the MPS host."""
        driver = settings.driver_name
        return cls(
            driver=driver,
            plugin=Path(settings.kubelet_plugins_dir) / driver,
            registry=Path(settings.kubelet_registrar_dir),
            cdi=Path(settings.cdi_dir),
            run=run_dir / f"{driver}-mps",
            shm=shm_dir / f"{driver}-mps",
            boot_id=Path(settings.boot_id_file),
        )

    @property
    def journal(self) -> Path:
        return self.plugin / "state.db"

    @property
    def mps(self) -> Path:
        return self.plugin / "mps"

    @property
    def health(self) -> Path:
        return self.plugin / "health.json"
