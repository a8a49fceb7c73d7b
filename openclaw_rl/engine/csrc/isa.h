#pragma once
/* What differs between CPUs: vector width, and how 8-bit weights are multiplied by 16-bit inputs.
 *
 * Everything else in these files is written once, for vectors of LANES numbers. A tile is 16 outputs, so it takes
 * PIECES vectors. build.py compiles the files once per level (avx2, avxvnni, avx512, avx512vnni, neon, dotprod).
 *
 * Inputs are 16-bit integers. Four of them take 8 bytes, in the order that the level's instructions need
 * (`arrange4`), and `dot4` adds their products with four weights of each output. Sums are integers, so every level
 * computes the same number.
 */
#include <stdint.h>
#include <string.h>
#include <math.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#else
#error "these kernels need AVX2 or NEON"
#endif

#define ALWAYS static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
/* Outputs per tile, and inputs that share a scale. */
#define TILE 16
#define GROUP 32
/* The largest input: its high and low 8-bit digits both fit in a signed byte. */
#define MOST_INPUT 32639

#if defined(__AVX512BW__)
#define WIDTH 64
#define PICK_LANES(pick, bit, side) pick(0, bit, side), pick(1, bit, side), pick(2, bit, side), pick(3, bit, side), \
    pick(4, bit, side), pick(5, bit, side), pick(6, bit, side), pick(7, bit, side), pick(8, bit, side), \
    pick(9, bit, side), pick(10, bit, side), pick(11, bit, side), pick(12, bit, side), pick(13, bit, side), \
    pick(14, bit, side), pick(15, bit, side)
#elif defined(__AVX2__)
#define WIDTH 32
#define PICK_LANES(pick, bit, side) pick(0, bit, side), pick(1, bit, side), pick(2, bit, side), pick(3, bit, side), \
    pick(4, bit, side), pick(5, bit, side), pick(6, bit, side), pick(7, bit, side)
#else
#define WIDTH 16
#define PICK_LANES(pick, bit, side) pick(0, bit, side), pick(1, bit, side), pick(2, bit, side), pick(3, bit, side)
#endif
#define LANES (WIDTH / 4)
#define PIECES (TILE / LANES)

typedef float vec __attribute__((vector_size(WIDTH), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(WIDTH), aligned(4), may_alias));

ALWAYS vec read(const float *from) { return *(const vec *)from; }
ALWAYS void write(float *to, vec value) { *(vec *)to = value; }
/* a * b + c with one rounding. Left to itself, the compiler would fuse only some of these, and a row's result would
 * depend on how many rows are multiplied with it. */
ALWAYS vec fused(vec a, vec b, vec c) {
#if WIDTH == 64
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif WIDTH == 32
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#endif
}
ALWAYS vec splat(float value) {
#if WIDTH == 64
    return (vec)_mm512_set1_ps(value);
#elif WIDTH == 32
    return (vec)_mm256_set1_ps(value);
#else
    return (vec)vdupq_n_f32(value);
#endif
}
ALWAYS ivec read_codes(const uint8_t *from) { return *(const ivec *)from; }

/* One halving step of `sum_lanes`: lanes whose index has `bit` set come from b, the others from a. */
#define PICK(l, bit, side) ((((l) & (bit)) ? LANES : 0) + (((l) & ~(bit)) | ((side) ? (bit) : 0)))
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif
#define HALVE(a, b, bit) (SHUFFLE(a, b, PICK_LANES(PICK, bit, 0)) + SHUFFLE(a, b, PICK_LANES(PICK, bit, 1)))

/* Lane t of the result is the sum of rows[t]'s lanes. */
ALWAYS vec sum_lanes(vec *rows) {
    UNROLL for (int t = 0; t < LANES / 2; t++) rows[t] = HALVE(rows[2 * t], rows[2 * t + 1], 1);
    UNROLL for (int t = 0; t < LANES / 4; t++) rows[t] = HALVE(rows[2 * t], rows[2 * t + 1], 2);
#if LANES > 4
    UNROLL for (int t = 0; t < LANES / 8; t++) rows[t] = HALVE(rows[2 * t], rows[2 * t + 1], 4);
#endif
#if LANES > 8
    rows[0] = HALVE(rows[0], rows[1], 8);
#endif
    return rows[0];
}

