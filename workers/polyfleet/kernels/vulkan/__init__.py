"""Experimental: the op vocabulary as WGSL compute shaders in float32, run on a Vulkan device through wgpu."""
