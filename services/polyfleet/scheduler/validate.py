"""What a deployment may look like. Pure."""

import re

from polyfleet.scheduler.config import ACCELERATORS
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import FieldError

MAX_WORKERS = 1000
MAX_MODEL_NAME = 256
DTYPES = ("", "auto", "float32", "float16", "bfloat16")
_NAME = re.compile(r"[a-z0-9-]{1,63}")


def check_deployment(deployment: pb.ModelDeployment) -> None:
    """Raise FieldError for the first field that the scheduler does not accept."""
    if not _NAME.fullmatch(deployment.name):
        raise FieldError("deployment.name", f"must be 1 to 63 of a-z, 0-9 and -, not {deployment.name!r}")
    if len(deployment.model_name) > MAX_MODEL_NAME or not deployment.model_name.isprintable():
        raise FieldError("deployment.model_name", f"must be at most {MAX_MODEL_NAME} printable characters")
    if not deployment.source.strip():
        raise FieldError("deployment.source", "must name a GGUF file or a Hugging Face folder")
    for family in deployment.accelerators:
        if family not in ACCELERATORS:
            raise FieldError("deployment.accelerators", f"{family!r} is none of {', '.join(ACCELERATORS)}")
    if deployment.workers > MAX_WORKERS:
        raise FieldError("deployment.workers", f"must be at most {MAX_WORKERS}, not {deployment.workers}")
    if deployment.options.dtype not in DTYPES:
        raise FieldError("deployment.options.dtype", f"{deployment.options.dtype!r} is none of {', '.join(DTYPES[1:])}")
