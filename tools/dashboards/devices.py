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
            "Throttled",
            "Why a device's clock is lowered, in its own words: its power limit, heat, the power supply's signal, "
            "another reason of the hardware's, clocks that somebody set.",
            "short",
            (Query("polyfleet_device_throttled{<accelerator>} == 1", f"{{{{reason}}}} {DEVICE}"),),
            full=1,
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
WEAR = Row(
    "Wear and links",
    (
        Panel(
            "Faults in a day",
            "What the driver told of once: XID errors. Codes 13, 31, 43, 45, 68 and 109 are applications' own.",
            "short",
            (Query("increase(polyfleet_device_faults_total{<accelerator>}[1d])", f"{{{{code}}}} {DEVICE}"),),
            bad=1,
        ),
        Panel(
            "Corrected errors in an hour",
            "Memory errors that ECC has corrected: many of them announce others.",
            "short",
            (Query("increase(polyfleet_device_corrected_errors_total{<accelerator>}[1h])", DEVICE),),
        ),
        Panel(
            "Worn memory",
            "Rows or pages that are used no more, and devices that wait for a reset to leave out others.",
            "short",
            (
                reading("polyfleet_device_remapped_rows"),
                Query("polyfleet_device_remap_pending{<accelerator>} == 1", f"pending {DEVICE}"),
            ),
        ),
        Panel(
            "PCIe lanes",
            "Lanes in use as a share of those that device and slot have.",
            "percentunit",
            (
                Query(
                    "polyfleet_device_pcie_lanes{<accelerator>} / polyfleet_device_pcie_max_lanes{<accelerator>}",
                    DEVICE,
                ),
            ),
            full=1,
            bad=0.99,
            bad_below=True,
        ),
        Panel(
            "PCIe generation",
            "Of the link now; it falls while the device is idle.",
            "short",
            (reading("polyfleet_device_pcie_generation"),),
        ),
        Panel(
            "Links to neighbours",
            "Direct links (NVLink) by state. Down is normal where no bridge is fitted.",
            "short",
            (Query("sum by (accelerator, node, state) (polyfleet_device_links{<accelerator>})", "{{node}} {{state}}"),),
            stack=True,
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
    "Temperature, power, memory, errors, wear, links and throttling, by vendor and node.",
    (STATE, HEAT, WEAR, USE),
)
