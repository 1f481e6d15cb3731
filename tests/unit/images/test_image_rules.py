"""Rules that the Dockerfile keeps, each shown to catch what breaks it."""

import re
from collections.abc import Callable

import pytest
from tests.support.image_files import DOCKER, DOCKERFILE, ROOT, instructions, script, stages

FINAL = {image.target for image in script("images").read_table((DOCKER / "images.ini").read_text()).values()}
Rule = Callable[[str], list[str]]


def lineage(dockerfile: str, stage: str) -> list[str]:
    """The stage and the stages it is FROM, to the one that stands on a base."""
    found, all_stages = [stage], stages(dockerfile)
    while (parent := all_stages[found[-1]][0].text.split()[0]) in all_stages:
        found.append(parent)
    return found


def unpinned_bases(dockerfile: str) -> list[str]:
    """Bases without a tag, or with one that says nothing; an argument's default counts."""
    arguments = dict(each.text.split("=", 1) for each in instructions(dockerfile) if "=" in each.text)
    bases = [parts[0].text.split()[0] for parts in stages(dockerfile).values()]
    images = [arguments.get(name[2:-1], "") if name.startswith("${") else name for name in bases]
    outside = [image for image in images if image not in stages(dockerfile)]
    return [image for image in outside if not re.search(r":[^/:]*\d[^/:]*$|@sha256:[0-9a-f]{64}$", image)]


def final_stages_of_root(dockerfile: str) -> list[str]:
    """Final stages whose user is not the fixed, unprivileged one."""
    found = []
    for stage in FINAL & set(stages(dockerfile)):
        path = [each for name in reversed(lineage(dockerfile, stage)) for each in stages(dockerfile)[name]]
        users = [each.text for each in path if each.word == "USER"]
        found += [stage] if users[-1:] != ["10001:10001"] else []
    return found


def careless_commands(dockerfile: str) -> list[str]:
    """Commands of RUN that raise rights, run what the network gives, or leave package lists and caches behind."""
    runs = [each.text for each in instructions(dockerfile) if each.word == "RUN"]
    banned = [run for run in runs if re.search(r"\bsudo\b|\b(curl|wget)\b.*\|\s*\w*sh\b|\bchmod\s+(-R\s+)?777\b", run)]
    apt = [run for run in runs if re.search(r"\bapt(-get)?\s+install\b", run)]
    lists = [run for run in apt if "--no-install-recommends" not in run or "rm -rf /var/lib/apt/lists" not in run]
    pip = [run for run in runs if re.search(r"pip (install|download|wheel)\b", run) and "--mount=type=cache" not in run]
    return [*banned, *lists, *[run for run in pip if "--no-cache-dir" not in run]]


def careless_copies(dockerfile: str) -> list[str]:
    """ADD, COPY of everything, and COPY into an image without saying whose the files are."""
    found = [f"ADD {each.text}" for each in instructions(dockerfile) if each.word == "ADD"]
    for name, parts in stages(dockerfile).items():
        copies = [each.text for each in parts if each.word == "COPY"]
        found += [text for text in copies if re.search(r"(^|\s)\./?\s", text)]
        found += [text for text in copies if name in FINAL and not re.search(r"--chown=0:0\b", text)]
    return found


def compilers(dockerfile: str) -> list[str]:
    """Final stages that install anything: they may only copy it."""
    installing = re.compile(r"\b(pip|apt|apt-get|apk|dnf|yum|conda)\b[^&|;]*\b(install|add)\b|ziglang|\bg?cc\b")
    runs = [(name, each.text) for name in FINAL & set(stages(dockerfile)) for each in stages(dockerfile)[name]]
    return [name for name, text in runs if installing.search(text)]


def secrets(dockerfile: str) -> list[str]:
    """Arguments and variables that would stay in the image's history."""
    named = [each.text for each in instructions(dockerfile) if each.word in ("ARG", "ENV")]
    return [text for text in named if re.search(r"(?i)(token|password|secret|api_?key)\w*(=|$)", text)]


