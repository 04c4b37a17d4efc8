"""Whose energy it was. Pure.

Hardware counts the energy of whole GPUs alone. A claim that has a GPU alone has all of it, what the GPU takes at rest
too. Between several users of one GPU it is divided in proportion to their utilisation, those that belong to no claim
included; where nothing computes, or utilisation is not known, by what each has of the GPU's memory, and the rest is no
claim's. That is an estimate, and named so.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

MOST_WATTS: Final = 5000.0
"""More than a GPU takes: a counter that jumps further is not believed."""


class EnergyUser(Struct, frozen=True, kw_only=True):
    """One row. ``weight`` is its part of the GPU's utilisation (0 to 100), None where it is not known; ``part`` of its
    memory (0 to 1). ``is_alone``: its claim has the whole GPU."""

    weight: float | None
    part: float
    is_alone: bool = False


def joules_since(before_mj: int | None, now_mj: int | None, power_mw: int | None, elapsed_s: float) -> float | None:
    """The energy that a GPU took in ``elapsed_s``; None where nothing tells.

    A counter that went back began at 0 meanwhile: the driver was loaded anew. Without a counter, by the power now.
    """
    if now_mj is None:
        return None if power_mw is None else power_mw / 1000 * max(0.0, elapsed_s)
    if before_mj is None:
        return 0.0
    joules = (now_mj - before_mj if now_mj >= before_mj else now_mj) / 1000
    return joules if joules <= MOST_WATTS * max(elapsed_s, 0.0) else 0.0


def divided(joules: float, users: Sequence[EnergyUser], foreign_weight: float) -> list[float]:
    """The energy of each user, in their order; together at most ``joules``."""
    weights = [user.weight for user in users]
    known = [weight for weight in weights if weight is not None]
    alone = [user.is_alone for user in users]
    total = sum(known) + (0.0 if any(alone) else foreign_weight)
    if len(known) == len(users) and total > 0:
        return [joules * weight / total for weight in known]
    if any(alone):
        return [joules / sum(alone) if is_alone else 0.0 for is_alone in alone]
    parts = sum(user.part for user in users)
    scale = 1.0 if parts <= 1.0 else 1.0 / parts
    return [joules * user.part * scale for user in users]
