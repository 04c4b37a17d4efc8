"""docs/doctor-faults.md has the broken set-ups that are tried, no more and no fewer."""

import json

from tests.doctor_faults import ROWS
from tests.doctor_faults.__main__ import DATA, name_of
from tests.fakes.node_faults import FAULTS


def test_every_broken_set_up_is_recorded_with_its_layer() -> None:
    """The page is made from the record; a new or changed set-up needs `python -m tests.doctor_faults --write`."""
    found = json.loads(DATA.read_text())
    assert [(row["name"], row["layer"], row["status"]) for row in found["cluster"]] == [
        (row.name, row.layer, row.status) for row in ROWS
    ]
    assert [(row["name"], row["layer"]) for row in found["node"]] == [(name_of(each), each.layer) for each in FAULTS]
