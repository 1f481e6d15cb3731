"""Fetch a model's files into a folder, once: from a model hub or from S3. Standard library only.

    fetch_model.py hub OWNER/NAME --into=FOLDER [--revision=main] [--include=PATTERN …]
    fetch_model.py s3 s3://BUCKET/PREFIX --into=FOLDER

A folder that is whole is left as it is, without a call: what it holds stays until the folder goes or its name changes.
Only one process fetches into a folder at a time; what was cut off is continued. Formats that can carry code (pickles,
Python files) are never fetched.
"""

import argparse
import datetime
import fcntl
import fnmatch
import hashlib
import hmac
import http.client
import json
import shutil
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

HUB = "https://huggingface.co"
FOLDER_FORMATS = ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken")  # without --include
FORMATS = (*FOLDER_FORMATS, "*.gguf")
SECRETS = {"hub": ("token",), "s3": ("access-key-id", "secret-access-key")}
WHOLE = ".whole.json"  # the patterns of what is there; written last
TRIES, LONGEST_PAUSE, TIMEOUT_SECONDS = 6, 30.0, 60.0
CHUNK = 1 << 20
NO_BODY = hashlib.sha256(b"").hexdigest()
NOT_NOW = (408, 425, 429, 500, 502, 503, 504)
BROKEN = (urllib.error.URLError, http.client.HTTPException, OSError)


class FetchError(Exception):
    """The model can't be had. The message is one sentence for the operator."""


@dataclass(frozen=True)
class File:
    """One file of a model: where it is to lie, where it comes from, and what is known of its content."""

    path: str
    url: str
    size: int | None
    sha256: str | None = None


class OtherHost(urllib.request.HTTPRedirectHandler):
    """Follows redirects, without the credentials when they lead to another host."""

    def redirect_request(self, req: urllib.request.Request, *answer: Any) -> urllib.request.Request | None:
        """The next request."""
        following = super().redirect_request(req, *answer)
        if following and following.host != req.host:
            following.remove_header("Authorization")
        return following


OPENER = urllib.request.build_opener(OtherHost)


class Hub:
    """The API of Hugging Face's hub and of its mirrors."""

    def __init__(self, repository: str, revision: str, endpoint: str, token: str | None) -> None:
        self._repository, self._revision, self._token = repository, revision, token
        self._endpoint = (endpoint or HUB).rstrip("/")

    def files(self) -> list[File]:
        """All files of the revision, at the commit that it names now."""
        revision = urllib.parse.quote(self._revision, safe="")
        url = f"{self._endpoint}/api/models/{self._repository}/revision/{revision}?blobs=true"
        with open_url(self.request(url)) as answer:
            found = json.load(answer)
        base = f"{self._endpoint}/{self._repository}/resolve/{found['sha']}"
        return [
            File(
                each["rfilename"], f"{base}/{urllib.parse.quote(each['rfilename'])}", each.get("size"), sha256_of(each)
            )
            for each in found["siblings"]
        ]

    def request(self, url: str) -> urllib.request.Request:
        """A GET with the token."""
        return urllib.request.Request(url, headers={"Authorization": f"Bearer {self._token}"} if self._token else {})


def sha256_of(sibling: dict[str, Any]) -> str | None:
    """A large file's hash; the hub announces none of small ones."""
    return (sibling.get("lfs") or {}).get("sha256")


class Bucket:
    """One bucket of S3 or of what speaks like it; path-style addresses, Signature Version 4."""

    def __init__(self, uri: str, endpoint: str, region: str, key_id: str | None, secret: str | None) -> None:
        place = urllib.parse.urlsplit(uri)
        self._bucket, self._prefix = place.netloc, place.path.strip("/")
        self._region, self._key_id, self._secret = region or "us-east-1", key_id, secret
        self._endpoint = (endpoint or f"https://s3.{self._region}.amazonaws.com").rstrip("/")

    def files(self) -> list[File]:
        """All objects below the prefix, or the one object that it names."""
        base = f"{self._endpoint}/{self._bucket}"
        found = []
        for key, size in self._objects(base):
            inside = key.removeprefix(self._prefix).lstrip("/") or PurePosixPath(key).name
            below = not self._prefix or key == self._prefix or key.startswith(self._prefix + "/")
            if below and not key.endswith("/"):
                found.append(File(inside, f"{base}/{urllib.parse.quote(key)}", size))
        return found

    def _objects(self, base: str) -> Iterator[tuple[str, int]]:
        token = ""
        while True:
            query = {"continuation-token": token} if token else {}
            query |= {"list-type": "2", "prefix": self._prefix}
            asked = urllib.parse.urlencode(query, quote_via=urllib.parse.quote)
            with open_url(self.request(f"{base}?{asked}")) as answer:
                root = ElementTree.fromstring(answer.read())
            for item in root.iterfind("{*}Contents"):
                yield item.findtext("{*}Key", ""), int(item.findtext("{*}Size", "0"))
            token = root.findtext("{*}NextContinuationToken", "")
            if not token:
                return

    def request(self, url: str) -> urllib.request.Request:
        """A GET, signed if there are keys."""
        if not self._key_id or not self._secret:
            return urllib.request.Request(url)
        now = datetime.datetime.now(datetime.timezone.utc)
        return urllib.request.Request(url, headers=sign(url, self._region, self._key_id, self._secret, now))


