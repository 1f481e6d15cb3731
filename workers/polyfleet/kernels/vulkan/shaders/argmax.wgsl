// argmax: results[s] = the lowest id among the largest logits of row s; 0xFFFFFFFF when a logit is not finite
override COLUMNS: u32;

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> results: array<u32>;

const BROKEN = 0xFFFFFFFFu;
var<workgroup> top: array<f32, 64>;
var<workgroup> index: array<u32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.y * COLUMNS;
    var value = -3.4e38;
    var at = COLUMNS;
    for (var c = lane; c < COLUMNS; c += 64u) {
        let logit = logits[first + c];
        let exponent = bitcast<u32>(logit) & 0x7F800000u;
        if (exponent == 0x7F800000u) {
            at = BROKEN;
        } else if (at != BROKEN && (at == COLUMNS || logit > value)) {
            value = logit;
            at = c;
        }
    }
    top[lane] = value;
    index[lane] = at;
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            let other = lane + half;
            if (index[lane] == BROKEN || index[other] == BROKEN) {
                index[lane] = BROKEN;
            } else if (top[other] > top[lane] || (top[other] == top[lane] && index[other] < index[lane])) {
                top[lane] = top[other];
                index[lane] = index[other];
            }
        }
    }
    if (lane == 0u) {
        results[group.y] = index[0];
    }
}
