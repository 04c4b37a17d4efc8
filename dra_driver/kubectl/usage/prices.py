"""Prices that a person wrote into a file, for `kubectl dra cost`. Pure.

currency: EUR
gpuHour:                      # for a whole GPU, by product name
  NVIDIA H100 80GB HBM3: 2.50
otherGpuHour: 1.00            # for models that are not listed; without it they have no price
kilowattHour: 0.28
carbonGramsPerKilowattHour: 380
"""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from dra_driver.core.errors import ConfigurationError

MAX_MODELS: Final = 1000
MAX_PRICE: Final = 1e6
_FIELDS: Final = ("currency", "gpuHour", "otherGpuHour", "kilowattHour", "carbonGramsPerKilowattHour")


class Prices(Struct, frozen=True, kw_only=True):
    """Amounts are in ``currency``. None: the file has no such price, so nothing is charged for it, and that is said."""

    currency: str = ""
    gpu_hour: Mapping[str, float] = field(default_factory=dict)
    other_gpu_hour: float | None = None
    kilowatt_hour: float | None = None
    carbon_grams: float | None = None

    def of(self, model: str) -> float | None:
        """The price of an hour of a whole GPU; None where the file has none."""
        return self.gpu_hour.get(model, self.other_gpu_hour)


def decode(document: Any) -> Prices:
    """Prices of a parsed file. Raises ConfigurationError, which names the field."""
    if not isinstance(document, dict):
        raise ConfigurationError(
            "prices: expected a mapping with gpuHour and other fields; see kubectl dra cost --help"
        )
    for name in document:
        if name not in _FIELDS:
            raise ConfigurationError(f"prices: no such field {str(name)[:60]!r}; there are {', '.join(_FIELDS)}")
    hours = document.get("gpuHour") or {}
    if not isinstance(hours, dict) or len(hours) > MAX_MODELS:
        raise ConfigurationError(f"prices: gpuHour: expected a mapping of at most {MAX_MODELS} product names to prices")
    currency = document.get("currency", "")
    if not isinstance(currency, str) or len(currency) > 8 or not currency.isprintable():
        raise ConfigurationError("prices: currency: expected at most 8 characters, such as EUR")
    found = Prices(
        currency=currency,
        gpu_hour={str(name): _amount(price, f"gpuHour[{str(name)[:60]!r}]") for name, price in hours.items()},
        other_gpu_hour=_optional(document, "otherGpuHour"),
        kilowatt_hour=_optional(document, "kilowattHour"),
        carbon_grams=_optional(document, "carbonGramsPerKilowattHour"),
    )
    if not found.gpu_hour and found.other_gpu_hour is None and found.kilowatt_hour is None:
        raise ConfigurationError("prices: expected at least one of gpuHour, otherGpuHour and kilowattHour")
    return found


def _optional(document: Mapping[str, Any], name: str) -> float | None:
    return _amount(document[name], name) if document.get(name) is not None else None


def _amount(value: Any, name: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MAX_PRICE:
        raise ConfigurationError(
            f"prices: {name}: expected a number from 0 to {MAX_PRICE:g}, found {str(value)[:40]!r}"
        )
    return float(value)
