/* y = x w + bias, for weights laid out in tiles of 16 outputs.
 *
 *   INT4  w = code * scale + low, codes of 4 bits in groups of 32 inputs: 256 bytes of codes, 16 scales and 16 lows
 *         in fp16. Byte (output o, p) of 64-byte vector v holds input 8 v + p in its low half, 8 v + 4 + p in its high.
 *   INT8  w = code * scale, signed codes of 8 bits: 512 bytes of codes and 16 scales. Byte (o, p) of vector v holds
 *         input 4 v + p.
 *   BF16  w in bf16, one vector of 16 outputs for each input.
 *
 * INT4 and INT8 round inputs to 16 bits, with one step per group of 32: an error of at most 1/65278 of the largest
 * input in the group. A group's sum is an exact integer, and groups are summed in fp32. BF16 does not round inputs. A
 * row's result does not depend on the other rows.
 */
#include "isa.h"

enum { INT4, INT8, BF16 };
#define INT4_BYTES (TILE * GROUP / 2 + 2 * TILE * 2)
#define INT8_BYTES (TILE * GROUP + TILE * 2)

typedef struct { const uint8_t *tiles; const float *bias; long kind, in, out; } Product;

/* Inputs of all rows, exact and rounded. */
typedef struct { const float *x_RI; int16_t *codes_RI; float *step_RG, *sum_RG; } Inputs;

/* Rows per pass over the weights, and tiles at a time for that many rows: enough independent sums to hide an
 * instruction's latency, few enough to stay in registers. */
#if WIDTH == 64
#define MOST_ROWS 8
#define NUM_TILES(rows) ((rows) <= 2 ? 4 : (rows) <= 6 ? 2 : 1)
#elif WIDTH == 32
#define MOST_ROWS 4
#define NUM_TILES(rows) ((rows) <= 2 ? 2 : 1)
#else
#define MOST_ROWS 2
#define NUM_TILES(rows) ((rows) == 1 ? 2 : 1)
#endif
/* Rows whose inputs stay in the L2 cache while the weights are streamed. */
#define ROW_BLOCK 64

#define EACH_TILE UNROLL for (int n = 0; n < num_tiles; n++)
#define EACH_ROW UNROLL for (int r = 0; r < rows; r++)
#define EACH_PIECE UNROLL for (int p = 0; p < PIECES; p++)
#define SUMS [4][MOST_ROWS][PIECES]

/* --- inputs ------------------------------------------------------------------------------------------------ */

/* An input that is not finite makes its group's step NaN, so it is not rounded away. */
static void round_group(const float *x, int16_t *codes, float *step, float *sum) {
    int16_t rounded[GROUP];
    float most = 0, broken = 0;
    int32_t whole = 0;
#pragma omp simd reduction(max : most) reduction(+ : broken)
    for (int i = 0; i < GROUP; i++) {
        float size = fabsf(x[i]);
        most = size > most ? size : most;
        broken += x[i] * 0.0f;
    }
    float per_step = most > 1e-30f ? MOST_INPUT / most : 0;
#pragma omp simd reduction(+ : whole)
    for (int i = 0; i < GROUP; i++) {
        /* The last bits of 1.5 * 2^23 + n are n. */
        float shifted = x[i] * per_step + 12582912.0f;
        int32_t code;
        memcpy(&code, &shifted, 4);
        code -= 0x4b400000;
        rounded[i] = (int16_t)code;
        whole += code;
    }
    for (int i = 0; i < GROUP; i += 4) arrange4(codes + i, rounded + i);
    *step = most / MOST_INPUT + broken;
    *sum = *step * (float)whole;
}

static void round_row(Inputs x, long row, long in) {
    long groups = in / GROUP;
    for (long g = 0; g < groups; g++) {
        long at = row * groups + g;
        round_group(x.x_RI + at * GROUP, x.codes_RI + at * GROUP, x.step_RG + at, x.sum_RG + at);
    }
}

/* --- a few rows, a few tiles ------------------------------------------------------------------------------- */

