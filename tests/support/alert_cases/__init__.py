"""Series that make an alert fire, and series close to them that don't, in promtool's notation (one value a minute)."""

from tests.support.alert_cases.case import Case
from tests.support.alert_cases.control import CONTROL
from tests.support.alert_cases.serving import CAPACITY, OBJECTIVES
from tests.support.alert_cases.workers import DEVICES, WORKERS

__all__ = ["CASES", "Case"]

CASES = (*OBJECTIVES, *CAPACITY, *WORKERS, *DEVICES, *CONTROL)
