// argmax: y[t] = the column of the largest number of row t, the first of equal ones. As the graph's op it is a float,
// and the first NaN counts as the largest; with TOKENS it is a u32, 0xFFFFFFFF when a number of the row is not finite
override COLUMNS: u32;
override TOKENS: bool;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

const ABOVE_ALL = 0xFFFFFFFFu;
var<workgroup> key: array<u32, 64>;
var<workgroup> column: array<u32, 64>;

// Numbers in order as whole ones, -0 as 0.
fn ordered(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u || (TOKENS && magnitude == 0x7F800000u)) {
        return ABOVE_ALL;
    }
    if (bits == 0x80000000u) {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.y * COLUMNS;
    var best = 0u;
    var at = COLUMNS;
    for (var c = lane; c < COLUMNS; c += 64u) {
        let mine = ordered(x[first + c]);
        if (mine > best) {
            best = mine;
            at = c;
        }
    }
    key[lane] = best;
    column[lane] = at;
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            let other = lane + half;
            if (key[other] > key[lane] || (key[other] == key[lane] && column[other] < column[lane])) {
                key[lane] = key[other];
                column[lane] = column[other];
            }
        }
    }
    if (lane == 0u) {
        if (TOKENS) {
            y[group.y] = select(column[0], ABOVE_ALL, key[0] == ABOVE_ALL);
        } else {
            y[group.y] = bitcast<u32>(f32(column[0]));
        }
    }
}
