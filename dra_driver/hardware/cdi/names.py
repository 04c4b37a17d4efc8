"""Names of this driver's CDI kinds, devices and files.

Only here do a claim's UID, a device's name or a share's id become part of a file name or CDI name. Invalid names are
refused, not rewritten: two rewritten names could be equal. Kubernetes limits UIDs and device names already. Sources:
the CDI specification's grammar, and the ``k8s.<driver>/<class>`` convention of NVIDIA's DRA driver.
"""

import re
from collections.abc import Callable

from dra_driver.core.errors import ClaimError, ConfigurationError
from dra_driver.core.model.ids import ClaimUid
from dra_driver.core.text import quoted

COMMON = "common"
"""The only device of the base document; a container that requests it gets the driver's libraries."""

METADATA = "/var/run/kubernetes.io/dra-device-attributes"
"""Directory of metadata files in containers (KEP-5304)."""

# A Kubernetes UID is an opaque string that the API server fills with a UUID; letters, digits and dashes cover every UID
# seen in the field (mirror pods use bare hashes), and exclude dot and slash, so that no path can be built.
_UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}[A-Za-z0-9])?")
_DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_DRIVER_NAME_LIMIT = 63  # resource.k8s.io: DriverNameMaxLength


class CdiNames:
    """Names for one driver. Immutable. Raises `ConfigurationError` unless ``driver_name`` is a DNS subdomain of at most
    63 characters."""

    __slots__ = ("_claim_file", "_metadata_file", "_temporary", "claim_kind", "device_kind", "driver_name", "vendor")

    def __init__(self, driver_name: str) -> None:
        labels = driver_name.split(".")
        if len(driver_name) > _DRIVER_NAME_LIMIT or not all(_DNS_LABEL.fullmatch(label) for label in labels):
            raise ConfigurationError(
                f"driver name {driver_name!r} cannot be used: expected lower-case letters, digits, '-' and '.' "
                f"(a DNS subdomain, at most {_DRIVER_NAME_LIMIT} characters) such as 'gpu.nvidia.com'"
            )
        self.driver_name = driver_name
        # The prefix makes the vendor at least five characters that start with a letter. That is more than tidy: CDI
        # libraries up to v1.1.0 panic on a vendor or class of one character and take containerd down with them.
        self.vendor = f"k8s.{driver_name}"
        # A dot in the class would raise the documents to CDI 0.6.0, which older runtimes refuse.
        self.device_kind = f"{self.vendor}/device"
        self.claim_kind = f"{self.vendor}/claim"
        vendor = re.escape(self.vendor)
        self._claim_file = re.compile(rf"{vendor}-claim_({_UID.pattern})\.json")
        self._metadata_file = re.compile(rf"({_UID.pattern})_{_DNS_LABEL.pattern}\.json")
        self._temporary = re.compile(rf"\.{vendor}_[0-9a-f]{{8}}\.tmp")

    @property
    def common_id(self) -> str:
        return f"{self.device_kind}={COMMON}"

    @property
    def base_file_name(self) -> str:
        return f"{self.vendor}-device_base.json"

    @property
    def temporary_prefix(self) -> str:
        """Not ``spec.``, the reference library's prefix here: its files must not be removed as stale."""
        return f".{self.vendor}_"

    def claim_device(self, claim_uid: str, device: str, share_id: str | None = None) -> str:
        """``<claim uid>-<device>[-<share id>]``. Raises `ClaimError` unless each part has its Kubernetes form."""
        _check_uid(claim_uid, "claim UID")
        if not _DNS_LABEL.fullmatch(device):
            raise ClaimError(
                f"device name {quoted(device)} of claim {claim_uid} cannot be used in a CDI name: "
                "expected a DNS label such as 'gpu-0'"
            )
        if share_id is None:
            return f"{claim_uid}-{device}"
        _check_uid(share_id, f"share id of device {device!r} in claim {claim_uid}")
        return f"{claim_uid}-{device}-{share_id}"

    def claim_id(self, claim_uid: str, device: str, share_id: str | None = None) -> str:
        """Qualified name of one prepared device, which the kubelet hands to the runtime. Raises `ClaimError`."""
        return f"{self.claim_kind}={self.claim_device(claim_uid, device, share_id)}"

    def claim_file_name(self, claim_uid: str) -> str:
        """File name of a claim's document, without a path separator. Raises `ClaimError` for anything but a UID."""
        _check_uid(claim_uid, "claim UID")
        return f"{self.vendor}-claim_{claim_uid}.json"

    def uid_of(self, file_name: str) -> ClaimUid | None:
        """The claim whose document ``file_name`` is; None for any other file."""
        match = self._claim_file.fullmatch(file_name)
        return ClaimUid(match[1]) if match else None

    def metadata_file_name(self, claim_uid: str, request: str) -> str:
        """``<claim uid>_<request>.json``, in a directory of this driver only. Raises `ClaimError`."""
        _check_uid(claim_uid, "claim UID")
        if not _DNS_LABEL.fullmatch(request):
            raise ClaimError(
                f"request {quoted(request)} of claim {claim_uid} cannot be used in a file name: expected a DNS label"
            )
        return f"{claim_uid}_{request}.json"

    def metadata_uid_of(self, file_name: str) -> ClaimUid | None:
        """The claim whose metadata ``file_name`` has; None for any other file."""
        match = self._metadata_file.fullmatch(file_name)
        return ClaimUid(match[1]) if match else None

    def is_metadata_of(self, claim_uid: str) -> Callable[[str], bool]:
        """Return a predicate of file names, fast for the many names of other claims."""
        prefix = f"{claim_uid}_"
        return lambda name: name.startswith(prefix) and self.metadata_uid_of(name) == claim_uid

    def container_metadata_path(self, claim: str, pod_claim: str | None, request: str) -> str:
        """Path of a metadata file in a container (kubernetes/dynamic-resource-allocation api/metadata/helpers.go).

        ``pod_claim``: the claim's name in the pod, if a template generated the claim.
        """
        place = f"resourceclaimtemplates/{pod_claim}" if pod_claim else f"resourceclaims/{claim}"
        return f"{METADATA}/{place}/{request}/{self.driver_name}-metadata.json"

    def is_temporary(self, file_name: str) -> bool:
        return self._temporary.fullmatch(file_name) is not None


def _check_uid(uid: str, what: str) -> None:
    if not _UID.fullmatch(uid):
        raise ClaimError(
            f"{what} {quoted(uid)} is not a Kubernetes UID (letters, digits and '-', at most 64): "
            "no CDI file is touched for it"
        )
