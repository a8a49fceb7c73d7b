/* Attention of new rows over each sequence's own keys and values, in fp32.
 *
 * Work is split into items: a sequence, a key head, up to 16 of its new rows, and a range of its tokens. For each row
 * and head, an item stores the unscaled sum, the largest score and the total weight; `combine` joins a row's ranges.
 * How a sequence is split depends only on its own numbers of tokens and rows, and so does the result.
 */
#include "isa.h"

/* Tokens per range, when a sequence has so few new rows that threads must share its tokens. */
#define RANGE_TOKENS 256
/* New rows per item. */
#define QUERIES TILE
/* Tokens scored at a time. */
#define BLOCK 64
#define EACH_PIECE UNROLL for (int p = 0; p < PIECES; p++)

typedef struct {
    long first_row, rows;     /* in the batch */
    float *cache;             /* layer 0's keys, [heads, capacity, size]; values follow after half a layer */
    long capacity, length;    /* tokens that fit, tokens before the new ones */
    long hidden_layer;        /* the last row's state after this layer goes to `hidden`; -1: none */
    float *hidden;
} Span;

/* How a sequence is split into items, and where their results are stored. */
typedef struct { long first_item, ranges, blocks; float *partial; } Cut;

typedef struct { long heads, key_heads, size; } Heads;

ALWAYS long num_ranges(const Span *s) {
    long tokens = s->length + s->rows;
    return s->rows > QUERIES ? 1 : (tokens + RANGE_TOKENS - 1) / RANGE_TOKENS;
}
ALWAYS long num_blocks(const Span *s) { return (s->rows + QUERIES - 1) / QUERIES; }
ALWAYS long partial_floats(const Span *s, Heads h) {
    return num_ranges(s) * s->rows * h.heads * (h.size + 2);
}
/* Result of one row and head in one range. */
ALWAYS float *partial_at(const Span *s, const Cut *cut, Heads h, long range, long row, long head) {
    return cut->partial + ((range * s->rows + row) * h.heads + head) * (h.size + 2);
}

/* --- one new row: decoding ------------------------------------------------------------------------------------ */

/* Scores of LANES tokens (fewer at the end of a sequence) for each of a few heads. */
ALWAYS void score(const float *q_GD, const float *keys_TD, long tokens, const int group, const int vecs,
                  float (*scores)[RANGE_TOKENS]) {
    for (int g = 0; g < group; g++) {
        vec rows[LANES];
        UNROLL for (int t = 0; t < LANES; t++) {
            const float *key = keys_TD + (t < tokens ? t : 0) * vecs * LANES;
            vec sum = read(q_GD + g * vecs * LANES) * read(key);
            UNROLL for (int c = 1; c < vecs; c++)
                sum = fused(read(q_GD + (g * vecs + c) * LANES), read(key + c * LANES), sum);
            rows[t] = sum;
        }
        write(scores[g], sum_lanes(rows));
    }
}

/* Vectors of a value that are summed at a time, for four heads. */
#define VALUE_VECS (WIDTH == 32 ? 2 : 4)

ALWAYS void attend_heads(const float *q_GD, const float *keys_TD, const float *values_TD, long tokens, const int group,
                         const int vecs, float *partial) {
    float scores[4][RANGE_TOKENS];
    long size = vecs * LANES;
    for (long t = 0; t < tokens; t += LANES)
        score(q_GD, keys_TD + t * size, tokens - t, group, vecs, (float (*)[RANGE_TOKENS])&scores[0][t]);
    for (int g = 0; g < group; g++) {
        float most = scores[g][0], sum = 0;
#pragma omp simd reduction(max : most)
        for (long t = 0; t < tokens; t++) most = scores[g][t] > most ? scores[g][t] : most;
#pragma omp simd reduction(+ : sum)
        for (long t = 0; t < tokens; t++) {
            scores[g][t] = exp_negative(scores[g][t] - most);
            sum += scores[g][t];
        }
        partial[g * (size + 2) + size] = most;
        partial[g * (size + 2) + size + 1] = sum;
    }
    for (int first = 0; first < vecs; first += VALUE_VECS) {
        vec sums[4][VALUE_VECS] = {{{0}}};
        for (long t = 0; t < tokens; t++) {
            const float *value = values_TD + t * size + first * LANES;
            UNROLL for (int g = 0; g < group; g++)
                UNROLL for (int c = 0; c < VALUE_VECS; c++)
                    if (first + c < vecs) sums[g][c] = fused(splat(scores[g][t]), read(value + c * LANES), sums[g][c]);
        }
        for (int g = 0; g < group; g++)
            for (int c = 0; c < VALUE_VECS && first + c < vecs; c++)
                write(partial + g * (size + 2) + (first + c) * LANES, sums[g][c]);
    }
}