/* --- four inputs times four weights of each output ----------------------------------------------------- */

#if defined(__AVX2__)

/* 16-bit lanes: the first and third weight of an output, and the second and fourth. */
typedef struct { ivec even, odd; } Weights4;
typedef struct { ivec sum; } Part;

#if WIDTH == 64
#define X86(name) _mm512_##name
typedef __m512i bits;
#else
#define X86(name) _mm256_##name
typedef __m256i bits;
#endif

ALWAYS Weights4 low_nibbles(ivec codes) {
    bits c = (bits)codes, mask = X86(set1_epi16)(15);
#if WIDTH == 64
    return (Weights4){(ivec)_mm512_and_si512(c, mask), (ivec)_mm512_and_si512(_mm512_srli_epi16(c, 8), mask)};
#else
    return (Weights4){(ivec)_mm256_and_si256(c, mask), (ivec)_mm256_and_si256(_mm256_srli_epi16(c, 8), mask)};
#endif
}

ALWAYS Weights4 high_nibbles(ivec codes) {
    bits c = (bits)codes, mask = X86(set1_epi16)(15);
#if WIDTH == 64
    return (Weights4){(ivec)_mm512_and_si512(_mm512_srli_epi16(c, 4), mask), (ivec)_mm512_srli_epi16(c, 12)};
#else
    return (Weights4){(ivec)_mm256_and_si256(_mm256_srli_epi16(c, 4), mask), (ivec)_mm256_srli_epi16(c, 12)};
#endif
}

ALWAYS Weights4 signed_bytes(ivec codes) {
    bits c = (bits)codes;
    return (Weights4){(ivec)X86(srai_epi16)(X86(slli_epi16)(c, 8), 8), (ivec)X86(srai_epi16)(c, 8)};
}

ALWAYS ivec dot2(ivec sum, ivec weights, int32_t pair) {
    bits inputs = X86(set1_epi32)(pair);
#if defined(__AVX512VNNI__)
    return (ivec)_mm512_dpwssd_epi32((bits)sum, (bits)weights, inputs);
#elif defined(__AVXVNNI__)
    return (ivec)_mm256_dpwssd_avx_epi32((bits)sum, (bits)weights, inputs);
#else
    bits next = X86(add_epi32)((bits)sum, X86(madd_epi16)((bits)weights, inputs));
    /* Forces the addition here: GCC would keep the products of a whole group in memory and add them at its end. */
    __asm__("" : "+x"(next));
    return (ivec)next;
#endif
}

ALWAYS void dot4(Part *part, Weights4 weights, const int32_t *inputs) {
    part->sum = dot2(part->sum, weights.even, inputs[0]);
    part->sum = dot2(part->sum, weights.odd, inputs[1]);
}

ALWAYS ivec total(Part part) { return part.sum; }

ALWAYS void arrange4(int16_t *to, const int16_t *from) {
    to[0] = from[0], to[1] = from[2], to[2] = from[1], to[3] = from[3];
}

ALWAYS vec to_floats(ivec values) { return (vec)X86(cvtepi32_ps)((bits)values); }

ALWAYS vec read_halves(const uint8_t *from) {
#if WIDTH == 64
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#else
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#endif
}

#else /* NEON */

#if defined(__ARM_FEATURE_DOTPROD)

/* An input is two signed digits, 256 * high + low, each multiplied by its own instruction. */
typedef struct { int8x16_t bytes; } Weights4;
typedef struct { int32x4_t high, low; } Part;

ALWAYS Weights4 low_nibbles(ivec codes) {
    return (Weights4){vandq_s8((int8x16_t)codes, vdupq_n_s8(15))};
}
ALWAYS Weights4 high_nibbles(ivec codes) {
    return (Weights4){vreinterpretq_s8_u8(vshrq_n_u8((uint8x16_t)codes, 4))};
}
ALWAYS Weights4 signed_bytes(ivec codes) { return (Weights4){(int8x16_t)codes}; }

