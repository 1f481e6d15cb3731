// linear_row: linear for few rows; an invocation computes one output of one row
override COLUMNS: u32;  // of x, a multiple of 16
override OUTPUTS: u32;
override BIASED: u32;

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    if (at.x >= OUTPUTS) {
        return;
    }
    let vectors = COLUMNS / 4u;
    let row = at.y * vectors;
    var sum = 0.0;
    for (var k = 0u; k < vectors; k += 4u) {
        let w = k * OUTPUTS + at.x;
        sum += dot(x[row + k], weight[w])
            + dot(x[row + k + 1u], weight[w + OUTPUTS])
            + dot(x[row + k + 2u], weight[w + 2u * OUTPUTS])
            + dot(x[row + k + 3u], weight[w + 3u * OUTPUTS]);
    }
    if (BIASED == 1u) {
        sum += bias[at.x];
    }
    y[at.y * OUTPUTS + at.x] = sum;
}
