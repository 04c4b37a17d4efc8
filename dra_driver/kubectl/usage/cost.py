"""What claims cost: hours times the part of the GPU times its price, and energy. Pure.

The part of a GPU is the claim's part of its memory: what a claim has, others cannot have, whether it uses it or not. A
partition and a share are charged by that part, a whole GPU in full, whatever is used. A claim whose hours, model or
price are not known has no amount, and its sum says that it lacks some: a missing price is never a price of 0.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from dra_driver.kubectl.usage.claim_labels import value_in
from dra_driver.kubectl.usage.prices import Prices

JOULES_PER_KWH: Final = 3.6e6
HOUR_S: Final = 3600.0


class Held(Struct, frozen=True, kw_only=True):
    """A device that a claim held. ``part`` is 0 to 1 of ``gpus`` GPUs of the model, ``seconds`` how long within the
    window; None is not known. ``labels`` are the claim's, None where the claim is gone."""

    namespace: str
    claim: str
    device: str
    model: str = ""
    part: float | None = None
    seconds: float | None = None
    energy_joules: float | None = None
    energy_estimated: bool = False
    labels: tuple[tuple[str, str], ...] | None = ()


class CostLine(Struct, frozen=True, kw_only=True):
    """One device, priced. ``missing`` says why an amount is None."""

    held: Held
    gpu_hours: float | None
    amount: float | None
    energy_kwh: float | None
    energy_amount: float | None
    carbon_grams: float | None
    missing: str = ""


class CostSum(Struct, frozen=True, kw_only=True):
    """Lines of one namespace, claim or value of a label. ``unpriced`` of the ``lines`` have no amount."""

    key: tuple[str, ...]
    lines: int
    unpriced: int
    gpu_hours: float
    amount: float | None
    energy_kwh: float | None
    energy_amount: float | None
    carbon_grams: float | None
    estimated: bool


def price(held: Held, prices: Prices) -> CostLine:
    """One device's cost."""
    hours = None if held.part is None or held.seconds is None else held.part * held.seconds / HOUR_S
    per_hour = prices.of(held.model) if held.model else prices.other_gpu_hour
    kwh = None if held.energy_joules is None else held.energy_joules / JOULES_PER_KWH
    return CostLine(
        held=held,
        gpu_hours=hours,
        amount=None if hours is None or per_hour is None else hours * per_hour,
        energy_kwh=kwh,
        energy_amount=None if kwh is None or prices.kilowatt_hour is None else kwh * prices.kilowatt_hour,
        carbon_grams=None if kwh is None or prices.carbon_grams is None else kwh * prices.carbon_grams,
        missing=_missing(held, hours, per_hour),
    )


def _missing(held: Held, hours: float | None, per_hour: float | None) -> str:
    if held.part is None:
        return f"how much of a GPU {held.device} is, is not known"
    if hours is None:
        return "how long the claim held it is not known"
    if per_hour is None:
        return f"the prices have none for {held.model or 'a GPU whose model is not known'}"
    return ""


def sums(lines: Iterable[CostLine], key_of: Callable[[Held], tuple[str, ...]]) -> list[CostSum]:
    """One sum for each key, the most expensive first."""
    groups: dict[tuple[str, ...], list[CostLine]] = {}
    for line in lines:
        groups.setdefault(key_of(line.held), []).append(line)
    found = [_sum(key, group) for key, group in groups.items()]
    return sorted(found, key=lambda each: (-((each.amount or 0.0) + (each.energy_amount or 0.0)), each.key))


def _sum(key: tuple[str, ...], lines: Sequence[CostLine]) -> CostSum:
    return CostSum(
        key=key,
        lines=len(lines),
        unpriced=sum(line.amount is None for line in lines),
        gpu_hours=sum(line.gpu_hours or 0.0 for line in lines),
        amount=_total(line.amount for line in lines),
        energy_kwh=_total(line.energy_kwh for line in lines),
        energy_amount=_total(line.energy_amount for line in lines),
        carbon_grams=_total(line.carbon_grams for line in lines),
        estimated=any(line.held.energy_estimated for line in lines),
    )


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def label_key(name: str) -> Callable[[Held], tuple[str, ...]]:
    """Groups by the value of a label of the claim. Claims without it, and those that are gone, have groups of their
    own."""

    def key_of(held: Held) -> tuple[str, ...]:
        return (value_in(held.labels, name),)

    return key_of
