"""Fuzz the CEL engine with damaged golden expressions: ``python tests/fuzz/cel_fuzz.py --count 200000 --seed 1``.

Findings: an undocumented exception, a result that is not a bool, fast and metered evaluation that differ, or a slow
expression. The same seed gives the same expressions. Exit status 1 on a finding."""

import argparse
import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError
from dra_driver.scheduler.cel import MAX_LENGTH, DeviceView, compile_selector
from dra_driver.scheduler.cel.signatures import functions
from tests.golden.run import cases, wire_view
from tests.harness.cel import evaluate_counting

TABLE = ROOT / "tests" / "golden" / "cel.jsonl.gz"
_TOKEN = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\w+|\s+|[&|=<>!]{2}|.", re.S)
_CHARACTERS = "abc019.?\"'\\()[]{}-!&|,:%$#`~\n\t\0\r=<>+*/é\u2028\U0001f600\ud800"


class Mutator:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  repeatable on purpose
        table = list(cases(TABLE))
        self._expressions = [case["input"]["expression"] for case in table]
        self._by_kind: dict[str, list[str]] = {}
        for token in (token for text in self._expressions for token in _TOKEN.findall(text)):
            self._by_kind.setdefault(_kind(token), []).append(token)
        self._tokens = [token for text in self._expressions for token in _TOKEN.findall(text)]
        self._tokens += [name for name in functions() if name[0].isalpha()]
        self.devices = [wire_view(case["input"]["device"]) for case in table]

    def device(self) -> DeviceView:
        return self._random.choice(self.devices)

    def expressions(self) -> Iterator[str]:
        damages = [self._characters, self._swapped, self._spliced, self._nested, self._repeated, self._tokens_changed]
        while True:
            text = self._random.choice(self._expressions)
            for _ in range(self._random.choice((0, 0, 1, 1, 2))):
                text = self._exchanged(text)
            for _ in range(self._random.choice((0, 0, 1, 1, 2, 3))):
                text = self._random.choice(damages)(text)
            yield text[: 2 * MAX_LENGTH]

    def _exchanged(self, text: str) -> str:
        tokens = _TOKEN.findall(text) or [""]
        place = self._random.randrange(len(tokens))
        kind = _kind(tokens[place])
        tokens[place] = self._random.choice(self._by_kind[kind]) if kind in self._by_kind else tokens[place]
        return "".join(tokens)

    def _characters(self, text: str) -> str:
        place = self._random.randrange(len(text) + 1)
        return text[:place] + self._random.choice(_CHARACTERS) + text[place + self._random.choice((0, 0, 1)) :]

    def _tokens_changed(self, text: str) -> str:
        tokens = _TOKEN.findall(text) or [""]
        place = self._random.randrange(len(tokens))
        action = self._random.random()
        if action < 0.3:
            del tokens[place]
        elif action < 0.8:
            tokens[place] = self._random.choice(self._tokens)
        else:
            tokens.insert(place, self._random.choice(self._tokens))
        return "".join(tokens)

    def _swapped(self, text: str) -> str:
        tokens = _TOKEN.findall(text) or [""]
        one, two = self._random.randrange(len(tokens)), self._random.randrange(len(tokens))
        tokens[one], tokens[two] = tokens[two], tokens[one]
        return "".join(tokens)

    def _spliced(self, text: str) -> str:
        other = self._random.choice(self._expressions)
        operator = self._random.choice((" && ", " || ", " == ", " + ", " in ", ", ", " ? true : ", ".", "["))
        return text + operator + other if self._random.random() < 0.5 else f"cel.bind(x, {other}, {text})"

    def _nested(self, text: str) -> str:
        depth = self._random.choice((1, 2, 10, 100, 251, 400))
        opening, closing = self._random.choice(
            (("(", ")"), ("[", "]"), ("!(", ")"), ("-(", ")"), ("{1: ", "}"), ("[1].map(x, ", ")"), ("dyn(", ")"))
        )
        return opening * depth + text + closing * depth

    def _repeated(self, text: str) -> str:
        tail = self._random.choice(
            (" + 1", " && true", ".a", "[0]", " || " + text, ".optMap(x, x)", ".size()", " == 1")
        )
        return text + tail * self._random.choice((1, 5, 30, 300))


def _kind(token: str) -> str:
    if token[:1] in "\"'":
        return "string"
    if token[:1].isdigit():
        return "number"
    return "name" if token[:1].isalpha() else f"bracket {token}" if token in "()[]{}.," else "operator"


class Findings:
    def __init__(self, slow_s: float) -> None:
        self.counts: Counter[str] = Counter()
        self.found: list[str] = []
        self.slowest_s = 0.0
        self._slow_s = slow_s

    def try_expression(self, text: str, device: DeviceView) -> None:
        start = time.perf_counter()
        try:
            self.counts[self._outcome(text, device)] += 1
        except Exception:  # noqa: BLE001  an unexpected exception is a finding
            self.found.append(f"exception for {text!r}\n{traceback.format_exc(limit=-4)}")
        taken = time.perf_counter() - start
        self.slowest_s = max(self.slowest_s, taken)
        if taken > self._slow_s:
            self.found.append(f"{taken:.1f} s for {text!r}")

    def _outcome(self, text: str, device: DeviceView) -> str:
        try:
            program = compile_selector.__wrapped__(text)
        except CelSyntaxError:
            return "does not compile"
        answer: Any
        try:
            answer = program.evaluate(device)
        except CelEvaluationError:
            answer = "fails"
        counted: Any = "fails"
        with suppress(CelEvaluationError):
            counted = evaluate_counting(program, device)
        if answer is not True and answer is not False and answer != "fails":
            self.found.append(f"result {answer!r} for {text!r}")
        if counted != answer:
            self.found.append(f"{answer!r} without and {counted!r} with counting for {text!r}")
        return str(answer)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fuzz the CEL engine with damaged expressions")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slow", type=float, default=5.0, metavar="SECONDS", help="longer than this is a finding")
    options = parser.parse_args(arguments)
    mutator, findings = Mutator(options.seed), Findings(options.slow)
    for _, text in zip(range(options.count), mutator.expressions(), strict=False):
        findings.try_expression(text, mutator.device())
    outcomes = ", ".join(f"{name}: {count}" for name, count in sorted(findings.counts.items()))
    print(f"seed {options.seed}, {options.count} expressions; {outcomes}; slowest {findings.slowest_s:.2f} s")
    for finding in findings.found[:20]:
        print(finding)
    return 1 if findings.found else 0


if __name__ == "__main__":
    sys.exit(main())
