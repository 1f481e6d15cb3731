"""A gateway's health: whether it can serve, and why not."""

from polyfleet.gateway.health import Health


def test_health_says_why_not() -> None:
    ready = 0
    health = Health(lambda: ready)
    assert (health.serving, health.reason) == (False, "No worker is ready.")
    ready = 1
    assert (health.serving, health.reason) == (True, "")
    health.draining = True
    assert (health.serving, health.reason) == (False, "The gateway is shutting down.")
