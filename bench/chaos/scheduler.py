"""A scheduler in a process of its own, without Ray: workers that register, gateways that watch, state on disk.

python -m bench.chaos.scheduler FLEET_ADDRESS METRICS_ADDRESS STATE_FOLDER
"""

import asyncio
import signal
import sys

from tests.support.fake_cluster import FakeCluster

from polyfleet.process.logs import set_up_logging
from polyfleet.scheduler.config import SchedulerConfig
from polyfleet.scheduler.scheduler import Scheduler


async def serve(listen: str, metrics_listen: str, state_dir: str) -> None:
    """Until SIGTERM."""
    scheduler = Scheduler(
        SchedulerConfig(listen=listen, metrics_listen=metrics_listen, state_dir=state_dir), FakeCluster()
    )
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await scheduler.start()
    await told.wait()
    await scheduler.stop()


if __name__ == "__main__":
    set_up_logging("info", process="scheduler")
    asyncio.run(serve(*sys.argv[1:4]))
