"""The ClusterRole that is aggregated to `view`: reading, of objects without a namespace and without secrets, alone."""

from tests.fakes import chart


def test_view_reads_the_driver_s_cluster_wide_objects() -> None:
    """What `kubectl dra doctor` and `explain` list of cluster-wide objects, except Nodes."""
    role = chart.found(chart.objects(), "ClusterRole", "dra-driver-viewer")
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    rules = {
        (group, resource) for rule in role["rules"] for group in rule["apiGroups"] for resource in rule["resources"]
    }
    assert rules == {
        ("gpu.dra-driver.io", "gpunodes"),
        ("gpu.dra-driver.io", "gpupolicies"),
        ("resource.k8s.io", "resourceslices"),
        ("resource.k8s.io", "deviceclasses"),
    }
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_it_can_be_left_out() -> None:
    """A cluster may keep `view` as it is."""
    names = {each["metadata"]["name"] for each in chart.objects({"viewer": {"enabled": False}})}
    assert "dra-driver-viewer" not in names
