"""Faults in a fleet of real processes while streams run: no stream lost, no token wrong. `make chaos` has more."""

import random

from bench.chaos.fleet import ChaosFleet
from bench.chaos.runs import disturbed, more, strike
from bench.soaking.streams import Soak

CLIENTS, TOKENS = 6, 100
FAULTS = (["kill-worker"], ["stop-engine", "kill-scheduler"], ["deaf-worker"])


async def test_streams_outlive_kills_hangs_and_a_network_that_is_cut_one_way() -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")  # shown when the test fails
    rng = random.Random(seed)
    async with ChaosFleet(workers=2, gateways=1, max_sequences=CLIENTS) as fleet:

        async def disturb(run: Soak) -> None:
            for names in FAULTS:
                await strike(fleet, names, rng, more(run, 2 * CLIENTS))

        tally = await disturbed(fleet, disturb, clients=CLIENTS, tokens=TOKENS, seed=seed)
    assert (tally.wrong, tally.lost, tally.told) == ([], [], 0)
    assert tally.finished.total() >= 2 * CLIENTS * len(FAULTS)
