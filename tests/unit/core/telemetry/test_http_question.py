"""Which requests share an answer."""

from dra_driver.core.telemetry.http_question import FRESH, SHARED_S, HttpQuestion


def answers(question: HttpQuestion[str], now: float) -> list[str]:
    """What the waiting requests get, oldest first: an answer that exists, or a new one."""
    found = []
    while question:
        shared = question.shared(now)
        found.append(shared.decode() or "new")
        question.take()
    return found


def ask(question: HttpQuestion[str], count: int, now: float) -> HttpQuestion[str]:
    for _ in range(count):
        question.ask("request", now)
    return question


def answered(now: float, answer: bytes = b"old") -> HttpQuestion[str]:
    question = HttpQuestion[str](making=1)
    question.answered(answer, now)
    return question


def test_few_requests_get_answers_of_their_own() -> None:
    """Who asks after a change sees it."""
    assert answers(ask(answered(10.0), FRESH, 10.0), 10.0) == ["new"] * FRESH


def test_more_requests_in_a_second_share_the_newest_answer() -> None:
    question = ask(answered(10.0), FRESH + 3, 10.5)
    assert answers(question, 10.5) == ["new"] * FRESH + ["old"] * 3
    ask(question, 1, 11.4)
    assert answers(question, 11.0) == ["old"], "the second is not over"
    ask(question, 1, 11.5)
    assert answers(question, 11.5) == ["new"]


def test_an_answer_of_long_ago_is_not_shared() -> None:
    """The first flood of a day would else hear what was true yesterday."""
    question = ask(answered(10.0), FRESH + 2, 10.0 + SHARED_S)
    assert answers(question, 10.0 + SHARED_S)[-1] == "old"
    question = ask(answered(10.0), FRESH + 2, 10.1 + SHARED_S)
    assert answers(question, 10.1 + SHARED_S)[-1] == "new"


def test_the_answer_that_was_begun_last_is_shared() -> None:
    """A check that took long ends after one that was asked later."""
    question = answered(10.0, b"later")
    question.making = 1
    question.answered(b"earlier", 9.9)
    assert answers(ask(question, FRESH + 1, 10.0), 10.0)[-1] == "later"
    assert question.making == 0


def test_the_oldest_request_is_known_by_its_time() -> None:
    question = HttpQuestion[str]()
    assert question.first_at == float("inf")
    question.ask("first", 1.0)
    question.ask("second", 2.0)
    assert (question.first, question.first_at, len(question)) == ("first", 1.0, 2)
    assert (question.take(), question.first_at) == ("first", 2.0)
