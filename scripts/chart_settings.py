"""What `settings` of node, mpsHost, exporter and controller may name in deploy/chart/values.schema.json: the
options of each process that the chart does not set by another value."""

import json
from pathlib import Path

import render_chart

from dra_driver.config.controller_settings import ControllerSettings
from dra_driver.config.exporter_settings import ExporterSettings
from dra_driver.config.options import flags_of
from dra_driver.config.settings import NodeSettings
from dra_driver.hardware.sharing.main import MpsHostSettings

SCHEMA = render_chart.CHART / "values.schema.json"

PLACES = frozenset({"KUBECONFIG", "DRIVER_NAME", "KUBELET_PLUGINS_DIR", "DRIVER_ROOT", "HOST_ROOT", "HTTP_ADDR"})
NODE = PLACES | {
    *("NODE_NAME", "POD_UID", "KUBELET_REGISTRAR_DIR", "CDI_DIR", "POLICY_DIR", "SIMULATE", "CLAIM_EVENTS"),
    *("CLAIM_STATUS", "DRIVER_ROOT_ON_HOST", "DEV_ROOT", "DEV_ROOT_ON_HOST", "NVIDIA_CDI_HOOK_PATH", "POLICY_OBJECTS"),
    *("GPU_NODE", "USAGE"),
}
CONTROLLER = (
    PLACES
    | {"POD_NAME", "POD_NAMESPACE", "EVICT_EXTENDED_RESOURCE_PODS", "EVICT_OVER_GRANT", "RECLAIM_IDLE", "POLICY_STATUS"}
    | {"CAPACITY_INTERVAL", "CAPACITY_MEMORY"}
)
DEFINITIONS = {
    "nodeSettings": (NodeSettings, NODE),
    "mpsHostSettings": (MpsHostSettings, PLACES | {"MPS_RUN_DIR", "MPS_SHM_DIR"}),
    "controllerSettings": (ControllerSettings, CONTROLLER),
    "exporterSettings": (
        ExporterSettings,
        PLACES | {"NODE_NAME", "SIMULATE", "POD_RESOURCES_SOCKET", "PROC_DIR", "LOG_DIR"},
    ),
}
REMOVED = {
    "controllerSettings": {"WEBHOOK_CERTIFICATE_LIFETIME": {"description": "a template refuses it with the next step"}}
}
"""Settings of earlier versions: the schema's own refusal would not say what to do."""


def generate(root: Path, target: Path) -> None:
    """Writes the schema of ``root`` below ``target``, with the settings that the processes have now."""
    schema = json.loads((root / SCHEMA).read_text())
    for name, (settings, set_otherwise) in DEFINITIONS.items():
        schema["definitions"][name] = {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                flag.env: {"type": "string", "minLength": 1, "description": f"{flag.metavar}: {flag.help}"}
                for flag in flags_of(settings)
                if flag.env not in set_otherwise
            }
            | REMOVED.get(name, {}),
        }
    (target / SCHEMA).parent.mkdir(parents=True, exist_ok=True)
    (target / SCHEMA).write_text(json.dumps(schema, indent=2) + "\n")


def outputs(root: Path) -> list[Path]:
    return [root / SCHEMA] if (root / SCHEMA).exists() else []
