"""Reading large clusters into little memory: equal parts of objects become one object.

A node with eight GPUs and every MIG placement publishes some 200 devices, which say the same things over and over:
``{"string": "Hopper"}`` in each. Read plainly, a thousand such nodes take more than 2 GiB. Owns which parts are worth
remembering. What was read this way must not be changed: a change would show in many places.
"""

from collections.abc import Sequence
from typing import Any, Final

# Small objects repeat; of large ones only those repeat that hold amounts. Others would be remembered in vain.
_SMALL: Final = 2
_MOST_PARTS: Final = 500_000


class Compactor:
    """For ``json.loads(text, object_pairs_hook=Compactor().join)``; one for all texts of a cluster. Not thread-safe."""

    def __init__(self) -> None:
        self._parts: dict[tuple[Any, ...], dict[str, Any]] = {}

    def join(self, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        """The object with these fields, perhaps one that was there before."""
        if not pairs:
            return {}
        first = pairs[0][1]
        if type(first) is dict:
            if "value" not in first:
                return dict(pairs)
            # Parts are remembered for good, so their identity stands for their content.
            key = tuple([(name, id(value)) for name, value in pairs])
        elif len(pairs) <= _SMALL and type(first) is str:
            key = tuple([(name, id(value) if type(value) is dict else value) for name, value in pairs])
        else:
            return dict(pairs)
        try:
            known = self._parts.get(key)
        except TypeError:  # a list inside
            return dict(pairs)
        if known is None:
            known = dict(pairs)
            if len(self._parts) < _MOST_PARTS:
                self._parts[key] = known
        return known
