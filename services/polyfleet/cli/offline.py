"""`polyfleet generate --offline`: the engine alone, in this process. The one place where a command drives an Engine."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfleet.cli.chosen import Choice, say_chosen
from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.stack.settings import check_model
from polyfleet.wire.options import EngineOptions, OptionValue

if TYPE_CHECKING:
    from polyfleet.engine.engine import Engine
    from polyfleet.text.model_text import ModelText
    from polyfleet.wire.requests import SequenceRequest


def generate_offline(
    path: Path,
    text: str | None,
    prompt_ids: tuple[int, ...] | None,
    device: str,
    stated: Mapping[str, OptionValue],
    *,
    temperature: float | None,
    seed: int | None,
    own_defaults: bool = False,
    **limits: Any,
) -> dict[str, Any]:
    """Continue a text or ids with the model at `path`, greedily without a temperature; `--json` prints the result.

    `own_defaults`: how tokens are drawn is what the model's files state, as far as it is not given here. `limits` are
    those of `SequenceRequest`.
    Raises CliError: bad file, option or prompt, or a computation that failed.
    """
    check_request(path, device)
    options = engine_options(device, {"max_sequences": 1, **stated})
    from polyfleet.backends import BackendUnavailable
    from polyfleet.engine.engine import Engine
    from polyfleet.wire.requests import SequenceRequest
    from polyfleet.wire.sampling import SamplingParams

    try:
        engine = Engine.load(str(path), options)
        model_text = text_of(engine)
        ids = prompt_ids if prompt_ids is not None else encode(model_text, text or "")
        defaults = model_text.sampling_defaults if model_text and own_defaults else {}
        given = {"temperature": temperature} if temperature is not None else {}
        params = SamplingParams(**{"temperature": 0.0, **defaults, **given}, seed=seed or 0)  # type: ignore[arg-type]
        request = SequenceRequest("offline", ids, params, **limits)
        token_ids, finish_reason = run(engine, request)
    except (ValueError, BackendUnavailable) as error:  # model files, fields and options: all one sentence
        raise CliError(sentence(error), ExitCode.BAD_INPUT) from None
    except RuntimeError as error:
        raise CliError(sentence(error)) from None
    return {"token_ids": token_ids, "text": decode(model_text, ids, token_ids), "finish_reason": finish_reason}


def engine_options(device: str, stated: Mapping[str, OptionValue]) -> EngineOptions:
    """What is stated, beside it what this user chose, and says so. Raises CliError."""
    choice, accelerator = Choice.read(), device.partition(":")[0]
    options: dict[str, Any] = choice.options_beside(stated, () if accelerator == "auto" else (accelerator,))
    say_chosen(stated, options)
    return EngineOptions(device=choice.backend if accelerator == "auto" else device, **options)


def check_request(path: Path, device: str) -> None:
    """Raise CliError for a device that is not here or a file that is no model; no torch is imported."""
    from polyfleet.backends import BackendUnavailable
    from polyfleet.tuning.choice import get_backend

    try:
        if device != "auto":
            get_backend(device.partition(":")[0])
    except BackendUnavailable as error:
        raise CliError(sentence(error), ExitCode.BAD_INPUT) from None
    check_model(str(path))


def text_of(engine: "Engine") -> "ModelText | None":
    """The model's tokenizer; None when its folder has none."""
    if engine.tokenizer is None:
        return None
    from polyfleet.text.model_text import ModelText

    return ModelText(engine.tokenizer.document)


def encode(model_text: "ModelText | None", text: str) -> tuple[int, ...]:
    """The ids of a text. Raises CliError when there is no tokenizer."""
    if model_text is None:
        raise CliError("This model has no tokenizer: give --prompt-ids 1,2,3 instead of --prompt.", ExitCode.BAD_INPUT)
    return tuple(model_text.encode(text))


def decode(model_text: "ModelText | None", prompt_ids: tuple[int, ...], token_ids: list[int]) -> str:
    """The text of an answer behind its prompt; empty without a tokenizer."""
    if model_text is None:
        return ""
    detokenizer = model_text.detokenizer(prompt_ids)
    return detokenizer.add(token_ids) + detokenizer.finish()


def run(engine: "Engine", request: "SequenceRequest") -> tuple[list[int], str]:
    """Token ids and finish reason of the one request. Raises FieldError, RuntimeError when computing fails."""
    engine.add(request)
    token_ids: list[int] = []
    finish_reason = ""
    while engine.has_work:
        for update in engine.step():
            if update.error:
                raise RuntimeError(update.error)
            token_ids += [token.token_id for token in update.tokens]
            finish_reason = update.finish_reason.value if update.finish_reason else finish_reason
    return token_ids, finish_reason


def sentence(error: Exception) -> str:
    """The error's own words, ended by a full stop."""
    return f"{str(error).rstrip('.')}."
