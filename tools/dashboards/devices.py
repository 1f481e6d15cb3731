"""Device health: readings of every vendor in the same units, by device and node."""

from tools.dashboards.grafana import Dashboard, Panel, Query, Row

DEVICE = "{{accelerator}} {{node}} {{instance}} {{device}}"


def reading(metric: str) -> Query:
    """One series for each device."""
    return Query(f"{metric}{{<accelerator>}}", DEVICE)


STATE = Row(
    "State",
    (
        Panel(
            "Devices by state",
            "Unhealthy devices are out of service. Unknown: the vendor's tool withholds what would tell.",
            "short",
            (Query("sum by (state) (polyfleet_device_health{<accelerator>})", "{{state}}"),),
            kind="stat",
            width=12,
        ),
        Panel(
            "Hottest device by accelerator",
            "The highest temperature that any device of the accelerator shows.",
            "celsius",
            (Query("max by (accelerator) (polyfleet_device_temperature_celsius{<accelerator>})", "{{accelerator}}"),),
            kind="stat",
            width=12,
            bad=90,
        ),
        Panel(
            "Unhealthy devices",
            "1 while the device's probe reports an error, hangs or breaks.",
            "short",
            (Query('polyfleet_device_health{<accelerator>, state="unhealthy"}', DEVICE),),
            full=1,
            bad=1,
        ),
        Panel(
            "Devices by node",
            "Devices that workers watch, by vendor and node.",
            "short",
            (Query("count by (accelerator, node) (polyfleet_device_info{<accelerator>})", "{{accelerator}} {{node}}"),),
            stack=True,
        ),
        Panel(
            "Uncorrectable errors in an hour",
            "Uncorrectable memory errors, or what comes nearest with this vendor, over the last hour.",
            "short",
            (Query("increase(polyfleet_device_errors_total{<accelerator>}[1h])", DEVICE),),
            bad=1,
        ),
    ),
)
HEAT = Row(
    "Heat and power",
    (
        Panel(
            "Temperature",
            "Of the core, or the junction where the vendor shows that.",
            "celsius",
            (reading("polyfleet_device_temperature_celsius"),),
            bad=90,
        ),
        Panel("Power", "Drawn by each device.", "watt", (reading("polyfleet_device_power_watts"),)),
        Panel(
            "Power by accelerator",
            "Drawn by all devices of the accelerator together.",
            "watt",
            (Query("sum by (accelerator) (polyfleet_device_power_watts{<accelerator>})", "{{accelerator}}"),),
            stack=True,
        ),
        Panel(
            "Clock",
            "Of the device's cores.",
            "hertz",
            (reading("polyfleet_device_clock_hertz"),),
        ),
        Panel(
            "Clock against the day's highest",
            "Far below 1 while the device computes: it is throttled, by heat or by a power limit. Idle devices clock "
            "down too.",
            "percentunit",
            (
                Query(
                    "polyfleet_device_clock_hertz{<accelerator>} "
                    "/ max_over_time(polyfleet_device_clock_hertz{<accelerator>}[1d])",
                    DEVICE,
                ),
            ),
            full=1,
            bad=0.7,
            bad_below=True,
        ),
        Panel(
            "Energy of a token",
            "Power of the accelerator's devices over the tokens that its workers generate.",
            "suffix: J",
            (
                Query(
                    "sum by (accelerator) (polyfleet_device_power_watts{<accelerator>}) / sum by (accelerator) "
                    "(rate(polyfleet_engine_generation_tokens_total{<pool>}[$__rate_interval]))",
                    "{{accelerator}}",
                ),
            ),
        ),
    ),
)
USE = Row(
    "Use",
    (
        Panel(
            "Memory in use",
            "Share of the device's memory that is in use, by anybody.",
            "percentunit",
            (
                Query(
                    "polyfleet_device_memory_used_bytes{<accelerator>} "
                    "/ polyfleet_device_memory_total_bytes{<accelerator>}",
                    DEVICE,
                ),
            ),
            full=1,
        ),
        Panel(
            "Memory by accelerator",
            "Memory in use and memory there is, of all devices of the accelerator.",
            "bytes",
            (
                Query(
                    "sum by (accelerator) (polyfleet_device_memory_used_bytes{<accelerator>})", "{{accelerator}} used"
                ),
                Query(
                    "sum by (accelerator) (polyfleet_device_memory_total_bytes{<accelerator>})", "{{accelerator}} total"
                ),
            ),
        ),
        Panel(
            "Utilisation",
            "Share of the time in which the device computed.",
            "percentunit",
            (reading("polyfleet_device_utilization_ratio"),),
            full=1,
        ),
        Panel(
            "Inventory",
            "Every device with driver, address and architecture.",
            "short",
            (Query("polyfleet_device_info{<accelerator>}", ""),),
            kind="table",
            width=24,
            hidden=("job", "endpoint", "container", "pod", "polyfleet_pool"),
        ),
    ),
)
DEVICES = Dashboard(
    "devices",
    "Device health",
    "Temperature, power, memory, errors and throttling, by vendor and node.",
    (STATE, HEAT, USE),
)
