// embedding: y[t, c] = table[ids[t], c]; matrices lie as [columns / 4, rows, 4]
override COLUMNS: u32;
override ROWS: u32;  // of the table

@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    if (at.x < COLUMNS) {
        y[at.y * COLUMNS + at.x] = table[(at.x / 4u * ROWS + ids[at.y]) * 4u + at.x % 4u];
    }
}
