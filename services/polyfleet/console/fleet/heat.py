"""The heat map: devices by accelerator and product, each a cell. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polyfleet.console.fleet.devices import device_id, readings
from polyfleet.console.fleet.words import health_word
from polyfleet.v1 import operations_pb2


@dataclass(frozen=True)
class Cell:
    """A device in the heat map."""

    id: str
    name: str
    health: str
    reason: str
    use: float | None
    memory: float | None
    celsius: float | None
    watts: float | None

    @property
    def level(self) -> str:
        """How its cell is coloured: by tenths of use, or by what is wrong."""
        if self.health == "unhealthy":
            return "bad"
        used = percents(self.use)
        return "unknown" if used is None else f"use-{min(10, max(0, (used + 5) // 10))}"


@dataclass(frozen=True)
class Group:
    """Devices of one accelerator and product."""

    accelerator: str
    product: str
    cells: tuple[Cell, ...]
    memory_bytes: int

    @property
    def mean_use(self) -> float | None:
        """Of those that tell."""
        told = [cell.use for cell in self.cells if cell.use is not None]
        return sum(told) / len(told) if told else None

    @property
    def unhealthy(self) -> int:
        """How many are."""
        return sum(cell.health == "unhealthy" for cell in self.cells)


def groups_of(devices: Iterable[operations_pb2.FleetDevice], find: str = "") -> list[Group]:
    """Devices by accelerator and product; those alone whose host, product or worker has `find` in its name."""
    found: defaultdict[tuple[str, str], list[operations_pb2.FleetDevice]] = defaultdict(list)
    for device in devices:
        text = " ".join((device.host, device.state.accelerator, device.state.name, *device.worker_ids))
        if find.lower() in text.lower():
            found[device.state.accelerator, device.state.name].append(device)
    return [
        Group(*key, tuple(map(cell_of, each)), sum(device.state.memory_total_bytes for device in each))
        for key, each in sorted(found.items())
    ]


def cell_of(device: operations_pb2.FleetDevice) -> Cell:
    """A device as the map shows it."""
    state = device.state
    name = f"{device.host} {state.accelerator} {state.index}"
    return Cell(device_id(device), name, health_word(state.health), state.reason, **readings(state))


def percents(share: float | None) -> int | None:
    """Of 1, as pages show it."""
    return None if share is None else round(share * 100)


def shape_of(groups: Sequence[Group]) -> object:
    """All that a map shows but what its cells read: while that stays equal, only readings have changed."""
    return [
        (each.accelerator, each.product, each.memory_bytes, [(c.id, c.health, c.reason) for c in each.cells])
        for each in groups
    ]


def readings_of(groups: Sequence[Group]) -> list[tuple[int | None, list[tuple[int | None, int | None]]]]:
    """What a map's cells read, in its order: of each group its mean use, and each cell's use and memory, in percent."""
    return [
        (percents(each.mean_use), [(percents(cell.use), percents(cell.memory)) for cell in each.cells])
        for each in groups
    ]
