/* One optimizer step of PPO or A2C for perceptrons: forward pass, loss, gradient, clipping, Adam.
 *
 * This file is compiled once for each instruction set; LANES is the number of floats in a vector and SUFFIX the name of the set.
 * All matrix products have one form, C = A B, where the rows of B are packed into panels of contiguous vectors:
 *
 *     forward         outputs^T [O, B]       = weight [O, I] inputs^T [I, B]
 *     weight gradient weight gradient [O, I] = (gradient of outputs)^T [O, B] inputs [B, I]
 *     backward        gradient of inputs [B, I] = gradient of outputs [B, O] weight [O, I]
 *
 * NaN and infinity are treated as in the updates in PyTorch: they reach the loss or the
 * norm of the gradient, and the step is skipped. The compiler must not assume that there are none (no -ffast-math). */
#include "core.h"
#include "vectors.h"

#include <math.h>
#include <string.h>

#define HALF_LOG_TWO_PI 0.91893853320467274f

INLINE float sum_of(vec v) {
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
        ivec other;
        for (int lane = 0; lane < LANES; lane++) other[lane] = lane ^ distance;
        v += permuted(v, other);
    }
    return v[0];
}

/* e^x for x in [-87, 88]: x = n log 2 + r, and a polynomial in r with a relative error of 3e-9. */
INLINE vec exp_of(vec x) {
    const vec magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    vec n = (x * 1.44269504f + magic) - magic;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f; /* log 2 in two parts */
    vec p = r * 0.0013950478586431004f + 0.008368882291161868f;
    p = p * r + 0.04166620598961905f;
    p = p * r + 0.16666518898267452f;
    p = p * r + 0.5000000095127487f;
    p = p * r * r + r + 1.0f;
    return (vec)((ivec)p + (__builtin_convertvector(n, ivec) << 23));
}

/* A quotient of polynomials with a relative error of 2e-8 up to 9, from where tanh is 1. NaN stays NaN. */
INLINE vec tanh_of(vec x) {
    x = choose(x > splat(9.0f), splat(9.0f), choose(x < splat(-9.0f), splat(-9.0f), x));
    vec z = x * x;
    vec p = z * 1.3354741428503198e-08f + 2.0609145618548265e-05f;
    vec q = z * 7.776592683227961e-07f + 0.00032856413319448885f;
    p = p * z + 0.0034955922106749745f;
    q = q * z + 0.02587699796717893f;
    p = p * z + 0.13381029151964902f;
    q = q * z + 0.4671434474867445f;
    p = p * z + 0.9999999794705524f;
    q = q * z + 1.0f;
    return x * p / q;
}

INLINE vec elu_of(vec x) {
    /* e^x - 1 by a series near 0, where the difference would cancel. */
    vec low = choose(x < splat(-30.0f), splat(-30.0f), x);
    vec series = low * (1.0f + low * (0.5f + low * (0.16666667f + low * (0.041666668f + low * 0.008333334f))));
    vec exponential = exp_of(choose(x > splat(0.0f), splat(0.0f), low)) - 1.0f;
    return choose(x > splat(0.0f), x, choose(low > splat(-0.2f), series, choose(x == x, exponential, x)));
}

INLINE vec activation_of(int64_t kind, vec x) {
    if (kind == TANH) return tanh_of(x);
    if (kind == RELU) return choose(x < splat(0.0f), splat(0.0f), x);
    return elu_of(x);
}

INLINE vec slope_of(int64_t kind, vec y) {
    if (kind == TANH) return 1.0f - y * y;
    if (kind == RELU) return choose(y > splat(0.0f), splat(1.0f), splat(0.0f));
    return choose(y > splat(0.0f), splat(1.0f), y + 1.0f);
}

#define ELEMENTWISE(COUNT, IN, OUT, EXPRESSION)                           \
    do {                                                                  \
        int64_t at_ = 0;                                                  \
        for (; at_ + LANES <= (COUNT); at_ += LANES) {                    \
            vec x = load((IN) + at_), y = load((OUT) + at_);              \
            (void)x, (void)y;                                             \
            store((OUT) + at_, EXPRESSION);                               \
        }                                                                 \
        if (at_ < (COUNT)) {                                              \
            int64_t left_ = (COUNT) - at_;                                \
            vec x = load_part((IN) + at_, left_), y = load_part((OUT) + at_, left_); \
            (void)x, (void)y;                                             \
            store_part((OUT) + at_, EXPRESSION, left_);                   \
        }                                                                 \
    } while (0)

static void activate(int64_t kind, float *values, int64_t count) {
    if (kind == TANH) ELEMENTWISE(count, values, values, activation_of(TANH, x));
    else if (kind == RELU) ELEMENTWISE(count, values, values, activation_of(RELU, x));
    else ELEMENTWISE(count, values, values, activation_of(ELU, x));
}

