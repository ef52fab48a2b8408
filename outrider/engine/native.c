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
 *
 * Compile with -ffp-contract=off: fused multiply-adds are written out (fma_lanes, fma8), because a
 * compiler that may choose chooses differently for one row and for four.
 */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

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

/* a * b + c, fused where the machine has it: then everywhere, else nowhere. */
INLINE f8 fma8(f8 a, f8 b, f8 c) {
#if defined(__FMA__)
  return (f8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  f4 x[2], y[2], z[2];
  memcpy(x, &a, 32);
  memcpy(y, &b, 32);
  memcpy(z, &c, 32);
  for (int i = 0; i < 2; i++) z[i] = (f4)vfmaq_f32((float32x4_t)z[i], (float32x4_t)x[i], (float32x4_t)y[i]);
  memcpy(&c, z, 32);
  return c;
#else
  return a * b + c;
#endif
}

INLINE vf fma_lanes(vf a, vf b, vf c) {
#if LANES == 16
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif LANES == 8
  return (vf)fma8((f8)a, (f8)b, (f8)c);
#elif defined(__aarch64__)
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

INLINE f8 all8(float x) { return (f8){x, x, x, x, x, x, x, x}; }

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

/* ---------------------------------------------------------------- threads
 *
 * Callers and helpers take chunks of a call from one counter. A caller never waits for a helper to
 * arrive, only for chunks that a helper has begun: where cores are shared with other processes, an
 * OpenMP barrier waits a scheduling quantum for every layer. Helpers spin briefly, then sleep.
 */

#define MAX_HELPERS 127
#define SPINS 4000
#define CLOSED 0xffffffffu

typedef void chunk_fn(const void *call, int64_t index);

static struct {
  pthread_mutex_t one_call, lock;
  pthread_cond_t wake;
  int helpers;             /* started so far; under one_call */
  _Atomic int sleeping;
  _Atomic uint64_t state;  /* generation << 32 | next chunk, or CLOSED while a call is written */
  _Atomic int64_t done;
  chunk_fn *fn;
  const void *call;
  uint32_t count;
} team = {.one_call = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER, .state = CLOSED};

INLINE void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Take and compute one chunk; 0 if there is none. The exchange fails if the call has changed since
 * its fields were read, because every call has a generation of its own. */
static int take_chunk(void) {
  uint64_t state = atomic_load_explicit(&team.state, memory_order_acquire);
  uint32_t next = (uint32_t)state;
  if (next == CLOSED) return 0;
  chunk_fn *fn = team.fn;
  const void *call = team.call;
  if (next >= team.count) return 0;
  if (atomic_compare_exchange_strong(&team.state, &state, state + 1)) {
    fn(call, next);
    atomic_fetch_add_explicit(&team.done, 1, memory_order_release);
  }
  return 1;
}

static void *helper(void *unused) {
  (void)unused;
  for (;;) {
    int spins = 0;
    while (spins < SPINS) {
      if (take_chunk()) {
        spins = 0;
        continue;
      }
      relax();
      if (++spins % 256 == 0) sched_yield();
    }
    pthread_mutex_lock(&team.lock);
    atomic_fetch_add(&team.sleeping, 1);
    uint64_t state = atomic_load(&team.state);
    if ((uint32_t)state == CLOSED || (uint32_t)state >= team.count)
      pthread_cond_wait(&team.wake, &team.lock);
    atomic_fetch_sub(&team.sleeping, 1);
    pthread_mutex_unlock(&team.lock);
  }
  return NULL;
}

/* fn(call, 0 .. count - 1) on up to `threads` threads. A second caller at the same time works
 * alone; results do not depend on who computes what. */
static void run_chunks(chunk_fn *fn, const void *call, int64_t count, int threads) {
  if (threads <= 1 || count <= 1 || pthread_mutex_trylock(&team.one_call) != 0) {
    for (int64_t i = 0; i < count; i++) fn(call, i);
    return;
  }
  while (team.helpers < threads - 1 && team.helpers < MAX_HELPERS) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, helper, NULL) != 0) break;
    pthread_detach(thread);
    team.helpers++;
  }
  uint64_t generation = (atomic_load(&team.state) >> 32) + 1;
  atomic_store(&team.state, generation << 32 | CLOSED);
  team.fn = fn;
  team.call = call;
  team.count = (uint32_t)count;
  atomic_store(&team.done, 0);
  atomic_store(&team.state, generation << 32);
  if (atomic_load(&team.sleeping) > 0) {
    pthread_mutex_lock(&team.lock);
    pthread_cond_broadcast(&team.wake);
    pthread_mutex_unlock(&team.lock);
  }
  while (take_chunk()) {
  }
  for (int spins = 1; atomic_load_explicit(&team.done, memory_order_acquire) < count; spins++) {
    relax();
    if (spins % 256 == 0) sched_yield();
  }
  pthread_mutex_unlock(&team.one_call);
}

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

