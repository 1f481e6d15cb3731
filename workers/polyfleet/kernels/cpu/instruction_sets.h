// Which instruction sets this machine runs.
#pragma once

#include <vector>

#include "kernels.h"

namespace pf {

// Best first; plain_kernels last.
const std::vector<const Kernels *> &supported_kernels();

// Null when the machine does not run it or there is no such set.
const Kernels *find_kernels(const char *name);

}  // namespace pf
