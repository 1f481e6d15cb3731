"""The heat map: its colours, its shape, and what its cells read."""

from polyfleet.console.fleet.heat import cell_of, groups_of, percents, readings_of, shape_of
from polyfleet.v1 import operations_pb2 as pb


def device(use: float | None, index: int = 0, **more: object) -> pb.FleetDevice:
    state = pb.DeviceState(accelerator="cuda", name="Card", index=index, memory_total_bytes=8, **more)  # type: ignore[arg-type]
    if use is not None:
        state.utilization_ratio = use
    return pb.FleetDevice(host="node-1", state=state)


def test_a_cell_is_coloured_by_the_tenth_of_its_use() -> None:
    levels = {use: cell_of(device(use)).level for use in (0.0, 0.044, 0.05, 0.95, 1.0, 7.0, None)}
    expected = ("use-0", "use-0", "use-1", "use-10", "use-10", "use-10", "unknown")
    assert tuple(levels.values()) == expected
    assert cell_of(device(0.5, health=pb.DEVICE_HEALTH_UNHEALTHY)).level == "bad"
    assert (percents(None), percents(0.256)) == (None, 26)


def test_other_readings_are_the_same_shape_and_anything_else_is_not() -> None:
    shape = shape_of(groups_of([device(0.1), device(None, 1)]))
    assert shape_of(groups_of([device(0.9, memory_used_bytes=4), device(0.2, 1)])) == shape
    sick = device(0.1, health=pb.DEVICE_HEALTH_UNHEALTHY, reason="XID 79")
    for others in ([device(0.1)], [sick, device(None, 1)], [device(0.1), device(None, 2)]):
        assert shape_of(groups_of(others)) != shape


def test_readings_stand_in_the_order_of_the_cells() -> None:
    groups = groups_of([device(0.2, memory_used_bytes=2), device(0.4, 1), device(None, 2)])
    assert readings_of(groups) == [(30, [(20, 25), (40, None), (None, None)])]
