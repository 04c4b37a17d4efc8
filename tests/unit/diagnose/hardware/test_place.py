"""What a report must not show."""

import os

from dra_driver.diagnose.hardware.place import host_names


def test_a_node_has_a_long_and_a_short_name() -> None:
    """In a pod, only the variable tells the node's."""
    own = os.uname().nodename
    assert host_names({"NODE_NAME": "node-17.example.com"})[-2:] == ("node-17.example.com", "node-17")
    assert host_names({})[0] == own
