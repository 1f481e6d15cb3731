"""A model's PromptText in a process of its own: what a template or a huge prompt costs, it costs there.

The gateway starts `python -m polyfleet.text.process`, writes a `Load` and then jobs to its standard input, and reads
one answer to each. A frame is its length (4 bytes, little-endian) and a message in msgpack. The process ends with its
input, when a job takes longer than it may, or where the system stops it for its memory.
"""

import signal
import struct
import sys
from array import array
from contextlib import suppress
from typing import BinaryIO

import msgspec

from polyfleet.text.errors import TextAssetsError
from polyfleet.text.grammar import Calls, make_grammar
from polyfleet.text.images import SEES_NONE, Grid, prepare
from polyfleet.text.prompt_text import PromptText
from polyfleet.wire.images import SequenceImage
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import Chat
from polyfleet.wire.structure import Structure

LENGTH = struct.Struct("<I")
TOO_MUCH_MEMORY = "takes too much memory"


class Load(msgspec.Struct, frozen=True, tag=True):
    """The first message: the tokenizer assets, and how much memory jobs may take beyond them (bytes of addresses)."""

    document: bytes
    memory_bytes: int


class PrepareChat(msgspec.Struct, frozen=True, tag=True):
    """Try the chat template. `seconds`, here and below: the process ends when it takes longer."""

    seconds: float

    @property
    def field(self) -> str:
        """Whose fault it is when it fails."""
        return "messages"

    @property
    def too_long(self) -> str:
        """What is wrong with the field then."""
        return f"the model's chat template took longer than {self.seconds:g} s"


class EncodeText(msgspec.Struct, frozen=True, tag=True):
    """Encode a text. `max_tokens`: more are counted but not given back (0: any number); `pieces`: spell them too."""

    seconds: float
    text: str
    add_special_tokens: bool = True
    max_tokens: int = 0
    pieces: bool = False

    @property
    def field(self) -> str:
        """See PrepareChat."""
        return "text"

    @property
    def too_long(self) -> str:
        """See PrepareChat."""
        return f"took longer than {self.seconds:g} s to encode"


class EncodeChat(msgspec.Struct, frozen=True, tag=True):
    """Render and encode a chat, whose images come as they are cut; see EncodeText and PromptText.encode_chat."""

    seconds: float
    chat: Chat
    grids: tuple[Grid, ...] = ()
    open_contents: bool = False
    max_tokens: int = 0
    pieces: bool = False

    @property
    def field(self) -> str:
        """See PrepareChat."""
        return "messages"

    @property
    def too_long(self) -> str:
        """See PrepareChat."""
        return f"took longer than {self.seconds:g} s in the model's chat template and tokenizer"


class EncodeDocument(msgspec.Struct, frozen=True, tag=True):
    """Encode a document, with a query where there is one; see PromptText.encode_document."""

    seconds: float
    document: str
    max_tokens: int
    max_text: int = 0
    query: str = ""

    @property
    def field(self) -> str:
        """See PrepareChat."""
        return "document"

    @property
    def too_long(self) -> str:
        """See PrepareChat."""
        return f"took longer than {self.seconds:g} s to encode"


class MakeGrammar(msgspec.Struct, frozen=True, tag=True):
    """Make the grammar of an answer, and try it; see `polyfleet.text.grammar`."""

    seconds: float
    structure: Structure | None
    calls: Calls | None
    closing_of_thoughts: str = ""
    special: tuple[tuple[str, int], ...] = ()
    channels: bool = False

    @property
    def field(self) -> str:
        """See PrepareChat."""
        return "structure" if self.structure else "tools"

    @property
    def too_long(self) -> str:
        """See PrepareChat."""
        return f"took longer than {self.seconds:g} s to be made into a grammar"


class PrepareImage(msgspec.Struct, frozen=True, tag=True):
    """Decode an image and cut it; see `polyfleet.text.images`."""

    seconds: float
    data: bytes

    @property
    def field(self) -> str:
        """See PrepareChat."""
        return "messages"

    @property
    def too_long(self) -> str:
        """See PrepareChat."""
        return f"took longer than {self.seconds:g} s to decode"


class Done(msgspec.Struct, frozen=True, tag=True):
    """Nothing went wrong."""


class Encoded(msgspec.Struct, frozen=True, tag=True):
    """A prompt. `token_ids` is an array of unsigned ints; `end_token_ids` end the model's turn in a chat.

    `thinking`: it ends within the model's thoughts; `segment_start`: where a pair's document begins.
    """

    num_tokens: int
    token_ids: bytes
    pieces: tuple[str, ...] = ()
    end_token_ids: tuple[int, ...] = ()
    thinking: bool = False
    segment_start: int = 0


