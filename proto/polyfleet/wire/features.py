"""Features: what a request may need that not every worker has, by the names that workers announce (`ModelInfo`)."""

from polyfleet.wire.requests import SequenceRequest

LOGPROBS, EMBEDDINGS, GRAMMAR, LOGIT_BIAS = "logprobs", "embeddings", "grammar", "logit_bias"
FEATURES = (LOGPROBS, EMBEDDINGS, GRAMMAR, LOGIT_BIAS)  # that this version knows
FIRST_FEATURES = frozenset({LOGPROBS, EMBEDDINGS})  # of workers that don't name theirs
_NONE = frozenset[str]()


def needed_features(request: SequenceRequest) -> frozenset[str]:
    """What a worker must have for the request; a field that an older worker would pass over belongs here."""
    if request.pooling is not None:
        return frozenset({EMBEDDINGS})
    if request.logprobs is None and not request.grammar and not request.logit_bias:
        return _NONE
    needs = ((LOGPROBS, request.logprobs is not None), (GRAMMAR, request.grammar), (LOGIT_BIAS, request.logit_bias))
    return frozenset(name for name, needed in needs if needed)
