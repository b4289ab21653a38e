/* Block quantization on the CPU: the loops behind trainer/quantization/cpu.py.
 *
 * The numbers are defined in quantization/blocks.py; the results equal reference.py's bit for bit.
 * Loops over a block have a constant length and no calls, so that the compiler turns them into
 * vector code. Compile with -ffp-contract=off: a code is round(x * inverse), rounded twice.
 */

#include <float.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 256
#define MAX_THREADS 256
/* Adding 1.5 * 2^23 rounds to an integer, half to even, and leaves it in the lowest bits. */
#define ROUND 12582912.0f
#define INFINITY_BITS 0x7f800000u
#define NAN_BITS 0x7fc00000u
/* A scale keeps 17 bits: its product with a code of 7 bits is exact. */
#define SCALE_MASK 0xffffff80u
/* For functions called with a constant dtype, bits or function, of which nothing is then left at
 * run time. */
#define INLINE static inline __attribute__((always_inline))

enum { FP32, BF16, FP16 };

typedef struct {
    char *numbers; /* what is quantized, or what is decoded to */
    uint8_t *packed;
    int dtype, bits, accumulate;
    int64_t rows, n, stride; /* stride: numbers from row to row */
    int64_t begin, end;      /* the blocks of this thread */
} Job;

INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int size_of(int dtype) { return dtype == FP32 ? 4 : 2; }

/* ---- number formats. The 16-bit ones in integers: compilers make vector code of that ---- */

INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

INLINE float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE float from_fp16(uint16_t h) {
    const uint32_t bias = (127 - 15) << 23, smallest = (127 - 14) << 23;
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, exponent = h & 0x7c00;
    uint32_t denormal = bits_of(float_of(magnitude + smallest) - float_of(smallest));
    uint32_t finite = exponent ? magnitude + bias : denormal;
    uint32_t bits = exponent == 0x7c00 ? magnitude | INFINITY_BITS : finite;
    return float_of(bits | (uint32_t)(h & 0x8000) << 16);
}

INLINE uint16_t to_fp16(float value) {
    const uint32_t bias = (127 - 15) << 23, smallest = (127 - 14) << 23;
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude - bias + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    normal = normal < 0x7c00 ? normal : 0x7c00;
    /* 0.5's last bit is worth the smallest number of fp16. */
    uint32_t denormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    uint32_t half = magnitude < smallest ? denormal : normal;
    return (uint16_t)((magnitude > INFINITY_BITS ? 0x7e00 : half) | (bits >> 16 & 0x8000));
}

INLINE uint16_t to_bf16(float value) {
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > INFINITY_BITS ? 0x7fc0 : rounded);
}

INLINE float load(const char *from, int dtype, int i) {
    if (dtype == FP32) return ((const float *)from)[i];
    uint16_t h = ((const uint16_t *)from)[i];
    return dtype == BF16 ? float_of((uint32_t)h << 16) : from_fp16(h);
}

INLINE void store(char *to, int dtype, int i, float value) {
    if (dtype == FP32)
        ((float *)to)[i] = value;
    else
        ((uint16_t *)to)[i] = dtype == BF16 ? to_bf16(value) : to_fp16(value);
}

/* ---- one whole block ---- */

