"""What about the fleet's workers is worth noticing: who changed, and who differs from the others of its model."""

import logging
from collections.abc import Iterable, Mapping

from polyfleet.gateway.fleet.session import Session
from polyfleet.placement.fleet import Worker
from polyfleet.v1 import fleet_pb2

log = logging.getLogger(__name__)


class Mixtures:
    """Logs once when ready workers of one name differ."""

    def __init__(self) -> None:
        self._known: dict[str, frozenset[str]] = {}  # model name -> fingerprints of its ready workers, where several

    def look(self, name: str, ready: list[Session], infos: Mapping[str, fleet_pb2.ModelInfo]) -> None:
        """A model's ready workers; `infos` has what prevails among them."""
        prints = frozenset(session.info.model.fingerprint for session in ready)
        if len(prints) < 2:
            self._known.pop(name, None)
        elif self._known.get(name) != prints:
            self._known[name] = prints
            chosen = infos[name].fingerprint
            others = [each.worker_id for each in ready if each.info.model.fingerprint != chosen]
            log.warning(
                "Workers have other weights or another tokenizer than most of their model's; they get no new requests.",
                extra={"model": name, "workers": others, "fingerprint": chosen},
            )


def standing(worker: Worker) -> tuple[object, ...]:
    """What of a worker decides which models the fleet serves: all but its load."""
    return worker.model, worker.fingerprint, worker.revision, worker.state, bool(worker.nonsense)


def outline(workers: Iterable[fleet_pb2.FleetWorker]) -> list[object]:
    """What of workers in a snapshot counts as a change: who they are and how they are, not their load."""
    return [(each.info, each.status.state, each.status.reason) for each in workers]
