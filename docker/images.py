"""Build Polyfleet's images as images.ini describes them, push them, try them, list what is in them. Standard library.

    python3 docker/images.py build|push|smoke|sbom [IMAGE …] [--registry=…] [--builder=docker|podman|buildah]

POLYFLEET_BUILD_FLAGS holds more flags for the builder, such as mounts of a package index's configuration.
"""

import argparse
import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docker" / "images.ini"
SBOM_SCRIPT = ROOT / "docker" / "sbom.py"
SBOM_FOLDER = ROOT / "build" / "sbom"
BUILDERS = ("docker", "podman", "buildah")
# A pod's restrictions (charts/polyfleet), and no network.
RESTRICTED = ("--rm", "--interactive", "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--network=none")


@dataclass(frozen=True)
class Image:
    """One section of images.ini; see there."""

    name: str
    base: str
    base_python: str
    extra: str
    target: str
    setup: str
    summary: str
    smoke: str


def read_table(text: str) -> dict[str, Image]:
    """All images by name. Raises TypeError when a section lacks a key or has one too many."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(text)
    return {name: Image(name=name, **parser[name]) for name in parser.sections()}


def version() -> str:
    """Of the project; the images' tag unless another is given."""
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert found is not None
    return found[1]


def revision() -> str:
    """The checkout's commit, with -dirty behind it where files differ from it; empty where there is none."""
    if not shutil.which("git"):
        return ""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def reference(image: Image, options: argparse.Namespace) -> str:
    """The image's name with registry and tag."""
    return f"{options.registry}/polyfleet/{image.name}:{options.tag}"


def build_command(image: Image, options: argparse.Namespace, flags: Iterable[str], commit: str) -> list[str]:
    """The builder's command line, to be run in ROOT."""
    arguments = {
        "BASE": options.base or image.base,
        "BASE_PYTHON": options.base_python or image.base_python,
        "EXTRA": image.extra,
        "SETUP": image.setup,
        "IMAGE": image.name,
        "SUMMARY": image.summary,
        "VERSION": version(),
        "REVISION": commit,
        "SOURCE": options.source,
    }
    given = {"TOOLS_BASE": options.tools_base, "TORCH_INDEX": options.torch_index}  # else the Dockerfile's
    arguments |= {name: value for name, value in given.items() if value is not None}
    command = [options.builder, "build", "--file=docker/Dockerfile", f"--target={image.target}"]
    command += ["--layers"] if options.builder != "docker" else []
    command += [f"--build-arg={name}={value}" for name, value in arguments.items()]
    return [*command, f"--tag={reference(image, options)}", *flags, "."]


def build(image: Image, options: argparse.Namespace) -> None:
    """Build the image under its reference."""
    flags = shlex.split(os.environ.get("POLYFLEET_BUILD_FLAGS", ""))
    if options.builder == "docker" and any(re.match(r"-v|--volume\b", flag) for flag in flags):
        raise SystemExit("docker builds without --volume: name bases that have those files; docs/images.md says how.")
    subprocess.run(build_command(image, options, flags, revision()), cwd=ROOT, check=True)


def push(image: Image, options: argparse.Namespace) -> None:
    """Push the image and print its digest (docker prints it itself)."""
    name = reference(image, options)
    if options.builder == "docker":
        subprocess.run(["docker", "push", name], check=True)
        return
    with tempfile.NamedTemporaryFile("r") as digest:
        subprocess.run([options.builder, "push", f"--digestfile={digest.name}", name], check=True)
        print(f"{name}@{digest.read()}", flush=True)


def run_command(image: Image, options: argparse.Namespace, *command: str) -> list[str]:
    """The command line that runs a command in the image, as restricted as in a pod."""
    runner = "docker" if options.builder == "docker" else "podman"
    return [runner, "run", *RESTRICTED, reference(image, options), *command]


def smoke(image: Image, options: argparse.Namespace) -> None:
    """Run the image's smoke command."""
    subprocess.run(run_command(image, options, "/bin/sh", "-c", image.smoke), stdin=subprocess.DEVNULL, check=True)
    print(f"{reference(image, options)} runs", flush=True)


def sbom(image: Image, options: argparse.Namespace) -> None:
    """Write what the image contains to build/sbom, as CycloneDX."""
    command = run_command(image, options, "python", "-", f"polyfleet/{image.name}", options.tag)
    done = subprocess.run(command, input=SBOM_SCRIPT.read_bytes(), stdout=subprocess.PIPE, check=True)
    SBOM_FOLDER.mkdir(parents=True, exist_ok=True)
    path = SBOM_FOLDER / f"{image.name}.cdx.json"
    path.write_bytes(done.stdout)
    print(path.relative_to(ROOT), flush=True)


STEPS = {"build": build, "push": push, "smoke": smoke, "sbom": sbom}


def parse(arguments: list[str], table: dict[str, Image]) -> argparse.Namespace:
    """The command line's options; ends with a sentence where they are wrong."""
    parser = argparse.ArgumentParser(description="Polyfleet's images; docs/images.md")
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="default: all of docker/images.ini")
    parser.add_argument("--registry", default="localhost", help="in front of the names (default: %(default)s)")
    parser.add_argument("--tag", default=version(), help="default: %(default)s")
    parser.add_argument("--builder", default="", help=f"{', '.join(BUILDERS)}; default: the first that is installed")
    parser.add_argument("--base", default="", help="base image in place of the table's, of one image or a few")
    parser.add_argument("--base-python", default="", help="the base's Python in place of the table's")
    parser.add_argument("--tools-base", help="image that builds the wheel: python3 with venv")
    parser.add_argument("--torch-index", help="package index of worker-cpu's torch; empty: pip's own")
    parser.add_argument("--source", default="", help="URL of the source code, for the label")
    options = parser.parse_intermixed_args(arguments)
    if unknown := [name for name in options.images if name not in table]:
        parser.error(f"no image is called {', '.join(unknown)}: there are {', '.join(table)}")
    if options.base and not options.images:
        parser.error("--base needs the names of the images that stand on it")
    if options.builder not in ("", *BUILDERS):
        parser.error(f"the builder is one of {', '.join(BUILDERS)}")
    options.builder = options.builder or next(filter(shutil.which, BUILDERS), "")
    if not options.builder:
        parser.error(f"none of {', '.join(BUILDERS)} is installed: install one of them")
    return options


def main() -> None:
    """Do one step for each image, in turn."""
    table = read_table(TABLE.read_text(encoding="utf-8"))
    options = parse(sys.argv[1:], table)
    for name in options.images or table:
        try:
            STEPS[options.step](table[name], options)
        except FileNotFoundError as error:
            raise SystemExit(f"{error.filename} is not installed: install it or choose another builder.") from None
        except subprocess.CalledProcessError as error:
            sentence = f"{options.step} of {name} failed: {error.cmd[0]} ended with {error.returncode}; see above."
            raise SystemExit(sentence) from None


if __name__ == "__main__":
    main()
