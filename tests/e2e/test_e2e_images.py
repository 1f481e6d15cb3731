"""Images through a whole stack: the example of docs/clients.md, and the command line."""

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from tests.support import tiny_vision
from tests.support.serve_process import ServeProcess
from tests.support.tiny_vision import encoded, picture

pytestmark = pytest.mark.slow
DOCUMENT = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A stack whose model sees."""
    folder = tmp_path_factory.mktemp("seeing")
    tiny_vision.make(folder)
    serve = ServeProcess(tmp_path_factory.mktemp("stack"), str(folder)).start()
    try:
        yield serve.wait_ready()
    finally:
        serve.stop()


def test_the_example_shows_an_image(seeing: ServeProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both clients get the same answer, which the command line gives, too; another image gets another."""
    section = DOCUMENT.partition("## Showing images\n")[2].partition("\n## ")[0]
    example = "\n".join(dedent(block) for block in re.findall(r"(?:^(?: {4}.*)?\n)+", section, re.MULTILINE))
    example = example.replace("max_tokens=30", "max_tokens=30, temperature=0")
    answers = []
    for seed in (3, 4):
        path = tmp_path / f"{seed}.png"
        path.write_bytes(encoded(picture(50, 30, seed=seed)))
        model = Path(seeing.workers()[0]["model"]).name
        scope = {"BASE_URL": f"http://{seeing.http}", "GRPC_ADDRESS": seeing.grpc, "MODEL": model, "PICTURE": path}
        exec(example, scope)
        said = capsys.readouterr().out
        options = ("--gateway", seeing.grpc, "--image", str(path), "--max-tokens", "30", "--temperature", "0")
        shown = seeing.polyfleet("generate", "What is it?", *options).stdout
        assert said.split() == 2 * shown.split()  # random weights write line ends of all kinds
        answers.append(said)
    assert answers[0] != answers[1]
