"""Count sentences that plain English would write differently, by pattern and file.

`check_words.py` compares the counts with scripts/plain.toml, where each file has the number of matches that it may
have. The numbers only fall: ``python scripts/plain.py --update`` writes lower ones, and never a higher one.
``python scripts/plain.py FILE...`` prints each match with its line.

Patterns apply to docstrings, comments and strings of Python, and to Markdown, chart and manifest files as a whole. A
line with ``# plain: reason`` is exempt.
"""

import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIMITS = ROOT / "scripts/plain.toml"
EXEMPT = "# plain: "
LONGEST = 30
"""Words of a sentence above which the checker warns."""
_FLAGS = re.IGNORECASE | re.MULTILINE


class Pattern(NamedTuple):
    """A pattern, the finding, and where it applies: all text, ``code`` (whole Python lines) or ``md`` (Markdown)."""

    regex: re.Pattern[str]
    finds: str
    applies: str = ""


def _pattern(regex: str, finds: str, applies: str = "") -> Pattern:
    return Pattern(re.compile(regex, _FLAGS), finds, applies)


PATTERNS = (
    _pattern(
        r'^\s*r?"""(What|Which|Who|Whose|Why|How|Where|When|From|Of|Into|Whether)\b',
        "a docstring that opens with a clause",
        "code",
    ),
    _pattern(r"^#+ (What|Where|Who|Which|How|When)\b", "a heading that is a clause", "md"),
    _pattern(r"\btold\b|\btells?\b(?! apart)|\b(is|are|was|were) said\b", "tell or say for report, record, log"),
    _pattern(r"\bwhat (is|was|are|were|has|have|had|can|cannot|could|it|they|the|a|an|each)\b", "a clause as a noun"),
    _pattern(r"\b(those|the ones?) (that|which|who|whose|of)\b|\bthe others?\b|\bsomething else\b", "a missing noun"),
    _pattern(
        r"\b(is|are|was|were|be|been) (seen|asked|known|noted|looked|worked|waited|listened|spoken|meant)\b",
        "a passive without an agent",
    ),
    _pattern(r"\bgiv(e|es|en|ing)\b.{0,30}\b(up|back)\b|\blet(s|ting)? .{0,12}go\b", "give up, give back, let go"),
    _pattern(r"\b(believ(e|es|ed)|accus(e|es|ed)|obey(s|ed)?|forgets?|forgotten|hears?|mind)\b", "a human verb"),
    _pattern(r"\b(ill|sick)\b|\bwell again\b|\bheals?\b", "illness"),
    _pattern(r"\b(anew|meanwhile|all the same|for ever|for good|at rest|as ever|by itself)\b", "a literal translation"),
    _pattern(r"\b(is|are|was|were) (over|gone|there)\b|\b(goes|go|went) on\b", "is over, is gone, goes on"),
    _pattern(r"\b(is|are|was|were) no (?!longer\b|more\b)\w+", "is no X: is not an X"),
    _pattern(
        r"\b(no|not|never|nothing|nor|neither|cannot)\b(?! None)[^.;\n\"]{1,50}"
        r"\b(but|unless|without|never|nothing|neither)\b",
        "a double negation",
    ),
    _pattern(r"\bas far as\b|\bso far as\b|\bnot known\b", "a hedge: name the condition"),
    _pattern(r"\b(is|are|was|were) to (be|leave|hold|follow|hear|go)\b|\b(has|have) to be\b", "is to be, has to be"),
    _pattern(
        r"\b(a|one|the|each|every|last|first|next|two) looks?\b|\bturn of\b|\bchores?\b|\bbell\b", "a private noun"
    ),
    _pattern(
        r"^\s*(async )?def test_(what|who|nothing|those|it|the_one)_|^\s*(async )?def test_\w{66,}\(",
        "a test name that is a clause, or over 70 characters",
        "code",
    ),
)


class Match(NamedTuple):
    """A match of pattern ``number`` (from 1) in a line (from 1)."""

    line: int
    number: int
    text: str