/* The largest magnitude. Compared as integers, which orders finite < inf < NaN, and is quick. */
INLINE float absmax(const char *x, int dtype) {
    if (dtype == FP32) {
        uint32_t largest = 0;
        for (int i = 0; i < BLOCK; i++) {
            uint32_t magnitude = bits_of(load(x, FP32, i)) & 0x7fffffff;
            largest = magnitude > largest ? magnitude : largest;
        }
        return float_of(largest);
    }
    uint16_t largest = 0;
    for (int i = 0; i < BLOCK; i++) {
        uint16_t magnitude = ((const uint16_t *)x)[i] & 0x7fff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return load((const char *)&largest, dtype, 0);
}

/* The codes, one a byte. */
INLINE float encode_as(const char *restrict x, int8_t *restrict codes, int dtype, int bits) {
    float largest = absmax(x, dtype);
    int finite = bits_of(largest) < INFINITY_BITS;
    float scale = float_of(bits_of(largest / (bits == 8 ? 127 : 7)) & SCALE_MASK);
    if (!finite || scale < FLT_MIN) {
        memset(codes, 0, BLOCK);
        return finite ? 0 : float_of(NAN_BITS);
    }
    float inverse = 1 / scale;
    for (int i = 0; i < BLOCK; i++)
        codes[i] = (int8_t)bits_of(load(x, dtype, i) * inverse + ROUND);
    return scale;
}

static float encode(const char *x, int8_t *codes, int dtype, int bits) {
    if (dtype == FP32) return encode_as(x, codes, FP32, bits);
    if (dtype == BF16) return encode_as(x, codes, BF16, bits);
    return encode_as(x, codes, FP16, bits);
}

INLINE void decode_as(const int8_t *restrict codes, float scale, char *restrict x, int dtype) {
    for (int i = 0; i < BLOCK; i++) store(x, dtype, i, (float)codes[i] * scale);
}

static void decode(const int8_t *codes, float scale, char *x, int dtype) {
    if (dtype == FP32)
        decode_as(codes, scale, x, FP32);
    else if (dtype == BF16)
        decode_as(codes, scale, x, BF16);
    else
        decode_as(codes, scale, x, FP16);
}

/* Two codes a byte: of m numbers, byte i holds codes i (low) and ceil(m/2) + i (high). */
INLINE void pack_halves(const int8_t *restrict codes, uint8_t *restrict to, int half) {
    for (int i = 0; i < half; i++)
        to[i] = (uint8_t)((codes[i] & 15) | (uint8_t)((uint8_t)codes[half + i] << 4));
}

INLINE void unpack_halves(const uint8_t *restrict from, int8_t *restrict codes, int half) {
    for (int i = 0; i < half; i++) {
        codes[i] = (int8_t)((int8_t)(uint8_t)(from[i] << 4) >> 4);
        codes[half + i] = (int8_t)((int8_t)from[i] >> 4);
    }
}

/* ---- blocks in a row ---- */

typedef struct {
    int64_t row, index, size; /* size: of the numbers in it */
    uint8_t *codes, *scale;
    char *numbers;
} Block;

INLINE int64_t num_blocks(const Job *job) { return ceil_div(job->n, BLOCK); }

static Block find(const Job *job, int64_t row, int64_t index) {
    int64_t all_codes = ceil_div(job->n * job->bits, 32) * 4;
    uint8_t *codes = job->packed + row * (all_codes + 4 * num_blocks(job));
    int64_t at = index * BLOCK;
    return (Block){row, index, least(BLOCK, job->n - at), codes + at * job->bits / 8,
                   codes + all_codes + 4 * index,
                   job->numbers + (row * job->stride + at) * size_of(job->dtype)};
}

static Block next(const Job *job, Block block) {
    int last = block.index + 1 == num_blocks(job);
    return find(job, block.row + last, last ? 0 : block.index + 1);
}

static void quantize_block(const Job *job, Block block) {
    char padded[BLOCK * 4];
    int8_t codes[BLOCK];
    const char *x = block.numbers;
    if (block.size < BLOCK) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, x, block.size * size_of(job->dtype));
        x = padded;
    }
    int direct = job->bits == 8 && block.size == BLOCK;
    float scale = encode(x, direct ? (int8_t *)block.codes : codes, job->dtype, job->bits);
    memcpy(block.scale, &scale, 4);
    if (direct) return;
    int64_t used = ceil_div(block.size * job->bits, 8);
    if (job->bits == 8)
        memcpy(block.codes, codes, used);
    else if (block.size == BLOCK)
        pack_halves(codes, block.codes, BLOCK / 2);
    else
        pack_halves(codes, block.codes, (int)used);
    memset(block.codes + used, 0, ceil_div(used, 4) * 4 - used);
}

