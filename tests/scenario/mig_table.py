"""The layouts that a board of the catalogue allows, computed from its table only.

The rule is the hardware's (NVIDIA's MIG user guide, nvml.h): no memory slice twice, no more compute slices than the
board has, no more instances of a profile than its maximum, no engine twice. The module shares no code with the
simulated hardware, the published slices and the allocator, which are compared with it. A number that the table lacks
limits nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dra_driver.hardware.gpu import catalog
from dra_driver.hardware.gpu.catalog import CatalogProfile

ENGINES = ("copy", "decoder", "encoder", "jpeg", "ofa")
Place = tuple[CatalogProfile, int]
Layout = tuple[Place, ...]


@dataclass(frozen=True)
class Board:
    """One board's table. The order of ``places`` differs from the published one."""

    model: str

    @property
    def table(self) -> catalog.MigTable:
        found = catalog.model(self.model).mig
        assert found is not None
        return found

    @property
    def places(self) -> list[Place]:
        return [(profile, start) for profile in self.table.profiles for start in profile.starts]

    def allows(self, layout: Layout) -> bool:
        """Whether all of these can exist at the same time."""
        slices = [index for profile, start in layout for index in range(start, start + profile.memory_slices)]
        if len(slices) != len(set(slices)) or max(slices, default=0) >= self.table.memory_slices:
            return False
        if sum(profile.compute_slices for profile, _ in layout) > self.table.compute_slices:
            return False
        profiles = [profile for profile, _ in layout]
        if any(profiles.count(profile) > profile.max_instances for profile in profiles):
            return False
        return all(self._has_engines(engine, profiles) for engine in ENGINES)

    def _has_engines(self, engine: str, profiles: list[CatalogProfile]) -> bool:
        whole = max(self.table.profiles, key=lambda profile: (profile.memory_slices, profile.compute_slices))
        there_are = getattr(whole.engines, engine)
        return there_are is None or sum(getattr(p.engines, engine) or 0 for p in profiles) <= there_are

    def layouts(self) -> Iterator[Layout]:
        """Every allowed layout, the empty one first."""
        places = self.places
        waiting: list[tuple[Layout, int]] = [((), 0)]
        while waiting:
            layout, first = waiting.pop()
            yield layout
            for at in range(first, len(places)):
                if self.allows((*layout, places[at])):
                    waiting.append(((*layout, places[at]), at + 1))

    def full_layouts(self) -> list[Layout]:
        """The layouts to which nothing can be added."""
        return [
            layout
            for layout in self.layouts()
            if not any(place not in layout and self.allows((*layout, place)) for place in self.places)
        ]
