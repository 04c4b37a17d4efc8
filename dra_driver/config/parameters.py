"""Opaque parameters of claims and device classes: ``GpuConfig`` and ``MigDeviceConfig`` of resource.nvidia.com/v1beta1.

Owns the schema, strict decoding, and the answer to "does this ask for more than the hardware does by itself". Refuses
to know which device a config applies to (``claims.configs``) and how anything of it is applied.

Group, kinds and fields are those of NVIDIA's DRA driver (``api/nvidia.com/resource/v1beta1``), so that claims written
for it decode here. Differences: what NVIDIA's driver finds only while preparing (an MPS section under TimeSlicing, a
memory limit below 1 MiB) is found while decoding, so that admission can refuse it; and JSON null means absent
everywhere, as Kubernetes reads it, so ``timeSlicingConfig: {}`` and ``interval: null`` are the default interval.

Parameters are written by whoever may create a claim, so their size is bounded before anything looks at them, and an
error shows at most a few short pieces of them, with whatever is not printable escaped: it ends in events and logs.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from dra_driver.config.device_config import (
    DeviceConfig,
    GpuConfig,
    GpuSharing,
    MigDeviceConfig,
    MigSharing,
    MpsLimits,
)
from dra_driver.errors import InvalidParametersError
from dra_driver.model.terms import Interval, Strategy
from dra_driver.quantity import Quantity

API_VERSION: Final = "resource.nvidia.com/v1beta1"
MAX_BYTES: Final = 10 * 1024
"""What the API server allows for opaque parameters (resource/v1 ``OpaqueParametersMaxLength``), in characters here."""
MAX_DEPTH: Final = 16
MAX_PER_DEVICE_LIMITS: Final = 64
_MAX_SHOWN_PROBLEMS: Final = 5
_MIB: Final = 2**20

_Interval = Literal["Default", "Short", "Medium", "Long"]
_Strategy = Literal["TimeSlicing", "MPS"]


def _memory_limit(value: object) -> str:
    """Canonical text of a quantity, which JSON may hold as a string or as a whole number."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError(f"expected a quantity such as 10Gi, got {_shown(value)}")  # noqa: TRY004 - pydantic's protocol
    amount = Quantity.parse(str(value))
    if amount.as_int() < _MIB:
        raise ValueError(f"expected at least 1Mi, got {_shown(value)}")  # the daemon is told whole mebibytes
    return str(amount)


MemoryLimit = Annotated[str, BeforeValidator(_memory_limit)]


class _Strict(BaseModel):
    """Unknown fields and loose types are errors; null in place of an optional field means that it is absent."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel)


class TimeSlicingConfig(_Strict):
    """How long a process keeps the GPU while others wait; ``Default`` is what the hardware does untold."""

    interval: Annotated[_Interval, BeforeValidator(lambda value: "Default" if value is None else value)] = "Default"


class _MpsConfig(_Strict):
    """Limits of the MPS daemon's clients: percent of the GPU's threads, and device memory as quantities.

    Keys of ``default_per_device_pinned_memory_limit`` are GPU UUIDs or positions in the claim's sorted list of them.
    """

    default_active_thread_percentage: Annotated[int, Field(ge=0, le=100)] | None = None
    default_pinned_device_memory_limit: MemoryLimit | None = None
    default_per_device_pinned_memory_limit: (
        Annotated[dict[str, MemoryLimit], Field(max_length=MAX_PER_DEVICE_LIMITS)] | None
    ) = None


class _GpuSharing(_Strict):
    """How containers share a GPU. A section that belongs to the other strategy is refused, not ignored."""

    strategy: _Strategy
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: _MpsConfig | None = None

    @model_validator(mode="after")
    def _sections_fit(self) -> "_GpuSharing":
        if self.strategy == "TimeSlicing" and self.mps_config is not None:
            raise ValueError("mpsConfig cannot be combined with strategy TimeSlicing")
        if self.strategy == "MPS" and self.time_slicing_config is not None:
            raise ValueError("timeSlicingConfig cannot be combined with strategy MPS")
        return self


class _MigSharing(_Strict):
    """How containers share a MIG device; NVIDIA's drivers have no time-slice setting for those."""

    strategy: _Strategy
    mps_config: _MpsConfig | None = None

    @model_validator(mode="after")
    def _sections_fit(self) -> "_MigSharing":
        if self.strategy == "TimeSlicing" and self.mps_config is not None:
            raise ValueError("mpsConfig cannot be combined with strategy TimeSlicing")
        return self


class _GpuConfig(_Strict):
    """Parameters for whole GPUs."""

    api_version: Literal["resource.nvidia.com/v1beta1"] = API_VERSION
    kind: Literal["GpuConfig"] = "GpuConfig"
    sharing: _GpuSharing | None = None


class _MigDeviceConfig(_Strict):
    """Parameters for MIG devices."""

    api_version: Literal["resource.nvidia.com/v1beta1"] = API_VERSION
    kind: Literal["MigDeviceConfig"] = "MigDeviceConfig"
    sharing: _MigSharing | None = None


