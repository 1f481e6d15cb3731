"""What chains kernels by programmatic dependent launch, from the module that Triton keeps it in."""

from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

__all__ = ["gdc_launch_dependents", "gdc_wait"]
