// A linear that computes one group of outputs, as one of several.
#pragma once

#include "kernels.h"

namespace {

template <void (*LINEAR)(const pf::Packed &, int, const pf::Rows &, int, int, float *, int)>
void each(const pf::Outputs *outputs, int num_outputs, const pf::Rows &rows, int first, int count, int out_stride) {
    for (int i = 0; i < num_outputs; i++) LINEAR(*outputs[i].weight, outputs[i].group, rows, first, count, outputs[i].out, out_stride);
}

}  // namespace