ALWAYS void start(vec sums SUMS, const Product *w, long tile, const int rows, const int num_tiles) {
    EACH_TILE EACH_PIECE {
        vec bias = {0};
        if (w->bias) bias = read(w->bias + (tile + n) * TILE + p * LANES);
        EACH_ROW sums[n][r][p] = bias;
    }
}

ALWAYS void finish(vec sums SUMS, float *y_RO, const Product *w, long tile, const int rows, const int num_tiles) {
    EACH_TILE EACH_ROW EACH_PIECE write(y_RO + r * w->out + (tile + n) * TILE + p * LANES, sums[n][r][p]);
}

ALWAYS const int32_t *four(Inputs x, long in, int row, long first) {
    return (const int32_t *)(const void *)(x.codes_RI + row * in + first);
}

ALWAYS void int4_tiles(const Product *w, Inputs x, float *y_RO, long tile, const int rows, const int num_tiles) {
    long groups = w->in / GROUP;
    vec sums SUMS;
    start(sums, w, tile, rows, num_tiles);
    for (long g = 0; g < groups; g++) {
        const uint8_t *tiles = w->tiles + (tile * groups + g) * INT4_BYTES;
        Part parts SUMS;
        EACH_TILE EACH_ROW EACH_PIECE memset(&parts[n][r][p], 0, sizeof(Part));
        for (int v = 0; v < 4; v++)
            UNROLL for (int half = 0; half < 2; half++) {
                Weights4 weights[4][PIECES];
                EACH_TILE EACH_PIECE {
                    ivec codes = read_codes(tiles + n * groups * INT4_BYTES + 64 * v + WIDTH * p);
                    weights[n][p] = half ? high_nibbles(codes) : low_nibbles(codes);
                }
                EACH_ROW {
                    const int32_t *inputs = four(x, w->in, r, g * GROUP + 8 * v + 4 * half);
                    EACH_TILE EACH_PIECE dot4(&parts[n][r][p], weights[n][p], inputs);
                }
            }
        EACH_TILE EACH_PIECE {
            const uint8_t *halves = tiles + n * groups * INT4_BYTES + 256 + p * LANES * 2;
            vec scale = read_halves(halves), low = read_halves(halves + TILE * 2);
            EACH_ROW {
                vec step = scale * splat(x.step_RG[r * groups + g]);
                sums[n][r][p] = fused(step, to_floats(total(parts[n][r][p])), sums[n][r][p]);
                sums[n][r][p] = fused(low, splat(x.sum_RG[r * groups + g]), sums[n][r][p]);
            }
        }
    }
    finish(sums, y_RO, w, tile, rows, num_tiles);
}

ALWAYS void int8_tiles(const Product *w, Inputs x, float *y_RO, long tile, const int rows, const int num_tiles) {
    long groups = w->in / GROUP;
    vec sums SUMS;
    start(sums, w, tile, rows, num_tiles);
    for (long g = 0; g < groups; g++) {
        const uint8_t *tiles = w->tiles + (tile * groups + g) * INT8_BYTES;
        Part parts SUMS;
        EACH_TILE EACH_ROW EACH_PIECE memset(&parts[n][r][p], 0, sizeof(Part));
        UNROLL for (int v = 0; v < 8; v++) {
            Weights4 weights[4][PIECES];
            EACH_TILE EACH_PIECE
                weights[n][p] = signed_bytes(read_codes(tiles + n * groups * INT8_BYTES + 64 * v + WIDTH * p));
            EACH_ROW {
                const int32_t *inputs = four(x, w->in, r, g * GROUP + 4 * v);
                EACH_TILE EACH_PIECE dot4(&parts[n][r][p], weights[n][p], inputs);
            }
        }
        EACH_TILE EACH_PIECE {
            vec scale = read_halves(tiles + n * groups * INT8_BYTES + 512 + p * LANES * 2);
            EACH_ROW {
                vec step = scale * splat(x.step_RG[r * groups + g]);
                sums[n][r][p] = fused(step, to_floats(total(parts[n][r][p])), sums[n][r][p]);
            }
        }
    }
    finish(sums, y_RO, w, tile, rows, num_tiles);
}

