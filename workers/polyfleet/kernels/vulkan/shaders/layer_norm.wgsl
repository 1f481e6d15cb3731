// layer_norm: y[t] = (x[t] - mean) / sqrt(mean((x[t] - mean)²) + eps) * weight (+ bias); one workgroup a row
override COLUMNS: u32;
override EPS: f32;
override BIASED: u32;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

var<workgroup> partial: array<f32, 64>;

// The mean of all invocations' numbers over the columns.
fn mean(lane: u32, mine: f32) -> f32 {
    workgroupBarrier();  // the last mean has been read
    partial[lane] = mine;
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            partial[lane] += partial[lane + half];
        }
    }
    workgroupBarrier();
    return partial[0] / f32(COLUMNS);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.y * COLUMNS;
    var sum = 0.0;
    for (var c = lane; c < COLUMNS; c += 64u) {
        sum += x[first + c];
    }
    let middle = mean(lane, sum);
    var squares = 0.0;
    for (var c = lane; c < COLUMNS; c += 64u) {
        squares += (x[first + c] - middle) * (x[first + c] - middle);
    }
    let scale = 1.0 / sqrt(mean(lane, squares) + EPS);
    for (var c = lane; c < COLUMNS; c += 64u) {
        y[first + c] = (x[first + c] - middle) * scale * weight[c];
        if (BIASED == 1u) {
            y[first + c] += bias[c];
        }
    }
}
