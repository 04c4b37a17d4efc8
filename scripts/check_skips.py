"""Prints why tests were skipped, and fails on a reason that tests/skips.toml does not list, or lists for fewer tests.

Reads a JUnit report of pytest (``--junitxml``). Exit status 1 also when the report has fewer tests than ``least`` of
that file: one that is renamed or marked slow must not be left out unnoticed. Used by ``.ci/run`` only, because other
machines lack other programs.

With ``e2e`` the report is that of tests/e2e on a cluster: reasons are compared with the list of that name, without
counts.

usage: check_skips.py REPORT [e2e]
"""

import re
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

LIST = Path(__file__).resolve().parent.parent / "tests/skips.toml"


def main(argv: list[str]) -> int:
    if len(argv) not in (2, 3) or argv[2:] not in ([], ["e2e"]):
        print(__doc__, file=sys.stderr)
        return 2
    total, reasons = read_report(Path(argv[1]))
    document = tomllib.loads(LIST.read_text())
    listed, least = document["e2e" if argv[2:] else "skips"], 1 if argv[2:] else document["least"]
    limits = {entry["reason"]: int(entry.get("most", total)) for entry in listed}
    print(f"Skips: {reasons.total()} of {total} tests" + (":" if reasons else "."))
    for reason, count in reasons.most_common():
        print(f"  {count:4} {reason}")
    found = list(breaches(total, reasons, limits, least))
    for breach in found:
        print(breach)
    return 1 if found else 0


def read_report(path: Path) -> tuple[int, Counter[str]]:
    """How many tests the report has, and how many were skipped (or failed as expected) by reason."""
    cases = list(ET.parse(path).iter("testcase"))  # noqa: S314 - the report of our own test run
    return len(cases), Counter(skip.get("message", "") for case in cases for skip in case.iter("skipped"))


def breaches(total: int, reasons: Mapping[str, int], limits: Mapping[str, int], least: int = 1) -> Iterator[str]:
    """A sentence for each reason that is not listed or counts more tests than listed, and for too few tests.

    ``limits`` has the most tests by regular expression, which is compared with the whole reason.
    """
    if total < least:
        yield f"The report has {total} tests: `make test` has {least} or more (`least` of tests/skips.toml)."
    for reason, count in reasons.items():
        most = next((most for pattern, most in limits.items() if re.fullmatch(pattern, reason)), None)
        if most is None:
            yield f"{count} tests were skipped for a reason that tests/skips.toml does not list: {reason}"
        elif count > most:
            yield f"{count} tests were skipped, tests/skips.toml allows {most}: {reason}"


if __name__ == "__main__":
    sys.exit(main(sys.argv))
