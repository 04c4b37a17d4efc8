"""The GPU settings that claims change, one class each. A new setting is one more file and one more line in `SETTINGS`.

``hardware/mig/`` and ``hardware/sharing/`` change a setting on the hardware; the classes here decide when, for which
claims, and when it is restored.
"""

from dra_driver.node.claims.dependencies import ClaimDependencies
from dra_driver.node.claims.hardware.settings.compute_mode import ComputeModeSetting
from dra_driver.node.claims.hardware.settings.mig_mode import MigModeSetting
from dra_driver.node.claims.hardware.settings.mps_daemons import MpsDaemonSetting
from dra_driver.node.claims.hardware.settings.setting import GpuSetting, NotedSetting
from dra_driver.node.claims.hardware.settings.time_slice import TimeSliceSetting
from dra_driver.node.claims.journal import Journal

__all__ = [
    "LOST_AT_REBOOT",
    "SETTINGS",
    "ClaimDependencies",
    "GpuSetting",
    "Journal",
    "NotedSetting",
    "settings_of",
]

SETTINGS: tuple[type[GpuSetting], ...] = (MigModeSetting, TimeSliceSetting, ComputeModeSetting, MpsDaemonSetting)
"""In the order in which they are applied; they are released in reverse order."""

LOST_AT_REBOOT = tuple(
    kind.note_key for kind in SETTINGS if issubclass(kind, NotedSetting) and not kind.survives_reboot
)
"""Keys of notes that are void after a reboot. MIG mode may survive one, so the GPU is looked at."""


def settings_of(deps: ClaimDependencies) -> tuple[GpuSetting, ...]:
    """One object per setting, in the order of `SETTINGS`. Raises `NotPermittedError` without hardware."""
    return tuple(kind(deps) for kind in SETTINGS)
