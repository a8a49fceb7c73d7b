/* A decoding step in C: norms, rotary positions, attention over each sequence's own cache, the gated
 * activation, adapters; and products with weights of 4 and 8 bits, where the processor has the instructions.
 *
 * Between its products a layer takes some twenty torch operators, and each costs a microsecond or more whatever
 * it computes. Here they are four functions, each one pass over its data, in fp32 throughout. native.py builds
 * this file where a C compiler is found; without one, torch's operators do the same work more slowly.
 *
 * Products take and give bf16 or fp32, so every function reads and writes either.
 * Names end in their dimensions, as in model.py: R rows, I in, O out, N query heads, H key heads, D head size.
 */
#include <stdint.h>
#include <string.h>
#include <math.h>

#define ALWAYS static inline __attribute__((always_inline))
/* Rows below which starting the other threads costs more than they save. */
#define FEW_ROWS 4

typedef struct { const void *data; int is_bf16; } Input;
typedef struct { uint16_t *bf16; float *fp32; } Output; /* either may be absent */

ALWAYS float widen(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* To nearest, ties to even, as torch rounds; a NaN stays one. */
ALWAYS uint16_t narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)(value != value ? 0x7fc0 : rounded);
}

/* e^x for x <= 0, within 2e-7 of the exact value, in a form that compilers vectorise. */
ALWAYS float exp_negative(float x) {
    x = x < -87.0f ? -87.0f : x;
    float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits;
    memcpy(&bits, &p, 4);
    bits += (int32_t)n << 23;
    memcpy(&p, &bits, 4);
    return p;
}

ALWAYS void load(float *to, Input from, long offset, long count) {
    if (from.is_bf16) {
        const uint16_t *data = (const uint16_t *)from.data + offset;
        for (long i = 0; i < count; i++) to[i] = widen(data[i]);
    } else {
        memcpy(to, (const float *)from.data + offset, count * sizeof(float));
    }
}

ALWAYS void store(Output to, long offset, const float *from, long count) {
    if (to.fp32) memcpy(to.fp32 + offset, from, count * sizeof(float));
    if (to.bf16)
        for (long i = 0; i < count; i++) to.bf16[offset + i] = narrow(from[i]);
}

ALWAYS float dot(const float *a, const float *b, long count) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

ALWAYS void normalise(float *row, const float *weight, float eps, long count) {
    float scale = 1.0f / sqrtf(dot(row, row, count) / count + eps);
    for (long i = 0; i < count; i++) row[i] = row[i] * scale * weight[i];
}

/* hidden += delta (if any); out = rms_norm(hidden). */
void add_norm(float *hidden_RI, const void *delta, int delta_is_bf16, const float *weight_I, float eps,
              uint16_t *out_bf16, float *out_fp32, long rows, long size) {
    Input delta_RI = {delta, delta_is_bf16};
    Output out_RI = {out_bf16, out_fp32};
#pragma omp parallel for if (rows >= FEW_ROWS)
    for (long r = 0; r < rows; r++) {
        float normed[size];
        float *hidden = hidden_RI + r * size;
        if (delta_RI.data) {
            load(normed, delta_RI, r * size, size);
            for (long i = 0; i < size; i++) hidden[i] += normed[i];
        }
        memcpy(normed, hidden, size * sizeof(float));
        normalise(normed, weight_I, eps, size);
        store(out_RI, r * size, normed, size);
    }
}

/* out = silu(gate) * up. */
void gate(const void *gate_up, int gate_up_is_bf16, uint16_t *out_bf16, float *out_fp32, long rows, long size) {
    Input gate_up_RO = {gate_up, gate_up_is_bf16};
    Output out_RI = {out_bf16, out_fp32};
#pragma omp parallel for if (rows >= FEW_ROWS)
    for (long r = 0; r < rows; r++) {
        float both[2 * size];
        load(both, gate_up_RO, r * 2 * size, 2 * size);
        for (long i = 0; i < size; i++) {
            float x = both[i], e = exp_negative(-fabsf(x));
            both[i] = x * (x < 0 ? e : 1.0f) / (1.0f + e) * both[size + i];
        }
        store(out_RI, r * size, both, size);
    }
}

