"""Which deployments are refused, by field; and uploads of tokenizer assets."""

from hashlib import sha256
from math import inf, nan

import pytest

from polyfleet.convert.assets import asset_chunks
from polyfleet.scheduler.deployments.validate import check_deployment
from polyfleet.scheduler.fleet.assets import MAX_ASSET_BYTES, AssetUpload
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import ASSET_CHUNK_BYTES, FieldError


def wish(**changes: object) -> pb.ModelDeployment:
    return pb.ModelDeployment(**{"name": "smollm2", "source": "/m.gguf", "workers": 1, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "good",
    [
        wish(),
        wish(name="a" * 63, workers=1000),
        wish(workers=0),
        wish(accelerators=["metax", "a-b_c9", "x" * 63]),
        wish(accelerators=["cuda", "cpu"], model_name="org/Model-1 (chat)"),
        wish(options=pb.WorkerOptions(dtype="bfloat16", context_length=4096)),
        wish(autoscaling=pb.Autoscaling(max_workers=1), rollout=pb.Rollout(max_surge=3, max_error_ratio=1)),
    ],
)
def test_good_deployments_pass(good: pb.ModelDeployment) -> None:
    check_deployment(good)


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (wish(name=""), "deployment.name"),
        (wish(autoscaling=pb.Autoscaling()), "deployment.autoscaling.max_workers"),
        (wish(autoscaling=pb.Autoscaling(max_workers=1001)), "deployment.autoscaling.max_workers"),
        (wish(autoscaling=pb.Autoscaling(min_workers=3, max_workers=2)), "deployment.autoscaling.min_workers"),
        (wish(autoscaling=pb.Autoscaling(max_workers=2, kv_use=1.1)), "deployment.autoscaling.kv_use"),
        (wish(autoscaling=pb.Autoscaling(max_workers=2, idle_seconds=-1)), "deployment.autoscaling.idle_seconds"),
        (wish(autoscaling=pb.Autoscaling(max_workers=2, queue_seconds=nan)), "deployment.autoscaling.queue_seconds"),
        (wish(rollout=pb.Rollout(max_surge=1001)), "deployment.rollout.max_surge"),
        (wish(rollout=pb.Rollout(progress_seconds=inf)), "deployment.rollout.progress_seconds"),
        (wish(rollout=pb.Rollout(max_error_ratio=2)), "deployment.rollout.max_error_ratio"),
        (wish(name="a" * 64), "deployment.name"),
        (wish(name="Smol"), "deployment.name"),
        (wish(name="a/b"), "deployment.name"),
        (wish(name="a\n"), "deployment.name"),
        (wish(source=" "), "deployment.source"),
        *(
            (wish(accelerators=["cpu", name]), "deployment.accelerators")
            for name in ("", "CUDA", "cuda:0", "cuda ", "cuda\n", "9a", "a-", "a/b", "é", "x" * 64, "auto")
        ),
        (wish(workers=1001), "deployment.workers"),
        (wish(model_name="x" * 257), "deployment.model_name"),
        (wish(model_name="a\nb"), "deployment.model_name"),
        (wish(options=pb.WorkerOptions(dtype="int3")), "deployment.options.dtype"),
    ],
)
def test_bad_deployments_are_refused_by_field(bad: pb.ModelDeployment, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        check_deployment(bad)
    assert caught.value.field == field


@pytest.mark.parametrize("size", [0, 1, ASSET_CHUNK_BYTES, 2 * ASSET_CHUNK_BYTES + 5])
def test_assets_travel_in_chunks(size: int) -> None:
    data = bytes(i % 251 for i in range(size))
    digest = sha256(data).hexdigest()
    parts = list(asset_chunks(digest, data))
    assert all(len(part.data) <= ASSET_CHUNK_BYTES for part in parts)
    upload = AssetUpload(digest)
    assert [upload.add(part) for part in parts] == [None] * (len(parts) - 1) + [data]


def chunk(digest: str, data: bytes, total: int) -> pb.AssetChunk:
    return pb.AssetChunk(hash=digest, data=data, total_bytes=total)


def test_foreign_oversized_and_forged_assets_are_refused() -> None:
    digest = sha256(b"good").hexdigest()
    for bad, field in (
        (chunk("other", b"good", 4), "asset.hash"),
        (chunk(digest, b"good", MAX_ASSET_BYTES + 1), "asset.total_bytes"),
        (chunk(digest, b"good!", 4), "asset.data"),
        (chunk(digest, b"evil", 4), "asset.data"),
    ):
        with pytest.raises(FieldError) as caught:
            AssetUpload(digest).add(bad)
        assert caught.value.field == field