def checked(name: str) -> bool:
    """Return whether the patterns apply to the file."""
    path = Path(name)
    if (
        "_pb" in path.parts
        or path.parts[:2] == ("tests", "golden")
        or name in ("scripts/plain.py", "tests/unit/test_plain.py")
    ):
        return False
    if path.suffix in (".py", ".md"):
        return True
    return path.parts[0] in ("deploy", "examples", "crds") and path.suffix in (".yaml", ".tpl", ".txt")


def matches(name: str, text: str) -> list[Match]:
    """Return the matches in the text of a file, by line."""
    lines = text.splitlines()
    found = set()
    for part, applies in _parts(name, text):
        for number, pattern in enumerate(PATTERNS, 1):
            if pattern.applies == applies or (not pattern.applies and applies != "code"):
                for hit in pattern.regex.finditer(part):
                    start = hit.start() + len(hit.group()) - len(hit.group().lstrip())
                    line = 1 + part.count("\n", 0, start)
                    if EXEMPT not in lines[line - 1]:
                        found.add((line, number, start, lines[line - 1].strip()))
    return [Match(line, number, shown) for line, number, _, shown in sorted(found)]


def _parts(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield text and kind of each part to check, with the lines of the file."""
    if not name.endswith(".py"):
        yield text, "md" if name.endswith(".md") else "text"
        return
    yield text, "code"
    prose, rows = [], 1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            prose.append("\n" * (token.start[0] - rows) + "\0" + token.string)
            rows = token.end[0]
    yield "".join(prose), "text"


def long_sentences(text: str) -> int:
    """Return how many sentences of a Markdown text have more than `LONGEST` words. Tables and code are not counted."""
    prose = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    prose = re.sub(r"^(    |\||#).*$", "\n", prose, flags=re.MULTILINE)
    sentences = re.split(r"(?<=[.!?])\s+|\n\s*\n|\n\s*[-*] ", prose)
    return sum(len(each.split()) > LONGEST for each in sentences)


def breaches(files: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each file with more matches than it may have, or with fewer: then the number must fall."""
    allowed: dict[str, int] = tomllib.loads(LIMITS.read_text())["allowed"] if LIMITS.exists() else {}
    for name in sorted(allowed.keys() | {name for name in files if checked(name)}):
        found = matches(name, files[name]) if name in files else []
        limit = allowed.get(name, 0)
        if len(found) > limit:
            for line, number, text in found:
                yield f"{name}:{line}: {PATTERNS[number - 1].finds}: {text[:90]}"
            yield f"{name}: {len(found)} sentences for plain English, at most {limit}: rewrite the newest of them"
        elif len(found) < limit:
            yield f"{name}: {len(found)} matches, {limit} allowed: run `python scripts/plain.py --update`"


def update(files: Mapping[str, str], first: bool) -> None:
    """Write the numbers of today where they are lower; ``first``: where there is none, too."""
    allowed: dict[str, int] = tomllib.loads(LIMITS.read_text())["allowed"] if LIMITS.exists() else {}
    counts = {name: len(matches(name, text)) for name, text in sorted(files.items()) if checked(name)}
    kept = {name: n if first else min(n, allowed.get(name, 0)) for name, n in counts.items()}
    lines = [f'"{name}" = {count}\n' for name, count in kept.items() if count]
    head = "# Matches of scripts/plain.py that a file may have. They only fall: `python scripts/plain.py --update`.\n"
    LIMITS.write_text(head + "[allowed]\n" + "".join(lines))


def main(arguments: list[str], files: Mapping[str, str]) -> int:
    if arguments[:1] == ["--update"]:
        update(files, first=not LIMITS.exists())
        return 0
    total = [0] * len(PATTERNS)
    for name in sorted(files):
        if checked(name) and (not arguments or any(name.startswith(each) for each in arguments)):
            for line, number, text in matches(name, files[name]):
                total[number - 1] += 1
                if arguments:
                    print(f"{name}:{line}: {number} ({PATTERNS[number - 1].finds}): {text[:140]}")
    print(f"{sum(total)} matches: " + " ".join(f"{n}:{count}" for n, count in enumerate(total, 1)))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "scripts"))
    from check_words import tracked

    sys.exit(main(sys.argv[1:], tracked()))
