"""Faults that an annotation of a Node asks for."""

import re

import pytest

from dra_driver.hardware.gpu.simulated.faults import (
    MAX_LENGTH,
    MAX_ORDERS,
    FaultOrder,
    format_orders,
    parse_orders,
    with_order,
    without_device,
)
from dra_driver.kube.own_node import MAX_VALUE

PART = "gpu-1-mig-1g10gb-19-0"
TEXT = f"gpu-0 xid=79, {PART} xid=94*2, gpu-12 row-remap=pending"


def test_what_is_written_is_read_again() -> None:
    """Spaces and empty parts do not matter."""
    assert format_orders(parse_orders(TEXT)) == TEXT
    assert parse_orders(f" {TEXT.replace(', ', ',,  ')} , ") == parse_orders(TEXT)
    assert parse_orders("") == parse_orders(" , ") == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu-0", "DEVICE FAULT such as gpu-0 xid=79 expected"),
        ("gpu-0 xid=79 gpu-1 ecc", "several joined by commas"),
        ("node ecc", "a device such as gpu-0"),
        ("gpu-1000 ecc", "a device such as gpu-0"),
        ("gpu-0 fire", "a fault such as xid=79"),
        (f"{PART} lost", "lost is a fault of a whole GPU: gpu-1 expected"),
        ("gpu-0 ecc," * (MAX_ORDERS + 1), f"at most {MAX_ORDERS} faults expected, not {MAX_ORDERS + 1}"),
        ("x" * (MAX_LENGTH + 1), f"at most {MAX_LENGTH} characters expected"),
    ],
)
def test_a_wrong_annotation_is_refused_with_what_is_expected(text: str, expected: str) -> None:
    """All who may change the Node can write anything there."""
    with pytest.raises(ValueError, match=re.escape(expected)) as caught:
        parse_orders(text)
    assert len(str(caught.value)) < 300


def test_an_annotation_that_was_cut_is_never_read() -> None:
    """Half an order could be another one."""
    assert MAX_LENGTH < MAX_VALUE


def test_the_same_fault_once_more_counts_up_and_another_one_is_added() -> None:
    """So the error is told again."""
    orders = with_order(
        with_order(parse_orders("gpu-0 xid=79"), FaultOrder.parse("gpu-0", "xid=79")), FaultOrder.parse(PART, "ecc")
    )
    assert format_orders(orders) == f"gpu-0 xid=79*2, {PART} ecc"


def test_a_gpu_recovers_with_its_partitions_and_a_partition_alone() -> None:
    """And gpu-1 is not gpu-12."""
    orders = parse_orders(f"gpu-1 lost, {PART} ecc, gpu-12 ecc")
    assert format_orders(without_device(orders, "gpu-1")) == "gpu-12 ecc"
    assert format_orders(without_device(orders, PART)) == "gpu-1 lost, gpu-12 ecc"
