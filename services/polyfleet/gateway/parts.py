"""What the two front ends of one gateway process share: its parts that gRPC and HTTP call."""

from dataclasses import dataclass, field

from polyfleet.gateway.api import GenerationApi
from polyfleet.gateway.auth import Authenticator
from polyfleet.gateway.begins import Begins
from polyfleet.gateway.config import Limits
from polyfleet.gateway.health import Health
from polyfleet.gateway.metrics import Metrics


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """The gateway's core and everything beside it that gRPC and HTTP need.

    A front end authenticates with `auth.check(header)`, calls `generation`, and serves `health` and
    `metrics.registry`; requests are counted by `generation` itself, those refused earlier through
    `metrics.requests.labels(model="", method=…, code=…)` (code as `Code.name`).
    """

    generation: GenerationApi
    auth: Authenticator
    metrics: Metrics
    health: Health
    limits: Limits
    begins: Begins = field(default_factory=Begins)
