"""The calls of `Fleet` that change which deployments there are, and which of their revisions serve."""

import logging
import time
from typing import Any, Protocol

import grpc

from polyfleet.scheduler.aborts import abort_invalid, abort_not_found, abort_unwritten
from polyfleet.scheduler.deployments.validate import check_deployment
from polyfleet.scheduler.fleet.registry import Registry
from polyfleet.scheduler.revisions import RolloutError, deployed, undone
from polyfleet.scheduler.store import Store, StoreError
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import FieldError

PATIENCE_SECONDS = 5.0  # with a cluster that does not answer, before a call is ended
log = logging.getLogger(__name__)


class Steering(Protocol):
    """What the service asks of the controller."""

    def poke(self) -> None:
        """The wish has changed."""

    def drain(self, worker_id: str) -> None:
        """Let this worker finish and stop; at once, in the background."""

    async def absence(self, patience: float) -> str:
        """Why nothing can be started or stopped; empty as soon as it can, `patience` seconds given."""


class DeploymentCalls:
    """A part of FleetService."""

    _store: Store
    _registry: Registry
    _steering: Steering

    async def Deploy(self, request: pb.DeployRequest, context: Any) -> pb.DeployResponse:
        """Store the wish; the controller follows it."""
        try:
            check_deployment(request.deployment)
        except FieldError as error:
            await abort_invalid(context, error)
        await self._be_able(context)
        try:
            wish = deployed(self._wish(request.deployment.name), request.deployment, int(time.time()))
            self._store.put_deployment(wish)
        except FieldError as error:
            await abort_invalid(context, error)
        except RolloutError as error:
            await context.abort(error.code, str(error))
        except StoreError as error:
            await abort_unwritten(context, error)
        fields = {"deployment": wish.name, "workers": wish.workers, "revision": wish.revision}
        log.info("A deployment was stored.", extra=fields)
        self._wish_changed()
        return pb.DeployResponse(deployment=wish)

    async def UndoRollout(self, request: pb.UndoRolloutRequest, context: Any) -> pb.UndoRolloutResponse:
        """Store the wish as an earlier revision has it."""
        await self._be_able(context)
        wish = self._wish(request.name)
        if wish is None:
            await abort_not_found(context, "deployment", request.name, self._names())
        try:
            wish = undone(wish, request.revision)
            self._store.put_deployment(wish)
        except RolloutError as error:
            await context.abort(error.code, str(error))
        except StoreError as error:
            await abort_unwritten(context, error)
        log.info("A rollout was undone.", extra={"deployment": wish.name, "revision": wish.revision})
        self._wish_changed()
        return pb.UndoRolloutResponse(deployment=wish)

    async def Undeploy(self, request: pb.UndeployRequest, context: Any) -> pb.UndeployResponse:
        """Remove the wish; the controller drains its workers."""
        await self._be_able(context)
        try:
            removed = self._store.remove_deployment(request.name)
        except StoreError as error:
            await abort_unwritten(context, error)
        if not removed:
            await abort_not_found(context, "deployment", request.name, self._names())
        log.info("A deployment was removed.", extra={"deployment": request.name})
        self._wish_changed()
        return pb.UndeployResponse()

    async def _be_able(self, context: Any) -> None:
        """End the call with UNAVAILABLE when its wish could not be followed now."""
        if reason := await self._steering.absence(PATIENCE_SECONDS):
            problem = f"{reason.rstrip('.')}: nothing was changed, since nothing can be started or stopped now."
            await context.abort(grpc.StatusCode.UNAVAILABLE, problem)

    def _wish(self, name: str) -> pb.ModelDeployment | None:
        return next((each for each in self._store.deployments() if each.name == name), None)

    def _names(self) -> list[str]:
        return [each.name for each in self._store.deployments()]

    def _wish_changed(self) -> None:
        self._registry.set_deployments(self._store.deployments())
        self._steering.poke()
