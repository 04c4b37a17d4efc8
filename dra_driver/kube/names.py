"""Which strings Kubernetes accepts as names.

Pure. Source: RFC 1123 as kubernetes/kubernetes staging/src/k8s.io/apimachinery/pkg/util/validation reads it, and the
pool name rule of pkg/apis/resource/validation/validation.go.
"""

import re

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MAX_NAME = 253


def is_label(text: str) -> bool:
    """DNS label: at most 63 of a-z, 0-9 and inner dashes."""
    return _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """DNS subdomain: labels with dots between, at most 253 characters."""
    return len(text) <= MAX_NAME and _SUBDOMAIN.fullmatch(text) is not None


def is_pool_name(text: str) -> bool:
    """One or more DNS subdomains with slashes between, at most 253 characters."""
    return len(text) <= MAX_NAME and all(is_subdomain(part) for part in text.split("/"))
