"""`/`: what this port is and where to go, for a person with a browser and for one with curl.

It tells nobody what only callers with a key may know: then no model is named.
"""

import json
from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from polyfleet.gateway.parts import GatewayParts

_CURL = """\
curl -N {base}/v1/chat/completions{key} \\
  -H 'Content-Type: application/json' \\
  -d '{{"model": {model}, "messages": [{{"role": "user", "content": "Hello!"}}], "stream": true}}'"""

_TEXT = """\
This is a Polyfleet gateway: one endpoint for language models, over every accelerator behind it.
{state}

Any OpenAI client: base URL {base}/v1{ask}.
{models}

{curl}

  /v1/models                        the models, and their limits
  /v1/chat/completions              chats; /v1/completions and /v1/embeddings for texts
  /healthz, /readyz                 whether it answers; whether it can serve
  docs/api.md of its repository     every field and status, gRPC too
"""

_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:50em;margin:3em auto;padding:0 1em}"
    "pre{background:#eee;padding:1em;overflow:auto}"
)

_HTML = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Polyfleet gateway</title>
<style>{style}</style>
<h1>Polyfleet gateway</h1>
<p>One endpoint for language models, over every accelerator behind it. {state}</p>
<p>Any OpenAI client: base URL <code>{base}/v1</code>{ask}. {models}</p>
<pre>{curl}</pre>
<ul>
<li><a href="/v1/models">/v1/models</a>: the models, and their limits</li>
<li><code>/v1/chat/completions</code>: chats; <code>/v1/completions</code>, <code>/v1/embeddings</code>: texts</li>
<li><a href="/healthz">/healthz</a>, <a href="/readyz">/readyz</a>: whether it answers; whether it can serve</li>
<li><code>docs/api.md</code> of its repository: every field and status, gRPC too</li>
</ul>
</html>
"""


class Welcome:
    """Answers `/`; the calls that it shows pass a key where one is asked for."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts

    async def show(self, request: Request) -> Response:
        """GET /: a page for a browser, the same as text for others."""
        base, health, keys = str(request.base_url).rstrip("/"), self._parts.health, self._parts.auth.required
        names = [] if keys else [model.name for model in self._parts.generation.models()]
        key = " \\\n  -H 'Authorization: Bearer KEY'" if keys else ""
        facts = {
            "base": base,
            "ask": ", with your API key" if keys else ", with any API key",
            "state": "It is ready." if health.serving else f"It is not ready: {health.reason}",
            "models": f"Models: {', '.join(names)}." if names else "MODEL is one that /v1/models lists.",
            "curl": _CURL.format(base=base, key=key, model=json.dumps(names[0] if names else "MODEL")),
        }
        headers = {"cache-control": "no-store", "vary": "accept"}
        if "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse(_TEXT.format(**facts), headers=headers)
        safe = {name: escape(fact, quote=False) for name, fact in facts.items()}
        headers |= {
            "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
            "x-content-type-options": "nosniff",
        }
        return HTMLResponse(_HTML.format(style=_STYLE, **safe), headers=headers)
