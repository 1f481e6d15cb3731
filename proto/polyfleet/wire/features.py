"""Features: what a request may need that not every worker has, by the names that workers announce (`ModelInfo`)."""

from polyfleet.wire.requests import SequenceRequest

LOGPROBS, EMBEDDINGS, GRAMMAR, LOGIT_BIAS = "logprobs", "embeddings", "grammar", "logit_bias"
PROMPT_LOGPROBS = "prompt_logprobs"
IMAGES = "images"  # of workers whose model and executor take some
FEATURES: tuple[str, ...] = (LOGPROBS, EMBEDDINGS, GRAMMAR, LOGIT_BIAS, PROMPT_LOGPROBS)  # that this version knows
FIRST_FEATURES = frozenset({LOGPROBS, EMBEDDINGS})  # of workers that don't name theirs
_NONE = frozenset[str]()


def adapter_feature(fingerprint: str) -> str:
    """Of workers that have an adapter."""
    return f"adapter {fingerprint}"


def needed_features(request: SequenceRequest) -> frozenset[str]:
    """What a worker must have for the request; a field that an older worker would pass over belongs here."""
    needed = _plain_features(request)
    return needed | {adapter_feature(request.adapter)} if request.adapter else needed


def _plain_features(request: SequenceRequest) -> frozenset[str]:
    if request.pooling is not None:
        return frozenset({EMBEDDINGS})
    logprobs, prompt_logprobs = request.logprobs is not None, request.prompt_logprobs is not None
    if not (logprobs or prompt_logprobs or request.grammar or request.logit_bias or request.images):
        return _NONE
    needs: tuple[tuple[str, object], ...] = (
        (LOGPROBS, logprobs),
        (GRAMMAR, request.grammar),
        (LOGIT_BIAS, request.logit_bias),
        (PROMPT_LOGPROBS, prompt_logprobs),
        (IMAGES, request.images),
    )
    return frozenset(name for name, needed in needs if needed)
