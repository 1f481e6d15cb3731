"""Exit 0 where the kernels' tests want a Triton that torch has not brought: on Linux, with a torch for CPUs alone."""

import sys
from importlib.util import find_spec

sys.exit(0 if sys.platform == "linux" and find_spec("triton") is None else 1)