/* y += (x a) b for the rows of one adapter; y is fp32 already. Projections joined into one (q, k and v) have a part
 * each: ranks and columns of its own, (first rank, last, first column, last); b is zero elsewhere. */
void low_rank(float *y_RO, const float *x_RI, const float *a_KI, const float *b_KO, const long (*parts)[4], long num_parts,
              long rows, long in, long rank, long out) {
    float middle[rows * rank];
#pragma omp parallel
    {
#pragma omp for
        for (long k = 0; k < rank; k++)
            for (long r = 0; r < rows; r++) middle[r * rank + k] = dot(x_RI + r * in, a_KI + k * in, in);
        for (long p = 0; p < num_parts; p++) {
            long first = parts[p][2], last = parts[p][3];
#pragma omp for nowait
            for (long o = first; o < last; o += 64) {
                long width = last - o < 64 ? last - o : 64;
                for (long r = 0; r < rows; r++) {
                    float sum[64] = {0}, *y = y_RO + r * out + o;
                    for (long k = parts[p][0]; k < parts[p][1]; k++) {
                        const float *b = b_KO + k * out + o;
                        float weight = middle[r * rank + k];
                        if (width == 64)
                            for (long c = 0; c < 64; c++) sum[c] += weight * b[c];
                        else
                            for (long c = 0; c < width; c++) sum[c] += weight * b[c];
                    }
                    for (long c = 0; c < width; c++) y[c] += sum[c];
                }
            }
        }
    }
}

/* --- attention --------------------------------------------------------------------------------------- */

/* Keys and values are taken in blocks of this many tokens, so that threads share long sequences too and a
 * row's result depends on nothing but its own sequence. */
#define BLOCK 256

typedef struct {
    long rows, heads, key_heads, size;
    const float *cos_RD, *sin_RD; /* the first half's sign is in the sine */
    const float *q_norm_D, *k_norm_D; /* absent in most models */
    float eps, scale;
    float *const *cache_R;        /* layer 0's keys, [H, capacity, D]; values follow after half a layer */
    const long *capacity_R, *length_R; /* tokens that fit, tokens before this one */
    const long *first_item_R;     /* where a row's blocks begin; the last entry is their number */
    float *partial;               /* items x (heads a key head serves) x (size + 2) */
    float *q_RND;                 /* room for the turned queries */
} Step;

typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t lanes __attribute__((vector_size(64)));
#define LANES 16

/* One halving step of `sum_lanes`: lanes whose number has `bit` come from b, the others from a. */
#define PICK(l, bit, side) ((((l) & (bit)) ? 16 : 0) + (((l) & ~(bit)) | ((side) ? (bit) : 0)))
#define PICKS(bit, side) (lanes){PICK(0, bit, side), PICK(1, bit, side), PICK(2, bit, side), PICK(3, bit, side), \
    PICK(4, bit, side), PICK(5, bit, side), PICK(6, bit, side), PICK(7, bit, side), PICK(8, bit, side), \
    PICK(9, bit, side), PICK(10, bit, side), PICK(11, bit, side), PICK(12, bit, side), PICK(13, bit, side), \
    PICK(14, bit, side), PICK(15, bit, side)}
#define HALVE(a, b, bit) (__builtin_shuffle(a, b, PICKS(bit, 0)) + __builtin_shuffle(a, b, PICKS(bit, 1)))

