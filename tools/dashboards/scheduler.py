"""Scheduler: where requests go and why, what workers do on their own, whether all accounts balance."""

from tools.dashboards.grafana import Dashboard, Panel, Query, Row
from tools.dashboards.queries import quantiles, rate

PLACEMENT = Row(
    "Placement",
    (
        Panel(
            "Placements by reason",
            "Sequences given to a worker: start, or resume for those that lost theirs and go on elsewhere.",
            "ops",
            (rate("polyfleet_placements_total", "reason", matchers="<scope>"),),
            stack=True,
        ),
        Panel(
            "Placements by worker",
            "The twenty workers that get most.",
            "ops",
            (
                Query(
                    "topk(20, sum by (worker_id) (rate(polyfleet_placements_total{<scope>}[$__rate_interval])))",
                    "{{worker_id}}",
                ),
            ),
        ),
        Panel(
            "Prompts apart or together",
            "Where workers compute prompts for others: those placed apart, and why others were not.",
            "ops",
            (rate("polyfleet_prefills_total", "decision", matchers="<scope>"),),
            stack=True,
        ),
        Panel(
            "Time to place",
            "What choosing a worker costs a gateway.",
            "s",
            quantiles("polyfleet_placement_seconds", 0.5, 0.99, matchers="<scope>"),
        ),
        Panel(
            "Prefix hits",
            "Share of prompt tokens that workers found in their prefix caches.",
            "percentunit",
            (
                Query(
                    "sum by (model) (rate(polyfleet_prefix_cache_hits_total{<pool>}[$__rate_interval])) / "
                    "sum by (model) (rate(polyfleet_prefix_cache_queries_total{<pool>}[$__rate_interval]))",
                    "{{model}}",
                ),
            ),
            full=1,
        ),
        Panel(
            "Sequences moved",
            "Sequences that lost their worker: resumed on another one, failed, or moved too often. "
            "Flat at nothing in quiet times.",
            "ops",
            (rate("polyfleet_migrations_total", "result", matchers="<scope>"),),
        ),
        Panel(
            "Sessions",
            "Connections between gateways and workers; each gateway should have one to every worker.",
            "short",
            (Query("sum by (state) (polyfleet_sessions{<scope>})", "{{state}}"),),
        ),
        Panel(
            "Sessions made anew",
            "Sessions with a worker that had one before: it was started again, or the network broke.",
            "ops",
            (rate("polyfleet_session_reconnects_total", "worker_id", matchers="<scope>"),),
        ),
        Panel(
            "Sequences refused or lost",
            "By the worker that refused them, or whose session broke. They go on elsewhere where they can.",
            "ops",
            (rate("polyfleet_worker_failures_total", "worker_id", matchers="<scope>"),),
        ),
        Panel(
            "Workers spared",
            "Gateways that keep requests from a worker since it failed all its last ones; it is tried now and then.",
            "short",
            (Query("sum by (worker_id) (polyfleet_circuit_open{<scope>})", "{{worker_id}}"),),
            bad=1,
        ),
        Panel(
            "Workers quarantined",
            "Workers that get no requests, since what they report can't be true, and what of it.",
            "short",
            (Query("sum by (worker_id, reason) (polyfleet_worker_quarantined{<scope>})", "{{worker_id}}: {{reason}}"),),
            bad=1,
        ),
    ),
)
QUEUE = Row(
    "Queue",
    (
        Panel(
            "Requests waiting",
            "Requests that wait at the gateways for a worker, by model.",
            "short",
            (Query("sum by (model) (polyfleet_requests_queued{<model>})", "{{model}}"),),
            bad=10,
        ),
        Panel(
            "Queue time",
            "From a request's arrival to its first step in an engine.",
            "s",
            quantiles("polyfleet_queue_time_seconds", 0.5, 0.9, 0.99),
        ),
        Panel(
            "Queue time in engines",
            "From a sequence's arrival at its worker's engine to its first step.",
            "s",
            quantiles("polyfleet_engine_queue_seconds", 0.5, 0.9, 0.99, matchers="<pool>"),
        ),
        Panel(
            "Sequences waiting in engines",
            "Sequences that have a worker but no place in its batch yet.",
            "short",
            (Query("sum by (model) (polyfleet_sequences_waiting{<pool>})", "{{model}}"),),
        ),
    ),
)
FLEET = Row(
    "Fleet",
    (
        Panel(
            "Restarts in an hour",
            "Workers that were started again after a failure, by deployment, and engine processes that were replaced "
            "within their workers, since they answered wrongly or not at all.",
            "short",
            (
                Query("sum by (deployment) (increase(polyfleet_worker_restarts_total{<scope>}[1h]))", "{{deployment}}"),
                Query(
                    "sum by (accelerator) (increase(polyfleet_engine_replacements_total{<pool>}[1h]))",
                    "engines of {{accelerator}}",
                ),
            ),
            bad=3,
        ),
        Panel(
            "Canary runs",
            "Runs of the prompt with the known answer, by result. Anything but right (or no_reference) takes the "
            "worker out of service.",
            "ops",
            (rate("polyfleet_canary_runs_total", "result", matchers="<scope>"),),
        ),
        Panel(
            "Workers that are not ready",
            "Processes that run but take no requests.",
            "short",
            (Query("sum by (accelerator) (1 - polyfleet_worker_ready{<pool>})", "{{accelerator}}"),),
        ),
        Panel(
            "Control plane",
            "Nodes of Ray (0: it does not answer) and gateways that watch the fleet.",
            "short",
            (
                Query("sum(polyfleet_ray_nodes{<scope>})", "Ray nodes"),
                Query("sum(polyfleet_snapshot_watchers{<scope>})", "watching"),
                Query("sum(polyfleet_scheduler_connected{<scope>})", "gateways that hear it"),
            ),
        ),
        Panel(
            "News of the fleet",
            "Snapshots a second: how often anything about a worker changes.",
            "ops",
            (Query("sum(rate(polyfleet_snapshot_version{<scope>}[$__rate_interval]))", "snapshots"),),
        ),
        Panel(
            "Accounts out of balance",
            "Requests at gateways and sequences at workers that were admitted and are in no other state. Always 0.",
            "short",
            (
                Query(
                    'sum(polyfleet_ledger_requests{<scope>, state="admitted"}) '
                    '- sum(polyfleet_ledger_requests{<scope>, state!="admitted"})',
                    "requests",
                ),
                Query(
                    'sum(polyfleet_engine_ledger_sequences{<scope>, state="admitted"}) '
                    '- sum(polyfleet_engine_ledger_sequences{<scope>, state!="admitted"})',
                    "sequences",
                ),
            ),
            bad=1,
        ),
    ),
)
PROCESSES = Row(
    "Processes",
    (
        Panel(
            "Event loop lag",
            "How late the event loops of gateways, scheduler and workers are: what all their requests wait for.",
            "s",
            quantiles("polyfleet_event_loop_lag_seconds", 0.5, 0.99, by="instance", matchers="<scope>"),
            bad=0.5,
        ),
        Panel(
            "Versions",
            "Processes by the version that they run; several only while an upgrade is under way.",
            "short",
            (Query("count by (version, python) (polyfleet_build_info{<scope>})", "{{version}}, Python {{python}}"),),
            stack=True,
        ),
    ),
)
SCHEDULER = Dashboard(
    "scheduler",
    "Scheduler",
    "Placements by reason, prefix hits, restarts, queue, the accounts, and the processes.",
    (PLACEMENT, QUEUE, FLEET, PROCESSES),
)
