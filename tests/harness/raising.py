"""Assert the reason and the fields of an error instead of its message."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from dra_driver.core.errors import DraError

E = TypeVar("E", bound=DraError)


@contextmanager
def fails(
    error: type[E], reason: str = "", *, match: str | None = None, **fields: object
) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error with this reason (default: that of the class) and at least these fields.

    ``match`` is a pattern of names and values that the message must have, not of its sentence.
    """
    with pytest.raises(error, match=match) as caught:
        yield caught
    found = caught.value
    assert found.reason == (reason or error.__name__.strip("_").removesuffix("Error")), (
        f"reason {found.reason}: {found}"
    )
    assert {name: found.fields.get(name) for name in fields} == fields, f"fields {found.fields}: {found}"
