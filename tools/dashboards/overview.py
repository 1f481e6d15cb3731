"""Overview: is the service good, how much is asked of it, what is the fleet."""

from tools.dashboards.grafana import Dashboard, Panel, Query, Row
from tools.dashboards.queries import quantiles, rate

GOOD = """
    sum(rate(polyfleet_slo_requests_total{<model>, result="good"}[$__range]))
    / sum(rate(polyfleet_slo_requests_total{<model>}[$__range]))
"""
OBJECTIVES = Row(
    "Objectives",
    (
        Panel(
            "Good requests",
            "Share of requests, over the time shown, that were answered within the objectives for the first token "
            "and for the time between tokens. Requests that their caller cancelled or got wrong do not count.",
            "percentunit",
            (Query(GOOD, "good"),),
            kind="stat",
            width=4,
            bad=0.99,
            bad_below=True,
        ),
        Panel(
            "Error budget left",
            "What is left of the 1 % of requests that may be slow or fail, over the time shown; negative: overspent.",
            "percentunit",
            (Query(f"1 - (1 - {GOOD}) / 0.01", "left"),),
            kind="stat",
            width=4,
            bad=0.0,
            bad_below=True,
        ),
        Panel(
            "Workers ready",
            "Workers that take requests.",
            "short",
            (Query('sum(polyfleet_workers{<pool>, state="ready"})', "ready"),),
            kind="stat",
            width=4,
            bad=1,
            bad_below=True,
        ),
        Panel(
            "Requests waiting",
            "Requests that wait at the gateways for a worker.",
            "short",
            (Query("sum(polyfleet_requests_queued{<model>})", "waiting"),),
            kind="stat",
            width=4,
            bad=10,
        ),
        Panel(
            "Gateways hear the scheduler",
            "No: at least one gateway places from an old picture of the fleet.",
            "bool_yes_no",
            (Query("min(polyfleet_scheduler_connected{<scope>})", "connected"),),
            kind="stat",
            width=4,
            bad=1,
            bad_below=True,
        ),
        Panel(
            "Certificate valid for",
            "Until the first certificate that a gateway serves expires. No data where TLS is off.",
            "s",
            (Query("min(polyfleet_tls_certificate_expiry_timestamp_seconds{<scope>}) - time()", "left"),),
            kind="stat",
            width=4,
            bad=14 * 86400,
            bad_below=True,
        ),
    ),
)
TRAFFIC = Row(
    "Traffic",
    (
        Panel(
            "Goodput",
            "Requests by what the objectives say of them: good, slow (answered, but late) or failed.",
            "reqps",
            (rate("polyfleet_slo_requests_total", "result"),),
            stack=True,
        ),
        Panel(
            "Requests by model",
            "Requests that ended, however they did. Empty model: refused before a model was known.",
            "reqps",
            (rate("polyfleet_requests_total", "model"),),
        ),
        Panel(
            "Errors by status",
            "Requests that ended with another status than OK.",
            "reqps",
            (
                Query(
                    'sum by (code) (rate(polyfleet_requests_total{<model>, code!="OK"}[$__rate_interval]))', "{{code}}"
                ),
            ),
        ),
        Panel(
            "Tokens",
            "Prompt tokens taken in (of which cached ones were not computed) and tokens generated.",
            "suffix: tok/s",
            (
                rate("polyfleet_prompt_tokens_total", legend="prompt"),
                rate("polyfleet_cached_prompt_tokens_total", legend="cached prompt"),
                rate("polyfleet_generation_tokens_total", legend="generated"),
            ),
        ),
        Panel(
            "Requests held",
            "Requests inside the gateways: those that wait for a worker, and all that have not ended.",
            "short",
            (
                Query("sum(polyfleet_requests_inflight{<model>})", "in flight"),
                Query("sum(polyfleet_requests_queued{<model>})", "waiting"),
            ),
        ),
        Panel(
            "Workers by state",
            "All workers that the scheduler knows. Lost: no report for 3 s.",
            "short",
            (Query("sum by (state) (polyfleet_workers{<pool>})", "{{state}}"),),
            stack=True,
        ),
    ),
)
LATENCY = Row(
    "Latency",
    (
        Panel(
            "Time to first token",
            "From a request's arrival at the gateway to its first token, beside the objective.",
            "s",
            (
                *quantiles("polyfleet_time_to_first_token_seconds", 0.5, 0.9, 0.99),
                Query('max(polyfleet_slo_objective_seconds{<scope>, objective="time_to_first_token"})', "objective"),
            ),
        ),
        Panel(
            "Time per output token",
            "Mean time between the tokens of a choice, beside the objective.",
            "s",
            (
                *quantiles("polyfleet_time_per_output_token_seconds", 0.5, 0.9, 0.99),
                Query('max(polyfleet_slo_objective_seconds{<scope>, objective="time_per_output_token"})', "objective"),
            ),
        ),
        Panel(
            "KV cache in use",
            "Share of the KV blocks that running sequences hold, by accelerator.",
            "percentunit",
            (Query("avg by (accelerator) (polyfleet_kv_cache_usage_ratio{<pool>})", "{{accelerator}}"),),
            full=1,
            bad=0.95,
        ),
    ),
)
OVERVIEW = Dashboard(
    "overview",
    "Overview",
    "Objectives, traffic, goodput and the fleet at a glance.",
    (OBJECTIVES, TRAFFIC, LATENCY),
)