/* Common head counts and sizes are compile-time constants, so that the compiler unrolls everything. */
static void attend_row(const float *q_GD, const float *keys_TD, const float *values_TD, long tokens, long group, long size,
                       float *partial) {
    for (long g = 0; g < group; g += 4) {
        const float *q = q_GD + g * size;
        float *p = partial + g * (size + 2);
        long heads = group - g < 4 ? group - g : 4;
#define CASE(n, d) if (heads == n && size == d) attend_heads(q, keys_TD, values_TD, tokens, n, d / LANES, p); else
        CASE(1, 64) CASE(2, 64) CASE(3, 64) CASE(4, 64) CASE(1, 128) CASE(2, 128) CASE(3, 128) CASE(4, 128)
#undef CASE
        attend_heads(q, keys_TD, values_TD, tokens, heads, size / LANES, p);
    }
}

/* --- several new rows: prompts ---------------------------------------------------------------------------------- */

/* Rows of one factor held in registers against 16 columns of the other. */
#if WIDTH == 64
#define REGISTER_ROWS 8
#else
#define REGISTER_ROWS 4
#endif
#define EACH_REGISTER_ROW UNROLL for (int r = 0; r < REGISTER_ROWS; r++)

/* scores[t][m] of a block's tokens and 16 queries; q is transposed. */
static void score_block(const float *q_DM, const float *keys_TD, long tokens, long size, float *scores_TM) {
    for (long t = 0; t < tokens; t += REGISTER_ROWS) {
        const float *key[REGISTER_ROWS];
        vec sums[REGISTER_ROWS][PIECES] = {{{0}}};
        EACH_REGISTER_ROW key[r] = keys_TD + (t + r < tokens ? t + r : t) * size;
        for (long d = 0; d < size; d++) {
            vec q[PIECES];
            EACH_PIECE q[p] = read(q_DM + d * QUERIES + p * LANES);
            EACH_REGISTER_ROW EACH_PIECE sums[r][p] = fused(splat(key[r][d]), q[p], sums[r][p]);
        }
        EACH_REGISTER_ROW EACH_PIECE write(scores_TM + (t + r) * QUERIES + p * LANES, sums[r][p]);
    }
}

/* sums[m][d] += weights[t][m] values[t][d] */
static void add_values(float *sums_MD, const float *weights_TM, const float *values_TD, long tokens, long size) {
    for (long m = 0; m < QUERIES; m += REGISTER_ROWS)
        for (long d = 0; d < size; d += TILE) {
            vec sums[REGISTER_ROWS][PIECES];
            EACH_REGISTER_ROW EACH_PIECE sums[r][p] = read(sums_MD + (m + r) * size + d + p * LANES);
            for (long t = 0; t < tokens; t++) {
                vec value[PIECES];
                EACH_PIECE value[p] = read(values_TD + t * size + d + p * LANES);
                EACH_REGISTER_ROW EACH_PIECE sums[r][p] = fused(splat(weights_TM[t * QUERIES + m + r]), value[p], sums[r][p]);
            }
            EACH_REGISTER_ROW EACH_PIECE write(sums_MD + (m + r) * size + d + p * LANES, sums[r][p]);
        }
}

/* Turns scores into weights relative to each query's largest score so far, and rescales earlier sums to it. Query m
 * does not see the block's tokens from `visible + m` on. */
static void weigh_block(float *scores_TM, long tokens, long visible, float *most_M, float *total_M, float *sums_MD, long size) {
    float before[QUERIES], scale[QUERIES];
    for (long t = visible > 0 ? visible : 0; t < tokens; t++)
        for (long m = 0; m < QUERIES && visible + m <= t; m++) scores_TM[t * QUERIES + m] = -INFINITY;
    memcpy(before, most_M, sizeof(before));
    for (long t = 0; t < tokens; t++)
        for (int m = 0; m < QUERIES; m++) {
            float value = scores_TM[t * QUERIES + m];
            most_M[m] = value > most_M[m] ? value : most_M[m];
        }
    for (int m = 0; m < QUERIES; m++) {
        scale[m] = exp_negative(before[m] - most_M[m]);
        total_M[m] *= scale[m];
    }
    for (long t = 0; t < tokens; t++)
        for (int m = 0; m < QUERIES; m++) {
            float weight = exp_negative(scores_TM[t * QUERIES + m] - most_M[m]);
            scores_TM[t * QUERIES + m] = weight;
            total_M[m] += weight;
        }
    for (int m = 0; m < QUERIES; m++)
        if (scale[m] != 1.0f)
            for (long d = 0; d < size; d++) sums_MD[m * size + d] *= scale[m];
}

