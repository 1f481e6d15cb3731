// Sizes of work, chosen by measurement; set-up and steps must agree on them.
#pragma once

namespace pf {

const int ROW_CHUNK = 64;    // rows of a linear that are computed together, so that they stay in the second-level cache
const int WIDE_CHUNK = 256;  // the same of wide rows, for which each weight is converted once a chunk
const int PRIVATE_ROWS = 2;  // so few rows entering a linear are prepared by every thread for itself: cheaper than waiting
const int CHUNKS_PER_THREAD = 2;  // from so many chunks on, threads share rows rather than weights
const int UNITS_PER_THREAD = 6;   // pieces of work of few rows, by threads
const int ADAPTED_ROWS = 8;       // of one adapter, which one thread takes together
const int RUNS_PER_THREAD = 4;    // from so many such runs on, a thread takes each through all of a linear's weights

}  // namespace pf