/* Lane t of the result is the sum of rows[t]'s lanes. */
ALWAYS vec sum_lanes(vec *rows) {
#pragma GCC unroll 8
    for (int t = 0; t < 8; t++) rows[t] = HALVE(rows[2 * t], rows[2 * t + 1], 1);
#pragma GCC unroll 4
    for (int t = 0; t < 4; t++) rows[t] = HALVE(rows[2 * t], rows[2 * t + 1], 2);
#pragma GCC unroll 2
    for (int t = 0; t < 2; t++) rows[t] = HALVE(rows[2 * t], rows[2 * t + 1], 4);
    return HALVE(rows[0], rows[1], 8);
}

ALWAYS vec read(const float *from) { return *(const vec *)from; }

/* Scores of 16 tokens (fewer at the end of a sequence) for each of a few heads. */
ALWAYS void score(const float *q_GD, const float *keys_TD, long tokens, const int group, const int vecs, float (*scores)[BLOCK]) {
    for (int g = 0; g < group; g++) {
        vec rows[LANES] = {{0}};
#pragma GCC unroll 16
        for (int t = 0; t < LANES; t++) {
            const float *key = keys_TD + (t < tokens ? t : 0) * vecs * LANES;
            vec sum = read(q_GD + g * vecs * LANES) * read(key);
#pragma GCC unroll 16
            for (int c = 1; c < vecs; c++) sum += read(q_GD + (g * vecs + c) * LANES) * read(key + c * LANES);
            rows[t] = sum;
        }
        *(vec *)scores[g] = sum_lanes(rows);
    }
}

/* A few heads over one block of keys and values: their unscaled sums, the largest score and the weights' total. */
ALWAYS void attend_block(const float *q_GD, const float *keys_TD, const float *values_TD, long tokens, const int group,
                         const int vecs, float *partial) {
    float scores[4][BLOCK];
    long size = vecs * LANES;
    for (long t = 0; t < tokens; t += LANES)
        score(q_GD, keys_TD + t * size, tokens - t, group, vecs, (float (*)[BLOCK])&scores[0][t]);
    for (int g = 0; g < group; g++) {
        float most = scores[g][0], total = 0;
        for (long t = 1; t < tokens; t++) most = scores[g][t] > most ? scores[g][t] : most;
#pragma omp simd reduction(+ : total)
        for (long t = 0; t < tokens; t++) {
            scores[g][t] = exp_negative(scores[g][t] - most);
            total += scores[g][t];
        }
        partial[g * (size + 2) + size] = most;
        partial[g * (size + 2) + size + 1] = total;
    }
    /* Four vectors of every head at a time, so that sums stay in registers. */
    for (int first = 0; first < vecs; first += 4) {
        const int part = vecs - first < 4 ? vecs - first : 4;
        vec sums[4][4] = {{{0}}};
        for (long t = 0; t < tokens; t++) {
            const float *value = values_TD + t * size + first * LANES;
#pragma GCC unroll 4
            for (int g = 0; g < group; g++)
#pragma GCC unroll 4
                for (int c = 0; c < part; c++) sums[g][c] += scores[g][t] * read(value + c * LANES);
        }
        for (int g = 0; g < group; g++)
            for (int c = 0; c < part; c++) *(vec *)(partial + g * (size + 2) + (first + c) * LANES) = sums[g][c];
    }
}

/* The usual numbers of heads and sizes are known to the compiler, which then unrolls everything. */
static void attend_heads(const float *q_GD, const float *keys_TD, const float *values_TD, long tokens, long group, long size,
                         float *partial) {
    for (long g = 0; g < group; g += 4) {
        const float *q = q_GD + g * size;
        float *p = partial + g * (size + 2);
        long heads = group - g < 4 ? group - g : 4;
#define CASE(n, d) if (heads == n && size == d) attend_block(q, keys_TD, values_TD, tokens, n, d / LANES, p); else
        CASE(1, 64) CASE(2, 64) CASE(3, 64) CASE(4, 64) CASE(1, 128) CASE(2, 128) CASE(3, 128) CASE(4, 128)
#undef CASE
        attend_block(q, keys_TD, values_TD, tokens, heads, size / LANES, p);
    }
}

