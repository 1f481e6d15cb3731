"""The one YAML file: everything that `polyfleet serve` starts. Unknown keys are refused with their path."""

from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.console.config import ConsoleConfig
from polyfleet.gateway.config import GatewayConfig
from polyfleet.process.config import ConfigError
from polyfleet.process.config_file import read_config
from polyfleet.scheduler.config import SchedulerConfig, check_config
from polyfleet.wire.adapters import check_adapters, repeated
from polyfleet.wire.limits import ACCELERATOR, FieldError, check_accelerator
from polyfleet.wire.options import OptionValue, checked, options_schema

Text = Annotated[str, Meta(min_length=1)]
AcceleratorName = Annotated[str, Meta(pattern=f"^{ACCELERATOR.pattern}$")]


class StatedOptions(dict[str, OptionValue]):
    """The engine's options that a deployment states; the others are its workers' to choose."""


class AdapterFolder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An adapter of a model."""

    name: Annotated[Text, Meta(description="served name: 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'")]
    source: Annotated[Text, Meta(description="path of a PEFT folder, as workers see it")]


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model to serve."""

    name: Annotated[Text, Meta(description="unique; also the served name unless model_name is set")]
    source: Annotated[Text, Meta(description="GGUF file or Hugging Face folder that workers see, or owner/name")]
    model_name: str = ""
    accelerators: Annotated[tuple[AcceleratorName, ...], Meta(description="in order of preference; empty: any")] = ()
    workers: Annotated[int, Meta(ge=0, le=1000)] = 1
    adapters: Annotated[tuple[AdapterFolder, ...], Meta(description="LoRA adapters that its workers load")] = ()
    options: StatedOptions = StatedOptions()


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. Every section and every key may be left out."""

    gateway: GatewayConfig = GatewayConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    console: ConsoleConfig = ConsoleConfig()
    deployments: Annotated[tuple[Deployment, ...], Meta(description="empty: the small model that comes along")] = ()


def load_config(path: Path | None) -> Config:
    """The file's content, or all defaults without one. Raises CliError that names file, key and problem."""
    if path is None:
        return Config()
    try:
        config = read_config(path, Config, _decode)
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
    """Raise ConfigError when two have one name, or one names no accelerator or adapter that there may be."""
    for index, deployment in enumerate(deployments):
        try:
            for accelerator in deployment.accelerators:
                check_accelerator(f"$.deployments[{index}].accelerators", accelerator)
            check_adapters(deployment.adapters, f"$.deployments[{index}].adapters")
        except FieldError as error:
            raise ConfigError(str(error)) from None
    names = [deployment.name for deployment in deployments]
    if twice := repeated(names):
        raise ConfigError(f"Two deployments are named {twice} - at `$.deployments`")


def config_schema() -> dict[str, Any]:
    """JSON schema of the file, for editors and checks."""
    schema = msgspec.json.schema(Config, schema_hook=lambda _: options_schema())
    for part in schema["$defs"].values():
        if "description" in part:  # a docstring, which only some versions of msgspec give without its indentation
            part["description"] = cleandoc(part["description"])
    return schema


def _decode(kind: type, value: Any) -> StatedOptions:
    if not isinstance(value, dict):
        raise ValueError("options: must be a mapping of options to values")
    return StatedOptions(checked(value))
