"""What this project asks of GPU hardware: the one interface that real and simulated GPUs share.

Owns the contract. Refuses to know NVML (``nvml.py``), model files (``simulated.py``) and how often anybody looks
(``inventory.py``).
"""

from typing import Protocol

from dra_driver.model.gpu import Snapshot


class Backend(Protocol):
    """A node's GPUs. All methods may be called from any thread; one instance serialises its own hardware calls."""

    def open(self) -> None:
        """Make ``snapshot`` possible. Calling it again while open does nothing.

        Raises DriverUnavailableError while the driver or its library cannot be used (call again later), and
        ConfigurationError when what a person wrote can never work.
        """
        ...

    def snapshot(self) -> Snapshot:
        """The whole inventory as it is now, sorted by minor; opens the backend when it is not open.

        A GPU that does not answer is in ``left_out`` with a reason and the others are reported. A property that the
        hardware or driver does not offer is None. Raises DriverUnavailableError when nothing can be said about any GPU;
        the next call starts from a fresh connection.
        """
        ...

    def close(self) -> None:
        """Let go of the driver. Idempotent; ``open`` works again afterwards."""
        ...
