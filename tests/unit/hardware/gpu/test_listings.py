"""At which reads MIG instances are listed."""

import logging
import os
from pathlib import Path

import pytest

from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.nvml.listings import InstanceReader, Listings

GPU, OTHER = GpuUuid("GPU-a"), GpuUuid("GPU-b")


def read(listings: Listings, gpu: GpuUuid = GPU, *, generation: int = 1, has_events: bool = True) -> bool:
    token = listings.token(gpu, generation)
    due = listings.is_due(gpu, token, has_events=has_events)
    if due:
        listings.listed(gpu, token)
    return due


@pytest.fixture
def listings() -> Listings:
    found = Listings(lambda: True)
    assert read(found)
    assert read(found, OTHER)
    return found


def test_an_event_counts_for_all_gpus_and_an_own_change_for_one(listings: Listings) -> None:
    """An event does not say enough about which one it was."""
    listings.happened()
    assert (read(listings), read(listings, OTHER)) == (True, True)
    listings.changed(GPU)
    assert (read(listings), read(listings, OTHER)) == (True, False)


def test_what_happens_during_a_listing_leads_to_another(listings: Listings) -> None:
    listings.happened()
    token = listings.token(GPU, 1)
    assert listings.is_due(GPU, token, has_events=True)
    listings.happened()
    listings.listed(GPU, token)
    assert read(listings)
    assert not read(listings)


def test_a_process_that_is_not_to_read_lists_what_is_unknown_and_what_it_changed() -> None:
    listings = Listings(lambda: False)
    assert read(listings)
    assert listings.must_give_back(1)
    assert not listings.must_give_back(2)
    listings.happened()
    assert not read(listings, generation=2, has_events=False)
    assert not listings.must_give_back(2)
    listings.asked(2)
    listings.changed(GPU)
    assert listings.must_give_back(2)
    assert read(listings, generation=3)
    assert listings.must_give_back(3)


def end(reader: InstanceReader) -> None:
    for descriptor in (reader._held, reader._waiting):
        if descriptor is not None:
            os.close(descriptor)
    reader._held = reader._waiting = None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "instances.lock"


def test_a_newer_process_takes_over_at_the_next_read_of_the_older_one(file: Path) -> None:
    """Never both, and not back and forth."""
    old, new = InstanceReader(file), InstanceReader(file)
    assert old()
    assert not new(), "the older one has not let go"
    assert not old()
    assert new()
    assert [(old(), new()) for _ in range(3)] == [(False, True)] * 3
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_older_process_reads_again_when_the_newer_one_has_ended(file: Path) -> None:
    old, new = InstanceReader(file), InstanceReader(file)
    assert old()
    assert not new()
    end(new)
    assert old(), "the newer one ended while it waited"
    newer = InstanceReader(file)
    assert not newer()
    assert not old()
    assert newer()
    end(newer)
    assert old()


def test_the_newest_of_three_reads_in_the_end(file: Path) -> None:
    readers = [InstanceReader(file) for _ in range(3)]
    for _ in range(6):
        answers = [reader() for reader in readers]
        assert sum(answers) <= 1
    assert answers == [False, False, True]


def test_without_its_files_a_process_reads_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    reader = InstanceReader(tmp_path / "none/instances.lock")
    assert [reader(), reader()] == [True, True]
    assert len(caplog.records) == 1