ALWAYS void rotate(float *head, const float *cos_D, const float *sin_D, const float *norm_D, float eps, long size) {
    if (norm_D) normalise(head, norm_D, eps, size);
    long half = size / 2;
    for (long d = 0; d < half; d++) {
        float low = head[d], high = head[d + half];
        head[d] = low * cos_D[d] + high * sin_D[d];
        head[d + half] = high * cos_D[d + half] + low * sin_D[d + half];
    }
}

/* Rotated queries into q_RND; rotated keys and the values into the caches. */
static void place(const Step *s, Input qkv_RO, long layer, float *q_RND) {
    long size = s->size, heads = s->heads, key_heads = s->key_heads;
    long width = (heads + 2 * key_heads) * size;
#pragma omp parallel for if (s->rows >= FEW_ROWS)
    for (long r = 0; r < s->rows; r++) {
        const float *cos_D = s->cos_RD + r * size, *sin_D = s->sin_RD + r * size;
        float *q = q_RND + r * heads * size;
        load(q, qkv_RO, r * width, heads * size);
        for (long n = 0; n < heads; n++) {
            rotate(q + n * size, cos_D, sin_D, s->q_norm_D, s->eps, size);
            for (long d = 0; d < size; d++) q[n * size + d] *= s->scale;
        }
        long capacity = s->capacity_R[r], half = key_heads * capacity * size;
        float *keys = s->cache_R[r] + layer * 2 * half + s->length_R[r] * size;
        for (long h = 0; h < key_heads; h++) {
            float *key = keys + h * capacity * size;
            load(key, qkv_RO, r * width + (heads + h) * size, size);
            rotate(key, cos_D, sin_D, s->k_norm_D, s->eps, size);
            load(key + half, qkv_RO, r * width + (heads + key_heads + h) * size, size);
        }
    }
}

static void attend_items(const Step *s, const float *q_RND, long layer) {
    long key_heads = s->key_heads, size = s->size, group = s->heads / key_heads, items = s->first_item_R[s->rows];
#pragma omp parallel for schedule(static, 1) if (items * key_heads > 1)
    for (long i = 0; i < items * key_heads; i++) {
        long item = i / key_heads, h = i % key_heads, r = 0;
        while (s->first_item_R[r + 1] <= item) r++;
        long start = (item - s->first_item_R[r]) * BLOCK, left = s->length_R[r] + 1 - start;
        long half = key_heads * s->capacity_R[r] * size;
        const float *keys = s->cache_R[r] + layer * 2 * half + (h * s->capacity_R[r] + start) * size;
        attend_heads(q_RND + (r * key_heads + h) * group * size, keys, keys + half, left < BLOCK ? left : BLOCK,
                     group, size, s->partial + i * group * (size + 2));
    }
}

static void combine(const Step *s, Output out_RO) {
    long size = s->size, group = s->heads / s->key_heads, stride = size + 2;
    for (long r = 0; r < s->rows; r++)
        for (long n = 0; n < s->heads; n++) {
            long h = n / group, first = s->first_item_R[r], last = s->first_item_R[r + 1];
            float most = -INFINITY, total = 0, sum[size];
            memset(sum, 0, sizeof(sum));
            for (long b = first; b < last; b++) {
                const float *part = s->partial + ((b * s->key_heads + h) * group + n % group) * stride;
                most = part[size] > most ? part[size] : most;
            }
            for (long b = first; b < last; b++) {
                const float *part = s->partial + ((b * s->key_heads + h) * group + n % group) * stride;
                float weight = exp_negative(part[size] - most);
                total += weight * part[size + 1];
                for (long d = 0; d < size; d++) sum[d] += weight * part[d];
            }
            for (long d = 0; d < size; d++) sum[d] /= total;
            store(out_RO, (r * s->heads + n) * size, sum, size);
        }
}

