// paged_attention: softmax over positions 0 … positions[t] of row t's sequence, in tiles of 64; a workgroup a (row, head)
override HEADS: u32;
override KV_HEADS: u32;
override DIMENSIONS: u32;  // at most 256
override BLOCK_SIZE: u32;
override TABLE_WIDTH: u32;  // blocks of a sequence at most
override SCALE: f32;

@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> positions: array<u32>;
@group(0) @binding(2) var<storage, read> slots: array<u32>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read> keys: array<f32>;
@group(0) @binding(5) var<storage, read> values: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

var<workgroup> scores: array<f32, 64>;
var<workgroup> reduced: array<f32, 64>;

fn place(t: u32, kv_head: u32, position: u32) -> u32 {
    let block = tables[slots[t] * TABLE_WIDTH + position / BLOCK_SIZE];
    return ((block * KV_HEADS + kv_head) * BLOCK_SIZE + position % BLOCK_SIZE) * DIMENSIONS;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
    let t = group.y;
    let kv_head = head / (HEADS / KV_HEADS);
    let length = positions[t] + 1u;
    let query = (t * HEADS + head) * DIMENSIONS;
    var highest = -3.0e38;
    var total = 0.0;
    var sums = vec4<f32>(0.0);  // of dimensions lane, lane + 64, lane + 128, lane + 192
    for (var tile = 0u; tile < length; tile += 64u) {
        var score = -3.0e38;
        if (tile + lane < length) {
            let at = place(t, kv_head, tile + lane);
            score = 0.0;
            for (var d = 0u; d < DIMENSIONS; d++) {
                score += q[query + d] * keys[at + d];
            }
            score *= SCALE;
        }
        reduced[lane] = score;
        for (var half = 32u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if (lane < half) {
                reduced[lane] = max(reduced[lane], reduced[lane + half]);
            }
        }
        workgroupBarrier();
        let new_highest = max(highest, reduced[0]);
        let keep = exp(highest - new_highest);
        scores[lane] = select(0.0, exp(score - new_highest), tile + lane < length);
        workgroupBarrier();
        total *= keep;
        sums *= keep;
        let count = min(64u, length - tile);
        for (var p = 0u; p < count; p++) {
            let at = place(t, kv_head, tile + p);
            total += scores[p];
            for (var part = 0u; part * 64u + lane < DIMENSIONS; part++) {
                sums[part] += scores[p] * values[at + part * 64u + lane];
            }
        }
        highest = new_highest;
        workgroupBarrier();
    }
    for (var part = 0u; part * 64u + lane < DIMENSIONS; part++) {
        y[query + part * 64u + lane] = sums[part] / total;
    }
}
