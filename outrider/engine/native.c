/* CPU kernels of the engine: linear layers, RMS norm, KV writes and packed attention.
 *
 * Every output element is computed by one fixed sequence of operations that does not depend on
 * how many rows are in the call or which thread runs it: a row's result is the same bits alone or
 * in a batch. Nothing here allocates per call except scratch that grows and is kept per thread.
 *
 * Written with compiler vector extensions (GCC >= 12, clang), so x86 and ARM share one source.
 * bfloat16 is expanded in pairs: of a 32-bit word the low half is the even element (shift left),
 * the high half the odd one (mask). Both cost one cheap operation and need no permutation as long
 * as the other operand is laid out in the same even/odd order.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
#define COLS 6 /* 32 vector registers */
#else
#define COLS 3 /* 16 vector registers: 4 x 3 sums, 3 weights, 1 input */
#endif
#define ROWS 4
#define GROUP (2 * LANES) /* elements of k taken at a time: LANES even ones, LANES odd ones */

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float vf __attribute__((vector_size(LANES * 4), may_alias));
typedef float vfu __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(LANES * 4), may_alias));
typedef uint32_t vuu __attribute__((vector_size(LANES * 4), aligned(2), may_alias));
typedef float f4 __attribute__((vector_size(16), may_alias));
typedef float f8 __attribute__((vector_size(32), may_alias));
typedef float f8u __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t u8v __attribute__((vector_size(32), may_alias));
typedef uint32_t u8u __attribute__((vector_size(32), aligned(2), may_alias));
typedef int32_t i8v __attribute__((vector_size(32), may_alias));

enum { F32 = 0, BF16 = 1 };