class Made(msgspec.Struct, frozen=True, tag=True):
    """A grammar."""

    grammar: str


class PreparedImage(msgspec.Struct, frozen=True, tag=True):
    """An image as the model sees it, and how it was cut."""

    grid: Grid
    image: SequenceImage


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A FieldError."""

    field: str
    problem: str
    reason: str = ""


class Unusable(msgspec.Struct, frozen=True, tag=True):
    """A TextAssetsError."""

    problem: str


Job = PrepareChat | EncodeText | EncodeChat | EncodeDocument | MakeGrammar | PrepareImage
Answer = Done | Encoded | Made | PreparedImage | Refused | Unusable
_jobs = msgspec.msgpack.Decoder(
    Load | PrepareChat | EncodeText | EncodeChat | EncodeDocument | MakeGrammar | PrepareImage
)
_answers = msgspec.msgpack.Decoder(Done | Encoded | Made | PreparedImage | Refused | Unusable)


def frame(message: Load | Job | Answer) -> bytes:
    """The message as it is written. Raises UnicodeEncodeError for half a surrogate pair."""
    encoded = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(encoded)) + encoded


def read_answer(encoded: bytes) -> Answer:
    """The answer in a frame, without its length."""
    answer: Answer = _answers.decode(encoded)
    return answer


class Server:
    """Answers messages in their order."""

    def __init__(self) -> None:
        self._text: PromptText | None = None

    def answer(self, message: Load | Job) -> Answer:
        """What comes of a message; never an exception."""
        try:
            return self._load(message) if isinstance(message, Load) else self._encode(message)
        except TextAssetsError as error:
            return Unusable(str(error))
        except FieldError as error:
            return Refused(error.field, error.problem, error.reason)
        except MemoryError:
            return Refused("" if isinstance(message, Load) else message.field, TOO_MUCH_MEMORY)

    def _load(self, message: Load) -> Answer:
        self._text = PromptText(message.document)
        _limit_memory(message.memory_bytes)
        return Done()

    def _encode(self, job: Job) -> Answer:
        if isinstance(job, MakeGrammar):
            parts = job.structure, job.calls, job.closing_of_thoughts, job.special
            return Made(make_grammar(*parts, channels=job.channels))
        if self._text is None:
            raise TextAssetsError("Nothing was loaded.")
        if isinstance(job, PrepareChat):
            self._text.prepare_chat()
            return Done()
        if isinstance(job, EncodeDocument):
            pair = self._text.encode_document(job.document, job.max_tokens, job.max_text, query=job.query)
            packed = array("I", pair.token_ids).tobytes()
            return Encoded(len(pair.token_ids), packed, segment_start=pair.segment_start)
        if isinstance(job, PrepareImage):
            if self._text.images is None:
                raise FieldError(job.field, SEES_NONE)
            grid, pixels = prepare(job.data, self._text.images)
            return PreparedImage(grid, SequenceImage.of(pixels))
        end_token_ids: tuple[int, ...] = ()
        thinking = False
        if isinstance(job, EncodeText):
            ids = self._text.encode(job.text, job.add_special_tokens, job.max_tokens)
        else:
            asked = job.chat
            chat = self._text.encode_chat(
                asked.messages,
                job.max_tokens,
                tools=asked.tools,
                arguments=asked.arguments,
                open_contents=job.open_contents,
                grids=job.grids,
            )
            ids, end_token_ids, thinking = chat.token_ids, chat.end_token_ids, chat.thinking
        given = ids if not job.max_tokens or len(ids) <= job.max_tokens else []
        pieces = tuple(self._text.pieces(given)) if job.pieces else ()
        return Encoded(len(ids), array("I", given).tobytes(), pieces, end_token_ids, thinking)


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer every message of `source` until it ends."""
    server = Server()
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        message = _jobs.decode(source.read(LENGTH.unpack(head)[0]))
        if not isinstance(message, Load):
            signal.setitimer(signal.ITIMER_REAL, message.seconds)  # the signal ends the process, wherever it is
        answer = frame(server.answer(message))
        signal.setitimer(signal.ITIMER_REAL, 0)
        sink.write(answer)
        sink.flush()


def _limit_memory(num_bytes: int) -> None:
    """Let this process take so much more; where the system can't tell what it has or keep a limit, nothing happens."""
    import resource

    with suppress(OSError, ValueError), open("/proc/self/statm") as statm:
        limit = int(statm.read().split()[0]) * resource.getpagesize() + num_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
