// elementwise: y[t, c] = f(a[t, c], b[t, c]); functions of one operand are given it twice
override COLUMNS: u32;
override FUNCTION: u32;  // 0: a + b, 1: a * b, 2: silu, 3: relu, 4: gelu, 5: gelu_tanh

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

// Abramowitz and Stegun 7.1.26, off by 1.5e-7 at most.
fn erf(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.3275911 * abs(x));
    let series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    return sign(x) * (1.0 - series * exp(-x * x));
}

fn f(x: f32, other: f32) -> f32 {
    switch FUNCTION {
        case 0u: { return x + other; }
        case 1u: { return x * other; }
        case 2u: { return x / (1.0 + exp(-x)); }
        case 3u: { return max(x, 0.0); }
        case 4u: { return 0.5 * x * (1.0 + erf(x * 0.70710678)); }
        default: {
            let inner = 0.79788456 * (x + 0.044715 * x * x * x);
            return 0.5 * x * (1.0 + tanh(clamp(inner, -15.0, 15.0)));  // tanh of larger ones is not defined everywhere
        }
    }
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    if (at.x < COLUMNS) {
        let i = at.y * COLUMNS + at.x;
        y[i] = f(a[i], b[i]);
    }
}
