/* The decoder's layers in C, for CPUs: one call runs all of them over the new rows of many sequences.
 *
 * A pass is one team of threads that synchronises at barriers, so a layer's small steps have almost no overhead: torch
 * takes about a microsecond for each of a layer's thirty operators, and restarts its threads for many of them.
 * Everything between the products is fp32; products.h documents their rounding.
 *
 * Names end in their dimensions, as in model.py: R rows, I in, O out, T tokens, D head size, G groups, K ranks.
 */
#include "products.h"
#include "attention.h"

typedef struct {
    const float *input_norm, *post_norm, *q_norm, *k_norm; /* the last two are NULL in most models */
    Product qkv, o, gate_up, down;
} Layer;

typedef struct {
    const Layer *layers;
    const float *cos_TD, *sin_TD; /* for every position; the first half's sign is in the sine */
    long num_layers, hidden, heads, key_heads, size, inner;
    float eps;
} Model;

/* The rows that use one adapter, and its low-rank part of each projection of each layer. */
typedef struct { long first_row, rows; const LowRank *low_ranks; } AdapterRows;
enum { QKV, O, GATE_UP, DOWN, NUM_PROJECTIONS };

typedef struct {
    const Model *model;
    float *hidden_RI;
    const Span *spans;
    const AdapterRows *adapters;
    long rows, num_spans, num_adapters, most_rank;
} Batch;

/* Buffers for intermediate results, laid out by `lay_out` in the caller's memory. */
typedef struct { float *x_RI, *y_RO, *delta_RI, *middle_RK, *partial; Inputs inputs; Cut *cuts; long *span_of_R; } Room;

ALWAYS Heads heads_of(const Model *m) { return (Heads){m->heads, m->key_heads, m->size}; }
ALWAYS long largest(long a, long b) { return a > b ? a : b; }

/* Returns the number of floats needed; `memory` and `room` may be NULL. */
static long lay_out(const Batch *b, float *memory, Room *room) {
    const Model *m = b->model;
    long attended = m->heads * m->size, qkv = (m->heads + 2 * m->key_heads) * m->size;
    long in = largest(largest(m->hidden, m->inner), attended), out = largest(largest(qkv, 2 * m->inner), m->hidden);
    long used = 0, partials = 0;
    for (long s = 0; s < b->num_spans; s++) partials += partial_floats(b->spans + s, heads_of(m));
#define TAKE(floats) (memory + used); used += ((floats) + 15) / 16 * 16
    float *x = TAKE(b->rows * in);
    float *y = TAKE(b->rows * out);
    float *delta = TAKE(b->rows * m->hidden);
    float *middle = TAKE(b->rows * b->most_rank);
    float *codes = TAKE(b->rows * in / 2);
    float *steps = TAKE(b->rows * in / GROUP);
    float *sums = TAKE(b->rows * in / GROUP);
    float *cuts = TAKE(b->num_spans * sizeof(Cut) / sizeof(float));
    float *span_of = TAKE(b->rows * sizeof(long) / sizeof(float));
    float *partial = TAKE(partials);
#undef TAKE
    if (room)
        *room = (Room){x, y, delta, middle, partial, {x, (int16_t *)(void *)codes, steps, sums}, (Cut *)(void *)cuts,
                       (long *)(void *)span_of};
    return used;
}

long room_floats(const Batch *b) { return lay_out(b, NULL, NULL); }

static long cut_into_items(const Batch *b, const Room *room) {
    long items = 0;
    float *partial = room->partial;
    for (long s = 0; s < b->num_spans; s++) {
        const Span *span = b->spans + s;
        room->cuts[s] = (Cut){items, num_ranges(span), num_blocks(span), partial};
        items += b->model->key_heads * room->cuts[s].ranges * room->cuts[s].blocks;
        partial += partial_floats(span, heads_of(b->model));
        for (long r = 0; r < span->rows; r++) room->span_of_R[span->first_row + r] = s;
    }
    return items;
}

ALWAYS void normalise(float *to, const float *from, const float *weight, float eps, long count) {
    float scale = 1.0f / sqrtf(dot(from, from, count) / count + eps);
    for (long i = 0; i < count; i++) to[i] = from[i] * scale * weight[i];
}

ALWAYS void round_for(const Product *w, Inputs x, long row) {
    if (w->kind != BF16) round_row(x, row, w->in);
}