ALWAYS vec widen(const uint8_t *from) {
    typedef uint16_t shorts __attribute__((vector_size(WIDTH / 2), aligned(1), may_alias));
    typedef uint32_t longs __attribute__((vector_size(WIDTH)));
    return (vec)(__builtin_convertvector(*(const shorts *)from, longs) << 16);
}

ALWAYS void bf16_tiles(const Product *w, Inputs x, float *y_RO, long tile, const int rows, const int num_tiles) {
    vec sums SUMS;
    start(sums, w, tile, rows, num_tiles);
    for (long i = 0; i < w->in; i++) {
        EACH_TILE EACH_PIECE {
            vec weights = widen(w->tiles + (((tile + n) * w->in + i) * TILE + p * LANES) * 2);
            EACH_ROW sums[n][r][p] = fused(weights, splat(x.x_RI[r * w->in + i]), sums[n][r][p]);
        }
    }
    finish(sums, y_RO, w, tile, rows, num_tiles);
}

/* --- all rows, a range of tiles ---------------------------------------------------------------------------- */

ALWAYS Inputs from_row(Inputs x, long row, long in) {
    long groups = in / GROUP;
    return (Inputs){x.x_RI + row * in, x.codes_RI + row * in, x.step_RG + row * groups, x.sum_RG + row * groups};
}

/* `rows` rows (a constant) over the tiles, several tiles at a time and the remainder one by one. */
#define OVER_TILES(multiply, rows) \
    { \
        long t = tiles.first; \
        for (; t + NUM_TILES(rows) <= tiles.last; t += NUM_TILES(rows)) multiply(w, x, y_RO, t, rows, NUM_TILES(rows)); \
        for (; t < tiles.last; t++) multiply(w, x, y_RO, t, rows, 1); \
    } \
    break;

#if WIDTH == 64
#define MORE_ROWS(multiply) case 3: OVER_TILES(multiply, 3) case 4: OVER_TILES(multiply, 4) \
    case 5: OVER_TILES(multiply, 5) case 6: OVER_TILES(multiply, 6) case 7: OVER_TILES(multiply, 7) \
    case 8: OVER_TILES(multiply, 8)
#elif WIDTH == 32
#define MORE_ROWS(multiply) case 3: OVER_TILES(multiply, 3) case 4: OVER_TILES(multiply, 4)
#else
#define MORE_ROWS(multiply)
#endif

#define PRODUCT_OF_KIND(name, multiply) \
    static void name##_few(const Product *w, Inputs x, float *y_RO, long rows, Range tiles) { \
        switch (rows) { \
        case 1: OVER_TILES(multiply, 1) \
        case 2: OVER_TILES(multiply, 2) \
        MORE_ROWS(multiply) \
        } \
    } \
    static void name(const Product *w, Inputs x, float *y_RO, long rows, Range tiles) { \
        for (long first = 0; first < rows; first += ROW_BLOCK) { \
            long end = rows - first < ROW_BLOCK ? rows : first + ROW_BLOCK, full = end - (end - first) % MOST_ROWS; \
            if (full > first + MOST_ROWS) { \
                for (long t = tiles.first; t < tiles.last; t++) \
                    for (long r = first; r < full; r += MOST_ROWS) \
                        multiply(w, from_row(x, r, w->in), y_RO + r * w->out, t, MOST_ROWS, 1); \
            } else if (full > first) \
                name##_few(w, from_row(x, first, w->in), y_RO + first * w->out, MOST_ROWS, tiles); \
            if (end > full) name##_few(w, from_row(x, full, w->in), y_RO + full * w->out, end - full, tiles); \
        } \
    }

PRODUCT_OF_KIND(int4_rows, int4_tiles)
PRODUCT_OF_KIND(int8_rows, int8_tiles)
PRODUCT_OF_KIND(bf16_rows, bf16_tiles)

/* Called by every thread of a team: computes its own columns and returns their range. Inputs are already rounded. */
static Range multiply(const Product *w, Inputs x, float *y_RO, long rows) {
    Range tiles = my_share(w->out / TILE);
    if (w->kind == INT4) int4_rows(w, x, y_RO, rows, tiles);
    else if (w->kind == INT8) int8_rows(w, x, y_RO, rows, tiles);
    else bf16_rows(w, x, y_RO, rows, tiles);
    return (Range){tiles.first * TILE, tiles.last * TILE};
}