def stale_settings(dockerfile: str) -> list[str]:
    """Labels and variables made of arguments with no RUN behind them: Buildah's cache would keep their old values."""
    found = []
    for parts in stages(dockerfile).values():
        words = [each.word for each in parts]
        behind = len(words) - 1 - words[::-1].index("RUN") if "RUN" in words else -1
        names = {each.text.split("=")[0] for each in parts if each.word == "ARG"}
        settings = [(at, each.text) for at, each in enumerate(parts) if each.word in ("LABEL", "ENV")]
        found += [text for at, text in settings if at > behind and any(f"${{{name}}}" in text for name in names)]
    return found


RULES: dict[str, tuple[Rule, str]] = {
    "base without a version": (unpinned_bases, "FROM docker.io/library/python:latest AS service\n"),
    "base without a tag": (unpinned_bases, "ARG BASE=registry:5000/python\nFROM ${BASE} AS service\n"),
    "root": (final_stages_of_root, "FROM a:1 AS service\nUSER 10001:10001\nUSER 0\n"),
    "root by silence": (final_stages_of_root, "FROM a:1 AS service\nRUN true\n"),
    "sudo": (careless_commands, "FROM a:1 AS service\nRUN sudo true\n"),
    "a script of the network": (careless_commands, "FROM a:1 AS service\nRUN curl -s http://a/b \\\n  | bash\n"),
    "apt's lists": (careless_commands, "FROM a:1 AS b\nRUN apt-get install -y --no-install-recommends x\n"),
    "apt's recommendations": (careless_commands, "FROM a:1 AS b\nRUN apt-get install x && rm -rf /var/lib/apt/lists\n"),
    "pip's cache": (careless_commands, "FROM a:1 AS b\nRUN pip install x\n"),
    "ADD": (careless_copies, "FROM a:1 AS b\nADD http://a/b /c\n"),
    "all files": (careless_copies, "FROM a:1 AS b\nCOPY . /source\n"),
    "nobody's files": (careless_copies, "FROM a:1 AS service\nCOPY --from=b /c /c\n"),
    "compiler": (compilers, "FROM a:1 AS service\nRUN apt-get install -y gcc\n"),
    "cached label": (stale_settings, 'FROM a:1 AS b\nRUN true\nARG REVISION\nLABEL r="${REVISION}"\nUSER 1\n'),
    "secret": (secrets, "FROM a:1 AS b\nARG INDEX_PASSWORD\n"),
}


@pytest.mark.parametrize("name", RULES)
def test_rule_catches_a_breach(name: str) -> None:
    rule, breach = RULES[name]
    assert rule(breach)


@pytest.mark.parametrize("rule", dict.fromkeys(rule for rule, _ in RULES.values()), ids=lambda rule: rule.__name__)
def test_dockerfile_keeps_the_rule(rule: Rule) -> None:
    assert rule(DOCKERFILE) == []


def test_all_images_share_one_final_stage() -> None:
    assert {tuple(lineage(DOCKERFILE, stage))[-1] for stage in FINAL} == {"service"}
    assert [path.name for path in ROOT.rglob("Dockerfile*") if ".venv" not in path.parts] == ["Dockerfile"]


def test_labels_are_those_of_oci() -> None:
    labels = " ".join(each.text for each in stages(DOCKERFILE)["service"] if each.word == "LABEL")
    names = set(re.findall(r"org\.opencontainers\.image\.(\w+)=", labels))
    assert names == {"title", "description", "version", "revision", "source", "licenses"}


def test_user_has_a_name_and_owns_its_state_only() -> None:
    text = " ".join(each.text for each in stages(DOCKERFILE)["service"] if each.word == "RUN")
    assert "polyfleet:x:10001:10001:" in text
    assert re.findall(r"chown 10001:10001 (\S+)", text) == ["/var/lib/polyfleet"]


def test_context_holds_what_is_copied_and_little_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied: set[str] = set()
    for each in instructions(DOCKERFILE):
        if each.word == "COPY" and "--from=" not in each.text:
            copied |= {word.removeprefix("./") for word in each.text.split()[:-1] if not word.startswith("--")}
    assert "*" in lines
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)
