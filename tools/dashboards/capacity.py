"""Capacity: by accelerator, what there is, what is used, and when it is full."""

from tools.dashboards.grafana import Dashboard, Panel, Query, Row
from tools.dashboards.prefixes import PREFIXES
from tools.dashboards.queries import quantiles, rate

GENERATED = "sum by (accelerator) (rate(polyfleet_engine_generation_tokens_total{<pool>}[$__rate_interval]))"
PEAK = "sum by (accelerator) (polyfleet_engine_peak_tokens_per_second{<pool>})"
USED = "avg by (accelerator) (polyfleet_kv_cache_usage_ratio{<pool>})"
MONTH_SECONDS = 30 * 86400

WORKERS = Row(
    "Workers",
    (
        Panel(
            "Workers ready by accelerator",
            "Workers that take requests now.",
            "short",
            (Query('sum by (accelerator) (polyfleet_workers{<pool>, state="ready"})', "{{accelerator}}"),),
            kind="stat",
            width=12,
        ),
        Panel(
            "Time to full by accelerator",
            "When the KV cache would be full if its use grew as in the last hour; 30 days stands for later or never. "
            "Says little before there is an hour of data.",
            "s",
            (
                Query(
                    f"clamp((1 - {USED}) / clamp_min(avg by (accelerator) "
                    f"(deriv(polyfleet_kv_cache_usage_ratio{{<pool>}}[1h])), 1e-9), 0, {MONTH_SECONDS})",
                    "{{accelerator}}",
                ),
            ),
            kind="stat",
            width=12,
            bad=3600,
            bad_below=True,
        ),
        Panel(
            "Workers by accelerator and state",
            "All workers that the scheduler knows.",
            "short",
            (Query("sum by (accelerator, state) (polyfleet_workers{<pool>})", "{{accelerator}} {{state}}"),),
            width=12,
            stack=True,
        ),
        Panel(
            "Deployments",
            "Workers that each deployment wants and those of it that are ready. Empty where pools are all there is.",
            "short",
            (
                Query("sum by (deployment) (polyfleet_deployment_workers_desired{<scope>})", "{{deployment}} wanted"),
                Query("sum by (deployment) (polyfleet_deployment_workers_ready{<scope>})", "{{deployment}} ready"),
            ),
            width=12,
        ),
        Panel(
            "Revisions",
            "Ready workers of each revision of a deployment: several while it goes from one to another, or shares "
            "requests out among them.",
            "short",
            (
                Query(
                    "sum by (deployment, revision) (polyfleet_revision_workers_ready{<scope>})",
                    "{{deployment}} {{revision}}",
                ),
            ),
            width=12,
        ),
        Panel(
            "Sequences by revision",
            "Sequences a second that workers of each revision ended well, or failed by no fault of their callers. A "
            "new revision that fails more than the one before is taken back.",
            "ops",
            (
                Query(
                    "sum by (deployment, revision, result) "
                    "(rate(polyfleet_revision_sequences_total{<scope>}[$__rate_interval]))",
                    "{{deployment}} {{revision}} {{result}}",
                ),
            ),
            width=12,
        ),
    ),
)
KV = Row(
    "KV cache",
    (
        Panel(
            "KV head-room",
            "Share of the KV blocks that is free or can be freed.",
            "percentunit",
            (
                Query(
                    "sum by (accelerator) (polyfleet_kv_blocks_free{<pool>}) / sum by (accelerator) "
                    "(polyfleet_kv_blocks_free{<pool>} + polyfleet_kv_blocks_used{<pool>})",
                    "{{accelerator}}",
                ),
            ),
            full=1,
            bad=0.05,
            bad_below=True,
        ),
        Panel(
            "KV head-room in tokens",
            "Tokens of prompts and answers that still fit into the KV caches.",
            "suffix: tok",
            (
                Query(
                    "sum by (accelerator) (polyfleet_kv_blocks_free{<pool>} * polyfleet_kv_block_tokens{<pool>})",
                    "{{accelerator}}",
                ),
            ),
        ),
        Panel(
            "KV cache in an hour",
            "Share in use now, and in an hour if it goes on as in the last one.",
            "percentunit",
            (
                Query(USED, "{{accelerator}} now"),
                Query(
                    "clamp(avg by (accelerator) "
                    "(predict_linear(polyfleet_kv_cache_usage_ratio{<pool>}[1h], 3600)), 0, 1)",
                    "{{accelerator}} in an hour",
                ),
            ),
            full=1,
            bad=0.95,
        ),
    ),
)
SPEED = Row(
    "Tokens",
    (
        Panel(
            "Generated against measured peak",
            "Tokens generated now, beside the most that the same workers were seen to generate in a second of steps "
            "since they loaded their models.",
            "suffix: tok/s",
            (Query(GENERATED, "{{accelerator}}"), Query(PEAK, "{{accelerator}} peak")),
        ),
        Panel(
            "Share of measured peak",
            "Tokens generated now as a share of the measured peak. Absent until a peak was measured.",
            "percentunit",
            (Query(f"{GENERATED} / ({PEAK} > 0)", "{{accelerator}}"),),
        ),
        Panel(
            "Engines busy",
            "Share of the time that engines spend in steps. At 1 more load makes every request slower.",
            "percentunit",
            (
                Query(
                    "avg by (accelerator) (rate(polyfleet_engine_step_seconds_total{<pool>}[$__rate_interval]))",
                    "{{accelerator}}",
                ),
            ),
            full=1,
        ),
        Panel(
            "Prompt tokens computed",
            "Prompt tokens taken in by the engines.",
            "suffix: tok/s",
            (rate("polyfleet_engine_prompt_tokens_total", "accelerator", matchers="<pool>"),),
        ),
        Panel(
            "Tokens of a step",
            "Tokens generated in one step: how large the batches are that the engines compute.",
            "suffix: tok",
            (
                Query(
                    f"{GENERATED} / sum by (accelerator) "
                    "(rate(polyfleet_engine_steps_total{<pool>}[$__rate_interval]))",
                    "{{accelerator}}",
                ),
            ),
        ),
        Panel(
            "Time of a step",
            "What one step takes, from the step before. Every sequence waits so long for its next token.",
            "s",
            quantiles("polyfleet_engine_step_duration_seconds", 0.5, 0.95, by="accelerator", matchers="<pool>"),
        ),
        Panel(
            "Rows of a step",
            "Tokens that one step computes, those of prompts included.",
            "short",
            quantiles("polyfleet_engine_step_rows", 0.5, 0.95, by="accelerator", matchers="<pool>"),
        ),
        Panel(
            "Rows computed in vain",
            "Tokens computed ahead for sequences that turned out to have ended: the price of planning a step early.",
            "suffix: tok/s",
            (rate("polyfleet_engine_dropped_rows_total", "accelerator", matchers="<pool>"),),
        ),
        Panel(
            "Drafts",
            "Tokens guessed and computed to be verified, and those of them that were right, where speculation is on.",
            "suffix: tok/s",
            (
                rate(
                    "polyfleet_engine_drafts_total", "accelerator", matchers="<pool>", legend="{{accelerator}} guessed"
                ),
                rate(
                    "polyfleet_engine_accepted_drafts_total",
                    "accelerator",
                    matchers="<pool>",
                    legend="{{accelerator}} right",
                ),
            ),
        ),
        Panel(
            "Adapters",
            "LoRA adapters that workers serve beside their models.",
            "short",
            (Query("sum by (accelerator) (polyfleet_adapters{<pool>})", "{{accelerator}}"),),
        ),
        *PREFIXES,
        Panel(
            "Memory shortages",
            "Steps that found no memory on the device. Their sequences are computed again, in smaller steps.",
            "short",
            (
                Query(
                    "sum by (accelerator) "
                    "(increase(polyfleet_engine_memory_shortages_total{<pool>}[$__rate_interval]))",
                    "{{accelerator}}",
                ),
            ),
        ),
        Panel(
            "Sequences",
            "Sequences in the engines' batches, those that wait for a place there, and those that a full KV cache "
            "put back.",
            "short",
            (
                Query("sum by (accelerator) (polyfleet_sequences_running{<pool>})", "{{accelerator}} running"),
                Query("sum by (accelerator) (polyfleet_sequences_waiting{<pool>})", "{{accelerator}} waiting"),
                Query(
                    "sum by (accelerator) (increase(polyfleet_preemptions_total{<pool>}[$__rate_interval]))",
                    "{{accelerator}} put back",
                ),
            ),
        ),
    ),
)
CAPACITY = Dashboard(
    "capacity",
    "Capacity",
    "By accelerator: workers, KV head-room, tokens against the measured peak, forecast to full.",
    (WORKERS, KV, SPEED),
    hours=24,
)