static void multiply_slopes(int64_t kind, const float *features, float *gradient, int64_t count) {
    if (kind == TANH) ELEMENTWISE(count, features, gradient, y * slope_of(TANH, x));
    else if (kind == RELU) ELEMENTWISE(count, features, gradient, y * slope_of(RELU, x));
    else ELEMENTWISE(count, features, gradient, y * slope_of(ELU, x));
}

/* ---- Matrix products ---- */

#define PANEL (2 * LANES) /* columns of a panel of B */
#define TILE (LANES == 16 ? 12 : 6) /* rows of C that are computed together */

/* Rows of a panel from LANES columns that are contiguous in memory: panel[k][n] = source[n * stride + k]. */
static void transpose_block(const float *source, int64_t stride, int64_t num_columns, int64_t num_rows, float *panel) {
    vec rows[LANES];
#pragma GCC unroll 16
    for (int n = 0; n < LANES; n++) {
        if (n >= num_columns) rows[n] = (vec){0};
        else if (num_rows == LANES) rows[n] = load(source + n * stride);
        else rows[n] = load_part(source + n * stride, num_rows);
    }
    TRANSPOSE(rows);
    for (int k = 0; k < num_rows; k++) store(panel + k * PANEL, rows[k]);
}

/* Copies B [K, width] into panel [K, PANEL], with zeros after its columns. */
static void pack(const float *b, int64_t row_stride, int64_t K, int64_t width, float *panel) {
    for (int64_t k = 0; k < K; k++, panel += PANEL, b += row_stride) {
        store(panel, width < LANES ? load_part(b, width) : load(b));
        store(panel + LANES, width > LANES ? load_part(b + LANES, width - LANES) : (vec){0});
    }
}

/* The same for the transpose [width, K] of B. */
static void pack_transposed(const float *b, int64_t stride, int64_t K, int64_t width, float *panel) {
    for (int64_t n = 0; n < width; n += LANES)
        for (int64_t k = 0; k < K; k += LANES)
            transpose_block(b + n * stride + k, stride, width - n, K - k < LANES ? K - k : LANES, panel + k * PANEL + n);
}

/* C [rows, width] = A [rows, K] panel [K, width]; `rows` and `num_vectors` are constants of each call. */
INLINE void tile(int rows, int num_vectors, const float *a, int64_t row_stride, int64_t column_stride, int64_t K,
                 const float *panel, int64_t panel_stride, float *c, int64_t c_stride, int64_t width) {
    vec sums[TILE][2];
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++)
        for (int v = 0; v < num_vectors; v++) sums[row][v] = (vec){0};
    /* Few registers hold addresses: three pointers, and distances that are the same for each. */
    const float *groups[3] = {a, a + 4 * row_stride, a + 8 * row_stride};
    int64_t distances[4] = {0, row_stride, 2 * row_stride, 3 * row_stride};
    for (int64_t k = 0; k < K; k++, panel += panel_stride) {
        vec b0 = load(panel), b1 = num_vectors > 1 ? load(panel + LANES) : (vec){0};
#pragma GCC unroll 12
        for (int row = 0; row < rows; row++) {
            float factor = groups[row / 4][distances[row % 4]];
            sums[row][0] += factor * b0;
            if (num_vectors > 1) sums[row][1] += factor * b1;
        }
        for (int group = 0; group < 3; group++) groups[group] += column_stride;
    }
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++) {
        float *out = c + row * c_stride;
        if (width == num_vectors * LANES) {
            for (int v = 0; v < num_vectors; v++) store(out + v * LANES, sums[row][v]);
        } else if (num_vectors == 1) {
            store_part(out, sums[row][0], width);
        } else {
            store(out, sums[row][0]);
            store_part(out + LANES, sums[row][1], width - LANES);
        }
    }
}

#define TILE_OF(ROWS)                                                                                          \
    case ROWS:                                                                                                 \
        if (num_vectors == 1)                                                                                  \
            tile(ROWS, 1, a, row_stride, column_stride, K, panel, panel_stride, c, c_stride, width);           \
        else                                                                                                   \
            tile(ROWS, 2, a, row_stride, column_stride, K, panel, panel_stride, c, c_stride, width);           \
        break;

static void tile_of(int rows, int num_vectors, const float *a, int64_t row_stride, int64_t column_stride, int64_t K,
                    const float *panel, int64_t panel_stride, float *c, int64_t c_stride, int64_t width) {
    switch (rows) {
#if LANES == 16
        TILE_OF(12) TILE_OF(11) TILE_OF(10) TILE_OF(9) TILE_OF(8) TILE_OF(7)
#endif
        TILE_OF(6) TILE_OF(5) TILE_OF(4) TILE_OF(3) TILE_OF(2) TILE_OF(1)
    }
}

typedef struct {
    const float *at;
    int64_t row_stride, column_stride;
} Matrix;

