"""What follows from a model and its resolved options: the facts that an engine tells, and the limits of its batches."""

from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.engine.executor import Capacity, Executor
from polyfleet.engine.facts import EngineFacts
from polyfleet.models.config import ModelConfig
from polyfleet.wire.features import FEATURES, IMAGES
from polyfleet.wire.options import EngineOptions


def limits_of(options: EngineOptions, config: ModelConfig, fingerprint: str) -> BatchLimits:
    """What its batcher keeps to."""
    return BatchLimits(
        max_sequences=options.max_sequences,
        step_tokens=options.step_tokens,
        context_length=options.context_length,
        end_token_ids=frozenset(config.end_token_ids),
        prefix_cache=options.prefix_cache and config.causal,
        horizon=config.horizon,
        window=config.local_window,
        fingerprint=fingerprint,
        step_seconds=options.step_seconds,
        vocabulary_size=config.vocabulary_size,
        whole=not config.causal,
    )


def facts_of(
    config: ModelConfig,
    options: EngineOptions,
    capacity: Capacity,
    executor: Executor,
    fingerprint: str,
    *,
    passed_over: tuple[str, ...],
    speculation: str,
    sees: bool,
) -> EngineFacts:
    """What an engine tells; `sees`: whether it takes images."""
    return EngineFacts(
        name=config.name,
        architecture=config.architecture,
        context_length=options.context_length,
        vocabulary_size=config.vocabulary_size,
        hidden_size=config.hidden_size,
        block_size=capacity.block_size,
        num_blocks=capacity.num_blocks,
        max_sequences=options.max_sequences,
        dtype=executor.dtype,
        end_token_ids=config.end_token_ids,
        fingerprint=fingerprint,
        features=(*FEATURES, IMAGES) if sees else FEATURES,
        executor=executor.name,
        pooling=config.pooling,
        normalized=config.normalized,
        embeds_only=config.embeds_only,
        cross_encoder=config.cross_encoder,
        passed_over=passed_over,
        speculation=speculation,
    )
