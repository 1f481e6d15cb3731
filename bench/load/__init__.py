"""The load generator behind `bench/serving.py`: targets, loops, and what comes of them."""
