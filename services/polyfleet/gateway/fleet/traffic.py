"""Which revision a request goes to, where the ready workers of its model have several. Pure.

A deployment's shares say, or those of the chart's pools of the model, each of which is a revision then, or, while a
deployment changes from one to another, how many workers of each are ready. Who has a session keeps its revision while
the shares stay, and the newest one's part only grows as its share does.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from polyfleet.gateway.fleet.outlook import served_name
from polyfleet.placement.candidate import share_of
from polyfleet.placement.filters import prevailing_fingerprint
from polyfleet.placement.fleet import Revision, Worker
from polyfleet.v1 import fleet_pb2 as pb


class Target(NamedTuple):
    """What requests may go to: weights and tokenizer by their fingerprint, and a revision (None: any that has those).

    Among several, each gets its `weight`'s part of them.
    """

    weight: float
    fingerprint: str
    revision: Revision | None


def targets_of(model: str, wishes: Iterable[pb.ModelDeployment], ready: Sequence[Worker]) -> tuple[Target, ...]:
    """The newest revision's first; none where the ready workers of the model leave nothing to choose."""
    wishes = tuple(wishes)
    if pools := _pools_of(model, wishes, ready):
        return pools
    shared = [each for each in wishes if served_name(each) == model and each.traffic]
    named = {wish.name for wish in shared}
    rest = [each for each in ready if each.deployment not in named]
    targets = [target for wish in shared for target in _revisions_of(wish, ready)]
    if rest and all(each.revision for each in rest):
        targets += _fingerprints_of(rest)
    elif targets and (prevailing := prevailing_fingerprint(rest)) is not None:
        targets.append(Target(len(rest), prevailing, None))
    return tuple(targets) if len(targets) > 1 else ()


def _revisions_of(wish: pb.ModelDeployment, ready: Sequence[Worker]) -> Iterator[Target]:
    """The deployment's revisions that have shares of its requests and ready workers, by how many workers it has."""
    mine = [each for each in ready if each.deployment == wish.name]
    for share in sorted(wish.traffic, key=lambda each: -each.revision):
        revision = Revision(wish.name, share.revision)
        print_ = prevailing_fingerprint(each for each in mine if each.revision == revision)
        if print_ is not None and share.percent:
            yield Target(share.percent * len(mine) / 100, print_, revision)


def _fingerprints_of(workers: Sequence[Worker]) -> Iterator[Target]:
    """The weights that these workers have, each by how many have it, those of the newest revision first."""
    newest = {each.fingerprint: each.revision for each in sorted(workers, key=_number)}
    counts = Counter(each.fingerprint for each in workers)
    for print_ in sorted(counts, key=lambda each: (-(newest[each] or NO_REVISION).number, each)):
        yield Target(counts[print_], print_, None)


def _pools_of(model: str, wishes: Iterable[pb.ModelDeployment], ready: Sequence[Worker]) -> tuple[Target, ...]:
    """The chart's pools of this model that have shares of its requests, as far as they have ready workers."""
    targets = list[Target]()
    for wish in wishes:
        mine = [each for each in ready if each.deployment == wish.name]
        print_ = prevailing_fingerprint(mine)
        if served_name(wish) == model and wish.traffic_percent and print_ is not None:
            targets.append(Target(wish.traffic_percent, print_, mine[0].revision))
    return tuple(targets)


NO_REVISION = Revision("", 0)


def _number(worker: Worker) -> int:
    return (worker.revision or NO_REVISION).number


def choose(targets: Sequence[Target], key: str) -> Target:
    """The one that this key falls to: always the same, each as often as its weight says."""
    left = share_of(key) * sum(each.weight for each in targets)
    for target in targets:
        left -= target.weight
        if left < 0:
            return target
    return targets[-1]
