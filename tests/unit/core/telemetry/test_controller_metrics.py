"""What the controller exports."""

from dra_driver.core.telemetry import controller_metrics


def test_the_controller_exports_no_series_of_the_node_process() -> None:
    """They would be 0, and alerts such as ``dra_driver_published == 0`` would fire."""
    controller_metrics.initialise("1")
    text = controller_metrics.render()[1].decode()
    assert "dra_driver_published" not in text
    for series in (
        'dra_driver_evictions_total{result="refused"}',
        "dra_driver_leader ",
        "dra_driver_build_info",
    ):
        assert series in text
    assert 'dra_driver_internal_errors_total{place="lease"}' in text
