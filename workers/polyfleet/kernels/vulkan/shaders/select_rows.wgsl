// select_rows: y[s] = x[selected[s]]
override COLUMNS: u32;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> selected: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    if (at.x < COLUMNS) {
        y[at.y * COLUMNS + at.x] = x[selected[at.y] * COLUMNS + at.x];
    }
}
