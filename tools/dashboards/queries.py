"""PromQL that several dashboards write alike."""

from tools.dashboards.grafana import Query


def quantiles(histogram: str, *wanted: float, by: str = "", matchers: str = "<model>") -> tuple[Query, ...]:
    """Quantiles of a histogram, over all its series, or for each value of the label `by`."""
    labels, name = (f"le, {by}", f"{{{{{by}}}}} ") if by else ("le", "")
    return tuple(
        Query(
            f"histogram_quantile({each}, sum by ({labels}) (rate({histogram}_bucket{{{matchers}}}[$__rate_interval])))",
            f"{name}p{100 * each:g}",
        )
        for each in wanted
    )


def rate(counter: str, *by: str, matchers: str = "<model>", legend: str = "") -> Query:
    """A counter's rate by labels."""
    summed = f"sum by ({', '.join(by)})" if by else "sum"
    name = legend or " ".join(f"{{{{{each}}}}}" for each in by)
    return Query(f"{summed} (rate({counter}{{{matchers}}}[$__rate_interval]))", name)
