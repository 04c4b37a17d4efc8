"""Repairs a node on which no node process runs, with the steps that a start of one takes."""

from dra_driver.config.settings import NodeSettings
from dra_driver.core.errors import ConfigurationError, DraError
from dra_driver.diagnose.node_state.places import Places
from dra_driver.diagnose.node_state.reading import read_state
from dra_driver.diagnose.node_state.stopped import no_node_process, stopped_node

RUNNING = (
    "a node process runs on this node, and repairs its state by itself: files within seconds, GPU settings within "
    "30 s, the rest within ten minutes or at its restart; look again then, or stop it first"
)


def repair(settings: NodeSettings, places: Places) -> tuple[str, ...]:
    """Make journal, files and hardware agree; returns sentences about what could not be repaired.

    A damaged journal is kept aside and rebuilt. Prepared claims stay prepared. Raises ConfigurationError while a node
    process runs, or when the folder does not exist.
    """
    refuse_while_running(places)
    problems: list[str] = []
    with no_node_process(places.plugin), stopped_node(settings) as claims:
        problems += claims.service.recover().problems
        try:
            claims.service.reclaim_orphans()
            if claims.service.rebuild_pending:
                problems.append("the journal is not completely rebuilt: a node process goes on with it")
        except DraError as error:
            problems.append(str(error))
    return tuple(dict.fromkeys(problems))


def refuse_while_running(places: Places) -> None:
    """Raises ConfigurationError."""
    if not places.plugin.is_dir():
        raise ConfigurationError(f"{places.plugin} does not exist: there is nothing to repair")
    if read_state(places).runs:
        raise ConfigurationError(RUNNING)
