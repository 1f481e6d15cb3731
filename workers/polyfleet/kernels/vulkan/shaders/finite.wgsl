// finite: results[FIRST + t] = 1 where row t has a number that is not finite, else 0; one workgroup a row
override COLUMNS: u32;
override FIRST: u32;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> results: array<u32>;

var<workgroup> broken: atomic<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    if (lane == 0u) {
        atomicStore(&broken, 0u);  // not every driver does
    }
    workgroupBarrier();
    var mine = 0u;
    for (var c = lane; c < COLUMNS; c += 64u) {
        let exponent = bitcast<u32>(x[group.y * COLUMNS + c]) & 0x7F800000u;
        mine |= select(0u, 1u, exponent == 0x7F800000u);
    }
    atomicOr(&broken, mine);
    workgroupBarrier();
    if (lane == 0u) {
        results[FIRST + group.y] = atomicLoad(&broken);
    }
}
