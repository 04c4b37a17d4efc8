"""Time during which something was seen to be so. Pure.

Between two looks nothing is known, so a gap counts as at most `LONGEST_STEP_S`, and a clock that goes back counts as
nothing. Neither a machine that was suspended nor a clock that jumps ends a grace time.
"""

from datetime import datetime, timedelta
from typing import Final

LONGEST_STEP_S: Final = 30.0


def step_s(elapsed_s: float) -> float:
    """How much of the time since the last look counts."""
    return min(max(elapsed_s, 0.0), LONGEST_STEP_S)


def began(now: datetime, observed_s: float) -> datetime:
    """When it began, in whole seconds."""
    return (now - timedelta(seconds=observed_s)).replace(microsecond=0)