/* Values of finished_layer in the middle of a layer, and before the first one. */
#define HALF_DONE (-2)
#define NOT_BEGUN (-3)

static void keep_state(const Batch *b, const Room *room, long row, long finished_layer) {
    const Span *s = b->spans + room->span_of_R[row];
    if (s->hidden_layer == finished_layer && row == s->first_row + s->rows - 1)
        memcpy(s->hidden, b->hidden_RI + row * b->model->hidden, b->model->hidden * sizeof(float));
}

/* Adds the previous product to the rows and normalises them for the next product `w`, if there is one. */
static void add_and_normalise(const Batch *b, const Room *room, long finished_layer, const float *weight, const Product *w) {
    const Model *m = b->model;
    Range mine = my_share(b->rows);
    for (long r = mine.first; r < mine.last; r++) {
        float *hidden = b->hidden_RI + r * m->hidden;
        if (finished_layer != NOT_BEGUN)
            for (long i = 0; i < m->hidden; i++) hidden[i] += room->delta_RI[r * m->hidden + i];
        keep_state(b, room, r, finished_layer);
        if (!w) continue;
        normalise(room->x_RI + r * m->hidden, hidden, weight, m->eps, m->hidden);
        round_for(w, room->inputs, r);
    }
#pragma omp barrier
}

static void project(const Batch *b, const Room *room, const Product *w, int which, float *y_RO) {
    for (long a = 0; a < b->num_adapters; a++) {
        const AdapterRows *adapter = b->adapters + a;
        const LowRank *low_rank = adapter->low_ranks + which;
        shrink(low_rank, room->x_RI + adapter->first_row * w->in, room->middle_RK + adapter->first_row * b->most_rank,
               adapter->rows, w->in);
    }
    if (b->num_adapters) {
#pragma omp barrier
    }
    Range columns = multiply(w, room->inputs, y_RO, b->rows);
    for (long a = 0; a < b->num_adapters; a++) {
        const AdapterRows *adapter = b->adapters + a;
        expand(adapter->low_ranks + which, room->middle_RK + adapter->first_row * b->most_rank,
               y_RO + adapter->first_row * w->out, adapter->rows, w->out, columns);
    }
#pragma omp barrier
}

ALWAYS void rotate(float *head, const float *cos_D, const float *sin_D, const float *norm_D, float eps, long size) {
    if (norm_D) normalise(head, head, norm_D, eps, size);
    long half = size / 2;
    for (long d = 0; d < half; d++) {
        float low = head[d], high = head[d + half];
        head[d] = low * cos_D[d] + high * sin_D[d];
        head[d + half] = high * cos_D[d + half] + low * sin_D[d + half];
    }
}

/* Rotates and scales queries in place; writes rotated keys, and values, to the caches. */
static void place(const Batch *b, const Room *room, long layer) {
    const Model *m = b->model;
    const Layer *l = m->layers + layer;
    long size = m->size, heads = m->heads, key_heads = m->key_heads;
    float scale = 1.0f / sqrtf((float)size);
    Range mine = my_share(b->rows);
    for (long r = mine.first; r < mine.last; r++) {
        const Span *s = b->spans + room->span_of_R[r];
        long position = s->length + r - s->first_row, half = key_heads * s->capacity * size;
        const float *cos_D = m->cos_TD + position * size, *sin_D = m->sin_TD + position * size;
        float *q = room->y_RO + r * (heads + 2 * key_heads) * size, *k = q + heads * size, *v = k + key_heads * size;
        for (long n = 0; n < heads; n++) {
            rotate(q + n * size, cos_D, sin_D, l->q_norm, m->eps, size);
            for (long d = 0; d < size; d++) q[n * size + d] *= scale;
        }
        float *keys = s->cache + layer * 2 * half + position * size;
        for (long h = 0; h < key_heads; h++) {
            float *key = keys + h * s->capacity * size;
            memcpy(key, k + h * size, size * sizeof(float));
            rotate(key, cos_D, sin_D, l->k_norm, m->eps, size);
            memcpy(key + half, v + h * size, size * sizeof(float));
        }
    }
#pragma omp barrier
}

