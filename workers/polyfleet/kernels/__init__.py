"""The op vocabulary: KernelGraph, weights, and each op's implementations behind one dispatch table."""
