"""A suggestion for claims that use at most half of what they have."""

import pytest

from dra_driver.core.model.usage import EnoughMemory, Profile, fit
from tests.unit.node.usage.claims import GIB

PROFILES = [Profile(name="1g.10gb", memory_bytes=10 * GIB), Profile(name="3g.40gb", memory_bytes=40 * GIB)]


@pytest.mark.parametrize(
    ("peak", "held", "expected"),
    [
        (5 * GIB, 80 * GIB, EnoughMemory(share_bytes=6 * GIB, profile="1g.10gb")),
        (9 * GIB, 80 * GIB, EnoughMemory(share_bytes=11 * GIB, profile="3g.40gb")),
        (1, 80 * GIB, EnoughMemory(share_bytes=GIB, profile="1g.10gb")),
        (60 * GIB, 80 * GIB, None),
        (5 * GIB, 10 * GIB, None),
        (3 * GIB, 10 * GIB, EnoughMemory(share_bytes=4 * GIB)),
        (0, 80 * GIB, None),
        (None, 80 * GIB, None),
        (5 * GIB, None, None),
    ],
)
def test_what_would_be_enough(peak: int | None, held: int | None, expected: EnoughMemory | None) -> None:
    """With a fifth more than the peak; never what the claim has already."""
    assert fit(peak, held, PROFILES) == expected