ALWAYS void dot4(Part *part, Weights4 weights, const int32_t *inputs) {
    part->high = vdotq_s32(part->high, weights.bytes, vreinterpretq_s8_s32(vdupq_n_s32(inputs[0])));
    part->low = vdotq_s32(part->low, weights.bytes, vreinterpretq_s8_s32(vdupq_n_s32(inputs[1])));
}

ALWAYS ivec total(Part part) { return (ivec)vaddq_s32(vshlq_n_s32(part.high, 8), part.low); }

ALWAYS void arrange4(int16_t *to, const int16_t *from) {
    int8_t *digits = (int8_t *)to;
    for (int i = 0; i < 4; i++) {
        int high = (from[i] + 128) >> 8;
        digits[i] = (int8_t)high;
        digits[4 + i] = (int8_t)(from[i] - 256 * high);
    }
}

#else

typedef struct { int16x8_t even, odd; } Weights4;
typedef struct { int32x4_t first, second; } Part; /* of outputs 0 and 1, and of 2 and 3: pairs not yet summed */

ALWAYS Weights4 low_nibbles(ivec codes) {
    int16x8_t c = (int16x8_t)codes, mask = vdupq_n_s16(15);
    return (Weights4){vandq_s16(c, mask), vandq_s16(vshrq_n_s16(c, 8), mask)};
}
ALWAYS Weights4 high_nibbles(ivec codes) {
    int16x8_t c = (int16x8_t)codes, mask = vdupq_n_s16(15);
    return (Weights4){vandq_s16(vshrq_n_s16(c, 4), mask), vandq_s16(vshrq_n_s16(c, 12), mask)};
}
ALWAYS Weights4 signed_bytes(ivec codes) {
    int16x8_t c = (int16x8_t)codes;
    return (Weights4){vshrq_n_s16(vshlq_n_s16(c, 8), 8), vshrq_n_s16(c, 8)};
}

ALWAYS void dot2(Part *part, int16x8_t weights, int32_t pair) {
    int16x8_t inputs = vreinterpretq_s16_s32(vdupq_n_s32(pair));
    part->first = vmlal_s16(part->first, vget_low_s16(weights), vget_low_s16(inputs));
    part->second = vmlal_high_s16(part->second, weights, inputs);
}

ALWAYS void dot4(Part *part, Weights4 weights, const int32_t *inputs) {
    dot2(part, weights.even, inputs[0]);
    dot2(part, weights.odd, inputs[1]);
}

ALWAYS ivec total(Part part) { return (ivec)vpaddq_s32(part.first, part.second); }

ALWAYS void arrange4(int16_t *to, const int16_t *from) {
    to[0] = from[0], to[1] = from[2], to[2] = from[1], to[3] = from[3];
}

#endif

ALWAYS vec to_floats(ivec values) { return (vec)vcvtq_f32_s32((int32x4_t)values); }

ALWAYS vec read_halves(const uint8_t *from) {
    return (vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)from)));
}

#endif

/* --- scalar code, in forms that compilers vectorise ------------------------------------------------------ */

/* e^x for x <= 0, within 2e-7 of the exact value. */
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
    int32_t bits_;
    memcpy(&bits_, &p, 4);
    bits_ += (int32_t)n << 23;
    memcpy(&p, &bits_, 4);
    return p;
}

ALWAYS float dot(const float *a, const float *b, long count) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* --- threads ----------------------------------------------------------------------------------------------- */

int omp_get_thread_num(void);
int omp_get_num_threads(void);

typedef struct { long first, last; } Range;

/* This thread's share of `count` equal pieces of work. */
ALWAYS Range my_share(long count) {
    long thread = omp_get_thread_num(), threads = omp_get_num_threads();
    return (Range){count * thread / threads, count * (thread + 1) / threads};
}