_KINDS: Final[Mapping[str, type[_GpuConfig] | type[_MigDeviceConfig]]] = {
    "GpuConfig": _GpuConfig,
    "MigDeviceConfig": _MigDeviceConfig,
}


def decode(parameters: object) -> DeviceConfig:
    """The config that ``parameters`` (decoded JSON of any shape) hold.

    Pure. Raises `InvalidParametersError` with the path of every wrong field (the first five of them) and nothing else.
    """
    if not isinstance(parameters, Mapping):
        raise InvalidParametersError(
            f"parameters are {_shown(parameters)}, expected an object with apiVersion and kind"
        )
    _check_size(parameters)
    model = _model_of(parameters)
    try:
        return _plain(model.model_validate(dict(parameters)))
    except ValidationError as error:
        raise InvalidParametersError(f"{model.__name__[1:]}: {_problems(error)}") from error


def _plain(model: _GpuConfig | _MigDeviceConfig) -> DeviceConfig:
    sharing = model.sharing
    if isinstance(sharing, _GpuSharing):
        interval = Interval(sharing.time_slicing_config.interval) if sharing.time_slicing_config else Interval.DEFAULT
        return GpuConfig(
            sharing=GpuSharing(strategy=Strategy(sharing.strategy), interval=interval, mps=_limits(sharing))
        )
    if isinstance(sharing, _MigSharing):
        return MigDeviceConfig(sharing=MigSharing(strategy=Strategy(sharing.strategy), mps=_limits(sharing)))
    return GpuConfig() if isinstance(model, _GpuConfig) else MigDeviceConfig()


def _limits(sharing: _GpuSharing | _MigSharing) -> MpsLimits | None:
    if sharing.strategy != "MPS":
        return None
    mps = sharing.mps_config or _MpsConfig()
    return MpsLimits(
        default_percentage=mps.default_active_thread_percentage,
        default_memory=mps.default_pinned_device_memory_limit,
        per_device=mps.default_per_device_pinned_memory_limit or {},
    )


def _model_of(parameters: Mapping[Any, Any]) -> type[_GpuConfig] | type[_MigDeviceConfig]:
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if version != API_VERSION:
        raise InvalidParametersError(f"apiVersion: expected {API_VERSION!r}, got {_shown(version)}")
    if isinstance(kind, str) and kind in _KINDS:
        return _KINDS[kind]
    expected = " or ".join(_KINDS)
    if kind == "VfioDeviceConfig":
        raise InvalidParametersError(f"kind: VfioDeviceConfig is not supported by this version; expected {expected}")
    raise InvalidParametersError(f"kind: expected {expected}, got {_shown(kind)}")


def _check_size(parameters: Mapping[Any, Any]) -> None:
    """Bound depth and size without recursion, before a library that recurses sees them."""
    level: list[Any] = [parameters]
    size = 0
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for node in level:
            size += _own_size(node)
            below.extend(node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ())
        if size > MAX_BYTES:
            raise InvalidParametersError(f"parameters are larger than {MAX_BYTES} bytes")
        if not below:
            return
        level = below
    raise InvalidParametersError(f"parameters are nested more than {MAX_DEPTH} levels deep")


def _own_size(node: Any) -> int:
    """About how many characters the node has in JSON, its children apart."""
    if isinstance(node, Mapping):
        return 2 + sum(len(str(key)) + 4 for key in node)
    if isinstance(node, int):
        return 1 + node.bit_length() // 4  # a number may be as long as a text
    return len(node) + 2 if isinstance(node, str | list) else 4


def _problems(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=True)
    shown = [_problem(dict(problem)) for problem in problems[:_MAX_SHOWN_PROBLEMS]]
    more = len(problems) - len(shown)
    return _printable("; ".join([*shown, *([f"and {more} more"] if more else [])]))


def _problem(problem: Mapping[str, Any]) -> str:
    path = _path(problem["loc"])
    match problem["type"]:
        case "extra_forbidden":
            return f"{path}: unknown field"
        case "missing":
            return f"{path}: is required"
        case "literal_error":
            return f"{path}: expected {problem['ctx']['expected']}, got {_shown(problem['input'])}"
        case "value_error":
            return f"{path}: {problem['ctx']['error']}"
        case "model_type" | "dict_type":
            return f"{path}: expected an object, got {_shown(problem['input'])}"
        case _:
            text = str(problem["msg"])
            return f"{path}: {text[:1].lower()}{text[1:]}, got {_shown(problem['input'])}"


def _path(location: tuple[Any, ...]) -> str:
    """``sharing.mpsConfig.defaultActiveThreadPercentage``; keys that people chose are cut to a readable length."""
    steps = (_printable(str(step)) for step in location)
    shown = ".".join(step if len(step) <= 60 else f"{step[:59]}…" for step in steps)
    return shown or "parameters"


def _printable(text: str) -> str:
    """``text`` on one line and without a way to command a terminal; what is printable already stays as it is."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _shown(value: object) -> str:
    """What was seen, short enough for an event; containers are named, not printed."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and value.bit_length() > 128:
        return "a huge number"  # Python refuses to print numbers beyond some thousand digits
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
