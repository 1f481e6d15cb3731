"""What vendors' libraries tell of a device's strain: corrected errors, worn memory, throttling, links.

A call that a library lacks, or that a card refuses, is a reading that nobody has. Bits and names are those of NVML
(nvml.h, `nvmlClocksEventReasons`) and AMD SMI (amdsmi.h, `amdsmi_violation_status_t`).
"""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from polyfleet.backends.protocol import THROTTLE_REASONS, DeviceStrain
from polyfleet.backends.reading import count

NVML_REASONS = {
    0x002: "clock_limit",  # applications' clocks
    0x004: "power_cap",
    0x008: "hardware",
    0x010: "clock_limit",  # sync boost
    0x020: "thermal",
    0x040: "thermal",  # the hardware's own
    0x080: "power_brake",
    0x100: "clock_limit",  # display clocks
}
AMD_REASONS = {
    "active_ppt_pwr": "power_cap",
    "active_socket_thrm": "thermal",
    "active_vr_thrm": "thermal",
    "active_hbm_thrm": "thermal",
    "active_prochot_thrm": "hardware",
}
MAX_LINKS = 18  # NVLinks of a card


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """What NVML's bits mean."""
    return _in_order(name for bit, name in NVML_REASONS.items() if mask & bit)


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    found = set(names)
    return tuple(each for each in THROTTLE_REASONS if each in found)


def nvml_strain(nvml: Any, handle: Any) -> DeviceStrain:
    """Of a card, through pynvml."""

    def ask(name: str, *arguments: Any) -> Any:
        return _asked(lambda: getattr(nvml, name)(handle, *arguments))

    kind, counter = getattr(nvml, "NVML_MEMORY_ERROR_TYPE_CORRECTED", 0), getattr(nvml, "NVML_VOLATILE_ECC", 0)
    mask = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if mask is None:
        mask = ask("nvmlDeviceGetCurrentClocksThrottleReasons")  # before driver 535
    remapped = ask("nvmlDeviceGetRemappedRows")  # corrected, uncorrected, is pending, has failed
    links = [state for link in range(MAX_LINKS) if (state := ask("nvmlDeviceGetNvLinkState", link)) is not None]
    return DeviceStrain(
        corrected_errors_total=ask("nvmlDeviceGetTotalEccErrors", kind, counter),
        remapped_rows=remapped[0] + remapped[1] if remapped else None,
        remap_pending=bool(remapped[2] or remapped[3]) if remapped else None,
        throttle_reasons=None if mask is None else throttle_reasons(mask),
        pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_lanes=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_max_lanes=ask("nvmlDeviceGetMaxPcieLinkWidth"),
        links_up=sum(map(bool, links)) if links else None,
        links_down=len(links) - sum(map(bool, links)) if links else None,
    )


def amdsmi_strain(smi: Any, handle: Any) -> DeviceStrain:
    """Of a card, through amdsmi, which writes "N/A" where it has nothing."""

    def ask(name: str) -> Any:
        return _asked(lambda: getattr(smi, name)(handle))

    errors, pcie = ask("amdsmi_get_gpu_total_ecc_count") or {}, ask("amdsmi_get_pcie_info") or {}
    violations, pages = ask("amdsmi_get_violation_status") or {}, ask("amdsmi_get_gpu_bad_page_info")
    told = {name: violations[name] for name in AMD_REASONS if isinstance(violations.get(name), bool | int)}
    now, best = pcie.get("pcie_metric", {}), pcie.get("pcie_static", {})
    return DeviceStrain(
        corrected_errors_total=count(errors.get("correctable_count")),
        remapped_rows=len(pages) if isinstance(pages, list) else None,
        throttle_reasons=_in_order(AMD_REASONS[name] for name, holds in told.items() if holds) if told else None,
        pcie_lanes=count(now.get("pcie_width")),
        pcie_max_lanes=count(best.get("max_pcie_width")),
    )


def _asked(call: Callable[[], Any]) -> Any:
    """The result; None whatever is wrong: none of it says that the device is."""
    with contextlib.suppress(Exception):  # the libraries' own classes
        return call()
    return None
