// silu_mul: y[t, f] = silu(gate[t, f]) * up[t, f], gate and up side by side
override COLUMNS: u32;  // of y

@group(0) @binding(0) var<storage, read> gate_up: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    if (at.x < COLUMNS) {
        let gate = gate_up[at.y * 2u * COLUMNS + at.x];
        y[at.y * COLUMNS + at.x] = gate / (1.0 + exp(-gate)) * gate_up[(at.y * 2u + 1u) * COLUMNS + at.x];
    }
}
