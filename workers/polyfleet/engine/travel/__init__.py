"""Beginnings of prompts that come from elsewhere or go there: host memory, disk, other workers."""
