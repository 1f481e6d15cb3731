"""The CPU engine: whole steps of a KernelGraph in one call of C++ code, chosen by instruction set when it is loaded."""
