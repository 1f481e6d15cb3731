"""Policy: by what workers are chosen, from section `gateway.placement` of the configuration file."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Rate = Annotated[float, Meta(gt=0, le=1e9)]
Slack = Annotated[float, Meta(ge=0, le=86_400)]
Weight = Annotated[float, Meta(ge=0, le=1e9)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Name = Literal["completion", "prefix-queue", "power-of-two", "least-requests", "round-robin", "random"]
ANY = "*"


class TenantRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which workers a tenant's requests may go to; an empty list allows all."""

    accelerators: tuple[str, ...] = ()
    deployments: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How workers are chosen: `gateway.placement`.

    `completion` takes the worker with the least expected completion time plus what the weights add to it, in seconds.
    The other names are simpler rules to compare with. A worker that has not served yet is taken for as fast as the
    fastest one of its accelerator that has; where there is none, optimistically, so that it is tried.
    """

    policy: Annotated[Name, Meta(description="the rule; all but completion look at no rates")] = "completion"
    unknown_prefill_tokens_per_second: Annotated[Rate, Meta(description="where no worker of its kind has served")] = 1e4
    unknown_decode_tokens_per_second: Annotated[Rate, Meta(description="of each sequence there")] = 100.0
    unknown_fetch_tokens_per_second: Annotated[
        Rate, Meta(description="of prompts on their way to a worker that has fetched none of late")
    ] = 1e5
    unknown_sequences: Annotated[
        Count, Meta(description="at once that a worker gets for such a promise; more as for the slowest known one")
    ] = 4
    remaining_tokens: Annotated[Rate, Meta(description="of a running sequence until its slot is free")] = 128.0
    expected_tokens: Annotated[Rate, Meta(description="of an answer, unless max_tokens is less")] = 256.0
    tie_ratio: Annotated[Slack, Meta(description="scores are blurred by up to this share, so that equals share")] = 0.02
    tie_seconds: Annotated[Slack, Meta(description="and by up to so many seconds")] = 0.005
    late_weight: Annotated[Weight, Meta(description="of each second by which objectives are missed")] = 4.0
    crowd_weight: Annotated[Weight, Meta(description="of each second by which it delays others at the worker")] = 1.0
    kv_weight: Annotated[Weight, Meta(description="seconds that a full KV cache counts as; half full: half")] = 0.0
    stickiness_weight: Annotated[Weight, Meta(description="seconds that a wholly cached prompt counts as")] = 0.0
    cost_weight: Annotated[Weight, Meta(description="seconds that one unit of cost counts as")] = 0.0
    energy_weight: Annotated[Weight, Meta(description="seconds that one joule counts as")] = 0.0
    costs: Annotated[
        dict[str, Weight], Meta(description="of a million tokens, by device name or accelerator; 0 where not named")
    ] = {}
    joules: Annotated[
        dict[str, Weight], Meta(description="of a token, by device name or accelerator; 0 where not named")
    ] = {}
    log_ratio: Annotated[float, Meta(ge=0, le=1, description="of placements whose reasons are logged")] = 0.0
    prefix_grains: Annotated[
        int, Meta(ge=0, le=100_000_000, description="of 64 tokens that each gateway remembers of prompts; 0: none")
    ] = 1_000_000
    tenants: Annotated[
        dict[str, TenantRule], Meta(description="workers that a tenant may have; * is every other tenant")
    ] = {}

    @property
    def looks_at_prefixes(self) -> bool:
        """Whether it matters who has which prompt cached."""
        return bool(self.prefix_grains) and self.policy in ("completion", "prefix-queue")

    def token_seconds_of(self, device_name: str, accelerator: str) -> float:
        """What cost and energy of one token count as on a device, in seconds."""
        cost = self.costs.get(device_name, self.costs.get(accelerator, 0.0))
        joules = self.joules.get(device_name, self.joules.get(accelerator, 0.0))
        return self.cost_weight * cost / 1e6 + self.energy_weight * joules

    def rule_of(self, tenant: str) -> TenantRule | None:
        """What a tenant may have; None: everything."""
        return self.tenants.get(tenant, self.tenants.get(ANY)) if self.tenants else None
