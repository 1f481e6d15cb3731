"""How many nodes the scheduler says Ray has: what Ray said last, and none once it has said nothing for a while."""

from pathlib import Path

import pytest
from tests.support.fake_cluster import FakeCluster, node

from polyfleet.scheduler.cluster.cluster import ClusterError
from polyfleet.scheduler.config import SchedulerConfig
from polyfleet.scheduler.deployments.controller import SILENCE_SECONDS, Controller
from polyfleet.scheduler.fleet.registry import Registry
from polyfleet.scheduler.fleet.snapshot_feed import SnapshotFeed
from polyfleet.scheduler.store import Store


async def test_nodes_are_counted_while_the_cluster_answers(tmp_path: Path) -> None:
    now = [1000.0]
    cluster, registry = FakeCluster(node("n-1"), node("n-2")), Registry("e")
    config, store, feed = SchedulerConfig(settle_seconds=0.0), Store(tmp_path / "fleet.sqlite"), SnapshotFeed(registry)
    controller = Controller(config, store, registry, feed, cluster, clock=lambda: now[0])
    assert controller.num_nodes == 0
    await controller.tick()
    assert controller.num_nodes == 2

    cluster.away = True
    for seconds, expected in ((SILENCE_SECONDS - 1, 2), (1, 0)):
        now[0] += seconds
        with pytest.raises(ClusterError):
            await controller.tick()
        assert controller.num_nodes == expected

    cluster.away = False
    await controller.tick()
    assert controller.num_nodes == 2
    store.close()