enum { ALL = 1, EVEN = 2, ODD = 3 }; /* which columns of the next strip a tile prefetches */

/* R rows x C columns of outputs; xp holds the packed tile. The empty statements keep the compiler
 * from holding even and odd weights at once, for which there are not enough registers. */
INLINE void tile(const int R, const int C, const int ahead, const float *xp, const char *w, int64_t k, int w_type,
                 const float *bias, char *y, int64_t ldy, int y_type) {
  const int64_t size = w_type == BF16 ? 2 : 4, stride = k * size;
  vf acc[ROWS][2 * COLS];
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++) acc[r][c] = (vf){0};
  int64_t i = 0;
  const char *p = w;
  for (; i + GROUP <= k; i += GROUP) {
    vf v[2 * COLS];
    if (ahead) /* rows of weights are short streams, which the hardware does not foresee */
      UNROLL for (int c = 0; c < C; c++)
        if (ahead == ALL || (ahead == EVEN) == (c % 2 == 0)) __builtin_prefetch(p + (C + c) * stride);
    UNROLL for (int c = 0; c < C; c++) v[c] = even_weights(p + c * stride, w_type);
    UNROLL for (int r = 0; r < R; r++) {
      vf x = *(const vf *)(xp + r * GROUP);
      UNROLL for (int c = 0; c < C; c++) acc[r][c] = fma_lanes(x, v[c], acc[r][c]);
    }
    __asm__ volatile("" ::: "memory");
    UNROLL for (int c = 0; c < C; c++) v[c] = odd_weights(p + c * stride, w_type);
    UNROLL for (int r = 0; r < R; r++) {
      vf x = *(const vf *)(xp + r * GROUP + LANES);
      UNROLL for (int c = 0; c < C; c++) acc[r][c] = fma_lanes(x, v[c], acc[r][c]);
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
        acc[r][c] = fma_lanes(*(const vf *)(xp + r * GROUP), e, acc[r][c]);
        acc[r][c] = fma_lanes(*(const vf *)(xp + r * GROUP + LANES), o, acc[r][c]);
      }
    }
  }
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++) {
    float v = sum_lanes(acc[r][c]);
    if (bias) v += bias[c];
    store_any(y, r * ldy + c, y_type, v);
  }
}

/* One strip of weight columns against all packed rows: the strip is read from memory once. The next
 * strip is fetched meanwhile, by the first two tiles in turn, so that no tile waits for all of it. */
