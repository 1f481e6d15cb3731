"""The calls of `Fleet` that change which adapters deployments have."""

import logging
from typing import Any

from polyfleet.scheduler.aborts import abort_invalid, abort_unwritten
from polyfleet.scheduler.deployments.adapters import AdapterCallError, AdapterDesk
from polyfleet.scheduler.store import StoreError
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import FieldError

log = logging.getLogger(__name__)


class AdapterCalls:
    """A part of FleetService."""

    adapters: AdapterDesk

    async def AddAdapter(self, request: pb.AddAdapterRequest, context: Any) -> pb.AddAdapterResponse:
        """Try it on one worker, then wish for it."""
        try:
            adapter = await self.adapters.add(request.deployment, request.name, request.source)
        except FieldError as error:
            await abort_invalid(context, error)
        except AdapterCallError as error:
            await context.abort(error.code, str(error))
        except StoreError as error:
            await abort_unwritten(context, error)
        log.info("An adapter was added.", extra={"adapter": request.name, "deployment": request.deployment})
        return pb.AddAdapterResponse(adapter=adapter)

    async def DropAdapter(self, request: pb.DropAdapterRequest, context: Any) -> pb.DropAdapterResponse:
        """Wish for it no more."""
        try:
            self.adapters.drop(request.deployment, request.name)
        except FieldError as error:
            await abort_invalid(context, error)
        except AdapterCallError as error:
            await context.abort(error.code, str(error))
        except StoreError as error:
            await abort_unwritten(context, error)
        log.info("An adapter was dropped.", extra={"adapter": request.name, "deployment": request.deployment})
        return pb.DropAdapterResponse()