void attend(const Step *s, const void *qkv, int qkv_is_bf16, long layer, uint16_t *out_bf16, float *out_fp32) {
    Input qkv_RO = {qkv, qkv_is_bf16};
    Output out_RO = {out_bf16, out_fp32};
    place(s, qkv_RO, layer, s->q_RND);
    attend_items(s, s->q_RND, layer);
    combine(s, out_RO);
}

/* --- head ---------------------------------------------------------------------------------------------- */

#define BINS 2048
/* Logits this far below the best one have a log-prob that nobody looks at. */
#define RANGE 64.0f

/* Replaces a row's likeliest logits, at least `wanted` of them, by products in full precision. */
static void refine_row(float *logits, const float *x, const float *weight_VI, long vocab, long size, long wanted) {
    float most = logits[0];
    for (long v = 1; v < vocab; v++) most = logits[v] > most ? logits[v] : most;
    int count[BINS] = {0};
    float per_bin = BINS / RANGE;
    for (long v = 0; v < vocab; v++) {
        float bin = (most - logits[v]) * per_bin;
        count[bin < BINS - 1 ? (int)bin : BINS - 1]++;
    }
    long last = 0;
    for (long kept = count[0]; kept < wanted && last < BINS - 1; kept += count[++last]) {}
    float floor = most - (last + 1) / per_bin;
    for (long v = 0; v < vocab; v++)
        if (logits[v] >= floor) logits[v] = dot(x, weight_VI + v * size, size);
}

void refine(float *logits_RV, const float *x_RI, const float *weight_VI, long rows, long vocab, long size, long wanted) {
#pragma omp parallel for if (rows > 1)
    for (long r = 0; r < rows; r++) refine_row(logits_RV + r * vocab, x_RI + r * size, weight_VI, vocab, size, wanted);
}

/* --- int4 products --------------------------------------------------------------------------------------- */

/* y = x w for weights of 4 bits in groups of 32, w = code * scale + low, and inputs in bf16. A tile is 16
 * outputs of one group: 256 bytes of codes, then 16 scales and 16 lows in fp16. Codes are bf16 numbers without
 * rounding, so a group's sum is exact up to fp32. Sixteen-bit lane (o, p) of a tile's vector v holds the codes of
 * output o for the inputs 2 (4 v + s) + p in its nibbles s. */
#define GROUP 32
#define TILE_BYTES (LANES * GROUP / 2 + 2 * LANES * 2)

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#include <immintrin.h>

int has_products(void) { return 1; }

/* Loops over a constant number of tiles and rows, unrolled so that sums stay in registers. */
#define EACH_TILE _Pragma("GCC unroll 4") for (int n = 0; n < tiles_n; n++)
#define EACH_ROW _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)

ALWAYS void int4_tiles(const uint16_t *x_RI, const float *sums_RG, const uint8_t *tiles, float *y_RO, long in, long out,
                       const int rows, const int tiles_n, __m512i numbers) {
    long groups = in / GROUP;
    __m512 total[4][8];
    EACH_TILE EACH_ROW total[n][r] = _mm512_setzero_ps();
    for (long g = 0; g < groups; g++) {
        __m512 part[4][8];
        EACH_TILE EACH_ROW part[n][r] = _mm512_setzero_ps();
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            __m512i codes[4];
            EACH_TILE codes[n] = _mm512_loadu_si512(tiles + (n * groups + g) * TILE_BYTES + 64 * v);
#pragma GCC unroll 4
            for (int s = 0; s < 4; s++) {
                __m512bh weights[4];
                EACH_TILE weights[n] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(codes[n], 4 * s), numbers);
                EACH_ROW {
                    int32_t pair;
                    memcpy(&pair, x_RI + r * in + g * GROUP + 2 * (4 * v + s), 4);
                    __m512bh inputs = (__m512bh)_mm512_set1_epi32(pair);
                    EACH_TILE part[n][r] = _mm512_dpbf16_ps(part[n][r], weights[n], inputs);
                }
            }
        }
        EACH_TILE {
            const uint8_t *halves = tiles + (n * groups + g) * TILE_BYTES + 256;
            __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)halves));
            __m512 low = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(halves + 32)));
            EACH_ROW {
                total[n][r] = _mm512_fmadd_ps(scale, part[n][r], total[n][r]);
                total[n][r] = _mm512_fmadd_ps(low, _mm512_set1_ps(sums_RG[r * groups + g]), total[n][r]);
            }
        }
    }
    EACH_TILE EACH_ROW _mm512_storeu_ps(y_RO + r * out + n * LANES, total[n][r]);
}

