"""The commands that talk to a gateway or a scheduler, against scripted ones."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from google.rpc import code_pb2
from tests.support.scripted_inference import fail, serve, unavailable
from tests.support.tls_files import write_tls_files

from polyfleet.cli.errors import ExitCode
from polyfleet.cli.main import cli
from polyfleet.v1 import inference_pb2 as pb

QUIET_PORT = "127.0.0.1:1"


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, arguments, input=stdin)


def hello(request: Any, context: Any) -> Iterator[pb.GenerateResponse]:
    yield pb.GenerateResponse(request_id="req-1", worker_id="w-1", text="Hel", token_ids=[1, 2])
    yield pb.GenerateResponse(text="lo", token_ids=[3], finish_reason=pb.FINISH_REASON_STOP)
    yield pb.GenerateResponse(usage=pb.Usage(prompt_tokens=4, completion_tokens=3))


def test_generate_streams_text() -> None:
    numbers = ("--max-tokens", "7", "--min-tokens", "4", "--seed", "3")
    with serve(hello) as script:
        result = run("generate", "--gateway", script.address, "--prompt", "Say hello", *numbers)
    assert (result.exit_code, result.stdout) == (0, "Hello\n")
    (request,) = script.calls
    assert (request.text, request.max_tokens, request.min_tokens, request.sampling.seed) == ("Say hello", 7, 4, 3)
    assert not request.sampling.HasField("temperature")


def test_generate_shows_what_is_at_a_url() -> None:
    with serve(hello) as script:
        run("generate", "--gateway", script.address, "What is it?", "--image", "https://a/b.png")
    assert script.calls[0].messages[0].parts[0] == pb.ContentPart(image_url="https://a/b.png")


def test_generate_shows_images(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"file")
    shown = ("--image", str(tmp_path / "a.png"))
    with serve(hello) as script:
        result = run("generate", "--gateway", script.address, "What is it?", *shown)
        lost = run("generate", "--gateway", script.address, "What is it?", "--image", str(tmp_path / "none"))
    assert (result.exit_code, result.stdout) == (0, "Hello\n")
    (request,) = script.calls
    parts = [pb.ContentPart(image=b"file"), pb.ContentPart(text="What is it?")]
    assert list(request.messages) == [pb.ChatMessage(role="user", parts=parts)]
    assert "none can't be read: No such file or directory." in lost.stderr
    wrong = run("generate", "--gateway", "127.0.0.1:1", "--prompt-ids", "1", *shown)
    assert "--image goes with TEXT" in wrong.stderr
    assert "--image goes to one; --offline names the file" in run("generate", "x", "--offline", "m.gguf", *shown).stderr


def test_generate_prints_json() -> None:
    with serve(hello) as script:
        result = run("generate", "--gateway", script.address, "--prompt-ids", "5, 6,7", "--json", "--ignore-eos")
    assert json.loads(result.stdout) == {
        "token_ids": [1, 2, 3],
        "text": "Hello",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 4, "cached_tokens": 0, "completion_tokens": 3, "reasoning_tokens": 0},
        "request_id": "req-1",
        "worker_ids": ["w-1"],
    }
    (request,) = script.calls
    assert (list(request.token_ids), request.ignore_eos, request.HasField("text")) == ([5, 6, 7], True, False)


def test_generate_takes_the_text_as_it_stands() -> None:
    with serve(hello) as script:
        result = run("generate", "Say [bold]hello", "--gateway", script.address)
    assert (result.exit_code, result.stdout, script.calls[0].text) == (0, "Hello\n", "Say [bold]hello")


@pytest.mark.parametrize("arguments", [(), ("-",), ("--prompt", "-")])
def test_generate_reads_stdin(arguments: tuple[str, ...]) -> None:
    with serve(hello) as script:
        assert run("generate", "--gateway", script.address, *arguments, stdin="From a pipe").exit_code == 0
    assert script.calls[0].text == "From a pipe"


def test_generate_sends_the_key_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("pf-secret\n")
    with serve(hello) as script:
        run("generate", "--gateway", script.address, "--prompt", "a", "--api-key-file", str(tmp_path / "key"))
    assert script.metadata[0]["authorization"] == "Bearer pf-secret"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--prompt", "a", "--prompt-ids", "1"), "not both"),
        (("a", "--prompt", "b"), "not both"),
        (("a", "--prompt-ids", "1"), "not both"),
        (("",), "The prompt is empty"),
        (("a", "--model", ""), "it is empty; leave the option out"),
        (("a", "--api-key-file", ""), "it is empty; leave the option out"),
        (("--prompt-ids", "1,x"), "'x' is no token id"),
        (("--prompt-ids", "-1"), "'-1' is no token id"),
        (("--prompt-ids", "4294967296"), "is no token id"),
        (("--prompt-ids", ""), "'' is no token id"),
        (("--prompt", ""), "The prompt is empty"),
        (("--prompt", "a", "--max-tokens", "0"), "--max-tokens"),
        (("--prompt", "a", "--temperature", "3"), "--temperature"),
        (("--prompt", "a", "--temperature", "nan"), "--temperature"),
        (("--prompt", "a", "--dtype", "float32"), "belongs to --offline"),
        (("--prompt", "a", "--offline", "m.gguf", "--model", "m"), "--model names a model of a gateway"),
        (("--prompt", "a", "--gateway", "nowhere"), "is no address"),
        (("--prompt", "a", "--api-key-file", "/nonexistent/key"), "can't be read"),
    ],
)
def test_generate_refuses_bad_arguments(arguments: tuple[str, ...], problem: str) -> None:
    result = run("generate", *arguments)
    assert result.exit_code == ExitCode.BAD_INPUT
    assert problem in result.stderr


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (code_pb2.INVALID_ARGUMENT, ExitCode.BAD_INPUT),
        (code_pb2.NOT_FOUND, ExitCode.BAD_INPUT),
        (code_pb2.RESOURCE_EXHAUSTED, ExitCode.UNAVAILABLE),
        (code_pb2.UNAUTHENTICATED, ExitCode.NOT_ALLOWED),
        (code_pb2.PERMISSION_DENIED, ExitCode.NOT_ALLOWED),
        (code_pb2.DATA_LOSS, ExitCode.FAILED),
    ],
)
def test_a_status_becomes_one_sentence_and_an_exit_code(code: int, exit_code: ExitCode) -> None:
    hint = "; --api-key-file names the file that has it" if code == 16 else ""
    with serve(fail(code, "The gateway says no.")) as script:
        result = run("generate", "--gateway", script.address, "--prompt", "a")
    assert result.exit_code == exit_code
    assert result.stderr == f"Error: The gateway says no{hint}.\n"


def test_a_retry_hint_is_shown() -> None:
    with serve(unavailable(30.0)) as script:
        result = run("generate", "--gateway", script.address, "--prompt", "a")
    assert (result.exit_code, result.stderr) == (3, "Error: no worker is ready. Try again in 30 s.\n")


def test_nobody_there_says_so() -> None:
    result = run("models", "--gateway", QUIET_PORT)
    assert result.exit_code == ExitCode.UNAVAILABLE
    assert f"Nothing answers at {QUIET_PORT}" in result.stderr


def test_tls_on_one_side_only_says_so(tmp_path: Path) -> None:
    certificate, key = write_tls_files(tmp_path)
    pair = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    with serve(hello, credentials=pair) as script:
        plain = run("generate", "a", "--gateway", script.address)
        untrusting = run("generate", "a", "--gateway", script.address, "--tls")
        trusting = run("generate", "a", "--gateway", script.address, "--ca-file", str(certificate))
    assert "speaks no gRPC in the clear: if it has TLS, give --ca-file or --tls" in plain.stderr
    assert "is not trusted: name the PEM file of its roots with --ca-file" in untrusting.stderr
    assert trusting.stdout == "Hello\n"
    with serve(hello) as script:
        wrong = run("generate", "a", "--gateway", script.address, "--tls")
    assert "speaks no TLS: leave out --tls and --ca-file" in wrong.stderr
    assert [each.exit_code for each in (plain, untrusting, wrong)] == [ExitCode.UNAVAILABLE] * 3


def test_chat_answers_stdin_once() -> None:
    with serve(hello) as script:
        result = run("chat", "--gateway", script.address, "--system", "Be brief.", stdin="Hi\n")
    assert (result.exit_code, result.stdout) == (0, "Hello\n")
    turns = [(message.role, message.content) for message in script.calls[0].messages]
    assert turns == [("system", "Be brief."), ("user", "Hi")]


def test_chat_refuses_an_empty_pipe() -> None:
    result = run("chat", "--gateway", QUIET_PORT, stdin="\n")
    assert (result.exit_code, result.stderr) == (2, "Error: stdin is empty: pipe a question into it.\n")


def embedded(request: Any, context: Any) -> pb.EmbedResponse:
    vectors = [pb.Embedding(values=[0.5, -0.25]) for _ in request.inputs]
    return pb.EmbedResponse(embeddings=vectors, usage=pb.Usage(prompt_tokens=3))


def test_embed_for_people_and_programs() -> None:
    with serve(embedded) as script:
        table = run("embed", "one [b]", "two", "--gateway", script.address, "--pooling", "last", "--normalize")
        document = run("embed", "--model", "m", "--gateway", script.address, "--json", stdin="From a pipe")
    assert [line.split() for line in table.stdout.splitlines()[1:]] == [
        ["'one", "[b]'", "2", "0.5000", "-0.2500"],
        ["'two'", "2", "0.5000", "-0.2500"],
    ]
    first, second = script.calls
    assert ([each.text for each in first.inputs], first.pooling, first.normalize) == (
        ["one [b]", "two"],
        pb.POOLING_LAST,
        True,
    )
    assert (second.model, second.inputs[0].text, second.pooling) == ("m", "From a pipe", pb.POOLING_UNSPECIFIED)
    assert json.loads(document.stdout)["embeddings"] == [[0.5, -0.25]]


def reranked(request: Any, context: Any) -> pb.RerankResponse:
    return pb.RerankResponse(results=[pb.RankedDocument(index=1, relevance_score=0.5)])


def test_rerank_for_people_and_programs() -> None:
    with serve(reranked) as script:
        table = run("rerank", "what?", "one", "[b] two", "--gateway", script.address, "--top", "1")
        document = run("rerank", "what?", "--model", "m", "--gateway", script.address, "--json", stdin="a\n\nb\n")
    assert [line.split() for line in table.stdout.splitlines()] == [
        ["SCORE", "INDEX", "DOCUMENT"],
        ["0.5000", "1", "'[b]", "two'"],
    ]
    first, second = script.calls
    assert first == pb.RerankRequest(query="what?", documents=["one", "[b] two"], top_n=1)
    assert second == pb.RerankRequest(query="what?", documents=["a", "b"], model="m")
    assert json.loads(document.stdout)["results"] == [{"index": 1, "relevance_score": 0.5}]


def tokenized(request: Any, context: Any) -> pb.TokenizeResponse:
    return pb.TokenizeResponse(token_ids=[7, 8], pieces=["[Hel]", "lo"])


def test_tokenize_for_people_and_programs() -> None:
    with serve(tokenized) as script:
        table = run("tokenize", "Hello", "--gateway", script.address, "--no-special-tokens")
        document = run("tokenize", "--chat", "--gateway", script.address, "--json", stdin="Hello")
    assert [line.split() for line in table.stdout.splitlines()] == [
        ["ID", "PIECE"],
        ["7", "[Hel]"],
        ["8", "lo"],
        ["2", "tokens"],
    ]
    assert json.loads(document.stdout) == {"token_ids": [7, 8], "pieces": ["[Hel]", "lo"]}
    text, chat = script.calls
    assert (text.text, text.add_special_tokens, len(text.messages)) == ("Hello", False, 0)
    assert (chat.messages[0].role, chat.messages[0].content, chat.HasField("text")) == ("user", "Hello", False)


@pytest.mark.parametrize("command", ["embed", "tokenize"])
def test_texts_must_not_be_empty(command: str) -> None:
    assert run(command, "").exit_code == ExitCode.BAD_INPUT
    assert "is empty: give at least one character" in run(command, stdin="").stderr


def listed(request: Any, context: Any) -> pb.ListModelsResponse:
    model = pb.Model(name="small", context_length=8192, vocabulary_size=100, ready_workers=2, accelerators=["cpu"])
    return pb.ListModelsResponse(models=[model])


def test_models_show_their_sampling_defaults() -> None:
    sampling = pb.SamplingParams(temperature=0.2, top_p=0.9)

    def step(request: Any, context: Any) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=[pb.Model(name="small", sampling_defaults=sampling)])

    with serve(step) as script:
        table = run("models", "--gateway", script.address).stdout
    with serve(step) as script:
        (record,) = json.loads(run("models", "--gateway", script.address, "--json").stdout)
    assert table.splitlines()[1].endswith("temperature 0.2, top_p 0.9")
    assert record["sampling_defaults"] == {"temperature": 0.2, "top_p": 0.9}


def test_models_for_people_and_programs() -> None:
    with serve(listed) as script:
        table = run("models", "--gateway", script.address)
        document = run("models", "--gateway", script.address, "--json")
    header, row = table.stdout.splitlines()
    assert header.split()[0] == "MODEL"
    assert row.split() == ["small", "2", "8192", "100", "cpu"]
    assert json.loads(document.stdout)[0]["ready_workers"] == 2
    assert "\x1b" not in table.stdout


def test_every_command_has_help_with_an_example() -> None:
    for name, command in cli.commands.items():
        help_text = run(name, "--help").stdout
        subcommands = getattr(command, "commands", {})
        texts = [run(name, sub, "--help").stdout for sub in subcommands] or [help_text]
        assert all("Example" in text for text in texts), name


def test_version_is_printed() -> None:
    assert run("--version").stdout.strip().count(".") == 2