INLINE float from_bf16(uint16_t h) {
  uint32_t u = (uint32_t)h << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

INLINE uint16_t to_bf16(float f) { /* round to nearest even, NaN stays NaN */
  uint32_t u;
  memcpy(&u, &f, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

INLINE float load_any(const void *p, int64_t i, int type) {
  return type == BF16 ? from_bf16(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

INLINE void store_any(void *p, int64_t i, int type, float v) {
  if (type == BF16)
    ((uint16_t *)p)[i] = to_bf16(v);
  else
    ((float *)p)[i] = v;
}

INLINE float sum4(f4 v) {
  float a[4];
  memcpy(a, &v, 16);
  return (a[0] + a[2]) + (a[1] + a[3]);
}

INLINE float sum_lanes(vf v) {
#if LANES == 16
  f4 q[4];
  memcpy(q, &v, 64);
  return sum4((q[0] + q[2]) + (q[1] + q[3]));
#elif LANES == 8
  f4 q[2];
  memcpy(q, &v, 32);
  return sum4(q[0] + q[1]);
#else
  f4 q;
  memcpy(&q, &v, 16);
  return sum4(q);
#endif
}

INLINE float sum8(f8 v) {
  f4 q[2];
  memcpy(q, &v, 32);
  return sum4(q[0] + q[1]);
}

typedef struct {
  void *p;
  size_t size;
} scratch;

static float *scratch_floats(scratch *s, size_t n) {
  if (s->size < n * 4) {
    free(s->p);
    s->size = (n * 4 + 4095) / 4096 * 4096;
    s->p = aligned_alloc(64, s->size);
    if (!s->p) {
      s->size = 0;
      abort(); /* the process is out of memory */
    }
  }
  return (float *)s->p;
}

static __thread scratch linear_scratch, score_scratch;

/* ---------------------------------------------------------------- linear */

typedef struct {
  const void *w;    /* [n, k] contiguous */
  const float *bias; /* [n] or NULL */
  void *y;          /* row stride ldy */
  int64_t n, ldy;
} segment;

/* Rows r0.. of x as float32, tile by tile; inside a tile the rows alternate per k group. */
static void pack_rows(float *out, const void *x, int64_t ldx, int64_t rows, int64_t k, int64_t groups,
                      int x_type, int interleave) {
  for (int64_t r0 = 0; r0 < rows; r0 += ROWS) {
    int64_t tile = rows - r0 < ROWS ? rows - r0 : ROWS;
    for (int64_t r = 0; r < tile; r++) {
      const char *row = (const char *)x + (r0 + r) * ldx * (x_type == BF16 ? 2 : 4);
      for (int64_t g = 0; g < groups; g++) {
        float *dst = out + (g * tile + r) * GROUP;
        int64_t left = k - g * GROUP;
        if (left >= GROUP && x_type == BF16 && interleave) {
          vu raw = *(const vuu *)(row + g * GROUP * 2);
          *(vf *)dst = (vf)(raw << 16);
          *(vf *)(dst + LANES) = (vf)(raw & 0xffff0000u);
          continue;
        }
        for (int64_t i = 0; i < GROUP; i++) {
          float v = i < left ? load_any(row, g * GROUP + i, x_type) : 0.0f;
          dst[interleave ? (i & 1) * LANES + (i >> 1) : i] = v;
        }
      }
    }
    out += tile * groups * GROUP;
  }
}

INLINE vf even_weights(const char *w, int w_type) {
  return w_type == BF16 ? (vf)(*(const vuu *)w << 16) : (vf) * (const vfu *)w;
}

INLINE vf odd_weights(const char *w, int w_type) {
  return w_type == BF16 ? (vf)(*(const vuu *)w & 0xffff0000u) : (vf) * (const vfu *)(w + LANES * 4);
}

/* R rows x C columns of outputs; xp holds the packed tile. The empty statements keep the compiler
 * from holding even and odd weights at once, for which there are not enough registers. */
INLINE void tile(const int R, const int C, const float *xp, const char *w, int64_t k, int w_type,
                 const float *bias, char *y, int64_t ldy, int y_type) {
  const int64_t size = w_type == BF16 ? 2 : 4, stride = k * size;
  vf acc[ROWS][2 * COLS];
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++) acc[r][c] = (vf){0};
  int64_t i = 0;
  const char *p = w;
  for (; i + GROUP <= k; i += GROUP) {
    vf v[2 * COLS];
    UNROLL for (int c = 0; c < C; c++) v[c] = even_weights(p + c * stride, w_type);
    UNROLL for (int r = 0; r < R; r++) {
      vf x = *(const vf *)(xp + r * GROUP);
      UNROLL for (int c = 0; c < C; c++) acc[r][c] += x * v[c];
    }
    __asm__ volatile("" ::: "memory");
    UNROLL for (int c = 0; c < C; c++) v[c] = odd_weights(p + c * stride, w_type);
    UNROLL for (int r = 0; r < R; r++) {
      vf x = *(const vf *)(xp + r * GROUP + LANES);
      UNROLL for (int c = 0; c < C; c++) acc[r][c] += x * v[c];
    }
    __asm__ volatile("" ::: "memory");
    xp += R * GROUP;
    p += GROUP * size;
  }
  if (i < k) { /* zero padded rest, in the same order */
    UNROLL for (int c = 0; c < C; c++) {
      char rest[GROUP * 4] __attribute__((aligned(64))) = {0};
      memcpy(rest, p + c * stride, (size_t)((k - i) * size));
      vf e = even_weights(rest, w_type), o = odd_weights(rest, w_type);
      UNROLL for (int r = 0; r < R; r++) {
        acc[r][c] += *(const vf *)(xp + r * GROUP) * e;
        acc[r][c] += *(const vf *)(xp + r * GROUP + LANES) * o;
      }
    }
  }
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++) {
    float v = sum_lanes(acc[r][c]);
    if (bias) v += bias[c];
    store_any(y, r * ldy + c, y_type, v);
  }
}

/* One strip of weight columns against all packed rows: the strip is read from memory once. */
#define STRIP(NAME, C, WT)                                                                         \
  static void NAME(const float *xp, int64_t rows, const char *w, int64_t k, int64_t groups,        \
                   const float *bias, char *y, int64_t ldy, int y_type) {                          \
    const int64_t y_row = ldy * (y_type == BF16 ? 2 : 4);                                          \
    for (; rows >= 4; rows -= 4, xp += 4 * groups * GROUP, y += 4 * y_row)                         \
      tile(4, C, xp, w, k, WT, bias, y, ldy, y_type);                                              \
    if (rows == 3) tile(3, C, xp, w, k, WT, bias, y, ldy, y_type);                                 \
    if (rows == 2) tile(2, C, xp, w, k, WT, bias, y, ldy, y_type);                                 \
    if (rows == 1) tile(1, C, xp, w, k, WT, bias, y, ldy, y_type);                                 \
  }
/* For one or two rows twice the columns fit into registers; more streams hide the latency. */
#define WIDE_STRIP(NAME, C, WT)                                                                    \
  static void NAME(const float *xp, int64_t rows, const char *w, int64_t k, int64_t groups,        \
                   const float *bias, char *y, int64_t ldy, int y_type) {                          \
    (void)groups;                                                                                  \
    if (rows == 2) tile(2, C, xp, w, k, WT, bias, y, ldy, y_type);                                 \
    if (rows == 1) tile(1, C, xp, w, k, WT, bias, y, ldy, y_type);                                 \
  }
STRIP(strip_bf16, COLS, BF16)
STRIP(single_bf16, 1, BF16)
WIDE_STRIP(wide_bf16, 2 * COLS, BF16)
STRIP(strip_f32, COLS, F32)
STRIP(single_f32, 1, F32)
WIDE_STRIP(wide_f32, 2 * COLS, F32)

/* Columns [n0, n1) of one segment for `rows` packed rows. */
static void columns(const segment *s, int64_t n0, int64_t n1, const float *packed, int64_t row0,
                    int64_t rows, int64_t k, int64_t groups, int w_type, int y_type) {
  const int64_t w_size = w_type == BF16 ? 2 : 4, y_size = y_type == BF16 ? 2 : 4;
  for (int64_t n = n0; n < n1;) {
    const char *w = (const char *)s->w + n * k * w_size;
    const float *bias = s->bias ? s->bias + n : NULL;
    char *y = (char *)s->y + (row0 * s->ldy + n) * y_size;
    if (rows <= 2 && n1 - n >= 2 * COLS) {
      (w_type == BF16 ? wide_bf16 : wide_f32)(packed, rows, w, k, groups, bias, y, s->ldy, y_type);
      n += 2 * COLS;
    } else if (n1 - n >= COLS) {
      (w_type == BF16 ? strip_bf16 : strip_f32)(packed, rows, w, k, groups, bias, y, s->ldy, y_type);
      n += COLS;
    } else {
      (w_type == BF16 ? single_bf16 : single_f32)(packed, rows, w, k, groups, bias, y, s->ldy, y_type);
      n += 1;
    }
  }
}

/* y_s = x w_s^T + bias_s for every segment s. The segments share x: q/k/v or gate/up in one call. */
void outrider_linear(const void *x, int64_t ldx, int64_t m, int64_t k, int x_type, int w_type, int y_type,
                     const segment *segments, int num_segments, int threads) {
  const int64_t groups = (k + GROUP - 1) / GROUP;
  int64_t block = (256 * 1024) / (4 * groups * GROUP) / ROWS * ROWS; /* packed rows stay in L2 */
  block = block < 16 ? 16 : block > 64 ? 64 : block;
  int64_t total = 0;
  for (int s = 0; s < num_segments; s++) total += (segments[s].n + COLS - 1) / COLS;
  if ((double)m * total * COLS * k < 20000.0) threads = 1; /* a hand-over costs more */
#pragma omp parallel num_threads(threads)
  {
    int id = 0, count = 1;
#ifdef _OPENMP
    extern int omp_get_thread_num(void), omp_get_num_threads(void);
    id = omp_get_thread_num();
    count = omp_get_num_threads();
#endif
    int64_t t0 = total * id / count, t1 = total * (id + 1) / count;
    float *packed = scratch_floats(&linear_scratch, (size_t)(block * groups * GROUP));
    for (int64_t row0 = 0; row0 < m; row0 += block) {
      int64_t rows = m - row0 < block ? m - row0 : block;
      pack_rows(packed, (const char *)x + row0 * ldx * (x_type == BF16 ? 2 : 4), ldx, rows, k, groups,
                x_type, w_type == BF16);
      int64_t base = 0;
      for (int s = 0; s < num_segments; s++) {
        int64_t tiles = (segments[s].n + COLS - 1) / COLS;
        int64_t a = t0 - base < 0 ? 0 : t0 - base, b = t1 - base > tiles ? tiles : t1 - base;
        if (a < b) {
          int64_t n1 = b * COLS > segments[s].n ? segments[s].n : b * COLS;
          columns(&segments[s], a * COLS, n1, packed, row0, rows, k, groups, w_type, y_type);
        }
        base += tiles;
      }
    }
  }
}

/* ---------------------------------------------------------------- norm */

/* y = x / sqrt(mean(x^2) + eps), scaled by the weight as transformers' RMS norms do:
 * offset 0: round to the type of x, then weight * that; offset 1 (Gemma): float32 until the end. */
void outrider_rms_norm(const void *x, int64_t ldx, const void *weight, void *y, int64_t rows, int64_t k,
                       int type, float eps, int gemma, int threads) {
  if (rows * k < 16384) threads = 1;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    const char *row = (const char *)x + r * ldx * (type == BF16 ? 2 : 4);
    char *out = (char *)y + r * k * (type == BF16 ? 2 : 4);
    f8 sum = {0}, odd_sum = {0};
    int64_t i = 0;
    for (; i + 16 <= k; i += 16) {
      f8 a, b;
      if (type == BF16) {
        u8v raw = *(const u8u *)(row + i * 2);
        a = (f8)(raw << 16);
        b = (f8)(raw & 0xffff0000u);
      } else {
        a = *(const f8u *)(row + i * 4);
        b = *(const f8u *)(row + i * 4 + 32);
      }
      sum += a * a;
      odd_sum += b * b;
    }
    float total = sum8(sum + odd_sum);
    for (; i < k; i++) {
      float v = load_any(row, i, type);
      total += v * v;
    }
    float scale = 1.0f / sqrtf(total / (float)k + eps);
    for (i = 0; i < k; i++) {
      float v = load_any(row, i, type) * scale, w = load_any(weight, i, type);
      if (gemma)
        v = v * (1.0f + w);
      else
        v = w * (type == BF16 ? from_bf16(to_bf16(v)) : v);
      store_any(out, i, type, v);
    }
  }
}

/* ---------------------------------------------------------------- attention */

#define BLOCK 16 /* keys per inner step; the pool's block size is a multiple of it */

/* Pool layout per layer: keys [block, head, dk, block_size], values [block, head, block_size, dv].
 * Keys lie along the last axis so that scores of neighbouring keys are SIMD lanes. */
typedef struct {
  void *k, *v;
  int64_t heads, dk, dv, block_size;
  int type;
} slab;

void outrider_kv_write(const slab *p, const void *k, int64_t k_row, int64_t k_head, const void *v,
                       int64_t v_row, int64_t v_head, const int64_t *slots, int64_t rows) {
  const int64_t bs = p->block_size;
  for (int64_t t = 0; t < rows; t++) {
    int64_t block = slots[t] / bs, at = slots[t] % bs;
    for (int64_t h = 0; h < p->heads; h++) {
      int64_t ko = (block * p->heads + h) * p->dk * bs + at;
      int64_t vo = ((block * p->heads + h) * bs + at) * p->dv;
      if (p->type == BF16) {
        const uint16_t *src = (const uint16_t *)k + t * k_row + h * k_head;
        for (int64_t d = 0; d < p->dk; d++) ((uint16_t *)p->k)[ko + d * bs] = src[d];
        memcpy((uint16_t *)p->v + vo, (const uint16_t *)v + t * v_row + h * v_head, (size_t)p->dv * 2);
      } else {
        const float *src = (const float *)k + t * k_row + h * k_head;
        for (int64_t d = 0; d < p->dk; d++) ((float *)p->k)[ko + d * bs] = src[d];
        memcpy((float *)p->v + vo, (const float *)v + t * v_row + h * v_head, (size_t)p->dv * 4);
      }
    }
  }
}

/* exp for x <= 0 (about 1 ulp): 2^n * polynomial; below -87 it is 0. */
INLINE f8 exp8(f8 x) {
  i8v low = x < -87.0f;
  f8 c = (f8)((i8v)x & ~low);
  f8 n = c * 1.44269504088896341f;
  i8v i = __builtin_convertvector(n - 0.5f, i8v); /* truncation towards 0 rounds, as n <= 0 */
  f8 f = __builtin_convertvector(i, f8);
  f8 r = c - f * 0.693359375f;
  r = r - f * -2.12194440e-4f;
  f8 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  f8 scale = (f8)((i + 127) << 23);
  return (f8)((i8v)(p * scale) & ~low);
}

INLINE f8 tanh8(f8 x) {
  i8v sign = (i8v)x & (int32_t)0x80000000;
  f8 a = (f8)((i8v)x & 0x7fffffff);
  f8 e = exp8(-2.0f * a);
  f8 t = (1.0f - e) / (1.0f + e);
  i8v tiny = a < 1e-3f; /* there 1 - e loses digits */
  t = (f8)(((i8v)t & ~tiny) | ((i8v)a & tiny));
  return (f8)((i8v)t | sign);
}

#define TILE_ROWS 6

typedef struct {
  const slab *pool;
  const int32_t *table;
  int64_t head, lo, hi; /* keys [lo, hi) that some row of the tile may see */
  float softcap;
} span;

/* scores[r][key], key - first in pool order: bf16 keys keep even ones before odd ones. */
INLINE void scores_of(const int R, const span *s, const float *q, float *scores, int64_t width) {
  const slab *p = s->pool;
  const int64_t bs = p->block_size, first = s->lo / BLOCK * BLOCK, size = p->type == BF16 ? 2 : 4;
  for (int64_t key = first; key < s->hi; key += BLOCK) {
    int64_t block = s->table[key / bs];
    const char *k = (const char *)p->k + (((block * p->heads + s->head) * p->dk) * bs + key % bs) * size;
    f8 a[TILE_ROWS], b[TILE_ROWS];
    UNROLL for (int r = 0; r < R; r++) a[r] = b[r] = (f8){0};
    for (int64_t d = 0; d < p->dk; d++) {
      f8 even, odd;
      if (p->type == BF16) {
        u8v raw = *(const u8u *)(k + d * bs * 2);
        even = (f8)(raw << 16);
        odd = (f8)(raw & 0xffff0000u);
      } else {
        even = *(const f8u *)(k + d * bs * 4);
        odd = *(const f8u *)(k + d * bs * 4 + 32);
      }
      UNROLL for (int r = 0; r < R; r++) {
        float x = q[d * TILE_ROWS + r];
        a[r] += x * even;
        b[r] += x * odd;
      }
    }
    UNROLL for (int r = 0; r < R; r++) {
      if (s->softcap > 0.0f) {
        a[r] = s->softcap * tanh8(a[r] / s->softcap);
        b[r] = s->softcap * tanh8(b[r] / s->softcap);
      }
      float *dst = scores + r * width + (key - first);
      *(f8u *)dst = a[r];
      *(f8u *)(dst + 8) = b[r];
    }
  }
}

static void scores_for(int rows, const span *s, const float *q, float *scores, int64_t width) {
  switch (rows) {
    case 1: scores_of(1, s, q, scores, width); break;
    case 2: scores_of(2, s, q, scores, width); break;
    case 3: scores_of(3, s, q, scores, width); break;
    case 4: scores_of(4, s, q, scores, width); break;
    case 5: scores_of(5, s, q, scores, width); break;
    default: scores_of(6, s, q, scores, width); break;
  }
}

/* In place softmax of one row over keys [lo, hi); everything else in its span becomes 0. */
static void softmax_row(const span *s, float *row, int64_t lo, int64_t hi, const float *sink) {
  const int64_t first = s->lo / BLOCK * BLOCK, from = lo / BLOCK * BLOCK;
  const int bf16 = s->pool->type == BF16;
  const i8v lane = {0, 1, 2, 3, 4, 5, 6, 7};
  const int step = bf16 ? 2 : 1; /* distance of neighbouring lanes, in keys */
  const i8v a_at = lane * step, b_at = lane * step + (bf16 ? 1 : 8);
  const f8 none = (f8){0} - INFINITY;
  f8 top = none;
  for (int64_t key = from; key < hi; key += BLOCK) {
    f8 *v = (f8 *)(row + (key - first));
    if (key < lo || key + BLOCK > hi) {
      i8v a = a_at + (int32_t)key, b = b_at + (int32_t)key;
      i8v a_in = (a >= (int32_t)lo) & (a < (int32_t)hi), b_in = (b >= (int32_t)lo) & (b < (int32_t)hi);
      v[0] = (f8)(((i8v)v[0] & a_in) | ((i8v)none & ~a_in));
      v[1] = (f8)(((i8v)v[1] & b_in) | ((i8v)none & ~b_in));
    }
    i8v m = v[0] > top;
    top = (f8)(((i8v)v[0] & m) | ((i8v)top & ~m));
    m = v[1] > top;
    top = (f8)(((i8v)v[1] & m) | ((i8v)top & ~m));
  }
  float max = sink ? *sink : -INFINITY;
  for (int i = 0; i < 8; i++) max = top[i] > max ? top[i] : max;
  f8 total = {0};
  for (int64_t key = from; key < hi; key += BLOCK) {
    f8 *v = (f8 *)(row + (key - first));
    v[0] = exp8(v[0] - max);
    v[1] = exp8(v[1] - max);
    total += v[0];
    total += v[1];
  }
  float denominator = sum8(total);
  if (sink) denominator += exp8((f8){0} + (*sink - max))[0];
  float inverse = 1.0f / denominator;
  for (int64_t key = from; key < hi; key += BLOCK) {
    f8 *v = (f8 *)(row + (key - first));
    v[0] *= inverse;
    v[1] *= inverse;
  }
  for (int64_t key = first; key < from; key += BLOCK) memset(row + (key - first), 0, BLOCK * 4);
  int64_t end = (hi + BLOCK - 1) / BLOCK * BLOCK, last = (s->hi + BLOCK - 1) / BLOCK * BLOCK;
  if (end < last) memset(row + (end - first), 0, (size_t)(last - end) * 4);
}

#define CHUNK 32 /* value elements kept in registers */
#define VALUE_ROWS 3

INLINE void values_of(const int R, const span *s, const float *probs, int64_t width, int64_t d0,
                      char *const *out) {
  const slab *p = s->pool;
  const int64_t bs = p->block_size, first = s->lo / BLOCK * BLOCK, size = p->type == BF16 ? 2 : 4;
  const int64_t left = p->dv - d0 < CHUNK ? p->dv - d0 : CHUNK;
  f8 acc[VALUE_ROWS][4];
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < 4; i++) acc[r][i] = (f8){0};
  const int64_t row_size = p->dv * size;
  for (int64_t base = first; base < s->hi; base += BLOCK) {
  const int64_t block = s->table[base / bs], from = s->lo > base ? s->lo - base : 0;
  const int64_t to = s->hi - base < BLOCK ? s->hi - base : BLOCK;
  const char *values =
      (const char *)p->v + (((block * p->heads + s->head) * bs + base % bs) * p->dv + d0) * size;
  for (int64_t t = from; t < to; t++) {
    const char *v = values + t * row_size;
    int64_t at = base - first + (p->type == BF16 ? (t & 1) * 8 + (t >> 1) : t);
    char rest[CHUNK * 4] __attribute__((aligned(64)));
    if (left < CHUNK) { /* narrow heads: never read past the row */
      memset(rest, 0, sizeof rest);
      memcpy(rest, v, (size_t)(left * size));
      v = rest;
    }
    f8 x[4];
    UNROLL for (int i = 0; i < 2; i++) {
      if (p->type == BF16) {
        u8v raw = *(const u8u *)(v + i * 32);
        x[2 * i] = (f8)(raw << 16);
        x[2 * i + 1] = (f8)(raw & 0xffff0000u);
      } else {
        x[2 * i] = *(const f8u *)(v + i * 64);
        x[2 * i + 1] = *(const f8u *)(v + i * 64 + 32);
      }
    }
    UNROLL for (int r = 0; r < R; r++) {
      float w = probs[r * width + at];
      UNROLL for (int i = 0; i < 4; i++) acc[r][i] += w * x[i];
    }
  }
  }
  UNROLL for (int r = 0; r < R; r++) {
    for (int64_t i = 0; i < left; i++) {
      float value = p->type == BF16 ? acc[r][i / 16 * 2 + (i & 1)][(i % 16) >> 1] : acc[r][i / 8][i % 8];
      store_any(out[r], d0 + i, p->type, value);
    }
  }
}

typedef struct {
  const void *q; /* element strides q_row, q_head; the last axis is contiguous */
  int64_t q_row, q_head;
  void *out; /* [rows, q_heads, dv] contiguous */
  int64_t q_heads;
  const int32_t *starts; /* [n + 1] first row of each sequence in q */
  const int32_t *past;   /* [n] position of that row */
  const int32_t *tables; /* [n, table_stride] block numbers */
  int64_t table_stride, num_sequences;
  const float *sinks; /* [q_heads] or NULL */
  int64_t window;     /* 0: none */
  float scale, softcap;
} attention;

/* One tile: up to TILE_ROWS query rows of one sequence that share a KV head. */
static void attend_tile(const slab *p, const attention *c, int64_t n, int64_t head, int64_t r0, int rows) {
  const int64_t share = c->q_heads / p->heads;
  int64_t lo[TILE_ROWS], hi[TILE_ROWS];
  span s = {p, c->tables + n * c->table_stride, head, INT64_MAX, 0, c->softcap};
  for (int r = 0; r < rows; r++) {
    int64_t position = c->past[n] + (r0 + r) / share;
    hi[r] = position + 1;
    lo[r] = c->window > 0 && hi[r] > c->window ? hi[r] - c->window : 0;
    if (lo[r] < s.lo) s.lo = lo[r];
    if (hi[r] > s.hi) s.hi = hi[r];
  }
  int64_t width = (s.hi - s.lo / BLOCK * BLOCK + BLOCK - 1) / BLOCK * BLOCK;
  float *q = scratch_floats(&score_scratch, (size_t)(TILE_ROWS * (p->dk + 16 + width)));
  float *scores = q + (TILE_ROWS * p->dk + 15) / 16 * 16;
  char *out[TILE_ROWS];
  const int64_t size = p->type == BF16 ? 2 : 4;
  for (int r = 0; r < rows; r++) {
    int64_t row = c->starts[n] + (r0 + r) / share, q_head = head * share + (r0 + r) % share;
    for (int64_t d = 0; d < p->dk; d++)
      q[d * TILE_ROWS + r] = load_any(c->q, row * c->q_row + q_head * c->q_head + d, p->type) * c->scale;
    out[r] = (char *)c->out + (row * c->q_heads + q_head) * p->dv * size;
  }
  scores_for(rows, &s, q, scores, width);
  for (int r = 0; r < rows; r++) {
    const float *sink = c->sinks ? c->sinks + head * share + (r0 + r) % share : NULL;
    softmax_row(&s, scores + r * width, lo[r], hi[r], sink);
  }
  for (int r = 0; r < rows; r += VALUE_ROWS) {
    int group = rows - r < VALUE_ROWS ? rows - r : VALUE_ROWS;
    for (int64_t d0 = 0; d0 < p->dv; d0 += CHUNK) {
      if (group == 3) values_of(3, &s, scores + r * width, width, d0, out + r);
      if (group == 2) values_of(2, &s, scores + r * width, width, d0, out + r);
      if (group == 1) values_of(1, &s, scores + r * width, width, d0, out + r);
    }
  }
}

/* Causal attention of all sequences over their block tables. Positions of a sequence are
 * past, past + 1, ... and its keys up to the last of them have been written. */
void outrider_attention(const slab *p, const attention *c, int threads) {
  const int64_t share = c->q_heads / p->heads;
  int64_t tiles = 0, work = 0;
  for (int64_t n = 0; n < c->num_sequences; n++) {
    int64_t rows = c->starts[n + 1] - c->starts[n];
    tiles += (rows * share + TILE_ROWS - 1) / TILE_ROWS * p->heads;
    work += rows * (c->past[n] + rows) * c->q_heads * (p->dk + p->dv);
  }
  if (work < 40000) threads = 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (int64_t t = 0; t < tiles; t++) {
    int64_t left = t, n = 0, per_head = 0;
    for (;; n++) {
      per_head = ((c->starts[n + 1] - c->starts[n]) * share + TILE_ROWS - 1) / TILE_ROWS;
      if (left < per_head * p->heads) break;
      left -= per_head * p->heads;
    }
    int64_t r0 = left % per_head * TILE_ROWS, all = (c->starts[n + 1] - c->starts[n]) * share;
    attend_tile(p, c, n, left / per_head, r0, (int)(all - r0 < TILE_ROWS ? all - r0 : TILE_ROWS));
  }
}

int outrider_lanes(void) { return LANES; }
