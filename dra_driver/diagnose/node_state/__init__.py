"""Show, check, repair and remove this driver's state on a node, for the commands ``state`` and ``cleanup``.

`repair` and `clean_up` open the claims as a node process does, and refuse while one runs.
"""

from dra_driver.diagnose.node_state.cleanup import clean_up
from dra_driver.diagnose.node_state.findings import find_disagreements
from dra_driver.diagnose.node_state.state import NodeState, Places, read_state
from dra_driver.diagnose.node_state.stopped import repair
