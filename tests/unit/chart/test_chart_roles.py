"""What pools are for: prompts, decoding, or both."""

import msgspec
import yaml
from tests.support.helm_chart import EXAMPLES, find, needs_helm, rendered

from polyfleet.scheduler.config import PoolConfig, SchedulerConfig, pool_wishes
from polyfleet.v1 import fleet_pb2 as pb

pytestmark = needs_helm


def test_the_scheduler_is_told_what_pools_are_for() -> None:
    pool = {"accelerator": "cuda", "model": {"name": "m", "image": {"path": "/m"}}}
    workers = {role: {**pool, "role": role} for role in ("both", "prefill", "decode")} | {"plain": pool}
    config = find(rendered(values={"workers": workers}), "ConfigMap", "polyfleet-scheduler")["data"]["scheduler.yaml"]
    pools = msgspec.convert(yaml.safe_load(config)["scheduler"]["pools"], dict[str, PoolConfig])
    assert {name: each.role for name, each in pools.items()} == {name: name for name in workers} | {"plain": "both"}
    wishes = {each.name: each.role for each in pool_wishes(SchedulerConfig(pools=pools))}
    assert wishes == {"both": 0, "plain": 0, "prefill": pb.WORKER_ROLE_PREFILL, "decode": pb.WORKER_ROLE_DECODE}


def test_the_example_has_both_parts_of_one_model_on_unlike_accelerators() -> None:
    chart = rendered("-f", str(EXAMPLES["prefill-apart"]))
    config = find(chart, "ConfigMap", "polyfleet-scheduler")["data"]["scheduler.yaml"]
    pools = msgspec.convert(yaml.safe_load(config)["scheduler"]["pools"], dict[str, PoolConfig])
    assert {name: (each.accelerator, each.role) for name, each in pools.items()} == {
        "answers": ("cuda", "decode"),
        "prompts": ("rocm", "prefill"),
    }
    assert {each.model for each in pools.values()} == {"smollm2-1.7b-instruct"}
