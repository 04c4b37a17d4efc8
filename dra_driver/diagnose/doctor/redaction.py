"""Removes what may be a secret from texts that other programs wrote: logs, messages of containers, events. Pure.

A text cannot be proven free of secrets; known forms of tokens, passwords and keys are replaced, long texts are cut.
"""

import re
from typing import Final

GONE: Final = "<redacted>"
_NAMES: Final = (
    r"(?:authorization|bearer|passw(?:or)?d|secret|token|api[-_ ]?key|access[-_ ]?key|private[-_ ]?key|credential)s?"
)
_PATTERNS: Final = (
    # PEM blocks, whole or cut off.
    (re.compile(r"-----BEGIN [A-Z ]{0,40}-----.*?(?:-----END [A-Z ]{0,40}-----|\Z)", re.DOTALL), GONE),
    # JSON Web Tokens, as those of service accounts, and what else has three such parts.
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"), GONE),
    # user:password@ in URLs.
    (re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://)[^/\s:@]{1,200}:[^/\s@]{1,200}@", re.IGNORECASE), rf"\1{GONE}@"),
    # "Authorization: Bearer x", "token=x", "password": "x".
    (re.compile(r"(\bbearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1{GONE}"),
    (
        re.compile(
            rf"({_NAMES}\w{{0,20}}[\"']?\s*[:=]\s*)(\"[^\"]{{1,4000}}\"|'[^']{{1,4000}}'|[^\s,;}}\]]{{4,4000}})",
            re.IGNORECASE,
        ),
        rf"\1{GONE}",
    ),
    # Cloud keys by their prefix.
    (re.compile(r"\b(?:AKIA|ASIA|ghp_|gho_|glpat-|xox[bp]-|hf_|nvapi-)[\w-]{12,}"), GONE),
)


def redacted(text: str, longest: int) -> str:
    """The text without what looks like a secret, of at most that many characters."""
    cut = text[: longest * 2]
    for pattern, replacement in _PATTERNS:
        cut = pattern.sub(replacement, cut)
    return cut if len(cut) <= longest else f"{cut[: longest - 1]}…"
