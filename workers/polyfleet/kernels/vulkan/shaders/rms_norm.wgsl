// rms_norm: y[t] = x[t] / sqrt(mean(x[t]²) + eps) * weight; one workgroup a row
override COLUMNS: u32;
override EPS: f32;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

var<workgroup> partial: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.y * COLUMNS;
    var sum = 0.0;
    for (var c = lane; c < COLUMNS; c += 64u) {
        sum += x[first + c] * x[first + c];
    }
    partial[lane] = sum;
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            partial[lane] += partial[lane + half];
        }
    }
    workgroupBarrier();
    let scale = 1.0 / sqrt(partial[0] / f32(COLUMNS) + EPS);
    for (var c = lane; c < COLUMNS; c += 64u) {
        y[first + c] = x[first + c] * scale * weight[c];
    }
}
