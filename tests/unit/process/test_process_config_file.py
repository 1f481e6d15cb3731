"""The YAML file as every process reads it: defaults, overrides, and one sentence for what is wrong."""

from pathlib import Path

import msgspec
import pytest

from polyfleet.cli.config import Config
from polyfleet.gateway.config import ConfigFile as GatewayFile
from polyfleet.process.config import ConfigError
from polyfleet.process.config_file import overlaid, read_config
from polyfleet.scheduler.config import ConfigFile as SchedulerFile
from polyfleet.serving.command import ConfigFile as WorkerFile

DOORS = pytest.mark.parametrize("sections", [Config, GatewayFile, SchedulerFile, WorkerFile])


class Section(msgspec.Struct, frozen=True):
    size: int = 1
    name: str = "a"


class File(msgspec.Struct, frozen=True):
    section: Section = Section()


def written(folder: Path, document: bytes) -> Path:
    path = folder / "polyfleet.yaml"
    path.write_bytes(document)
    return path


@DOORS
@pytest.mark.parametrize("document", [b"", b"\n", b"# nothing\n", b"---\n", b"gateway:\nscheduler:\nworker:\n"])
def test_an_empty_file_or_section_is_all_defaults(tmp_path: Path, document: bytes, sections: type) -> None:
    assert read_config(written(tmp_path, document), sections) == sections()


@DOORS
@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (b"- 1", "Expected `object`, got `array`"),
        (b"5", "Expected `object`, got `int`"),
        (b"gateway: [", "is not valid"),
        (b"gateway: {a: b: c}", "is not valid"),
        (b"\xff\xfe\x00", "is not valid"),
        (b"\x00", "is not valid"),
        (b"gateway: !!python/object:os.system {}", "is not valid"),
        (b"gateway: {name: 2024-99-99}", "month must be in 1..12"),
        (b"gateway: 2024-01-01T99:00:00", "hour must be in 0..23"),
        (b"gateway: !!timestamp foo", "is not valid"),
        (b"gateway: !!bool x", "is not valid"),
        (b"gateway: !!int foo", "is not valid"),
        (b"gateway: {a: 1}\ngateway: {b: 1}\n", "`gateway` is given twice, again in line 2"),
        (b"gateway: {placement: {late_weight: 1, late_weight: 2}}", "`late_weight` is given twice"),
        (b"gateway: " + b"9" * 5000, "is not valid"),
    ],
)
def test_what_is_no_configuration_is_said_in_one_sentence(
    tmp_path: Path, document: bytes, problem: str, sections: type
) -> None:
    path = written(tmp_path, document)
    with pytest.raises(ConfigError) as caught:
        read_config(path, sections)
    said = str(caught.value)
    assert said.startswith(f"The configuration {path} is not valid: ")
    assert problem in said
    assert "\n" not in said


@DOORS
def test_what_can_not_be_read_is_named(tmp_path: Path, sections: type) -> None:
    for path, reason in ((tmp_path / "none.yaml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=rf"^The configuration {path} can't be read: {reason}\.$"):
            read_config(path, sections)


def test_what_is_merged_may_be_overridden(tmp_path: Path) -> None:
    document = b"base: &base {size: 2, name: b}\nsection: {<<: *base, name: c}"
    assert read_config(written(tmp_path, document), File).section == Section(2, "c")


def test_overrides_that_are_given_win(tmp_path: Path) -> None:
    section = read_config(written(tmp_path, b"section: {size: 2, name: b}"), File).section
    assert overlaid(section, size=None, name="c") == Section(2, "c")
    assert overlaid(section) == section
