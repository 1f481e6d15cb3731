"""reconcile() on a simulated fleet, which always arrives at the wish."""

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fake_cluster import node
from tests.support.launch_records import launcher, record

from polyfleet.scheduler.cluster.cluster import Node
from polyfleet.scheduler.deployments.reconcile import Forget, Launch, Retire, reconcile
from polyfleet.scheduler.launcher.launch import LauncherReport, Phase, load_request
from polyfleet.v1 import fleet_pb2 as pb


class Simulation:
    """A fleet in which launchers do what they are told, one after the other, in random order."""

    def __init__(self, nodes: list[Node], seed: int) -> None:
        self.nodes, self.random = nodes, random.Random(seed)
        self.launchers: dict[str, LauncherReport] = {}
        self.states: dict[str, str] = {}

    def step(self, wishes: list[pb.ModelDeployment]) -> bool:
        """One plan and one random event; False when nothing was planned and nothing can happen."""
        records = [record(w, s, self.launchers[w].spec.deployment) for w, s in self.states.items()]
        plan = reconcile(wishes, list(self.launchers.values()), records, self.nodes)
        for action in plan.actions:
            if isinstance(action, Launch):
                worker_id = f"w-{len(self.states):03}-{self.random.random()}"
                accelerator, host = action.accelerator, action.node.node_id
                self.launchers[worker_id] = launcher(worker_id, action.deployment, host, accelerator)
                self.states[worker_id] = "LOADING"
            elif isinstance(action, Retire):
                self.launchers[action.launcher_id] = replace(self.launchers[action.launcher_id], stopping=True)
            elif isinstance(action, Forget):
                del self.launchers[action.launcher_id], self.states[action.launcher_id]
        self.check_room()
        return self.happen() or bool(plan.actions)

    def happen(self) -> bool:
        """A loading worker becomes ready, or a stopping one has left."""
        events = [(w, "ready") for w, s in self.states.items() if s == "LOADING"]
        events += [(w, "leave") for w, r in self.launchers.items() if r.stopping and r.phase is not Phase.LEFT]
        if not events:
            return False
        worker_id, what = self.random.choice(events)
        if what == "ready":
            self.states[worker_id] = "READY"
        else:
            self.launchers[worker_id] = replace(self.launchers[worker_id], phase=Phase.LEFT)
        return True

    def check_room(self) -> None:
        used = Counter((r.spec.node_id, r.spec.accelerator) for r in self.launchers.values())
        assert all(
            used[n.node_id, accelerator] <= count for n in self.nodes for accelerator, count in n.capacity.items()
        )

    def settle(self, wishes: list[pb.ModelDeployment]) -> None:
        for _ in range(300):
            if not self.step(wishes):
                return
        raise AssertionError("the fleet never comes to rest")


wish_lists = st.lists(
    st.builds(
        pb.ModelDeployment,
        name=st.sampled_from(["a", "b", "c"]),
        source=st.sampled_from(["/1.gguf", "/2.gguf"]),
        accelerators=st.sampled_from([[], ["cpu"], ["cuda", "cpu"]]),
        workers=st.integers(0, 4),
    ),
    max_size=3,
    unique_by=lambda wish: wish.name,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(wish_lists, min_size=1, max_size=3), st.integers(1, 6), st.integers(0, 2), st.integers())
def test_every_change_of_mind_ends_in_the_wish_or_a_full_cluster(
    history: list[list[pb.ModelDeployment]], cpus: int, gpus: int, seed: int
) -> None:
    simulation = Simulation([node("n-1", cpu=cpus, cuda=gpus)], seed)
    for wishes in history:
        simulation.settle(wishes)
    have = Counter(r.spec.deployment for r in simulation.launchers.values())
    problems = reconcile(wishes, list(simulation.launchers.values()), [], simulation.nodes).problems
    for wish in wishes:
        assert have[wish.name] == wish.workers or (have[wish.name] < wish.workers and wish.name in problems)
        mine = [r for r in simulation.launchers.values() if r.spec.deployment == wish.name]
        load = load_request(wish).SerializeToString(deterministic=True)
        assert wish.name in problems or all(report.spec.load == load for report in mine)
    assert set(have) <= {wish.name for wish in wishes}
    assert all(state == "READY" for state in simulation.states.values())
