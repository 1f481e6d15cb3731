"""Sessions of those who have signed in: a random name in a signed cookie; everything else stays here, in memory."""

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from polyfleet.gateway.auth import Authenticator, Principal
from polyfleet.gateway.errors import ApiError
from polyfleet.process.keys import Role

MAX_SESSIONS = 10_000  # the one that was not used for longest makes way


@dataclass(eq=False)
class Session:
    """One who has signed in. `key` is what they presented, for the calls that are made for them; empty without keys."""

    principal: Principal
    key: str
    seen: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def operator(self) -> bool:
        """Whether they see and change the fleet."""
        return self.principal.role is Role.OPERATOR


class Sessions:
    """`clock` is in seconds. Keys are looked up again at every visit: one that was revoked signs its sessions out."""

    def __init__(self, auth: Authenticator, idle_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._auth, self._idle, self._clock = auth, idle_seconds, clock
        self._secret = secrets.token_bytes(32)
        self._open: OrderedDict[str, Session] = OrderedDict()

    @property
    def asks_for_keys(self) -> bool:
        """Whether visitors have to sign in."""
        return self._auth.required

    def sign_in(self, key: str) -> str:
        """Open a session; its cookie's value. Raises ApiError, which says why the key is not welcome."""
        principal = self._auth.check(f"Bearer {key}" if key else None)
        name = secrets.token_urlsafe(32)
        self._open[name] = Session(principal, key, self._clock())
        if len(self._open) > MAX_SESSIONS:
            self._open.popitem(last=False)
        return f"{name}.{self._signature(name)}"

    def find(self, cookie: str | None) -> Session | None:
        """Whose cookie this is, if their session is still good."""
        name = self._name(cookie)
        session = self._open.get(name)
        if session is None:
            return None
        try:
            principal = self._auth.check(f"Bearer {session.key}")
        except ApiError:
            principal = None
        now = self._clock()
        if principal is None or now - session.seen > self._idle:
            del self._open[name]
            return None
        session.principal, session.seen = principal, now
        self._open.move_to_end(name)
        return session

    def sign_out(self, cookie: str | None) -> None:
        """Nothing happens where there was no session."""
        self._open.pop(self._name(cookie), None)

    def _name(self, cookie: str | None) -> str:
        """The session that a cookie names; empty for one that is not ours."""
        name, _, signature = (cookie or "").partition(".")
        return name if hmac.compare_digest(signature.encode(), self._signature(name).encode()) else ""

    def _signature(self, name: str) -> str:
        return hmac.new(self._secret, name.encode(), sha256).hexdigest()
