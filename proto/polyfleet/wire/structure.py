"""Structure: what an answer has to be."""

from dataclasses import dataclass, fields

from polyfleet.wire.limits import FieldError, check_count

MAX_CHARACTERS = 64 * 1024
MAX_CHOICES = 1024
GRAMMAR_LIMITS = {"initial_lexer_fuel": 200_000, "step_lexer_fuel": 20_000}  # llguidance's: what a token may cost


@dataclass(frozen=True, slots=True)
class Structure:
    """Exactly one of these; meanings and limits stand in `polyfleet/v1/inference.proto`."""

    json_schema: str | None = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    choices: tuple[str, ...] = ()

    @property
    def kinds(self) -> list[str]:
        """The names of what is set."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return [name for name, value in values.items() if value not in (None, False, ())]

    def check(self, field: str = "structure") -> None:
        """Raise FieldError unless one is set, within its limits."""
        kinds = self.kinds
        if len(kinds) != 1:
            names = ", ".join(each.name for each in fields(self))
            problem = f"exactly one of {names} must be set, not {' and '.join(kinds) or 'none'}"
            raise FieldError(f"{field}.{kinds[1]}" if kinds else field, problem)
        texts = self.choices or [getattr(self, kinds[0])]
        check_count(f"{field}.choices", len(self.choices), MAX_CHOICES)
        if self.choices and not all(self.choices):
            raise FieldError(f"{field}.choices", "must not hold an empty text")
        if (size := sum(len(text) for text in texts if isinstance(text, str))) > MAX_CHARACTERS:
            raise FieldError(f"{field}.{kinds[0]}", f"must be at most {MAX_CHARACTERS} characters long, not {size}")
