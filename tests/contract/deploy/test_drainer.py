"""The roles for people who drain nodes have the rights that a drain asks for, and no others."""

from dra_driver.kubectl.drain.run import EVICT, needed_rights
from tests.fakes import chart

ROLE = "dra-driver-drainer"


def test_a_drainer_has_the_rights_that_a_drain_names_and_no_others() -> None:
    """Each right is one that the command looks for before it changes anything."""
    objects = [each for each in chart.objects({"drainer": {"enabled": True}}) if each["metadata"]["name"] == ROLE]
    granted = {
        (verb, group, resource, each["metadata"].get("namespace", ""))
        for each in objects
        for rule in each["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    needed = (*needed_rights("gpu-a", reads_events=True), EVICT)
    assert granted == {
        (each.verb, each.group, "/".join(part for part in (each.resource, each.subresource) if part), each.namespace)
        for each in needed
    }
