// Ops that models seldom have alone: element by element, layer norm, and the column of the largest number.
#include <math.h>

#include "executor.h"

namespace pf {

namespace {

const float ROOT_HALF = 0.70710678f, ROOT_2_PI = 0.79788456f;  // √(1 / 2), √(2 / π)

template <typename F>
void each(const float *x, int n, float *y, F function) {
    for (int i = 0; i < n; i++) y[i] = function(x[i]);
}

// Sums are in double precision: numbers far from 0 leave little of their variance to single precision.
void layer_norm(const float *x, const float *weight, const float *bias, float eps, int n, float *y) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    const double mean = sum / n;
    for (int i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean);
    const double factor = 1 / sqrt(squares / n + eps);
    for (int i = 0; i < n; i++) y[i] = (float)((x[i] - mean) * factor) * weight[i] + (bias ? bias[i] : 0.0f);
}

int argmax(const float *x, int n) {
    int best = 0;
    for (int i = 0; i < n; i++) {
        if (x[i] != x[i]) return i;
        if (x[i] > x[best]) best = i;
    }
    return best;
}

}  // namespace

void Executor::compute_rows(const Stage &stage, int thread) {
    const PfStage &at = stage.at;
    const int rows = stage_rows(stage), n = widths_[(size_t)at.input];
    for (int i = share(rows, thread); i < share(rows, thread + 1); i++) {
        const float *x = row(at.input, i), *other = at.residual < 0 ? nullptr : row(at.residual, i);
        float *y = row(at.output, i);
        switch (at.kind) {
            case PF_ADD:
                for (int j = 0; j < n; j++) y[j] = x[j] + other[j];
                break;
            case PF_MUL:
                for (int j = 0; j < n; j++) y[j] = x[j] * other[j];
                break;
            case PF_SCALE: each(x, n, y, [&](float a) { return a * at.factor; }); break;
            case PF_SOFT_CAP: each(x, n, y, [&](float a) { return at.factor * tanhf(a / at.factor); }); break;
            case PF_SILU: each(x, n, y, [](float a) { return a / (1 + expf(-a)); }); break;
            case PF_SIGMOID: each(x, n, y, [](float a) { return 1 / (1 + expf(-a)); }); break;
            case PF_RELU: each(x, n, y, [](float a) { return a < 0 ? 0 : a; }); break;
            case PF_GELU: each(x, n, y, [](float a) { return a * 0.5f * (1 + erff(a * ROOT_HALF)); }); break;
            case PF_GELU_TANH:
                each(x, n, y, [](float a) { return a * 0.5f * (1 + tanhf(ROOT_2_PI * (a + 0.044715f * a * a * a))); });
                break;
            case PF_LAYER_NORM: layer_norm(x, stage.norm, stage.norm_bias, at.eps, n, y); break;
            case PF_ARGMAX: *y = (float)argmax(x, n); break;
        }
    }
}

}  // namespace pf
