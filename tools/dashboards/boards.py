"""All dashboards."""

from tools.dashboards.capacity import CAPACITY
from tools.dashboards.devices import DEVICES
from tools.dashboards.grafana import Dashboard
from tools.dashboards.overview import OVERVIEW
from tools.dashboards.scheduler import SCHEDULER
from tools.dashboards.traffic import REQUESTS

DASHBOARDS: tuple[Dashboard, ...] = (OVERVIEW, CAPACITY, DEVICES, SCHEDULER, REQUESTS)
