"""Install Polyfleet into a virtual environment beside the Python that runs this (the Dockerfile's `environment`).

    install.py WHEELS EXTRA

WHEELS is a folder with pip's wheel and Polyfleet's. The environment sees the packages of this Python, which may be a
vendor's and itself a virtual environment. Versions are those of requirements.lock, except that an installed numpy stays
as it is: the vendor's torch was built for it. torch comes from TORCH_INDEX, if that is set, and only with EXTRA `cpu`.
"""

import importlib.metadata
import os
import site
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
VENV = Path("/opt/polyfleet/venv")
SITE = Path("lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")


def constraints(lock: str, numpy: "str | None") -> str:
    """The lock's lines, with the installed numpy's version in place of the lock's."""
    if numpy is None:
        return lock
    kept = [line for line in lock.splitlines() if not line.startswith("numpy==")]
    return "\n".join([*kept, f"numpy=={numpy}", ""])


def installed(package: str) -> "str | None":
    """Its version in this Python."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def create(folder: Path, packages: "list[str]") -> None:
    """A virtual environment that also sees these folders, with what their own .pth files add."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    lines = [f"import site; site.addsitedir({path!r})" for path in packages if os.path.isdir(path)]
    (folder / SITE / "base.pth").write_text("".join(f"{line}\n" for line in lines))


def install(folder: Path, wheels: Path, extra: str) -> None:
    """Run pip for the environment; raises CalledProcessError when it fails."""
    (pip,), (polyfleet,) = wheels.glob("pip-*.whl"), wheels.glob("polyfleet-*.whl")
    pinned = wheels / "constraints.txt"
    lock = (HERE / "requirements.lock").read_text()
    pinned.write_text(constraints(lock, None if extra == "cpu" else installed("numpy")))
    command = [str(folder / "bin" / "python"), f"{pip}/pip", "install", "--only-binary=:all:", f"--constraint={pinned}"]
    index = os.environ.get("TORCH_INDEX")
    command += [f"--extra-index-url={index}"] if index and extra == "cpu" else []
    flags = {"PIP_CONSTRAINT": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    subprocess.run([*command, f"{polyfleet}[{extra},image]"], check=True, env={**os.environ, **flags})


def main() -> None:
    """Install, and refuse to replace a vendor's torch."""
    wheels, extra = Path(sys.argv[1]), sys.argv[2]
    create(VENV, site.getsitepackages())
    install(VENV, wheels, extra)
    if extra != "cpu" and (VENV / SITE / "torch").exists():
        raise SystemExit(f"Installing polyfleet[{extra}] brought a torch of its own: it must stay the base's.")


if __name__ == "__main__":
    main()
