"""Between what the fleet is told of a worker and what its engine is and does. Pure."""

from polyfleet.convert.codec import Codec
from polyfleet.engine.facts import EngineFacts, EngineStatus
from polyfleet.serving.messages import Loaded
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.wire.options import EngineOptions, options_in

_STATUS = Codec(EngineStatus, fleet.WorkerStatus)
_COUNTERS = Codec(EngineStatus, fleet.EngineCounters)
_MODEL = Codec(EngineFacts, fleet.ModelInfo)


def status_of(
    engine: EngineStatus, state: "fleet.WorkerState.ValueType", reason: str, load_progress: float
) -> fleet.WorkerStatus:
    """What a worker reports now."""
    given = {"state": state, "reason": reason, "load_progress": load_progress}
    return _STATUS.message(engine, step=engine.steps, counters=_COUNTERS.message(engine), **given)


def model_info_of(loaded: Loaded, served_name: str) -> fleet.ModelInfo:
    """What a worker announces about its model."""
    return _MODEL.message(loaded.facts, name=served_name, tokenizer_hash=loaded.tokenizer_hash)


def options_of(message: fleet.WorkerOptions, device: str) -> EngineOptions:
    """Engine options of a Load. Raises FieldError for a value out of range."""
    return EngineOptions(device=device, canary=True, **options_in(message))  # type: ignore[arg-type]
