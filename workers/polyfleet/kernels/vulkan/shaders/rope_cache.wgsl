// rope_cache: rotates q and k (pairs i, i + D/2) by position, writes k and v to the cache, q to y
override HEADS: u32;
override KV_HEADS: u32;
override DIMENSIONS: u32;
override BLOCK_SIZE: u32;
override TABLE_WIDTH: u32;  // blocks of a sequence at most

@group(0) @binding(0) var<storage, read> qkv: array<f32>;
@group(0) @binding(1) var<storage, read> positions: array<u32>;
@group(0) @binding(2) var<storage, read> slots: array<u32>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read> frequencies: array<f32>;
@group(0) @binding(5) var<storage, read_write> keys: array<f32>;
@group(0) @binding(6) var<storage, read_write> values: array<f32>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    let half = DIMENSIONS / 2u;
    let t = at.y;
    if (at.x >= (HEADS + 2u * KV_HEADS) * half) {
        return;
    }
    let head = at.x / half;
    let i = at.x % half;
    let from_ = (t * (HEADS + 2u * KV_HEADS) + head) * DIMENSIONS + i;
    var first = qkv[from_];
    var second = qkv[from_ + half];
    if (head < HEADS + KV_HEADS) {
        let angle = f32(positions[t]) * frequencies[i];
        let rotated = first * cos(angle) - second * sin(angle);
        second = second * cos(angle) + first * sin(angle);
        first = rotated;
    }
    if (head < HEADS) {
        let to = (t * HEADS + head) * DIMENSIONS + i;
        y[to] = first;
        y[to + half] = second;
        return;
    }
    let kv_head = (head - HEADS) % KV_HEADS;
    let block = tables[slots[t] * TABLE_WIDTH + positions[t] / BLOCK_SIZE];
    let offset = positions[t] % BLOCK_SIZE;
    let to = ((block * KV_HEADS + kv_head) * BLOCK_SIZE + offset) * DIMENSIONS + i;
    if (head < HEADS + KV_HEADS) {
        keys[to] = first;
        keys[to + half] = second;
    } else {
        values[to] = first;
        values[to + half] = second;
    }
}