/* C [M, N] = A [M, K] B [K, N]; `scratch` holds K * PANEL floats. */
static void product(Matrix a, Matrix b, int64_t M, int64_t N, int64_t K, float *c, float *scratch) {
    for (int64_t first = 0; first < N; first += PANEL) {
        int64_t width = N - first < PANEL ? N - first : PANEL, panel_stride = PANEL;
        const float *panel = scratch;
        if (width == PANEL || width == LANES) panel = b.at + first, panel_stride = b.row_stride;
        else pack(b.at + first, b.row_stride, K, width, scratch);
        for (int64_t row = 0; row < M; row += TILE)
            tile_of(M - row < TILE ? (int)(M - row) : TILE, width <= LANES ? 1 : 2, a.at + row * a.row_stride, a.row_stride,
                    a.column_stride, K, panel, panel_stride, c + row * N + first, N, width);
    }
}

static void add_rows(const float *rows, int64_t num_rows, int64_t width, float *sums) {
    memset(sums, 0, (size_t)width * 4);
    for (int64_t row = 0; row < num_rows; row++, rows += width) ELEMENTWISE(width, rows, sums, y + x);
}

/* ---- Layers ---- */

#define FEW_ROWS 2

/* outputs [B, O] = inputs [B, I] weight^T + bias for few samples, where vectors of samples would be mostly empty. Computes
 * LANES outputs at once, each in the lanes of one vector, which are summed by a transposition. */
static void few_rows_forward(const Layer *layer, const float *inputs, int64_t stride, int64_t B, float *outputs) {
    int64_t I = layer->inputs, O = layer->outputs, whole = I / LANES * LANES;
    for (int64_t o = 0; o < O; o += LANES) {
        int64_t num_outputs = O - o < LANES ? O - o : LANES;
        const float *weight[LANES];
        for (int i = 0; i < LANES; i++) weight[i] = layer->weight + (o + (i < num_outputs ? i : num_outputs - 1)) * I;
        for (int64_t row = 0; row < B; row++) {
            const float *x = inputs + row * stride;
            vec sums[LANES], rest = load_part(x + whole, I - whole);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) sums[i] = rest * load_part(weight[i] + whole, I - whole);
            for (int64_t k = 0; k < whole; k += LANES) {
                vec part = load(x + k);
#pragma GCC unroll 16
                for (int i = 0; i < LANES; i++) sums[i] += part * load(weight[i] + k);
            }
            TRANSPOSE(sums);
#pragma GCC unroll 16
            for (int i = 1; i < LANES; i++) sums[0] += sums[i];
            store_part(outputs + row * O + o, sums[0] + load_part(layer->bias + o, num_outputs), num_outputs);
        }
    }
}

/* outputs [B, O] = inputs [B, I] weight^T + bias. Computed as weight inputs^T, since packing the inputs costs less than
 * packing the weights: by LANES or 2 LANES samples, whose outputs are transposed from `scratch`. */
static void layer_forward(const Layer *layer, const float *inputs, int64_t stride, int64_t B, float *outputs, float *scratch) {
    int64_t I = layer->inputs, O = layer->outputs;
    if (B <= FEW_ROWS) {
        few_rows_forward(layer, inputs, stride, B, outputs);
        return;
    }
    float *columns = scratch + I * PANEL; /* [O, PANEL] */
    for (int64_t first = 0; first < B; first += PANEL) {
        int64_t width = B - first < PANEL ? B - first : PANEL;
        int num_vectors = width <= LANES ? 1 : 2;
        pack_transposed(inputs + first * stride, stride, I, width, scratch);
        for (int64_t row = 0; row < O; row += TILE)
            tile_of(O - row < TILE ? (int)(O - row) : TILE, num_vectors, layer->weight + row * I, I, 1, I, scratch, PANEL,
                    columns + row * PANEL, PANEL, num_vectors * LANES);
        for (int64_t o = 0; o < O; o += LANES) {
            int64_t num_outputs = O - o < LANES ? O - o : LANES;
            vec bias = load_part(layer->bias + o, num_outputs);
            for (int64_t n = 0; n < width; n += LANES) {
                vec rows[LANES];
                for (int i = 0; i < LANES; i++) rows[i] = i < num_outputs ? load(columns + (o + i) * PANEL + n) : (vec){0};
                TRANSPOSE(rows);
                for (int i = 0; i < LANES && n + i < width; i++)
                    store_part(outputs + (first + n + i) * O + o, rows[i] + bias, num_outputs);
            }
        }
    }
}

static void layer_gradient(const Layer *layer, const float *gradient, const float *inputs, int64_t stride, int64_t B, float *panel) {
    Matrix a = {gradient, 1, layer->outputs}, b = {inputs, stride, 1};
    product(a, b, layer->outputs, layer->inputs, B, layer->weight_gradient, panel);
    add_rows(gradient, B, layer->outputs, layer->bias_gradient);
}

