"""Polyfleet's Grafana dashboards, as code. `python -m tools.dashboards` writes their JSON."""
