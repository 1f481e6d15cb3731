"""Panels of where prompts' keys and values go, and whence they come back."""

from tools.dashboards.grafana import Panel, Query
from tools.dashboards.queries import rate

PREFIXES = (
    Panel(
        "Evictions",
        "Cached KV blocks that made way for others: prompts that would have been found there are computed again.",
        "suffix: blocks/s",
        (rate("polyfleet_kv_evictions_total", "accelerator", matchers="<pool>"),),
    ),
    Panel(
        "Prefixes that travel",
        "Prompt tokens whose keys and values came from another worker, went to one, or came back from host memory.",
        "suffix: tok/s",
        (
            rate(
                "polyfleet_prefix_restored_tokens_total",
                "accelerator",
                matchers="<pool>",
                legend="{{accelerator}} restored",
            ),
            rate(
                "polyfleet_prefix_disk_tokens_total",
                "accelerator",
                matchers="<pool>",
                legend="{{accelerator}} read from disk",
            ),
            rate(
                "polyfleet_prefix_fetched_tokens_total",
                "accelerator",
                matchers="<pool>",
                legend="{{accelerator}} fetched",
            ),
            rate(
                "polyfleet_prefix_given_tokens_total",
                "accelerator",
                matchers="<pool>",
                legend="{{accelerator}} given",
            ),
        ),
    ),
    Panel(
        "Blocks in host memory and on disk",
        "Evicted KV blocks that are kept where host_cache_tokens and disk_cache_dir say so.",
        "short",
        (
            Query("sum by (accelerator) (polyfleet_kv_host_blocks{<pool>})", "{{accelerator}} memory"),
            Query("sum by (accelerator) (polyfleet_kv_disk_blocks{<pool>})", "{{accelerator}} disk"),
        ),
    ),
    Panel(
        "Problems with blocks on disk",
        "What could not be written or read, files that were refused (damaged, or of another model) and reads that "
        "took too long. Prompts are computed then; the workers' logs have the reasons.",
        "short",
        (
            Query(
                "sum by (problem) (increase(polyfleet_kv_disk_problems_total{<scope>}[$__rate_interval]))",
                "{{problem}}",
            ),
        ),
    ),
    Panel(
        "Fetches of prefixes",
        "How fetches from other workers ended, of what they held and of what they were to compute apart; what is "
        "not fetched is computed.",
        "suffix: /s",
        (
            rate("polyfleet_prefix_fetches_total", "outcome", matchers="<scope>"),
            rate("polyfleet_prefills_apart_total", "outcome", matchers="<scope>", legend="{{outcome}} apart"),
            rate("polyfleet_prompts_for_others_total", "model", matchers="<pool>", legend="{{model}} begun"),
        ),
    ),
)
