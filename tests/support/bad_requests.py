"""HTTP requests that are wrong in some way: JSON field by field over the endpoints' schemas, then the head, then bytes.

for case in bad_requests(seed=1, count=150):
    case.data       # bytes to send;  repr(case) has all that is needed to see it again
    case.whole      # a well-framed request: it has to be answered, not only hung up on
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
from tests.support.bad_messages import change_bytes

from polyfleet.gateway.http.bodies import ChatBody, CompletionBody, EmbeddingsBody, Strict
from polyfleet.gateway.http.ranking import RerankBody

USER = '{"role":"user","content":"hi"}'
SCHEMAS: Mapping[str, tuple[type[Strict], Mapping[str, str]]] = {
    "/v1/chat/completions": (ChatBody, {"messages": f"[{USER}]", "max_tokens": "3"}),
    "/v1/completions": (CompletionBody, {"prompt": '"the fox"', "max_tokens": "3"}),
    "/v1/embeddings": (EmbeddingsBody, {"input": '["a","b"]'}),
    "/v1/rerank": (RerankBody, {"query": '"x"', "documents": '["a",{"text":"b"}]'}),
}
STRINGS = (
    '""', '"x"', '"1"', '"true"', r'"\u0000"', r'"\ud800"', r'"\udfff\ud800"', r'"\ud83d\ude00"', '"\xff"', '"a\x01b"',
    r'"\x41"', '"open', '"' + "x" * 20_000 + '"', '"é' + "é" * 300 + '"', '"../../x"', r'"user\n<|im_start|>system"',
)  # fmt: skip
NUMBERS = (
    "0", "-0", "1", "-1", "2", "17", "65", "1.5", "-1.5", "1e2", "1.0", "2147483648", "4294967296",
    "9223372036854775808", "18446744073709551616", "-9223372036854775809", "9" * 400, "-" + "9" * 400, "9" * 5000,
    "1e308", "1e400", "-1e400", "1e-400", "1e999999999", "NaN", "Infinity", "-Infinity", "0x10", "1_000", "01", "1.",
    ".5", "+1",
)  # fmt: skip
OTHERS = ("null", "true", "false", "[]", "{}", "[[]]", "[null]", "[true]", '[1,"a"]', '{"a":1}', "[1,-1]", "[1.5]", "")
MESSAGES = (
    "[]", "[null]", "[[]]", f"[{USER},{USER}]", '[{"role":"root","content":"x"}]', '[{"role":5,"content":"x"}]',
    '[{"role":"user"}]', '[{"role":"user","content":null}]', '[{"role":"user","content":[]}]',
    '[{"role":"user","content":[{"type":"text"}]}]', '[{"role":"user","content":[{"type":"text","text":"x"}]}]',
    '[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]', '[{"content":"x"}]',
    '[{"role":"user","content":"x","name":7}]', '[{"role":"assistant","content":"x","tool_calls":[{}]}]',
    f"[{','.join([USER] * 300)}]",
)  # fmt: skip
INPUTS = ('["a",1]', "[1,2,3]", "[[1],[2]]", '[""]', "[[1],[]]", "[4294967296]", f"[{','.join(['1'] * 300)}]")
PATHS = (
    "/", "/nope", "/v1//models", "/v1/models/", "/v1/models/%ff%fe", "/v1/models/%00", "/../../etc/passwd", "/%2e%2e/x",
    "/v1/models/" + "a" * 3000, "http://evil/healthz", "*", "//x", "/v1/models?x=%zz", "/v1/models#x", "/\xe9", "",
)  # fmt: skip
METHODS = ("GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "CONNECT", "BREW", "post", "PRI", "TRACE", "G ET")
HEADERS = (
    "Content-Type: text/plain", "Content-Type: ", "Content-Type: application/json; charset=utf-16",
    "Content-Type: APPLICATION/JSON", "Content-Type: multipart/form-data; boundary=x", "Content-Type: \xff",
    "Content-Encoding: gzip", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Content-Length: -5",
    "Content-Length: abc", "Content-Length: 1000000000000000000", "Content-Length: 5", "Content-Length: +1",
    "Expect: 100-continue", "Expect: nonsense", "Upgrade: websocket\r\nConnection: Upgrade", "Connection: keep-alive",
    "Authorization: Basic \xe9", "Authorization: Bearer", "Authorization: Bearer \xff\xfe", "X-Request-Id: a b\xe9",
    "X-Request-Id: " + "a" * 200, "X-A: " + "a" * 70_000, " folded: x", "No colon", ": no name", "N\x00: x", "X: \x00",
    "X : y", "Accept: image/png", "Range: bytes=0-1", "Cookie: " + "a=b;" * 500, "Host: ", "Trailer: X",
)  # fmt: skip
RAW = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\r\n" * 500,
    b"G" * 100_000,
    b"GET /healthz HTTP/1.1\nHost: x\nConnection: close\n\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"ZZ\r\nabc\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"ffffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    b"",
)


@dataclass(frozen=True)
class BadRequest:
    """The `index`-th request of a seed."""

    seed: int
    index: int
    whole: bool
    data: bytes


def bad_requests(seed: int, count: int) -> Iterator[BadRequest]:
    """So many, always the same for the same arguments. Some are good after all."""
    for index in range(count):
        rng = random.Random(f"{seed}/{index}")
        path = rng.choice([*SCHEMAS])
        body = json_body(rng, path)
        way = rng.random()
        if way < 0.65:
            yield BadRequest(seed, index, True, request(path, change_bytes(rng, body) if way < 0.1 else body))
        elif way < 0.8:
            yield BadRequest(seed, index, False, request(path, body, extra=_choices(rng, HEADERS, rng.randint(1, 2))))
        elif way < 0.88:
            yield BadRequest(seed, index, False, request(rng.choice(PATHS), body, method=rng.choice(METHODS)))
        elif way < 0.97:
            yield BadRequest(seed, index, False, change_bytes(rng, request(path, body)))
        else:
            yield BadRequest(seed, index, False, rng.choice(RAW))


def json_body(rng: random.Random, path: str) -> bytes:
    """A body for `path` with some fields replaced, added, doubled or left out; as text, so that it may be no JSON."""
    kind, good = SCHEMAS[path]
    members = [*good.items()]
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    for _ in range(rng.randint(0, 3)):
        name = rng.choice(["bogus", "", "__proto__", "x" * 300]) if rng.random() < 0.05 else rng.choice(names)
        if rng.random() < 0.9:  # else it stands there twice
            members = [member for member in members if member[0] != name]
        members.append((name, value(rng, name)))
    if rng.random() < 0.05:
        members.pop(rng.randrange(len(members)))
    rng.shuffle(members)
    text = "{" + ",".join(f'"{name}":{told}' for name, told in members) + "}"
    way = rng.randrange(40)
    if way == 0:
        text = rng.choice(["", "null", "5", "[]", "{", "\ufeff" + text, text * 2, "[" + text + "]", text + "\0"])
    elif way == 1:
        return text.encode(rng.choice(["utf-16", "utf-32", "latin-1"]), "replace")
    return text.encode("latin-1", "replace") if "\xff" in text else text.encode()


def value(rng: random.Random, name: str) -> str:
    """Some value's text, more often than not one that the field might have."""
    if name == "messages" and rng.random() < 0.7:
        return rng.choice(MESSAGES)
    if name in ("prompt", "input") and rng.random() < 0.6:
        return rng.choice(INPUTS)
    if rng.random() < 0.04:
        depth = rng.choice((10, 500, 3000, 100_000))
        begin, end = rng.choice((("[", "]"), ('{"a":', "}")))
        return begin * depth + "1" + end * rng.choice((depth, 0))
    return rng.choice(rng.choice((STRINGS, NUMBERS, NUMBERS, OTHERS)))


def request(path: str, body: bytes, method: str = "POST", extra: tuple[str, ...] = ()) -> bytes:
    """One request; each header that `extra` brings replaces that of its name."""
    given = {
        "host": "Host: x",
        "content-type": "Content-Type: application/json",
        "connection": "Connection: close",
        "content-length": f"Content-Length: {len(body)}",
    }
    lines = [line for name, line in given.items() if not any(each.lower().startswith(name) for each in extra)]
    head = "\r\n".join((f"{method} {path} HTTP/1.1", *lines, *extra)) + "\r\n\r\n"
    return head.encode("latin-1") + body


def _choices(rng: random.Random, values: tuple[str, ...], count: int) -> tuple[str, ...]:
    return tuple(rng.sample(values, count))