/* Few rows take several tiles at a time, so that independent sums hide the instruction's latency. */
ALWAYS void int4_columns(const uint16_t *x_RI, const float *sums_RG, const uint8_t *tiles, float *y_RO, long in, long out,
                         const int rows, const int tiles_n) {
    /* The numbers 0 to 15 in bf16, twice: the fifth bit of an index is the next code's. */
    uint16_t table[32];
    for (int i = 0; i < 32; i++) table[i] = narrow((float)(i & 15));
    __m512i numbers = _mm512_loadu_si512(table);
    long column_tiles = out / LANES, whole = column_tiles / tiles_n, tile_bytes = in / GROUP * TILE_BYTES;
#pragma omp for schedule(static)
    for (long t = 0; t < whole + column_tiles % tiles_n; t++) {
        long first = t < whole ? t * tiles_n : whole * tiles_n + t - whole;
        if (t < whole)
            int4_tiles(x_RI, sums_RG, tiles + first * tile_bytes, y_RO + first * LANES, in, out, rows, tiles_n, numbers);
        else
            int4_tiles(x_RI, sums_RG, tiles + first * tile_bytes, y_RO + first * LANES, in, out, rows, 1, numbers);
    }
}

void int4_product(const uint16_t *x_RI, const uint8_t *tiles, float *y_RO, long rows, long in, long out) {
    long groups = in / GROUP;
    float sums_RG[rows * groups];
    for (long i = 0; i < rows * groups; i++) {
        float sum = 0;
        for (long k = 0; k < GROUP; k++) sum += widen(x_RI[i * GROUP + k]);
        sums_RG[i] = sum;
    }
#pragma omp parallel
    for (long r = 0; r < rows; r += 8) {
        const uint16_t *x = x_RI + r * in;
        const float *sums = sums_RG + r * groups;
        float *y = y_RO + r * out;
        switch (rows - r < 8 ? rows - r : 8) {
        case 1: int4_columns(x, sums, tiles, y, in, out, 1, 4); break;
        case 2: int4_columns(x, sums, tiles, y, in, out, 2, 4); break;
        case 3: int4_columns(x, sums, tiles, y, in, out, 3, 2); break;
        case 4: int4_columns(x, sums, tiles, y, in, out, 4, 2); break;
        case 5: int4_columns(x, sums, tiles, y, in, out, 5, 2); break;
        case 6: int4_columns(x, sums, tiles, y, in, out, 6, 2); break;
        case 7: int4_columns(x, sums, tiles, y, in, out, 7, 1); break;
        default: int4_columns(x, sums, tiles, y, in, out, 8, 1); break;
        }
    }
}

/* The same for weights of 8 bits, w = (code - 128) * scale, and inputs in fp32, which are split into two digits
 * of 8 bits. A tile is 512 bytes of codes, four inputs of an output side by side, then 16 scales in fp16. */
#define TILE8_BYTES (LANES * GROUP + LANES * 2)

typedef struct { const int8_t *high_RI, *low_RI; const int32_t *high_sums_RG, *low_sums_RG; const float *step_R; } Digits;

