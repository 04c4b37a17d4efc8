"""Limits of the API server on ResourceSlices; a value over one makes the whole slice invalid. Source:
kubernetes/kubernetes pkg/apis/resource/validation/validation.go and staging/src/k8s.io/api/resource/v1/types.go (1.35
to 1.37; ``_1_34``: 1.34, where it differs)."""

import re

from dra_driver.kube.shapes import is_subdomain

# 128 plain devices would fit, but a single taint, counter or list attribute in the slice lowers that to 64: a health
# event must not make a slice invalid.
MAX_DEVICES = 64
MAX_COUNTER_SETS = 8
MAX_COUNTERS = 32  # in a counter set; in 1.34 in all counter sets of a slice together
MAX_CONSUMED_COUNTERS_1_34 = 1024  # of all devices of a slice together
MAX_ATTRIBUTES_AND_CAPACITIES = 32
MAX_TAINTS, MAX_TAINTS_1_34 = 16, 4
MAX_STRING_BYTES = 64

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_MAX_DOMAIN = 63
_INT64 = range(-(2**63), 2**63)


def is_attribute_name(name: str) -> bool:
    """A C identifier of at most 32 characters; before it, optionally, a DNS subdomain of at most 63 and a slash."""
    domain, slash, identifier = name.rpartition("/")
    if slash and (len(domain) > _MAX_DOMAIN or not is_subdomain(domain)):
        return False
    return _IDENTIFIER.fullmatch(identifier) is not None


def is_attribute_value(value: object) -> bool:
    """A boolean, an integer of 64 bits, or a string of at most 64 bytes."""
    if isinstance(value, str):
        return fits(value)
    return isinstance(value, bool) or (isinstance(value, int) and value in _INT64)


def fits(text: str) -> bool:
    """Return whether a text is short enough for a string attribute, and valid UTF-8."""
    try:
        return len(text.encode()) <= MAX_STRING_BYTES
    except UnicodeEncodeError:
        return False


def is_taint(key: str, value: str) -> bool:
    """Return whether a taint's key and value have the form of a label's."""
    domain, slash, name = key.rpartition("/")
    if slash and not is_subdomain(domain):
        return False
    return _LABEL_NAME.fullmatch(name) is not None and (not value or _LABEL_NAME.fullmatch(value) is not None)
