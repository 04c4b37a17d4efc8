"""What the configurations among the inputs say together, before policies and claims are made of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

PLUGIN_LABEL = "nvidia.com/device-plugin.config"
MIG_LABEL = "nvidia.com/mig.config"


class ReplicatedResource(Struct, frozen=True, kw_only=True):
    """A resource that the device plugin offers several times. ``renamed`` is the name that it gives it, if any."""

    name: str
    replicas: int
    renamed: str = ""


class PluginConfig(Struct, frozen=True, kw_only=True):
    """The part of a device plugin's config that policies are made of. ``strategy``: MPS, TimeSlicing or empty."""

    name: str
    mig_strategy: str = ""
    strategy: str = ""
    several_refused: bool = False
    replicated: Sequence[ReplicatedResource] = ()


class GpuLayout(Struct, frozen=True, kw_only=True):
    """One entry of a mig-parted config: which GPUs, and their profiles with counts; None where MIG is off.

    ``minors`` None: all GPUs. ``products`` empty: of any product.
    """

    minors: tuple[int, ...] | None
    products: tuple[str, ...]
    profiles: Mapping[str, int] | None


class MigLayout(Struct, frozen=True, kw_only=True):
    """A named config of mig-parted."""

    name: str
    entries: Sequence[GpuLayout]


class Gathered(Struct):
    """Filled by the translators of configurations.

    ``plugin_default`` and ``mig_default`` are the configs of nodes without a label. ``standalone``: names of plugin
    configs that were files of their own, so that no label chooses among them.
    """

    values: dict[str, Any] = field(default_factory=dict)
    value_conflicts: list[str] = field(default_factory=list)
    plugin_configs: dict[str, PluginConfig] = field(default_factory=dict)
    standalone: set[str] = field(default_factory=set)
    plugin_default: str = ""
    layouts: dict[str, MigLayout] = field(default_factory=dict)
    mig_default: str = ""
    mig_strategy: str = ""
    node_labels: dict[str, Mapping[str, str]] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)

    def set_value(self, keys: Sequence[str], value: Any) -> None:
        """Sets a value of the chart; another value for the same key is a conflict, and the first one stays."""
        place = self.values
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        if keys[-1] in place and place[keys[-1]] != value:
            self.value_conflicts.append(f"{'.'.join(keys)}: {place[keys[-1]]!r} stays, {value!r} is another input's")
            return
        place[keys[-1]] = value

    @property
    def default_config(self) -> str:
        """The config of nodes without a label, as the plugin's config-manager chooses it ("named", then "single")."""
        if self.plugin_default:
            return self.plugin_default
        if "default" in self.plugin_configs:
            return "default"
        return next(iter(self.plugin_configs)) if len(self.plugin_configs) == 1 else ""

    def nodes_with(self, label: str, value: str) -> tuple[str, ...]:
        """Names of the nodes among the inputs whose label has the value."""
        return tuple(sorted(name for name, labels in self.node_labels.items() if labels.get(label) == value))
