"""The kinds of arrays that drawing works on."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Float32s = NDArray[np.float32]
Int32s = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
