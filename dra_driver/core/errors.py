"""All errors that this project raises on purpose.

    DraError
    ├── ConfigurationError          the author of the setting or object can fix it
    │   ├── InvalidParametersError  opaque claim or class parameters are wrong (names the field's path)
    │   ├── CelSyntaxError          an expression cannot be used, whatever the device (names line and column)
    │   └── CelEvaluationError      an expression failed on one device; ends the pod's scheduling attempt on all nodes
    ├── ClaimError                  this claim cannot be prepared as it stands
    │   ├── ClaimReplacedError      the claim was deleted, or its name belongs to another object (UID differs)
    │   ├── ClaimNotAllocatedError  the scheduler has not allocated it
    │   ├── AllocationError         its requests cannot be evaluated; ends the scheduling attempt on all nodes
    │   │   └── SelectorBudgetError its selectors cost too much for this answer, which is unknown
    │   ├── UnknownDeviceError      an allocated device does not exist on this node
    │   └── DeviceInUseError        the device is prepared for another claim
    ├── InvalidSpecError            a CDI document breaks the specification; it is not written or used
    ├── HardwareError               a GPU or its driver failed
    │   ├── DriverUnavailableError  the NVIDIA driver or its library cannot be used
    │   │   └── DetachedError       this process closed the NVIDIA driver on purpose, until it reattaches
    │   ├── DeviceNodeError         a device node on the host is not what containers need
    │   ├── DeviceLostError         one GPU does not answer, or a MIG device no longer exists
    │   ├── MigUnsupportedError     the GPU has no MIG, or not this profile or placement
    │   ├── GpuBusyError            a process has the GPU or the instance open, so it cannot be changed now
    │   ├── ResetRequiredError      the change needs a GPU reset, which an administrator must decide
    │   ├── NoRoomError             the placement, or engines that the profile needs, are taken
    │   ├── FabricNotReadyError     the GPU is not registered in the NVLink fabric yet; temporary
    │   ├── NotPermittedError       this process lacks permission to change the GPU
    │   ├── CommandError            a program of the driver (nvidia-smi) is missing, failed or did not end in time
    │   └── MpsUnavailableError     the MPS daemon of a GPU is not ready
    ├── RetryableError              a temporary condition; the same call may succeed later
    │   └── StorageError            a file or the journal cannot be written or read (disk full, read-only)
    └── KubernetesApiError          the API server refused or could not be reached
        ├── ApiUnreachableError     no answer: connection refused, reset, timed out, TLS
        ├── AnswerTooLargeError     exceeds the size limit: request fewer objects at a time
        ├── UnauthorizedError       401: credentials are wrong or expired
        ├── ForbiddenError          403: RBAC or an admission policy refuses
        ├── NotFoundError           404
        ├── AlreadyExistsError      409 with reason AlreadyExists
        ├── ConflictError           409 otherwise: another client wrote first
        ├── GoneError               410: the watch's resourceVersion is too old
        ├── InvalidObjectError      400 and 422: the object breaks a validation rule
        └── ServerBusyError         429 and 5xx

A message names the failure and the object, the actual and the expected value, and the next step, because
``kubectl describe pod`` shows it. Exceptions of libraries are translated where they are
first caught (``raise ... from``).
"""

from typing import Any


class DraError(Exception):
    """Base of all errors raised on purpose; ``str(error)`` is a message for users.

    ``reason`` is a stable CamelCase code: the class name without "Error", unless the call gives its own. ``fields``
    names the objects and values in the message. Programs and tests read these two instead of the message.
    """

    def __init__(self, message: str = "", *, reason: str = "", **fields: object) -> None:
        super().__init__(message)
        self.reason = reason or type(self).__name__.strip("_").removesuffix("Error")
        self.fields = fields


class ConfigurationError(DraError):
    """Wrong flag, environment, file or object field. At start a process ends with exit status 2 on it."""


class InvalidParametersError(ConfigurationError):
    """Opaque parameters of a claim or class are wrong; the message names the path of each wrong field."""


class CelSyntaxError(ConfigurationError):
    """A CEL expression does not compile. ``line`` and ``column`` count from 1, 0 for an unknown place; ``caret`` is the
    line of text with a caret below it, ``problem`` the message without place and caret."""

    def __init__(self, message: str, *, line: int = 0, column: int = 0, caret: str = "", problem: str = "") -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.caret = caret
        self.problem = problem or message


class CelEvaluationError(ConfigurationError):
    """A CEL expression failed on a device or gave no bool. The scheduler then fails the pod's attempt on all nodes."""


