"""Chores of the node process that have to follow a change within a second, and the bell that tells of most of them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from dra_driver.node.process.bell import Bell
from dra_driver.node.process.detach_setup import look_for_file
from dra_driver.node.process.detaching import Detaching
from dra_driver.node.process.endpoints import Endpoints
from dra_driver.node.process.maintenance import Chore
from dra_driver.node.process.node_follower import NodeFollower
from dra_driver.node.process.sockets import SocketPaths

EVERY_S: Final = 1.0
HEARD_S: Final = 5.0
"""The interval while the bell hears the folders: for what inotify does not see, such as a mount over one of them."""


def soon_chores(
    endpoints: Endpoints, detaching: Detaching, folder: Path, follower: NodeFollower, publish: Callable[[], None]
) -> list[Chore]:
    """Sockets that are gone, the file in ``folder`` that asks to detach, drain and second publishers."""
    chore = partial(Chore, every_s=EVERY_S, heard_s=HEARD_S)
    return [
        chore(name="sockets", work=endpoints.check, hurries=lambda: endpoints.problem is not None),
        chore(name="detach-file", work=partial(look_for_file, detaching, folder)),
        chore(name="node", work=partial(follower.follow, publish), hurries=follower.is_waiting),
    ]


def soon_bell(paths: SocketPaths, follower: NodeFollower) -> Bell:
    """Rings when a file comes or goes beside the sockets, and when ``follower`` may find something new."""
    bell = Bell([str(paths.dra.parent), str(paths.registration.parent)])
    follower.call_after_changes(bell.ring)
    return bell
