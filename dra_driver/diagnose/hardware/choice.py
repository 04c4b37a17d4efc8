"""Which GPU the checks may use, and which checks are skipped and why. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError
from dra_driver.diagnose.hardware.judging import survey_gpus
from dra_driver.diagnose.hardware.task import ChosenGpu
from dra_driver.diagnose.hardware.values import Facts, HardwareCheck

OWNER_FLAG = "--i-own-this-gpu"


class Consent(Struct, frozen=True, kw_only=True):
    """What the user asked for. ``gpu`` is an NVML index or a UUID, "" for any."""

    owner: bool = False
    gpu: str = ""


class GpuChoice(Struct, frozen=True, kw_only=True):
    """The GPU for checks that use one, or the reason for which there is none."""

    gpu: ChosenGpu | None = None
    reason: str = ""


def choose(survey: Facts, consent: Consent) -> GpuChoice:
    """The GPU that was named, else the first free one.

    Raises ConfigurationError when the named GPU does not exist, and when the owner's consent does not say for which of
    several GPUs.
    """
    found = survey_gpus(survey)
    if consent.gpu:
        found = [gpu for gpu in found if consent.gpu in {str(gpu["index"]), _value(gpu, "nvmlDeviceGetUUID")}]
        if not found and survey.get("gpus"):
            raise ConfigurationError(
                f"--gpu {consent.gpu[:80]}: no such GPU; name an index from 0 to {len(survey['gpus']) - 1} or a UUID"
            )
    elif consent.owner and len(found) > 1:
        raise ConfigurationError(
            f"{OWNER_FLAG}: this machine has {len(found)} GPUs; name the one that may be changed with --gpu INDEX"
        )
    reasons = {gpu["index"]: busy(gpu, survey) for gpu in found}
    for gpu in found:
        if consent.owner or not reasons[gpu["index"]]:
            return GpuChoice(gpu=_chosen(gpu))
    texts = "; ".join(f"GPU {index} {reason}" for index, reason in reasons.items())
    return GpuChoice(reason=f"no free GPU: {texts or 'none answers'}")


def busy(gpu: Mapping[str, Any], survey: Facts) -> str:
    """Why the GPU is not free, as the end of a sentence; "" when it is. Unknown counts as busy."""
    processes = gpu["processes"]
    if "value" not in processes["Compute"]:
        return f"has processes that NVML does not tell (code {processes['Compute'].get('code')})"
    listed = [one for answer in processes.values() for one in answer.get("value", ())]
    if listed:
        return f"has {len(listed)} processes: {_named(listed)}"
    opened = survey.get("openers", {"complete": False, "processes": []})
    minor = _value(gpu, "nvmlDeviceGetMinorNumber")
    computing = [one for one in opened["processes"] if minor in one["minors"]]
    if computing:
        return f"is open in {len(computing)} processes: {_named(computing)}"
    if not opened["complete"]:
        return "may have processes, as this process does not see all of the node"
    claims = survey.get("claims", {})
    if "error" in claims:
        return f"may have claims: {claims['error']}"
    held = claims.get("held", {}).get(_value(gpu, "nvmlDeviceGetUUID"), 0)
    if held:
        return f"has {held} devices of claims prepared"
    mode = _value(gpu, "nvmlDeviceGetMigMode")
    return "is in MIG mode" if mode and mode[0] else ""


def _named(processes: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(f"{one['name'] or 'process'} ({one['pid']})" for one in processes[:3]))


def skip_reason(check: HardwareCheck, survey: Facts, consent: Consent, choice: GpuChoice) -> str:
    """Why the check does not run; "" when it does."""
    if not survey.get("gpus"):
        return f"without a usable NVIDIA GPU it stays open whether {check.expected}"
    if "owner" in check.needs and not consent.owner:
        return f"it changes MIG mode and instances: allow it with {OWNER_FLAG}"
    if "root" in check.needs and survey["machine"]["uid"] != 0:
        return "it needs root"
    needs_gpu = check.needs & {"free GPU", "owner"}
    if needs_gpu and choice.gpu is None:
        return f"{choice.reason}; use one all the same with {OWNER_FLAG}"
    if "owner" in check.needs and choice.gpu is not None and not choice.gpu.has_mig:
        return f"GPU {choice.gpu.index} has no MIG"
    return ""


def _chosen(gpu: Mapping[str, Any]) -> ChosenGpu:
    return ChosenGpu(
        index=gpu["index"],
        uuid=str(_value(gpu, "nvmlDeviceGetUUID")),
        minor=int(_value(gpu, "nvmlDeviceGetMinorNumber")),
        has_mig=_value(gpu, "nvmlDeviceGetMigMode") is not None,
    )


def _value(gpu: Mapping[str, Any], name: str) -> Any:
    return gpu["answers"][name].get("value")
