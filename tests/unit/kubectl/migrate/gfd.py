"""The labels that GPU Feature Discovery gives a node with GPUs of one model, written down a second time for tests.

Rules: NVIDIA/k8s-device-plugin internal/lm (resource.go, mig-strategy.go, nvml.go), v0.20.
"""

import re
from collections.abc import Mapping, Sequence

from dra_driver.hardware.gpu.catalog import CatalogProfile, GpuModel

DRIVER, CUDA = "580.65.06", "13.0"


def labels(model: GpuModel, *, sharing: str = "none", renamed: bool = False) -> dict[str, str]:
    """A node whose GPUs are whole, or shared by ``time-slicing`` or ``mps``."""
    shared = sharing != "none"
    found = _versions() | _of_gpu("nvidia.com/gpu", model, suffix="-SHARED" if shared and not renamed else "")
    found["nvidia.com/gpu.sharing-strategy"] = sharing
    return found


def single(model: GpuModel, profile: CatalogProfile) -> dict[str, str]:
    """A node under the MIG strategy ``single``: labels of the partition take the place of those of the GPU."""
    of_gpu = _of_gpu("nvidia.com/gpu", model, suffix="")
    of_gpu.pop("nvidia.com/gpu.memory", None)  # always that of the partition, which the catalog does not always know
    return _versions() | of_gpu | _of_partition("nvidia.com/gpu", model, profile)


def mixed(model: GpuModel, profile: CatalogProfile) -> dict[str, str]:
    """A node under the MIG strategy ``mixed``: labels of the partition beside those of the GPU."""
    found = _versions() | _of_gpu("nvidia.com/gpu", model, suffix="")
    return found | _of_partition(f"nvidia.com/mig-{profile.name.replace('+', '.')}", model, profile)


def matches(found: Mapping[str, str], key: str, operator: str, values: Sequence[str]) -> bool:
    """A node selector's requirement (k8s.io/apimachinery pkg/labels, Requirement.Matches)."""
    value = found.get(key)
    if operator in {"Exists", "DoesNotExist"}:
        return (value is not None) is (operator == "Exists")
    if operator in {"In", "NotIn"}:
        return (value is not None and value in values) is (operator == "In")
    if value is None or not re.fullmatch(r"[-+]?\d+", value):
        return False
    return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])


def _versions() -> dict[str, str]:
    major, minor, revision = DRIVER.split(".")
    cuda_major, cuda_minor = CUDA.split(".")
    return {
        "nvidia.com/cuda.driver.major": major,
        "nvidia.com/cuda.driver.minor": minor,
        "nvidia.com/cuda.driver.rev": revision,
        "nvidia.com/cuda.runtime.major": cuda_major,
        "nvidia.com/cuda.runtime.minor": cuda_minor,
        "nvidia.com/cuda.driver-version.major": major,
        "nvidia.com/cuda.driver-version.minor": minor,
        "nvidia.com/cuda.driver-version.revision": revision,
        "nvidia.com/cuda.driver-version.full": DRIVER,
        "nvidia.com/cuda.runtime-version.major": cuda_major,
        "nvidia.com/cuda.runtime-version.minor": cuda_minor,
        "nvidia.com/cuda.runtime-version.full": CUDA,
    }


def _of_gpu(resource: str, model: GpuModel, suffix: str) -> dict[str, str]:
    major, minor = model.cuda_compute_capability
    found = {
        f"{resource}.product": _label(model.product_name) + suffix,
        f"{resource}.family": _family(major, minor),
        f"{resource}.compute.major": str(major),
        f"{resource}.compute.minor": str(minor),
        f"{resource}.sharing-strategy": "none",
    }
    if model.memory_mib:
        found[f"{resource}.memory"] = str(model.memory_mib)
    return found


def _of_partition(resource: str, model: GpuModel, profile: CatalogProfile) -> dict[str, str]:
    engines = profile.engines
    numbers = {
        "memory": profile.memory_mib,
        "multiprocessors": profile.multiprocessors,
        "slices.gi": profile.compute_slices,
        "slices.ci": profile.compute_slices,
        "engines.copy": engines.copy,
        "engines.decoder": engines.decoder,
        "engines.encoder": engines.encoder,
        "engines.jpeg": engines.jpeg,
        "engines.ofa": engines.ofa,
    }
    name = f"{_label(model.product_name)}-MIG-{profile.name.replace('+', '.')}"
    found = {f"{resource}.product": name, f"{resource}.sharing-strategy": "none"}
    return found | {f"{resource}.{key}": str(value) for key, value in numbers.items() if value is not None}


def _label(name: str) -> str:
    """Characters that a label cannot have go; words are joined by a hyphen."""
    kept = "".join(each for each in name if each.isascii() and (each.isalnum() or each in "-_. "))
    return "-".join(kept.split())


def _family(major: int, minor: int) -> str:
    if major == 7:
        return "volta" if minor < 5 else "turing"
    if major == 8:
        return "ampere" if minor < 9 else "ada-lovelace"
    return {9: "hopper", 10: "blackwell", 12: "blackwell"}[major]
