"""The registry of backends: built-in ones by name, third-party ones through an entry-point group."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, TypeVar

from polyfleet.backends.protocol import (
    BackendType,
    BackendUnavailable,
    DeviceInfo,
    HardwareBackend,
    UnknownBackend,
    accelerator_name,
    is_experimental,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENTRY_POINT_GROUP = "polyfleet.backends"
BUILT_IN: dict[str, str] = {
    "cuda": "polyfleet.backends.cuda",
    "rocm": "polyfleet.backends.rocm",
    "hygon": "polyfleet.backends.hygon",
    "ascend": "polyfleet.backends.ascend",
    "cambricon": "polyfleet.backends.cambricon",
    "xpu": "polyfleet.backends.xpu",
    "mps": "polyfleet.backends.mps",
    "cpu": "polyfleet.backends.cpu",
    "vulkan": "polyfleet.backends.vulkan",
}

Factory = TypeVar("Factory", bound=Callable[..., HardwareBackend])


class BackendRegistry:
    """Finds backends. `find` and the listing methods never raise; `get` says why a backend is absent."""

    _factories: ClassVar[dict[str, Callable[[], HardwareBackend]]] = {}
    _instances: ClassVar[dict[str, HardwareBackend]] = {}

    @classmethod
    def register(cls, name: BackendType | str) -> Callable[[Factory], Factory]:
        """Class decorator: make a backend known under its accelerator's name."""

        def decorate(factory: Factory) -> Factory:
            cls._factories[_key(name)] = factory
            return factory

        return decorate

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """All known names, in order of preference; third-party ones stand behind the built-in ones."""
        third_party = {point.name for point in _entry_points()} | set(cls._factories)
        known = [each.value for each in BackendType if each.value in BUILT_IN]
        return (*known, *sorted(third_party - set(known)))

    @classmethod
    def find(cls, name: BackendType | str) -> HardwareBackend | None:
        """The backend if it is known and available here, else None."""
        try:
            return cls.get(name)
        except BackendUnavailable:
            return None

    @classmethod
    def get(cls, name: BackendType | str) -> HardwareBackend:
        """The backend; raises BackendUnavailable with the reason, UnknownBackend with the list of names."""
        if _key(name) == "auto":
            return cls.get_default()
        backend = cls.known(name)
        try:
            found = backend.availability()
        except Exception as error:  # no built-in one raises; what a stranger's may do must not hide the others
            raise BackendUnavailable(f"backend {_key(name)} broke while it was probed: {error}") from error
        if not found.available:
            raise BackendUnavailable(f"backend {_key(name)} is not available: {found.reason}")
        return backend

    @classmethod
    def known(cls, name: BackendType | str) -> HardwareBackend:
        """The backend whether available or not; raises UnknownBackend with the list of names, else what broke."""
        key = _key(name)
        if key not in cls._instances:
            factory = cls._load(key)
            try:
                cls._instances[key] = factory()
            except Exception as error:
                raise BackendUnavailable(f"backend {key} can't be made: {error}") from error
        return cls._instances[key]

    @classmethod
    def list_available(cls) -> tuple[str, ...]:
        """Names of the backends that can be used here, in order of preference."""
        return tuple(name for name in cls.names() if cls.find(name) is not None)

    @classmethod
    def discover(cls) -> dict[str, tuple[DeviceInfo, ...]]:
        """The devices of each available backend."""
        found = {}
        for name in cls.list_available():
            try:
                found[name] = cls.known(name).devices()
            except Exception:  # a stranger's: it counts as having none
                found[name] = ()
        return found

    @classmethod
    def get_default(cls) -> HardwareBackend:
        """The first available backend that is not experimental; the CPU is always there."""
        for name in cls.names():
            if not is_experimental(name) and (backend := cls.find(name)) is not None:
                return backend
        raise BackendUnavailable("no backend is available, not even the CPU: reinstall polyfleet")

    @classmethod
    def _load(cls, key: str) -> Callable[[], HardwareBackend]:
        if key in BUILT_IN:
            import_module(BUILT_IN[key])
        for point in () if key in cls._factories else _entry_points():
            if point.name == key and key not in cls._factories:
                try:
                    cls._factories[key] = point.load()
                except Exception as error:  # whatever a stranger's package may raise at import
                    raise BackendUnavailable(f"backend {key} can't be loaded: {error}") from error
        if key not in cls._factories:
            raise UnknownBackend(f"there is no backend {key!r}: choose auto or one of {', '.join(cls.names())}")
        return cls._factories[key]


def _entry_points() -> "EntryPoints":
    from importlib.metadata import entry_points  # costs more than all the rest of this package

    return entry_points(group=ENTRY_POINT_GROUP)


def _key(name: BackendType | str) -> str:
    return accelerator_name(name).strip().lower()
