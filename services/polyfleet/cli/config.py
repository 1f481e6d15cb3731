"""The one YAML file: everything that `polyfleet serve` starts. Unknown keys are refused with their path."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.gateway.config import GatewayConfig
from polyfleet.scheduler.config import SchedulerConfig, check_config
from polyfleet.wire.config import ConfigError
from polyfleet.wire.config_file import read_config

Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker may be told. 0 or auto: it chooses from the device and the model."""

    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    context_length: Annotated[Count, Meta(description="tokens, prompt and output together")] = 0
    kv_cache_tokens: Annotated[Count, Meta(description="size of the KV pool in tokens")] = 0
    max_sequences: Annotated[Count, Meta(description="sequences that run at once")] = 0
    step_tokens: Annotated[Count, Meta(description="token budget of one step")] = 0
    threads: Annotated[Count, Meta(description="CPU threads")] = 0
    reproducible: Annotated[bool, Meta(description="round long prompts no more than all else, with AMX too")] = False


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model to serve."""

    name: Annotated[Text, Meta(description="unique; also the served name unless model_name is set")]
    source: Annotated[Text, Meta(description="path of a GGUF file or Hugging Face folder, as workers see it")]
    model_name: str = ""
    accelerators: Annotated[tuple[str, ...], Meta(description="in order of preference; empty: any")] = ()
    workers: Annotated[int, Meta(ge=0, le=1000)] = 1
    options: WorkerOptions = WorkerOptions()


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. Every section and every key may be left out."""

    gateway: GatewayConfig = GatewayConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    deployments: Annotated[tuple[Deployment, ...], Meta(description="empty: the small model that comes along")] = ()


def load_config(path: Path | None) -> Config:
    """The file's content, or all defaults without one. Raises CliError that names file, key and problem."""
    if path is None:
        return Config()
    try:
        config = read_config(path, Config)
    except ConfigError as error:
        raise CliError(str(error), ExitCode.BAD_INPUT) from None
    try:
        check_config(config.scheduler)
        check_deployments(config.deployments)
    except ConfigError as error:
        problem = str(error).rstrip(".")
        raise CliError(f"The configuration {path} is not valid: {problem}.", ExitCode.BAD_INPUT) from None
    return config


def check_deployments(deployments: tuple[Deployment, ...]) -> None:
    """Raise ConfigError when two have one name."""
    names = [deployment.name for deployment in deployments]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"Two deployments are named {twice[0]} - at `$.deployments`")


def config_schema() -> dict[str, Any]:
    """JSON schema of the file, for editors and checks."""
    return msgspec.json.schema(Config)
