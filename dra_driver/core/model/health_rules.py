"""A GpuPolicy's rules for the health of a GPU. ``config/policy.py`` reads them, ``node/health/`` applies them."""

from typing import Final

from msgspec import Struct

from dra_driver.core.model.health import HealthCause

DEFAULT_GRACE_S: Final = 60.0
GRACE_ATTRIBUTE: Final = "gpu.dra-driver.io/evictionGraceSeconds"
"""Attribute of a GPU's devices where its policy has another ``grace_s``. Policies are files on nodes, and the
controller reads ResourceSlices alone."""


class HealthRules(Struct, frozen=True, kw_only=True):
    """Changes of the default rules for one GPU, by XID and cause.

    ``taint_xids`` taint in addition to the defaults. Ignored XIDs and causes are counted and never taint; evicting ones
    taint with NoExecute (`HealthCause.LOST` is a GPU that vanished). None is both. ``calm_s`` is the time without a new
    error after recovery until a condition ends; None for the default of its cause. ``grace_s`` is the controller's wait
    before it evicts a pod that requests an extended resource. ``resets_when_free``: the node process resets a GPU for
    which the driver asks for it, when no claim uses the GPU.
    """

    taint_xids: frozenset[int] = frozenset()
    ignored_xids: frozenset[int] = frozenset()
    ignored_causes: frozenset[HealthCause] = frozenset()
    evicting_xids: frozenset[int] = frozenset()
    evicting_causes: frozenset[HealthCause] = frozenset()
    calm_s: float | None = None
    grace_s: float = DEFAULT_GRACE_S
    resets_when_free: bool = False


DEFAULT_RULES: Final = HealthRules()  # nothing is added, ignored or evicting
