"""What an administrator's policy says about the health of a GPU, as a value.

``config/policy.py`` reads it from a GpuPolicy, ``node/health/`` applies it to what the hardware reports.
"""

from typing import Final

from msgspec import Struct

from dra_driver.core.model.health import HealthCause

DEFAULT_GRACE_S: Final = 60.0
GRACE_ATTRIBUTE: Final = "gpu.dra-driver.io/evictionGraceSeconds"
"""Attribute of a GPU's devices where its policy has another ``grace_s``. Policies are files on nodes, and the
controller reads ResourceSlices alone."""


class HealthRules(Struct, frozen=True, kw_only=True):
    """Changes of the default rules for one GPU. Numbers of XIDs, and causes.

    ``taint_xids`` taint in addition to those that do by default. ``ignored_xids`` and ``ignored_causes`` never taint;
    they are counted. ``evicting_xids`` and ``evicting_causes`` taint with the effect NoExecute; of these
    `HealthCause.LOST` is the GPU that vanished. ``calm_s`` is the time without a new error, after recovery was seen,
    until a condition ends; None: the default of its cause. ``grace_s`` is how long the controller waits before it
    evicts a pod that came by an extended resource. No XID and no cause is both ignored and evicting.
    """

    taint_xids: frozenset[int] = frozenset()
    ignored_xids: frozenset[int] = frozenset()
    ignored_causes: frozenset[HealthCause] = frozenset()
    evicting_xids: frozenset[int] = frozenset()
    evicting_causes: frozenset[HealthCause] = frozenset()
    calm_s: float | None = None
    grace_s: float = DEFAULT_GRACE_S


DEFAULT_RULES: Final = HealthRules()
"""Nothing is added, ignored or evicting."""