static void layer_backward(const Layer *layer, const float *gradient, int64_t B, float *inputs_gradient, float *panel) {
    int64_t I = layer->inputs, O = layer->outputs;
    Matrix a = {gradient, O, 1}, b = {layer->weight, I, 1};
    product(a, b, B, I, O, inputs_gradient, panel);
}

/* The inputs with the distance of their rows, and the features of each layer. */
typedef struct {
    const float *inputs;
    int64_t stride;
    float *features[MOST_LAYERS];
} Pass;

static int64_t widest(const Encoder *encoder) {
    int64_t width = encoder->num_inputs;
    for (int64_t depth = 0; depth < encoder->num_layers; depth++)
        if (encoder->layers[depth].outputs > width) width = encoder->layers[depth].outputs;
    return width;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t features_size(const Encoder *encoder, int64_t B) {
    int64_t size = encoder->columns ? encoder->num_inputs * B : 0;
    for (int64_t depth = 0; depth < encoder->num_layers; depth++) size += encoder->layers[depth].outputs * B;
    return size;
}

static float *encoder_forward(const Encoder *encoder, int64_t activation, const Batch *batch, Pass *pass, float *scratch, float *panel) {
    int64_t B = batch->num_samples;
    if (encoder->columns) {
        for (int64_t row = 0; row < B; row++)
            for (int64_t column = 0; column < encoder->num_inputs; column++)
                scratch[row * encoder->num_inputs + column] = batch->floats[row * batch->floats_stride + encoder->columns[column]];
        pass->inputs = scratch, pass->stride = encoder->num_inputs;
        scratch += B * encoder->num_inputs;
    } else {
        pass->inputs = batch->floats + encoder->first_column, pass->stride = batch->floats_stride;
    }
    const float *inputs = pass->inputs;
    int64_t stride = pass->stride;
    for (int64_t depth = 0; depth < encoder->num_layers; depth++) {
        const Layer *layer = &encoder->layers[depth];
        pass->features[depth] = scratch;
        layer_forward(layer, inputs, stride, B, scratch, panel);
        activate(activation, scratch, B * layer->outputs);
        inputs = scratch, stride = layer->outputs;
        scratch += B * layer->outputs;
    }
    return scratch;
}

/* Features for a head, with the distance of their rows. */
static Matrix features_of(const Encoder *encoder, const Pass *pass) {
    if (encoder->num_layers == 0) return (Matrix){pass->inputs, pass->stride, 1};
    int64_t last = encoder->num_layers - 1;
    return (Matrix){pass->features[last], encoder->layers[last].outputs, 1};
}

/* `gradient` and `other` hold [B, widest] floats each; the gradient of the features is in `gradient`. */
static void encoder_backward(const Encoder *encoder, int64_t activation, const Pass *pass, int64_t B, float *gradient, float *other, float *panel) {
    for (int64_t depth = encoder->num_layers - 1; depth >= 0; depth--) {
        const Layer *layer = &encoder->layers[depth];
        const float *inputs = depth ? pass->features[depth - 1] : pass->inputs;
        multiply_slopes(activation, pass->features[depth], gradient, B * layer->outputs);
        layer_gradient(layer, gradient, inputs, depth ? layer->inputs : pass->stride, B, panel);
        if (depth) {
            layer_backward(layer, gradient, B, other, panel);
            float *swap = gradient;
            gradient = other, other = swap;
        }
    }
}

/* ---- Distributions ---- Each has `outputs` [B, P] of the network, which become their gradient.
 *
 * Gaussian, with s the log of the standard deviation and z = (a - mean) / e^s:
 *     log p = -sum(s + z^2 / 2) + constant, d log p / d mean = z / e^s, d log p / d s = z^2 - 1; d entropy / d s = 1;
 *     KL(old || new) = sum(s - s_old + (t - 1) / 2), t = e^(2 s_old - 2 s) + d^2, d = (mean - mean_old) / e^s,
 *     so d KL / d mean = d / e^s and d KL / d s = 1 - t.
 * Categorical, with l the normalized logits and p = e^l:
 *     d log p(a) / d output = onehot(a) - p; d entropy / d output = -p (l + entropy); d KL / d output = p - p_old. */

/* The larger and the smaller of two numbers; NaN if one is. */
INLINE float maximum(float a, float b) { return a > b || a != a ? a : b; }
INLINE float minimum(float a, float b) { return a < b || a != a ? a : b; }

INLINE float clamped(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

static void gaussian_log_probs(const Model *model, const Batch *batch, int64_t P, const float *outputs, float *log_prob) {
    int64_t A = model->num_actions;
    const float *action = batch->action;
    float own[A], own_precision[A];
    for (int64_t i = 0; model->log_std && i < A; i++) own[i] = model->log_std[i], own_precision[i] = expf(-own[i]);
    for (int64_t row = 0; row < batch->num_samples; row++, outputs += P, action += batch->action_stride) {
        float square = 0.0f, sum = 0.0f;
        for (int64_t i = 0; i < A; i++) {
            float log_std = model->log_std ? own[i] : clamped(outputs[A + i], model->lowest_log_std, model->highest_log_std);
            float z = (action[i] - outputs[i]) * (model->log_std ? own_precision[i] : expf(-log_std));
            square += z * z, sum += log_std;
        }
        log_prob[row] = -0.5f * square - (sum + (float)A * HALF_LOG_TWO_PI);
    }
}

/* Turns outputs into their gradient; returns the sums of entropy and divergence over the samples. */
static void gaussian_backward(const Model *model, const Loss *loss, const Batch *batch, int64_t P, float *outputs,
                              const float *log_prob_gradient, double *entropy, double *kl) {
    int64_t A = model->num_actions;
    const float *action = batch->action, *old = batch->action_parameters;
    float entropy_share = -loss->entropy_coeff / (float)batch->num_samples, kl_share = loss->kl_coeff / (float)batch->num_samples;
    float own[A], own_precision[A];
    double own_gradient[A];
    for (int64_t i = 0; model->log_std && i < A; i++)
        own[i] = model->log_std[i], own_precision[i] = expf(-own[i]), own_gradient[i] = 0.0;
    for (int64_t row = 0; row < batch->num_samples; row++, outputs += P, action += batch->action_stride, old += batch->parameters_stride) {
        float factor = log_prob_gradient[row];
        for (int64_t i = 0; i < A; i++) {
            float raw = model->log_std ? own[i] : outputs[A + i];
            float log_std = model->log_std ? raw : clamped(raw, model->lowest_log_std, model->highest_log_std);
            float precision = model->log_std ? own_precision[i] : expf(-log_std), z = (action[i] - outputs[i]) * precision;
            float mean_gradient = z * factor, log_std_gradient = (z * z - 1.0f) * factor;
            *entropy += log_std + HALF_LOG_TWO_PI + 0.5f;
            if (loss->entropy_coeff != 0.0f) log_std_gradient += entropy_share;
            if (loss->needs_kl) {
                float log_ratio = log_std - old[A + i], distance = (outputs[i] - old[i]) * precision;
                float excess = expf(-2.0f * log_ratio) + distance * distance - 1.0f;
                *kl += log_ratio + 0.5f * excess;
                if (loss->kl_coeff != 0.0f) mean_gradient += distance * kl_share, log_std_gradient -= excess * kl_share;
            }
            outputs[i] = mean_gradient * precision;
            if (model->log_std) own_gradient[i] += log_std_gradient;
            else outputs[A + i] = log_std == raw ? log_std_gradient : 0.0f;
        }
    }
    for (int64_t i = 0; model->log_std && i < A; i++) model->log_std_gradient[i] = (float)own_gradient[i];
}

/* The mask of a row's choices; NULL if all are allowed, as without a mask or with one that forbids every choice. */
static const float *mask_of(const Model *model, const float *floats) {
    if (model->mask_column < 0) return NULL;
    const float *mask = floats + model->mask_column;
    for (int64_t i = 0; i < model->num_actions; i++)
        if (mask[i] != 0.0f) return mask;
    return NULL;
}

/* Turns outputs into normalized logits. */
static void normalize_logits(const Model *model, const Batch *batch, float *outputs) {
    int64_t A = model->num_actions;
    for (int64_t row = 0; row < batch->num_samples; row++, outputs += A) {
        const float *mask = mask_of(model, batch->floats + row * batch->floats_stride);
        float largest = -INFINITY, sum = 0.0f;
        for (int64_t i = 0; i < A; i++) {
            if (mask && mask[i] == 0.0f) outputs[i] = model->forbidden_logit;
            largest = maximum(largest, outputs[i]);
        }
        for (int64_t i = 0; i < A; i++) outputs[i] -= largest, sum += expf(outputs[i]);
        float log_sum = logf(sum);
        for (int64_t i = 0; i < A; i++) outputs[i] -= log_sum;
    }
}

static void categorical_log_probs(const Model *model, const Batch *batch, float *outputs, float *log_prob) {
    const int64_t *action = batch->action;
    normalize_logits(model, batch, outputs);
    for (int64_t row = 0; row < batch->num_samples; row++) log_prob[row] = outputs[row * model->num_actions + action[row]];
}

static void categorical_backward(const Model *model, const Loss *loss, const Batch *batch, float *outputs,
                                 const float *log_prob_gradient, double *entropy, double *kl) {
    int64_t A = model->num_actions;
    const int64_t *action = batch->action;
    const float *old = batch->action_parameters;
    float entropy_share = -loss->entropy_coeff / (float)batch->num_samples, kl_share = loss->kl_coeff / (float)batch->num_samples;
    for (int64_t row = 0; row < batch->num_samples; row++, outputs += A, old += batch->parameters_stride) {
        const float *mask = mask_of(model, batch->floats + row * batch->floats_stride);
        float probability[A], row_entropy = 0.0f, row_kl = 0.0f;
        for (int64_t i = 0; i < A; i++) probability[i] = expf(outputs[i]), row_entropy -= probability[i] * outputs[i];
        for (int64_t i = 0; i < A; i++) {
            float gradient = -probability[i] * log_prob_gradient[row];
            if (i == action[row]) gradient += log_prob_gradient[row];
            if (loss->entropy_coeff != 0.0f) gradient -= probability[i] * (outputs[i] + row_entropy) * entropy_share;
            if (loss->needs_kl) {
                float reference = expf(old[i]);
                row_kl += reference * (old[i] - outputs[i]);
                if (loss->kl_coeff != 0.0f) gradient += (probability[i] - reference) * kl_share;
            }
            outputs[i] = mask && mask[i] == 0.0f ? 0.0f : gradient;
        }
        *entropy += row_entropy, *kl += row_kl;
    }
}

/* ---- The loss and its gradient ---- */

static int64_t num_outputs(const Model *model) { return model->policy_head.outputs; }

/* Working memory of one matrix product: a packed operand, and outputs to be transposed. */
static int64_t panel_size(int64_t B, int64_t width) { return (larger(B, width) + width) * PANEL; }

static int64_t scratch_size(const Model *model, int64_t B) {
    int64_t width = larger(widest(&model->actor), larger(num_outputs(model), widest(&model->critic)));
    int64_t features = features_size(&model->actor, B) + (model->has_critic ? features_size(&model->critic, B) : 0);
    return features + B * num_outputs(model) + 3 * B + 2 * B * width + panel_size(B, width) + 16 * LANES;
}

/* Writes the gradient with respect to the log-probabilities; returns the mean loss. */
static float policy_loss(const Loss *loss, const Batch *batch, const float *log_prob, float *gradient) {
    double sum = 0.0;
    float share = -1.0f / (float)batch->num_samples;
    for (int64_t row = 0; row < batch->num_samples; row++) {
        float advantage = batch->advantage[row];
        if (loss->algorithm == A2C) {
            sum += log_prob[row] * advantage;
            gradient[row] = advantage * share;
            continue;
        }
        float ratio = expf(log_prob[row] - batch->log_prob[row]), surrogate = ratio * advantage;
        float clipped = minimum(maximum(ratio, loss->clip_low), loss->clip_high) * advantage;
        sum += minimum(surrogate, clipped);
        /* A product, not a choice: the gradient of an infinite ratio is NaN, and the step is skipped. */
        gradient[row] = surrogate * (surrogate <= clipped ? share : 0.0f);
    }
    return (float)(-sum / (double)batch->num_samples);
}

/* Turns values into their gradient, times `value_coeff`; returns the mean error. */
static float value_loss(const Loss *loss, const Batch *batch, float *values) {
    double sum = 0.0;
    float share = loss->value_coeff * (2.0f / (float)batch->num_samples);
    for (int64_t row = 0; row < batch->num_samples; row++) {
        float error = values[row] - batch->normalized_return[row], square = error * error;
        if (!loss->clips_value) {
            sum += square, values[row] = error * share;
            continue;
        }
        float change = values[row] - batch->normalized_value[row];
        float clipped = minimum(maximum(change, -loss->value_clip), loss->value_clip);
        float clipped_error = clipped + (batch->normalized_value[row] - batch->normalized_return[row]);
        float clipped_square = clipped_error * clipped_error;
        sum += maximum(square, clipped_square);
        values[row] = error * (clipped == change || square >= clipped_square ? share : 0.0f);
    }
    return (float)(sum / (double)batch->num_samples);
}

/* What the networks say of a batch, and the working memory. */
typedef struct {
    Pass actor_pass, critic_pass;
    const Encoder *critic; /* the encoder whose features the value head reads */
    Matrix features, critic_features;
    float *outputs, *values, *log_prob, *log_prob_gradient, *features_gradient, *other, *panel;
} Outputs;

static Outputs forward(const Model *model, const Batch *batch, float *scratch) {
    int64_t B = batch->num_samples, P = num_outputs(model);
    int64_t width = larger(widest(&model->actor), larger(P, widest(&model->critic)));
    Outputs o;
    o.outputs = scratch, o.values = o.outputs + B * P, o.log_prob = o.values + B, o.log_prob_gradient = o.log_prob + B;
    o.features_gradient = o.log_prob_gradient + B, o.other = o.features_gradient + B * width, o.panel = o.other + B * width;
    float *rest = o.panel + panel_size(B, width);
    o.critic = model->has_critic ? &model->critic : &model->actor;
    rest = encoder_forward(&model->actor, model->activation, batch, &o.actor_pass, rest, o.panel);
    if (model->has_critic) encoder_forward(o.critic, model->activation, batch, &o.critic_pass, rest, o.panel);
    else o.critic_pass = o.actor_pass;
    o.features = features_of(&model->actor, &o.actor_pass), o.critic_features = features_of(o.critic, &o.critic_pass);
    layer_forward(&model->policy_head, o.features.at, o.features.row_stride, B, o.outputs, o.panel);
    layer_forward(&model->value_head, o.critic_features.at, o.critic_features.row_stride, B, o.values, o.panel);
    return o;
}

static void gradient(const Model *model, const Loss *loss, const Batch *batch, float *scratch, float *metrics, float *log_ratio) {
    int64_t B = batch->num_samples, P = num_outputs(model);
    Outputs o = forward(model, batch, scratch);
    const Encoder *critic = o.critic;
    Matrix features = o.features, critic_features = o.critic_features;
    float *outputs = o.outputs, *values = o.values, *log_prob = o.log_prob, *log_prob_gradient = o.log_prob_gradient;
    float *features_gradient = o.features_gradient, *other = o.other, *panel = o.panel;

    if (model->distribution == GAUSSIAN) gaussian_log_probs(model, batch, P, outputs, log_prob);
    else categorical_log_probs(model, batch, outputs, log_prob);
    for (int64_t row = 0; row < B; row++) log_ratio[row] = log_prob[row] - batch->log_prob[row];
    float policy = policy_loss(loss, batch, log_prob, log_prob_gradient);
    float value = loss->value_coeff * value_loss(loss, batch, values);
    double entropy = 0.0, kl = 0.0;
    if (model->distribution == GAUSSIAN) gaussian_backward(model, loss, batch, P, outputs, log_prob_gradient, &entropy, &kl);
    else categorical_backward(model, loss, batch, outputs, log_prob_gradient, &entropy, &kl);
    float entropy_loss = loss->entropy_coeff > 0.0f ? (float)(-loss->entropy_coeff * entropy / (double)B) : 0.0f;
    float mean_kl = loss->needs_kl ? (float)(kl / (double)B) : 0.0f;
    float kl_loss = loss->kl_coeff > 0.0f ? loss->kl_coeff * mean_kl : 0.0f;
    metrics[0] = policy + value + entropy_loss + kl_loss;
    metrics[1] = policy, metrics[2] = value, metrics[3] = entropy_loss, metrics[4] = kl_loss, metrics[5] = mean_kl;

    layer_gradient(&model->policy_head, outputs, features.at, features.row_stride, B, panel);
    layer_gradient(&model->value_head, values, critic_features.at, critic_features.row_stride, B, panel);
    if (model->has_critic) {
        if (critic->num_layers) layer_backward(&model->value_head, values, B, features_gradient, panel);
        encoder_backward(critic, model->activation, &o.critic_pass, B, features_gradient, other, panel);
    }
    if (model->actor.num_layers) layer_backward(&model->policy_head, outputs, B, features_gradient, panel);
    if (model->actor.num_layers && !model->has_critic) {
        layer_backward(&model->value_head, values, B, other, panel);
        ELEMENTWISE(B * model->policy_head.inputs, other, features_gradient, y + x);
    }
    encoder_backward(&model->actor, model->activation, &o.actor_pass, B, features_gradient, other, panel);
}

/* ---- Acting ---- */

/* Turns outputs into the parameters of the distributions. */
static void write_parameters(const Model *model, const Batch *batch, float *outputs, float *parameters) {
    int64_t A = model->num_actions, P = num_outputs(model);
    if (model->distribution == CATEGORICAL) {
        normalize_logits(model, batch, outputs);
        memcpy(parameters, outputs, (size_t)(batch->num_samples * A) * 4);
        return;
    }
    for (int64_t row = 0; row < batch->num_samples; row++, outputs += P, parameters += 2 * A)
        for (int64_t i = 0; i < A; i++) {
            parameters[i] = outputs[i];
            parameters[A + i] = model->log_std ? model->log_std[i]
                                               : clamped(outputs[A + i], model->lowest_log_std, model->highest_log_std);
        }
}

static void evaluate(const Model *model, const Batch *batch, float *scratch, float *parameters, float *value) {
    int64_t num_parameters = model->distribution == CATEGORICAL ? model->num_actions : 2 * model->num_actions;
    for (int64_t first = 0; first < batch->num_samples; first += EVALUATED_AT_ONCE) {
        Batch part = *batch;
        part.floats += first * batch->floats_stride;
        part.num_samples = batch->num_samples - first < EVALUATED_AT_ONCE ? batch->num_samples - first : EVALUATED_AT_ONCE;
        Outputs o = forward(model, &part, scratch);
        write_parameters(model, &part, o.outputs, parameters + first * num_parameters);
        memcpy(value + first, o.values, (size_t)part.num_samples * 4);
    }
}

static void sample_gaussian(const Model *model, const Request *request) {
    int64_t A = model->num_actions;
    float *action = request->action;
    const float *noise = request->noise, *parameters = request->parameters;
    for (int64_t row = 0; row < request->num_rows; row++, action += A, parameters += 2 * A, noise += A) {
        float sum = 0.0f;
        for (int64_t i = 0; i < A; i++) {
            float log_std = parameters[A + i];
            action[i] = parameters[i] + expf(log_std) * noise[i];
            sum += 0.5f * noise[i] * noise[i] + log_std;
        }
        request->log_prob[row] = -(sum + (float)A * HALF_LOG_TWO_PI);
    }
}

/* An exponential race: the choice with the largest p_i / e_i. */
static void sample_categorical(const Model *model, const Request *request) {
    int64_t A = model->num_actions, *action = request->action;
    const float *noise = request->noise, *logits = request->parameters;
    for (int64_t row = 0; row < request->num_rows; row++, logits += A, noise += A) {
        float largest = -INFINITY;
        action[row] = 0;
        for (int64_t i = 0; i < A; i++) {
            float time = logits[i] - logf(noise[i] < 1.17549435e-38f ? 1.17549435e-38f : noise[i]);
            if (time > largest) largest = time, action[row] = i;
        }
        request->log_prob[row] = logits[action[row]];
    }
}

static void act(const Model *model, const Request *request, float *scratch) {
    int64_t B = request->num_rows, F = request->num_floats;
    Batch batch = {.num_samples = B, .floats_stride = request->row_stride, .floats = request->obs};
    if (request->obs_mean) {
        float *floats = scratch + scratch_size(model, B);
        vec high = splat(request->obs_clip), low = splat(-request->obs_clip);
        for (int64_t row = 0; row < B; row++) {
            const float *obs = request->obs + row * request->row_stride;
            float *out = floats + row * F;
            for (int64_t at = 0; at < F; at += LANES) {
                int64_t left = F - at < LANES ? F - at : LANES;
                vec x = (load_part(obs + at, left) - load_part(request->obs_mean + at, left)) / load_part(request->obs_std + at, left);
                x = choose(x > high, high, choose(x < low, low, x));
                store_part(out + at, x, left);
            }
        }
        batch.floats = floats, batch.floats_stride = F;
    }
    Outputs o = forward(model, &batch, scratch);
    for (int64_t row = 0; row < B; row++) request->value[row] = o.values[row] * *request->return_std + *request->return_mean;
    write_parameters(model, &batch, o.outputs, request->parameters);
    if (model->distribution == GAUSSIAN) sample_gaussian(model, request);
    else sample_categorical(model, request);
}

/* Kingma and Ba 2015 (arXiv:1412.6980), as PyTorch computes it. */
static float apply(const Adam *adam, float learning_rate, float limit, float loss) {
    int64_t N = adam->num_parameters, at = 0;
    float *gradient = adam->gradient;
    vec squares[4] = {{0}, {0}, {0}, {0}};
    for (; at + 4 * LANES <= N; at += 4 * LANES)
        for (int v = 0; v < 4; v++) {
            vec x = load(gradient + at + v * LANES);
            squares[v] += x * x;
        }
    float square = sum_of((squares[0] + squares[1]) + (squares[2] + squares[3]));
    for (; at < N; at++) square += gradient[at] * gradient[at];
    float norm = sqrtf(square);
    if (!isfinite(norm) || !isfinite(loss)) return norm;
    float scale = limit > 0.0f && norm + 1e-6f > limit ? limit / (norm + 1e-6f) : 1.0f;
    double count = (double)*adam->step + 1.0;
    *adam->step = (float)count;
    float step_size = (float)((double)learning_rate / (1.0 - pow(adam->beta1, count)));
    float correction = (float)(1.0 / sqrt(1.0 - pow(adam->beta2, count))), epsilon = (float)adam->epsilon;
    float weight1 = (float)(1.0 - adam->beta1), beta2 = (float)adam->beta2, weight2 = (float)(1.0 - adam->beta2);
    float *restrict parameters = adam->parameters, *restrict exp_avg = adam->exp_avg, *restrict exp_avg_sq = adam->exp_avg_sq;
#pragma GCC ivdep
    for (int64_t i = 0; i < N; i++) {
        float g = gradient[i] * scale;
        gradient[i] = g;
        exp_avg[i] += weight1 * (g - exp_avg[i]);
        exp_avg_sq[i] = beta2 * exp_avg_sq[i] + weight2 * (g * g);
        parameters[i] -= step_size * exp_avg[i] / (sqrtf(exp_avg_sq[i]) * correction + epsilon);
    }
    return norm;
}

static void step(const Model *model, const Loss *loss, const Batch *batch, const Adam *adam, float learning_rate, float limit,
                 float *scratch, float *metrics, float *log_ratio) {
    gradient(model, loss, batch, scratch, metrics, log_ratio);
    metrics[6] = apply(adam, learning_rate, limit, metrics[0]);
}

#define NAME_(suffix) #suffix
#define NAME(suffix) NAME_(suffix)
const Kernels JOIN(asyncrl_kernels_, SUFFIX) = {NAME(SUFFIX), scratch_size, act, evaluate, gradient, apply, step};
