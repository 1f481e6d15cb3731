"""Requests: where their time goes, how they end, whose they are."""

from tools.dashboards.grafana import Dashboard, Panel, Query, Row
from tools.dashboards.queries import quantiles, rate

QUEUED, FIRST, WHOLE = (
    f"sum(rate(polyfleet_{each}_seconds_sum{{<model>}}[$__rate_interval]))"
    for each in ("queue_time", "time_to_first_token", "request_duration")
)
ANSWERED = "sum(rate(polyfleet_time_to_first_token_seconds_count{<model>}[$__rate_interval]))"
# Ends that are the fleet's fault; the others are their caller's (gateway/request/accounts.py).
FAULTS = 'code=~"UNAVAILABLE|INTERNAL|DEADLINE_EXCEEDED|DATA_LOSS|RESOURCE_EXHAUSTED|FAILED_PRECONDITION"'

LATENCY = Row(
    "Latency",
    (
        Panel(
            "Where the time goes",
            "Seconds that an answered request spends on average in the queue, in the computation of its prompt, and in "
            "the generation of the rest. What requests without an answer took counts as generation.",
            "s",
            (
                Query(f"{QUEUED} / {ANSWERED}", "queue"),
                Query(f"({FIRST} - {QUEUED}) / {ANSWERED}", "prompt"),
                Query(f"({WHOLE} - {FIRST}) / {ANSWERED}", "generation"),
            ),
            stack=True,
        ),
        Panel(
            "Time to first token by model",
            "From a request's arrival to that of its first token, at the gateway.",
            "s",
            quantiles("polyfleet_time_to_first_token_seconds", 0.5, 0.99, by="model"),
        ),
        Panel(
            "Time per output token by model",
            "Mean time between the tokens of a choice, as they arrive at the gateway.",
            "s",
            quantiles("polyfleet_time_per_output_token_seconds", 0.5, 0.99, by="model"),
        ),
        Panel(
            "Duration by model",
            "From arrival to the end of the answer.",
            "s",
            quantiles("polyfleet_request_duration_seconds", 0.5, 0.99, by="model"),
        ),
        Panel(
            "Queue time by model",
            "From arrival to the first step in an engine.",
            "s",
            quantiles("polyfleet_queue_time_seconds", 0.5, 0.99, by="model"),
        ),
        Panel(
            "Time to tokenise by model",
            "From a text or chat to ids, with the wait for the process that does it.",
            "s",
            quantiles("polyfleet_tokenize_seconds", 0.5, 0.99, by="model"),
        ),
        Panel(
            "Time to fetch images by result",
            "Images by their URLs; those of hosts that are not allowed are refused.",
            "s",
            quantiles("polyfleet_image_fetch_seconds", 0.5, 0.99, by="result", matchers="<scope>"),
        ),
        Panel(
            "Tokens of a request",
            "Mean tokens of prompt and answer.",
            "suffix: tok",
            tuple(
                Query(
                    f"sum(rate(polyfleet_{kind}_tokens_total{{<model>}}[$__rate_interval])) "
                    "/ sum(rate(polyfleet_request_duration_seconds_count{<model>}[$__rate_interval]))",
                    kind,
                )
                for kind in ("prompt", "generation")
            ),
        ),
    ),
)
ENDS = Row(
    "How they end",
    (
        Panel(
            "Requests by status",
            "All requests by the status that they ended with.",
            "reqps",
            (rate("polyfleet_requests_total", "code"),),
            stack=True,
        ),
        Panel(
            "Share that failed",
            "Requests that ended with a status that is no fault of their caller's.",
            "percentunit",
            (
                Query(
                    f"sum by (code) (rate(polyfleet_requests_total{{<model>, {FAULTS}}}[$__rate_interval])) "
                    "/ ignoring (code) group_left sum(rate(polyfleet_requests_total{<model>}[$__rate_interval]))",
                    "{{code}}",
                ),
            ),
            bad=0.01,
        ),
        Panel(
            "Requests by method",
            "Over gRPC (Generate, Embed, …) and over HTTP (chat.completions, …).",
            "reqps",
            (rate("polyfleet_requests_total", "method"),),
            stack=True,
        ),
        Panel(
            "Callers that left",
            "Requests whose client went away before the answer was whole.",
            "reqps",
            (rate("polyfleet_cancellations_total", "model"),),
        ),
        Panel(
            "Requests in flight by model",
            "Requests that were admitted and have not ended.",
            "short",
            (Query("sum by (model) (polyfleet_requests_inflight{<model>})", "{{model}}"),),
        ),
        Panel(
            "Cached prompt tokens",
            "Share of prompt tokens that no worker had to compute.",
            "percentunit",
            (
                Query(
                    "sum by (model) (rate(polyfleet_cached_prompt_tokens_total{<model>}[$__rate_interval])) / "
                    "sum by (model) (rate(polyfleet_prompt_tokens_total{<model>}[$__rate_interval]))",
                    "{{model}}",
                ),
            ),
            full=1,
        ),
    ),
)
DOORS = Row(
    "Connections",
    (
        Panel(
            "Open connections",
            "By the port's protocol. A full HTTP port sends idle ones away before it refuses a newcomer.",
            "short",
            (Query("sum by (protocol) (polyfleet_connections{<scope>})", "{{protocol}}"),),
        ),
        Panel(
            "Connections refused",
            "Not taken, or ended without or before an answer, by why. docs/operations/security.md has the bounds.",
            "short",
            (
                Query(
                    "sum by (protocol, reason) (rate(polyfleet_connections_refused_total{<scope>}[$__rate_interval]))",
                    "{{protocol}} {{reason}}",
                ),
            ),
        ),
    ),
)
KEYS = Row(
    "Usage by key",
    (
        Panel(
            "Requests by key",
            "The twenty keys with most requests. The id stands in the keys file; empty where no keys are asked for.",
            "reqps",
            (
                Query(
                    "topk(20, sum by (key_id) (rate(polyfleet_key_requests_total{<scope>}[$__rate_interval])))",
                    "{{key_id}}",
                ),
            ),
        ),
        Panel(
            "Tokens by key",
            "Tokens of prompts and answers of the twenty keys with most of them.",
            "suffix: tok/s",
            (
                Query(
                    "topk(20, sum by (key_id) (rate(polyfleet_key_prompt_tokens_total{<scope>}[$__rate_interval]) "
                    "+ rate(polyfleet_key_generation_tokens_total{<scope>}[$__rate_interval])))",
                    "{{key_id}}",
                ),
            ),
        ),
        Panel(
            "Requests that did not end well by key",
            "Requests that ended with another status than OK.",
            "reqps",
            (
                Query(
                    "topk(20, sum by (key_id, code) "
                    '(rate(polyfleet_key_requests_total{<scope>, code!="OK"}[$__rate_interval])))',
                    "{{key_id}} {{code}}",
                ),
            ),
        ),
        Panel(
            "Tokens generated by key",
            "Over the time shown; the ten keys with most.",
            "suffix: tok",
            (
                Query(
                    "topk(10, sum by (key_id) (increase(polyfleet_key_generation_tokens_total{<scope>}[$__range])))",
                    "{{key_id}}",
                ),
            ),
            kind="stat",
            width=24,
        ),
    ),
)
REQUESTS = Dashboard(
    "requests",
    "Requests",
    "Latency and its parts, errors by status, usage by key.",
    (LATENCY, ENDS, DOORS, KEYS),
)
