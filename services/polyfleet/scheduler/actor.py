"""The scheduler as a Ray actor: named, detached, on the head node, restarted by Ray for ever."""

import asyncio
import contextlib
import logging
from typing import Any

import ray
from ray.exceptions import RayError

from polyfleet.process.config import ConfigError
from polyfleet.scheduler.cluster.ray_cluster import NAMESPACE, SCHEDULER_NAME, RayCluster
from polyfleet.scheduler.config import SchedulerConfig
from polyfleet.scheduler.log_files import keep_small, log_to_file
from polyfleet.scheduler.scheduler import Scheduler

HEAD_RESOURCE = "node:__internal_head__"  # Ray gives one unit of it to each head node
LOG_NAME = "scheduler.log"
START_SECONDS = 60.0
log = logging.getLogger(__name__)


class SchedulerActor:
    """A Scheduler that serves once the actor is created, so that a restart by Ray needs nobody's help."""

    async def __init__(self, config: SchedulerConfig) -> None:  # type: ignore[misc]  # Ray awaits it
        log_to_file(config.state_path, LOG_NAME, config.log_level, "scheduler")
        self._config = config
        self._logs = asyncio.create_task(keep_small(config.state_path / "logs"))
        self._scheduler = Scheduler(config, RayCluster())
        await self._scheduler.start()

    async def configuration(self) -> SchedulerConfig:
        """What it was created with."""
        return self._config

    async def shutdown(self, grace: float) -> None:
        """Stop all workers and launchers, then serving. The actor itself is left for the caller to kill."""
        await self._scheduler.shutdown(grace)


def find_or_create(config: SchedulerConfig) -> None:
    """The scheduler actor of the connected cluster, serving with this configuration.

    One that runs with another configuration is replaced; the workers don't notice. Raises ConfigError when the actor
    can't start.
    """
    try:
        actor = _create(config)
        if ray.get(actor.configuration.remote(), timeout=START_SECONDS) != config:
            ray.kill(actor, no_restart=True)
            actor = _create(config)
            ray.get(actor.configuration.remote(), timeout=START_SECONDS)
    except RayError as error:
        cause = str(error).strip().splitlines()[-1]
        raise ConfigError(f"The scheduler did not start ({cause}); see {config.state_path / 'logs'}.") from None


def _create(config: SchedulerConfig) -> Any:
    options = ray.remote(SchedulerActor).options(
        name=SCHEDULER_NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        num_cpus=0,
        resources={HEAD_RESOURCE: 0.001},
    )
    return options.remote(config)


def shut_down(grace: float) -> None:
    """Stop the whole fleet of the connected cluster: workers, launchers, scheduler. Returns when they have gone.

    When the scheduler does not do it, the launchers are told one by one.
    """
    try:
        actor = ray.get_actor(SCHEDULER_NAME, NAMESPACE)
        ray.get(actor.shutdown.remote(grace), timeout=grace + START_SECONDS)
        ray.kill(actor, no_restart=True)
    except (RayError, ValueError) as error:
        log.warning("The scheduler did not stop in good order: %s", error)
        launchers = [ray.get_actor(name, NAMESPACE) for name in ray.util.list_named_actors() if name != SCHEDULER_NAME]
        with contextlib.suppress(RayError):
            ray.get([launcher.stop.remote(grace) for launcher in launchers], timeout=grace + START_SECONDS)
