"""Who is let in, and who has to go for whom."""

from polyfleet.gateway.ports.doors import Doors, Visit


class Port:
    """Doors whose visits note that they were closed."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self.reasons: list[str] = []
        self.closed: list[Visit] = []
        self.doors = Doors(most, most_per_address, self.reasons.append)

    def visit(self, address: str = "a") -> Visit | None:
        visit = Visit(address, lambda: self.closed.append(visit))
        return visit if self.doors.enter(visit) else None

    def must_visit(self, address: str = "a", *, busy: bool = False) -> Visit:
        visit = self.visit(address)
        assert visit is not None
        if busy:
            self.doors.busy(visit)
        return visit


def test_a_full_port_closes_the_one_that_has_waited_longest() -> None:
    port = Port(3, 9)
    busy = port.must_visit(busy=True)
    first, second = port.must_visit(), port.must_visit()
    port.doors.busy(first)
    port.doors.wait(first)  # it waits anew, behind the second
    port.must_visit()
    port.must_visit()
    assert port.closed == [second, first]
    assert busy not in port.closed
    assert port.reasons == ["full", "full"]
    assert len(port.doors) == 3


def test_a_port_full_of_busy_ones_refuses_the_newcomer() -> None:
    port = Port(2, 9)
    one, _ = port.must_visit(busy=True), port.must_visit(busy=True)
    assert port.visit() is None
    assert (port.closed, port.reasons) == ([], ["full"])
    port.doors.leave(one)
    port.doors.leave(one)
    assert len(port.doors) == 1
    port.must_visit()


def test_an_address_over_its_share_takes_from_itself_alone() -> None:
    port = Port(10, 2)
    other = port.must_visit("b")
    first = port.must_visit("a")
    port.must_visit("a", busy=True)
    port.must_visit("a", busy=True)
    assert port.closed == [first]
    assert port.visit("a") is None
    assert port.reasons == ["address_full", "address_full"]
    port.must_visit("b")
    assert other not in port.closed


def test_who_has_left_waits_no_more() -> None:
    port = Port(1, 1)
    gone = port.must_visit()
    port.doors.leave(gone)
    port.doors.wait(gone)
    port.must_visit(busy=True)
    assert port.visit() is None
    assert port.closed == []