def sign(url: str, region: str, key_id: str, secret: str, now: datetime.datetime) -> dict[str, str]:
    """Headers of a GET by AWS Signature Version 4 (docs.aws.amazon.com/IAM/latest/UserGuide, "Signing requests")."""
    place = urllib.parse.urlsplit(url)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {"host": place.netloc, "x-amz-content-sha256": NO_BODY, "x-amz-date": stamp}
    names = ";".join(headers)
    query = "&".join(sorted(place.query.split("&"))) if place.query else ""
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = "\n".join(("GET", place.path, query, lines, names, NO_BODY))
    scope = f"{day}/{region}/s3/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"AWS4-HMAC-SHA256 Credential={key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {name.title(): value for name, value in headers.items() if name != "host"} | {"Authorization": credential}


def open_url(request: urllib.request.Request) -> Any:
    """The answer; tries again what may pass. Raises FetchError."""
    for attempt in range(TRIES):
        try:
            return OPENER.open(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            if error.code not in NOT_NOW:
                raise FetchError(f"{request.full_url} answers {error.code} {error.reason}.") from None
            problem = f"{error.code} {error.reason}"
        except BROKEN as error:
            problem = str(getattr(error, "reason", error))
        print(f"{request.full_url}: {problem}; tried again.", flush=True)
        time.sleep(min(2**attempt, LONGEST_PAUSE))
    raise FetchError(f"{request.full_url} can't be reached ({problem}).")


def chosen(files: list[File], patterns: list[str]) -> list[File]:
    """The files to fetch. Raises FetchError when there are none, or a name leads out of the folder."""
    wanted = patterns or FOLDER_FORMATS
    found = []
    for file in files:
        if file.path.startswith("/") or ".." in PurePosixPath(file.path).parts:
            raise FetchError(f"The file name {file.path!r} leads out of the model's folder.")
        if matches(file, wanted) and matches(file, FORMATS):
            found.append(file)
    if not any(file.path.endswith((".safetensors", ".gguf")) for file in found):
        names = ", ".join(file.path for file in files[:20]) or "none"
        raise FetchError(f"No weights match {', '.join(wanted)}: give include; the files are {names}.")
    return found


def matches(file: File, patterns: Iterable[str]) -> bool:
    """Whether the file's path matches one of them."""
    return any(fnmatch.fnmatch(file.path, each) for each in patterns)


def fetch_file(source: Hub | Bucket, file: File, target: Path) -> None:
    """Write the file, whole and with the right content, or not at all. Raises FetchError."""
    if target.exists() and file.size in (None, target.stat().st_size):
        return
    part = target.with_name(target.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(TRIES):
        try:
            receive(source, file, part)
            check(file, part)
            part.replace(target)
            return
        except BROKEN as error:
            problem = error
            print(f"{file.path}: {error}; continued.", flush=True)
            time.sleep(min(2**attempt, LONGEST_PAUSE))
    raise FetchError(f"{file.path} can't be fetched ({problem}).")


def receive(source: Hub | Bucket, file: File, part: Path) -> None:
    """Take what is missing of the file."""
    have = part.stat().st_size if part.exists() else 0
    if have and have == file.size:
        return
    if file.size is None or have > file.size:
        have = 0
    request = source.request(file.url)
    if have:
        request.add_header("Range", f"bytes={have}-")
    with open_url(request) as answer, part.open("ab" if have and answer.status == 206 else "wb") as output:
        shutil.copyfileobj(answer, output, CHUNK)
    if file.size is not None and part.stat().st_size < file.size:
        raise ConnectionError("the connection ended early")


def check(file: File, part: Path) -> None:
    """Remove the file and raise FetchError unless it is what was announced."""
    digest = hashlib.sha256()
    with part.open("rb") as content:
        while block := content.read(CHUNK):
            digest.update(block)
    size = part.stat().st_size
    if file.size not in (None, size) or file.sha256 not in (None, digest.hexdigest()):
        part.unlink()
        raise FetchError(f"{file.path} arrived with other content than announced: it is fetched anew next time.")


def fetch(source: Hub | Bucket, patterns: list[str], into: Path) -> None:
    """Fill the folder, unless it is whole. Raises FetchError."""
    into.mkdir(parents=True, exist_ok=True)
    with (into / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        whole = into / WHOLE
        if whole.exists() and json.loads(whole.read_text(encoding="utf-8")) == patterns:
            print(f"{into} is whole already.", flush=True)
            return
        files = chosen(source.files(), patterns)
        missing = sum(file.size or 0 for file in files if not (into / file.path).exists())
        free = shutil.disk_usage(into).free
        if missing > free:
            raise FetchError(f"{into} has room for {free >> 20} MiB, and {missing >> 20} MiB are missing.")
        for file in files:
            print(f"{file.path}: {(file.size or 0) >> 20} MiB", flush=True)
            fetch_file(source, file, into / file.path)
        whole.write_text(json.dumps(patterns), encoding="utf-8")


def credential(folder: str, name: str) -> str | None:
    """A secret from its file; None without a folder. Raises FetchError."""
    if not folder:
        return None
    try:
        return Path(folder, name).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise FetchError(f"The Secret's key {name} can't be read: {error.strerror}.") from None


def main() -> int:
    """Exit status: 0 when the folder is whole."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("hub", "s3"))
    parser.add_argument("source")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--revision", default="main")
    parser.add_argument("--include", action="append", default=[])
    for name in ("--endpoint", "--region", "--credentials"):
        parser.add_argument(name, default="")
    given = parser.parse_args()
    try:
        secrets = [credential(given.credentials, name) for name in SECRETS[given.kind]]
        if given.kind == "hub":
            fetch(Hub(given.source, given.revision, given.endpoint, *secrets), given.include, given.into)
        else:
            fetch(Bucket(given.source, given.endpoint, given.region, *secrets), given.include, given.into)
    except (FetchError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
