"""Functions of device selectors that not every supported version of Kubernetes has.

The other functions of the table in `signatures` are in the environments of 1.34 and newer: recorded answers of 1.34.9,
1.35.6 and 1.36.2 differ in these alone (tests/golden/versions).
"""

from types import MappingProxyType
from typing import Final

FUNCTION_SINCE: Final = MappingProxyType({"includes": "1.36"})
"""Function -> the first version that has it (IntroducedVersion, k8s.io/dynamic-resource-allocation cel/compile.go)."""

FUNCTION_GATE: Final = MappingProxyType({"includes": "DRAListTypeAttributes"})
"""Function -> the feature gate without which the API server refuses it in new objects. It is off by default in 1.36."""

LACKS_NONE: Final[frozenset[str]] = frozenset()
"""What a version lacks that has every function."""

LACKS_BEFORE_1_36: Final = frozenset({"includes"})
"""What 1.34 and 1.35 lack."""
