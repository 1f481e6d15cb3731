"""`gateway.placement`: a gateway chooses workers by the policy of its configuration."""

import pytest
from tests.support.gateway_rig import MODEL, GatewayRig, Stream, text_worker

from polyfleet.gateway import server
from polyfleet.placement.fleet import FleetSnapshot, Placement, PlacementRequest
from polyfleet.placement.place import Policy, place
from polyfleet.v1 import inference_pb2 as pb


async def test_workers_are_chosen_by_the_configured_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    policies: list[Policy] = []

    def watched(request: PlacementRequest, fleet: FleetSnapshot, policy: Policy) -> Placement:
        policies.append(policy)
        return place(request, fleet, policy)

    monkeypatch.setattr(server, "place", watched)
    async with GatewayRig(config={"placement": Policy(tie_seconds=7.0)}) as rig:
        await rig.add(text_worker("w-1"))
        request = pb.GenerateRequest(model=MODEL, text="fox", max_tokens=2)
        assert len((await Stream.read(rig.stub.Generate(request))).ids()) == 2
    assert set(policies) == {Policy(tie_seconds=7.0)}