#define STRIP(NAME, C, WT)                                                                         \
  static void NAME(const float *xp, int64_t rows, const char *w, int64_t k, int64_t groups,        \
                   const float *bias, char *y, int64_t ldy, int y_type) {                          \
    const int64_t y_row = ldy * (y_type == BF16 ? 2 : 4);                                          \
    if (rows >= 8) {                                                                               \
      tile(4, C, EVEN, xp, w, k, WT, bias, y, ldy, y_type);                                        \
      rows -= 4, xp += 4 * groups * GROUP, y += 4 * y_row;                                         \
      tile(4, C, ODD, xp, w, k, WT, bias, y, ldy, y_type);                                         \
      for (rows -= 4, xp += 4 * groups * GROUP, y += 4 * y_row; rows >= 4;                         \
           rows -= 4, xp += 4 * groups * GROUP, y += 4 * y_row)                                    \
        tile(4, C, 0, xp, w, k, WT, bias, y, ldy, y_type);                                         \
    } else if (rows >= 4) {                                                                        \
      tile(4, C, ALL, xp, w, k, WT, bias, y, ldy, y_type);                                         \
      rows -= 4, xp += 4 * groups * GROUP, y += 4 * y_row;                                         \
    }                                                                                              \
    if (rows == 3) tile(3, C, 1, xp, w, k, WT, bias, y, ldy, y_type);                              \
    if (rows == 2) tile(2, C, 1, xp, w, k, WT, bias, y, ldy, y_type);                              \
    if (rows == 1) tile(1, C, 1, xp, w, k, WT, bias, y, ldy, y_type);                              \
  }
