// linear: y[t, n] = bias[n] + Σ_k x[t, k] * weight[n, k]; an invocation computes one n for up to four rows
// Matrices lie as [columns / 4, rows, 4], so that neighbouring invocations read neighbouring vectors.
override COLUMNS: u32;  // of x, a multiple of 16
override OUTPUTS: u32;
override BIASED: u32;

struct Rows { count: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<uniform> rows: Rows;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    let n = at.x;
    if (n >= OUTPUTS) {
        return;
    }
    let vectors = COLUMNS / 4u;
    let row = at.y * 4u;
    let last = rows.count - 1u;
    let a = row * vectors;
    let b = min(row + 1u, last) * vectors;
    let c = min(row + 2u, last) * vectors;
    let d = min(row + 3u, last) * vectors;
    var sum = vec4<f32>(0.0);
    for (var k = 0u; k < vectors; k++) {
        let w = weight[k * OUTPUTS + n];
        sum += vec4<f32>(dot(x[a + k], w), dot(x[b + k], w), dot(x[c + k], w), dot(x[d + k], w));
    }
    if (BIASED == 1u) {
        sum += vec4<f32>(bias[n]);
    }
    for (var r = 0u; r < 4u && row + r <= last; r++) {
        y[(row + r) * OUTPUTS + n] = sum[r];
    }
}
