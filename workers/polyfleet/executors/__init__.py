"""Executors: each runs a KernelGraph step by step on one kind of device; see `polyfleet.engine.executor`."""