/* --- low-rank adapters --------------------------------------------------------------------------------------- */

/* y += (x a) b. Of projections joined into one (q, k and v), each has a part with its own ranks and columns: (first
 * rank, end, first column, end); b is zero elsewhere. */
typedef struct { const float *a_KI, *b_KO; const long (*parts)[4]; long num_parts, rank; } LowRank;

/* Four independent vector sums, so that additions do not wait for each other. */
ALWAYS float long_dot(const float *a, const float *b, long count) {
    vec sums[4] = {{0}};
    long i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        UNROLL for (int s = 0; s < 4; s++) sums[s] = fused(read(a + i + s * LANES), read(b + i + s * LANES), sums[s]);
    vec sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float result = 0;
    for (int l = 0; l < LANES; l++) result += sum[l];
    return result + dot(a + i, b + i, count - i);
}

/* Called by every thread: computes its share of x a. */
static void shrink(const LowRank *w, const float *x_RI, float *middle_RK, long rows, long in) {
    Range mine = my_share(rows * w->rank);
    for (long i = mine.first; i < mine.last; i++)
        middle_RK[i] = long_dot(x_RI + i / w->rank * in, w->a_KI + i % w->rank * in, in);
}

ALWAYS void expand_block(const float *b_KO, const float *middle, long out, long ranks, float *y, const long width) {
    float sum[64] = {0};
    for (long k = 0; k < ranks; k++)
        for (long c = 0; c < width; c++) sum[c] += middle[k] * b_KO[k * out + c];
    for (long c = 0; c < width; c++) y[c] += sum[c];
}

/* Called by every thread: adds to the columns it multiplied. */
static void expand(const LowRank *w, const float *middle_RK, float *y_RO, long rows, long out, Range columns) {
    for (long p = 0; p < w->num_parts; p++) {
        const long *part = w->parts[p];
        long first = part[2] > columns.first ? part[2] : columns.first, last = part[3] < columns.last ? part[3] : columns.last;
        for (long o = first; o < last; o += 64)
            for (long r = 0; r < rows; r++) {
                const float *b = w->b_KO + part[0] * out + o, *middle = middle_RK + r * w->rank + part[0];
                if (last - o >= 64) expand_block(b, middle, out, part[1] - part[0], y_RO + r * out + o, 64);
                else expand_block(b, middle, out, part[1] - part[0], y_RO + r * out + o, last - o);
            }
    }
}

/* --- the head ------------------------------------------------------------------------------------------------- */

#define BINS 2048
/* Logits this far below the best one are too unlikely to matter. */
#define RANGE 64.0f

/* Replaces a row's likeliest logits, at least `count` of them, by full-precision products. The floor is chosen so that
 * at least `count` tiles reach it, and only those tiles are searched. */
static void refine_row(float *logits, const float *x, const float *weight_VI, long vocab, long in, long count) {
    long tiles = vocab / TILE;
    float largest[tiles], most = -INFINITY;
    for (long t = 0; t < tiles; t++) {
        float top = -INFINITY;
#pragma omp simd reduction(max : top)
        for (int l = 0; l < TILE; l++) top = logits[t * TILE + l] > top ? logits[t * TILE + l] : top;
        largest[t] = top;
        most = top > most ? top : most;
    }
    int bins[BINS] = {0};
    float per_bin = BINS / RANGE;
    for (long t = 0; t < tiles; t++) {
        float bin = (most - largest[t]) * per_bin;
        bins[bin < BINS - 1 ? (int)bin : BINS - 1]++;
    }
    long last = 0;
    for (long kept = bins[0]; kept < count && last < BINS - 1; kept += bins[++last]) {}
    float floor = most - (last + 1) / per_bin;
    for (long t = 0; t < tiles; t++)
        if (largest[t] >= floor)
            for (long v = t * TILE; v < (t + 1) * TILE; v++)
                if (logits[v] >= floor) logits[v] = long_dot(x, weight_VI + v * in, in);
}