/* The block's codes, one a byte: in place if they are, else in the buffer. */
static const int8_t *unpack(const Job *job, Block block, int8_t *buffer) {
    if (job->bits == 8 && block.size == BLOCK) return (const int8_t *)block.codes;
    if (job->bits == 8)
        memcpy(buffer, block.codes, block.size);
    else if (block.size == BLOCK)
        unpack_halves(block.codes, buffer, BLOCK / 2);
    else
        unpack_halves(block.codes, buffer, (int)ceil_div(block.size, 2));
    return buffer;
}

static void dequantize_block(const Job *job, Block block) {
    char whole[BLOCK * 4];
    int8_t buffer[BLOCK] = {0};
    float scale;
    memcpy(&scale, block.scale, 4);
    char *x = block.size == BLOCK ? block.numbers : whole;
    decode(unpack(job, block, buffer), scale, x, job->dtype);
    if (x == whole) memcpy(block.numbers, whole, block.size * size_of(job->dtype));
}

static void add_block(const Job *job, Block block, float *restrict sum) {
    int8_t buffer[BLOCK] = {0};
    float scale;
    memcpy(&scale, block.scale, 4);
    const int8_t *codes = unpack(job, block, buffer);
    for (int i = 0; i < BLOCK; i++) sum[i] += (float)codes[i] * scale;
}

/* ---- a thread's share of the blocks ---- */

INLINE void *each_block(const Job *job, void (*act)(const Job *, Block)) {
    Block block = find(job, job->begin / num_blocks(job), job->begin % num_blocks(job));
    for (int64_t i = job->begin; i < job->end; i++, block = next(job, block)) act(job, block);
    return NULL;
}

static void *quantize_share(void *job) { return each_block(job, quantize_block); }
static void *dequantize_share(void *job) { return each_block(job, dequantize_block); }

static void *sum_share(void *argument) {
    const Job *job = argument;
    for (int64_t index = job->begin; index < job->end; index++) {
        Block first = find(job, 0, index);
        float sum[BLOCK] = {0};
        if (job->accumulate) memcpy(sum, first.numbers, first.size * 4);
        for (int64_t row = 0; row < job->rows; row++) add_block(job, find(job, row, index), sum);
        memcpy(first.numbers, sum, first.size * 4);
    }
    return NULL;
}

/* ---- over threads ---- */

/* Threads of its own for each call: they cost some 10 us, survive no fork, and do not mix with
 * torch's OpenMP, whose idle threads spin. */
static void run(void *(*share)(void *), Job job, int64_t count, int threads) {
    Job jobs[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    int started[MAX_THREADS];
    threads = (int)least(threads, MAX_THREADS);
    for (int t = threads - 1; t >= 0; t--) { /* the first share is the caller's */
        jobs[t] = job;
        jobs[t].begin = count * t / threads;
        jobs[t].end = count * (t + 1) / threads;
        started[t] = t > 0 && pthread_create(&ids[t], NULL, share, &jobs[t]) == 0;
        if (!started[t]) share(&jobs[t]);
    }
    for (int t = 1; t < threads; t++)
        if (started[t]) pthread_join(ids[t], NULL);
}

void quantize(void *numbers, void *packed, int dtype, int bits, int64_t rows, int64_t n,
              int64_t stride, int threads) {
    Job job = {numbers, packed, dtype, bits, 0, rows, n, stride, 0, 0};
    run(quantize_share, job, rows * num_blocks(&job), threads);
}

void dequantize(void *numbers, void *packed, int dtype, int bits, int64_t rows, int64_t n,
                int64_t stride, int threads) {
    Job job = {numbers, packed, dtype, bits, 0, rows, n, stride, 0, 0};
    run(dequantize_share, job, rows * num_blocks(&job), threads);
}

void dequantize_sum(void *out, void *packed, int bits, int64_t rows, int64_t n, int accumulate,
                    int threads) {
    Job job = {out, packed, FP32, bits, accumulate, rows, n, n, 0, 0};
    run(sum_share, job, num_blocks(&job), threads);
}
