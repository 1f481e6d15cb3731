// From a model file's formats to what kernels stream: see kernels.h for the packed layouts.
#pragma once

#include "abi.h"
#include "kernels.h"

namespace pf {

// Bytes of one row as it lies in a file; columns must fit whole blocks.
int64_t row_bytes(int32_t format, int64_t columns);

// Columns of one file block: 1, 32 or 256.
int format_block(int32_t format);

PackedKind packed_kind(int32_t format);

// A description without data: kind, geometry, and the bytes that `data` and `low` will take.
Packed plan_packed(const PfWeight &weight);
size_t data_bytes(const Packed &packed);
size_t low_bytes(const Packed &packed);

// Fills data, low and unit. False when a scale or a number of the weight is not finite.
bool pack(const PfWeight &weight, Packed &packed, uint8_t *data, uint8_t *low);

// One row of a weight in file format, as float.
void expand_row(const PfWeight &weight, int64_t row, float *out);

}  // namespace pf