class ClaimError(DraError):
    """The claim cannot be prepared as it stands; repeating the call does not help until the claim changes."""


class ClaimReplacedError(ClaimError):
    """The claim was deleted, or an object of the same name with another UID replaced it."""


class ClaimNotAllocatedError(ClaimError):
    """``status.allocation`` is missing or has no result of this driver."""


class AllocationError(ClaimError):
    """A claim's requests cannot be evaluated: missing class, too many devices, a pool that is being updated."""


class SelectorBudgetError(AllocationError):
    """Earlier selectors used up the time limit, so that the result of this selector is unknown."""


class UnknownDeviceError(ClaimError):
    """An allocated device is not in this node's inventory, or the pool is another node's."""


class DeviceInUseError(ClaimError):
    """An allocated device is already prepared for another claim (which the message names)."""


class InvalidSpecError(DraError):
    """A CDI document breaks a rule; the message names the file, the device and the field. Nothing was written."""


class HardwareError(DraError):
    """A GPU or its driver failed; other GPUs are not affected. ``left_over``: the failed operation could not remove
    its partial result, so the caller must keep the record of it."""

    left_over: bool = False


class DriverUnavailableError(HardwareError):
    """The NVIDIA driver library is missing, not loadable or does not match the kernel module; retried with backoff."""


class DetachedError(DriverUnavailableError):
    """This process detached from all GPUs for ``reason``, such as a driver upgrade; ``reattach`` ends that."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the driver is detached from the GPUs of this node: {reason}. Retry when the request has ended; "
            "the node process then reattaches automatically",
            because=reason,
        )


class DeviceNodeError(HardwareError):
    """The path of a device node on the host has another file, which this driver must not replace."""


class DeviceLostError(HardwareError):
    """One GPU does not answer, or a MIG device of a claim no longer exists."""


class MigUnsupportedError(HardwareError):
    """The GPU has no MIG mode, or not this profile or placement."""


class GpuBusyError(HardwareError):
    """A client has the GPU or the instance open; retry after it has closed it."""


class ResetRequiredError(HardwareError):
    """The change needs a GPU reset, which ends everything that runs there: an administrator must decide it."""


class NoRoomError(HardwareError):
    """A placement, or engines or slices that a profile needs, are taken."""


class FabricNotReadyError(HardwareError):
    """Fabric Manager has not registered the GPU yet, so CUDA cannot start on it; retry after it has."""


class NotPermittedError(HardwareError):
    """The process lacks permission to change the GPU."""


class CommandError(HardwareError):
    """A program of the driver is missing, failed, or did not end in time; the message quotes its output."""


class MpsUnavailableError(HardwareError):
    """The MPS daemon for a GPU is not ready; the message names the MPS host and quotes its last status."""


class RetryableError(DraError):
    """A temporary condition; the same call may succeed later."""


class StorageError(RetryableError):
    """A file could not be written or read: disk full, read-only file system, permission."""


class KubernetesApiError(DraError):
    """The API server answered with an error. ``status`` is the HTTP status, 0 without an answer; ``reason``
    (``Expired``) and ``details`` (name, kind, causes) come from the Status object, if there is one."""

    def __init__(
        self, message: str, *, status: int = 0, reason: str = "", details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.details = details


class ApiUnreachableError(KubernetesApiError):
    """No answer. Callers keep their state and retry with backoff."""


class AnswerTooLargeError(KubernetesApiError):
    """An answer exceeds the size limit. Request less at a time."""


class UnauthorizedError(KubernetesApiError):
    """401. Retry once with new credentials, because tokens rotate; a second 401 is a configuration problem."""


class ForbiddenError(KubernetesApiError):
    """403. Retry slowly: an administrator must change RBAC or a policy."""


class NotFoundError(KubernetesApiError):
    """404. The object does not exist."""


class AlreadyExistsError(KubernetesApiError):
    """409 AlreadyExists."""


class ConflictError(KubernetesApiError):
    """409 Conflict. Read the object again and decide again."""


class GoneError(KubernetesApiError):
    """410. List again, then watch from the new resourceVersion."""


class InvalidObjectError(KubernetesApiError):
    """400 or 422. Do not retry with the same object."""


class ServerBusyError(KubernetesApiError):
    """429 or 5xx. Retried with backoff; ``retry_after_s`` is the pause that the server requested, else 0."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message, status=status, reason=reason)
        self.retry_after_s = retry_after_s
