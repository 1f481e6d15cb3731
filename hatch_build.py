"""Build hook: generates the gRPC code of proto/polyfleet/v1 beside its sources before anything is packed."""

import shutil
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent


def generate_protos() -> None:
    """Run protoc over every .proto; raises RuntimeError when it refuses one."""
    import grpc_tools
    from grpc_tools import protoc

    well_known = Path(grpc_tools.__file__).parent / "_proto"
    sources = sorted(str(path.relative_to(ROOT / "proto")) for path in (ROOT / "proto").rglob("*.proto"))
    scripts = Path(sys.executable).parent
    plugin = shutil.which("protoc-gen-mypy") or str(scripts / "protoc-gen-mypy")
    out = str(ROOT / "proto")
    arguments = ["protoc", f"-I{out}", f"-I{well_known}", f"--python_out={out}", f"--grpc_python_out={out}"]
    arguments += [f"--plugin=protoc-gen-mypy={plugin}", f"--mypy_out=quiet:{out}", *sources]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc failed; its message stands above")


class ProtoBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs for wheels and for editable installs alike."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate before hatchling collects files."""
        generate_protos()