/* For one or two rows twice the columns fit into registers; more streams hide the latency. */
#define WIDE_STRIP(NAME, C, WT)                                                                    \
  static void NAME(const float *xp, int64_t rows, const char *w, int64_t k, int64_t groups,        \
                   const float *bias, char *y, int64_t ldy, int y_type) {                          \
    (void)groups;                                                                                  \
    if (rows == 2) tile(2, C, 1, xp, w, k, WT, bias, y, ldy, y_type);                              \
    if (rows == 1) tile(1, C, 1, xp, w, k, WT, bias, y, ldy, y_type);                              \
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

typedef struct {
  const segment *segments;
  const float *packed;
  int64_t m, k, groups, block; /* block: rows whose packed form stays in L2 */
  int64_t strips, per_chunk;   /* strips of COLS columns over all segments */
  int num_segments, w_type, y_type;
} linear_call;

static void linear_chunk(const void *argument, int64_t index) {
  const linear_call *c = argument;
  int64_t from = index * c->per_chunk, to = from + c->per_chunk;
  for (int64_t row0 = 0; row0 < c->m; row0 += c->block) {
    int64_t rows = c->m - row0 < c->block ? c->m - row0 : c->block, base = 0;
    const float *packed = c->packed + row0 * c->groups * GROUP;
    for (int s = 0; s < c->num_segments; s++) {
      const segment *part = &c->segments[s];
      int64_t strips = (part->n + COLS - 1) / COLS;
      int64_t a = from - base < 0 ? 0 : from - base, b = to - base > strips ? strips : to - base;
      if (a < b) {
        int64_t n1 = b * COLS > part->n ? part->n : b * COLS;
        columns(part, a * COLS, n1, packed, row0, rows, c->k, c->groups, c->w_type, c->y_type);
      }
      base += strips;
    }
  }
}

/* y_s = x w_s^T + bias_s for every segment s. The segments share x: q/k/v or gate/up in one call. */
void outrider_linear(const void *x, int64_t ldx, int64_t m, int64_t k, int x_type, int w_type, int y_type,
                     const segment *segments, int num_segments, int threads) {
  const int64_t groups = (k + GROUP - 1) / GROUP;
  int64_t block = (256 * 1024) / (4 * groups * GROUP) / ROWS * ROWS;
  block = block < 16 ? 16 : block > 64 ? 64 : block;
  float *packed = scratch_floats(&linear_scratch, (size_t)(m * groups * GROUP));
  pack_rows(packed, x, ldx, m, k, groups, x_type, w_type == BF16);
  linear_call call = {segments, packed, m, k, groups, block, 0, 0, num_segments, w_type, y_type};
  for (int s = 0; s < num_segments; s++) call.strips += (segments[s].n + COLS - 1) / COLS;
  /* A chunk is a multiple of two strips (wide ones), some 10 us of work or an eighth of a thread's. */
  int64_t least = 1 + 65536 / (COLS * k * (w_type == BF16 ? 2 : 4) * (1 + m / 4));
  int64_t even = call.strips / (threads * 8);
  call.per_chunk = ((even > least ? even : least) + 1) / 2 * 2;
  run_chunks(linear_chunk, &call, (call.strips + call.per_chunk - 1) / call.per_chunk, threads);
}

/* ---------------------------------------------------------------- norm */

/* y = x / sqrt(mean(x^2) + eps), scaled by the weight as transformers' RMS norms do:
 * offset 0: round to the type of x, then weight * that; offset 1 (Gemma): float32 until the end. */
void outrider_rms_norm(const void *x, int64_t ldx, const void *weight, void *y, int64_t rows, int64_t k,
                       int type, float eps, int gemma) {
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
      sum = fma8(a, a, sum);
      odd_sum = fma8(b, b, odd_sum);
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

/* rows[i] goes to slots[i]; without rows, row i does. */
void outrider_kv_write(const slab *p, const void *k, int64_t k_row, int64_t k_head, const void *v,
                       int64_t v_row, int64_t v_head, const int64_t *slots, const int64_t *rows,
                       int64_t count) {
  const int64_t bs = p->block_size;
  for (int64_t i = 0; i < count; i++) {
    int64_t t = rows ? rows[i] : i, block = slots[i] / bs, at = slots[i] % bs;
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
  f8 r = fma8(f, all8(-0.693359375f), c);
  r = fma8(f, all8(2.12194440e-4f), r);
  f8 p = fma8(r, all8(1.9875691500e-4f), all8(1.3981999507e-3f));
  p = fma8(p, r, all8(8.3334519073e-3f));
  p = fma8(p, r, all8(4.1665795894e-2f));
  p = fma8(p, r, all8(1.6666665459e-1f));
  p = fma8(p, r, all8(5.0000001201e-1f));
  p = fma8(p, r * r, r + 1.0f);
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
        f8 x = all8(q[d * TILE_ROWS + r]);
        a[r] = fma8(x, even, a[r]);
        b[r] = fma8(x, odd, b[r]);
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
      f8 w = all8(probs[r * width + at]);
      UNROLL for (int i = 0; i < 4; i++) acc[r][i] = fma8(w, x[i], acc[r][i]);
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

typedef struct {
  const slab *pool;
  const attention *c;
} attention_call;

static int64_t tiles_per_head(const attention *c, int64_t n, int64_t share) {
  return ((c->starts[n + 1] - c->starts[n]) * share + TILE_ROWS - 1) / TILE_ROWS;
}

static void attention_chunk(const void *argument, int64_t index) {
  const attention_call *call = argument;
  const attention *c = call->c;
  const int64_t share = c->q_heads / call->pool->heads;
  int64_t n = 0, per_head = tiles_per_head(c, 0, share);
  while (index >= per_head * call->pool->heads) {
    index -= per_head * call->pool->heads;
    per_head = tiles_per_head(c, ++n, share);
  }
  int64_t r0 = index % per_head * TILE_ROWS, left = (c->starts[n + 1] - c->starts[n]) * share - r0;
  attend_tile(call->pool, c, n, index / per_head, r0, (int)(left < TILE_ROWS ? left : TILE_ROWS));
}

/* Causal attention of all sequences over their block tables. Positions of a sequence are
 * past, past + 1, ... and its keys up to the last of them have been written. */
void outrider_attention(const slab *p, const attention *c, int threads) {
  const int64_t share = c->q_heads / p->heads;
  int64_t tiles = 0, work = 0;
  for (int64_t n = 0; n < c->num_sequences; n++) {
    int64_t rows = c->starts[n + 1] - c->starts[n];
    tiles += tiles_per_head(c, n, share) * p->heads;
    work += rows * (c->past[n] + rows) * c->q_heads * (p->dk + p->dv);
  }
  attention_call call = {p, c};
  run_chunks(attention_chunk, &call, tiles, work < 40000 ? 1 : threads); /* too little to share */
}

int outrider_lanes(void) { return LANES; }