static void attend(const Batch *b, const Room *room, long layer, long items, const Product *next) {
    const Model *m = b->model;
    Heads h = heads_of(m);
    long width = (m->heads + 2 * m->key_heads) * m->size;
#pragma omp for schedule(dynamic)
    for (long i = 0; i < items; i++) {
        /* Longest items first: the last rows of a prompt see the most tokens. */
        long item = items - 1 - i, s = b->num_spans - 1;
        while (room->cuts[s].first_item > item) s--;
        attend_item(b->spans + s, room->cuts + s, h, layer, room->y_RO, width, item - room->cuts[s].first_item);
    }
    Range mine = my_share(b->rows);
    for (long r = mine.first; r < mine.last; r++) {
        long s = room->span_of_R[r];
        combine(b->spans + s, room->cuts + s, h, r - b->spans[s].first_row, room->x_RI + r * m->heads * m->size);
        round_for(next, room->inputs, r);
    }
#pragma omp barrier
}

/* silu(gate) * up */
static void gate(const Batch *b, const Room *room, const Product *next) {
    long inner = b->model->inner;
    Range mine = my_share(b->rows);
    for (long r = mine.first; r < mine.last; r++) {
        const float *gate_I = room->y_RO + r * 2 * inner, *up_I = gate_I + inner;
        float *x = room->x_RI + r * inner;
        for (long i = 0; i < inner; i++) {
            float e = exp_negative(-fabsf(gate_I[i]));
            x[i] = gate_I[i] * (gate_I[i] < 0 ? e : 1.0f) / (1.0f + e) * up_I[i];
        }
        round_for(next, room->inputs, r);
    }
#pragma omp barrier
}

static void run_layer(const Batch *b, const Room *room, long index, long items) {
    const Layer *l = b->model->layers + index;
    int first = (int)(index * NUM_PROJECTIONS);
    add_and_normalise(b, room, index ? index - 1 : NOT_BEGUN, l->input_norm, &l->qkv);
    project(b, room, &l->qkv, first + QKV, room->y_RO);
    place(b, room, index);
    attend(b, room, index, items, &l->o);
    project(b, room, &l->o, first + O, room->delta_RI);
    add_and_normalise(b, room, HALF_DONE, l->post_norm, &l->gate_up);
    project(b, room, &l->gate_up, first + GATE_UP, room->y_RO);
    gate(b, room, &l->down);
    project(b, room, &l->down, first + DOWN, room->delta_RI);
}

/* Runs all layers over hidden_RI in place, and writes new keys and values to the caches. */
void run_layers(const Batch *b, float *memory) {
    Room room;
    lay_out(b, memory, &room);
    long items = cut_into_items(b, &room);
#pragma omp parallel
    {
        for (long layer = 0; layer < b->model->num_layers; layer++) run_layer(b, &room, layer, items);
        add_and_normalise(b, &room, b->model->num_layers - 1, NULL, NULL);
    }
}

/* --- single products ------------------------------------------------------------------------------------------- */

long product_floats(const Product *w, long rows) { return rows * (w->in / 2 + 2 * w->in / GROUP) + 48; }

static Inputs inputs_in(const float *x_RI, float *memory, long rows, long in) {
    float *steps = memory + (rows * in / 2 + 15) / 16 * 16;
    return (Inputs){x_RI, (int16_t *)(void *)memory, steps, steps + (rows * in / GROUP + 15) / 16 * 16};
}

static void round_and_multiply(const Product *w, Inputs x, float *y_RO, long rows) {
    Range mine = my_share(rows);
    for (long r = mine.first; r < mine.last; r++) round_for(w, x, r);
#pragma omp barrier
    multiply(w, x, y_RO, rows);
}

void product(const Product *w, const float *x_RI, float *y_RO, long rows, float *memory) {
    Inputs x = inputs_in(x_RI, memory, rows, w->in);
#pragma omp parallel
    round_and_multiply(w, x, y_RO, rows);
}

/* Logits, with at least the likeliest `count` of each row recomputed from full-precision weights. */
void head(const Product *w, const float *x_RI, const float *weight_VI, float *logits_RV, long rows, long count, float *memory) {
    Inputs x = inputs_in(x_RI, memory, rows, w->in);
#pragma omp parallel
    {
        round_and_multiply(w, x, logits_RV, rows);
#pragma omp barrier
        Range mine = my_share(rows);
        for (long r = mine.first; r < mine.last; r++)
            refine_row(logits_RV + r * w->out, x_RI + r * w->in, weight_VI, w->out, w->in, count);
    }
}
