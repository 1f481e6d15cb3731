"""KernelGraph: a model recorded as a flat program of ops, and the lowerings that all executors share."""