ALWAYS void int8_tile(Digits x, const uint8_t *tiles, float *y_RO, long in, long out, const int rows) {
    long groups = in / GROUP;
    __m512 total[8];
    EACH_ROW total[r] = _mm512_setzero_ps();
    for (long g = 0; g < groups; g++) {
        const uint8_t *tile = tiles + g * TILE8_BYTES;
        __m512i high[8], low[8];
        EACH_ROW high[r] = _mm512_set1_epi32(-128 * x.high_sums_RG[r * groups + g]);
        EACH_ROW low[r] = _mm512_set1_epi32(-128 * x.low_sums_RG[r * groups + g]);
#pragma GCC unroll 8
        for (int v = 0; v < 8; v++) {
            __m512i codes = _mm512_loadu_si512(tile + 64 * v);
            EACH_ROW {
                int32_t four;
                memcpy(&four, x.high_RI + r * in + g * GROUP + 4 * v, 4);
                high[r] = _mm512_dpbusd_epi32(high[r], codes, _mm512_set1_epi32(four));
                memcpy(&four, x.low_RI + r * in + g * GROUP + 4 * v, 4);
                low[r] = _mm512_dpbusd_epi32(low[r], codes, _mm512_set1_epi32(four));
            }
        }
        __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(tile + 512)));
        EACH_ROW {
            __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(low[r]), _mm512_set1_ps(1.0f / 254), _mm512_cvtepi32_ps(high[r]));
            total[r] = _mm512_fmadd_ps(scale, sum, total[r]);
        }
    }
    EACH_ROW _mm512_storeu_ps(y_RO + r * out, _mm512_mul_ps(total[r], _mm512_set1_ps(x.step_R[r])));
}

ALWAYS void int8_columns(Digits x, const uint8_t *tiles, float *y_RO, long in, long out, const int rows) {
#pragma omp for schedule(static)
    for (long t = 0; t < out / LANES; t++)
        int8_tile(x, tiles + t * (in / GROUP) * TILE8_BYTES, y_RO + t * LANES, in, out, rows);
}

static void split(const float *x, int8_t *high, int8_t *low, int32_t *high_sums, int32_t *low_sums, float *step, long in) {
    float most = 1e-20f;
    for (long i = 0; i < in; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    *step = most / 127;
    for (long i = 0; i < in; i++) {
        float scaled = x[i] / *step, whole = rintf(scaled);
        high[i] = (int8_t)whole;
        low[i] = (int8_t)rintf((scaled - whole) * 254);
    }
    for (long g = 0; g < in / GROUP; g++) {
        high_sums[g] = low_sums[g] = 0;
        for (long i = g * GROUP; i < (g + 1) * GROUP; i++) high_sums[g] += high[i], low_sums[g] += low[i];
    }
}

void int8_product(const float *x_RI, const uint8_t *tiles, float *y_RO, long rows, long in, long out) {
    long groups = in / GROUP;
    int8_t high[rows * in], low[rows * in];
    int32_t high_sums[rows * groups], low_sums[rows * groups];
    float step[rows];
    for (long r = 0; r < rows; r++)
        split(x_RI + r * in, high + r * in, low + r * in, high_sums + r * groups, low_sums + r * groups, step + r, in);
#pragma omp parallel
    for (long r = 0; r < rows; r += 8) {
        Digits x = {high + r * in, low + r * in, high_sums + r * groups, low_sums + r * groups, step + r};
        float *y = y_RO + r * out;
        switch (rows - r < 8 ? rows - r : 8) {
        case 1: int8_columns(x, tiles, y, in, out, 1); break;
        case 2: int8_columns(x, tiles, y, in, out, 2); break;
        case 3: int8_columns(x, tiles, y, in, out, 3); break;
        case 4: int8_columns(x, tiles, y, in, out, 4); break;
        case 5: int8_columns(x, tiles, y, in, out, 5); break;
        case 6: int8_columns(x, tiles, y, in, out, 6); break;
        case 7: int8_columns(x, tiles, y, in, out, 7); break;
        default: int8_columns(x, tiles, y, in, out, 8); break;
        }
    }
}
#else
int has_products(void) { return 0; }
#endif
