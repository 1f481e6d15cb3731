// Both ways to attend, for a test: attention.inl, and attention_wide.inl on emulated tiles.
#include "attention.inl"
#include "attention_wide.inl"

extern "C" int scratch_floats(int head_dim, int vectors) { return (int)pf::attention_scratch(head_dim, vectors); }

extern "C" int partial_floats(int head_dim, int vectors) { return (int)pf::attention_partial(head_dim, vectors); }

extern "C" void attend_both(int rows, int heads, int head_dim, int block_size, int position, int begin, int end,
                            const float *query, const uint8_t *keys, const uint8_t *values, int codes,
                            const int32_t *table, float *scratch, int partial, float *plain, float *wide) {
    pf::Attention a = {};
    a.query = query;
    a.query_stride = a.out_stride = heads * head_dim;
    a.rows = rows, a.heads = heads, a.head_dim = a.value_dim = head_dim;
    a.position = position, a.begin = begin, a.end = end;
    a.scale = 1 / sqrtf((float)head_dim);
    a.keys = keys, a.values = values;
    a.key_stride = block_size, a.value_stride = head_dim;
    a.codes = codes;
    a.key_scales = a.value_scales = (int64_t)head_dim * block_size * (codes ? 1 : 2);
    a.key_block = a.value_block = a.key_scales + (codes ? 2 * block_size : 0);
    a.block_size = block_size, a.table = table, a.scratch = scratch;
    a.out = a.partial = nullptr;
    (partial ? a.partial : a.out) = plain;
    attend(a);
    a.wide = true;
    (partial ? a.partial : a.out) = wide;
    attend_wide(a);
}