/* One head of up to 16 queries, `stride` floats apart, over the tokens of a range. */
static void attend_queries(const float *q_MD, long stride, long queries, const float *keys_TD, const float *values_TD,
                           Range tokens, long first_position, long size, float *partial, long partial_stride) {
    float q_DM[size * QUERIES], sums_MD[QUERIES * size], scores_TM[BLOCK * QUERIES];
    float most_M[QUERIES], total_M[QUERIES] = {0};
    for (long m = 0; m < QUERIES; m++) {
        most_M[m] = -1e30f; /* finite, so that a query that sees no token of a range gets no weight */
        for (long d = 0; d < size; d++) q_DM[d * QUERIES + m] = m < queries ? q_MD[m * stride + d] : 0;
    }
    memset(sums_MD, 0, sizeof(sums_MD));
    long last = first_position + queries; /* the last query sees tokens up to its own */
    long end = tokens.last < last ? tokens.last : last;
    for (long t = tokens.first; t < end; t += BLOCK) {
        long count = end - t < BLOCK ? end - t : BLOCK;
        score_block(q_DM, keys_TD + t * size, count, size, scores_TM);
        weigh_block(scores_TM, count, first_position + 1 - t, most_M, total_M, sums_MD, size);
        add_values(sums_MD, scores_TM, values_TD + t * size, count, size);
    }
    for (long m = 0; m < queries; m++) {
        memcpy(partial + m * partial_stride, sums_MD + m * size, size * sizeof(float));
        partial[m * partial_stride + size] = most_M[m];
        partial[m * partial_stride + size + 1] = total_M[m];
    }
}

/* --- items -------------------------------------------------------------------------------------------------------- */

/* Runs one item of a sequence; queries are in qkv rows of `width` floats, rotated and scaled. */
static void attend_item(const Span *s, const Cut *cut, Heads h, long layer, const float *qkv_RO, long width, long item) {
    long group = h.heads / h.key_heads, head = item % h.key_heads, rest = item / h.key_heads;
    long range = rest % cut->ranges, first = rest / cut->ranges * QUERIES;
    long half = h.key_heads * s->capacity * h.size, all = s->length + s->rows;
    const float *keys = s->cache + layer * 2 * half + head * s->capacity * h.size, *values = keys + half;
    Range tokens = {0, all};
    if (cut->ranges > 1) {
        tokens.first = range * RANGE_TOKENS;
        tokens.last = all - tokens.first < RANGE_TOKENS ? all : tokens.first + RANGE_TOKENS;
    }
    const float *q = qkv_RO + (s->first_row + first) * width + head * group * h.size;
    float *partial = partial_at(s, cut, h, range, first, head * group);
    if (s->rows == 1) {
        long start = tokens.first * h.size;
        attend_row(q, keys + start, values + start, tokens.last - tokens.first, group, h.size, partial);
        return;
    }
    long queries = s->rows - first < QUERIES ? s->rows - first : QUERIES;
    for (long g = 0; g < group; g++)
        attend_queries(q + g * h.size, width, queries, keys, values, tokens, s->length + first, h.size,
                       partial + g * (h.size + 2), h.heads * (h.size + 2));
}

/* Combines a row's ranges into its heads. */
static void combine(const Span *s, const Cut *cut, Heads h, long row, float *out_O) {
    for (long n = 0; n < h.heads; n++) {
        float most = -INFINITY, sum = 0, *out = out_O + n * h.size;
        memset(out, 0, h.size * sizeof(float));
        for (long range = 0; range < cut->ranges; range++) {
            float score = partial_at(s, cut, h, range, row, n)[h.size];
            most = score > most ? score : most;
        }
        for (long range = 0; range < cut->ranges; range++) {
            const float *part = partial_at(s, cut, h, range, row, n);
            float weight = exp_negative(part[h.size] - most);
            sum += weight * part[h.size + 1];
            for (long d = 0; d < h.size; d++) out[d] += weight * part[d];
        }
        for (long d = 0; d < h.size; d++) out[d] /= sum;
    }
}
