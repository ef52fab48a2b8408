/* CPU kernels: linear layers, RMS norm, KV writes, packed attention, whole decoder layers made of these,
 * and the largest entries of rows.
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

/* Instructions that multiply pairs of bfloat16 and add them up in float32: half the multiply-adds, and
 * nothing to expand. They take subnormal numbers for zero. */
#if defined(__AVX512BF16__)
#define PAIRS 1
#else
#define PAIRS 0
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float vf __attribute__((vector_size(LANES * 4), may_alias));
typedef float vfu __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(LANES * 4), may_alias));
typedef uint32_t vuu __attribute__((vector_size(LANES * 4), aligned(2), may_alias));
typedef float f4 __attribute__((vector_size(16), may_alias));
typedef uint32_t u4 __attribute__((vector_size(16), may_alias));
typedef float f8 __attribute__((vector_size(32), may_alias));
typedef float f8u __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t u8v __attribute__((vector_size(32), may_alias));
typedef uint32_t u8u __attribute__((vector_size(32), aligned(2), may_alias));
typedef int32_t i8v __attribute__((vector_size(32), may_alias));
typedef uint16_t u16x8 __attribute__((vector_size(16), may_alias));
typedef uint16_t u16x8u __attribute__((vector_size(16), aligned(2), may_alias));

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

/* The nearest numbers that bfloat16 holds, ties to even; NaN stays NaN. */
INLINE u8v rounded8(f8 v) {
  u8v u = (u8v)v, nan = (u8v)((u & 0x7fffffffu) > 0x7f800000u);
  return (((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u) & ~nan) | (0x7fc00000u & nan);
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

/* The lanes of v summed down to four, in a fixed order. */
INLINE f4 sum_to_4(vf v) {
#if LANES == 16
  f4 q[4];
  memcpy(q, &v, 64);
  return (q[0] + q[2]) + (q[1] + q[3]);
#elif LANES == 8
  f4 q[2];
  memcpy(q, &v, 32);
  return q[0] + q[1];
#else
  f4 q;
  memcpy(&q, &v, 16);
  return q;
#endif
}

/* sum4 of four vectors at once: by the same additions, in a seventh of the instructions. */
INLINE f4 sums4(f4 a, f4 b, f4 c, f4 d) {
  f4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  f4 cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

#if LANES == 16
/* The lanes of sixteen vectors summed up by the additions of sum_to_4 and sums4: sixteen sums in order. */
INLINE vf sums16(const vf *v) {
  __m512 quarters[4];
  UNROLL for (int i = 0; i < 4; i++) {
    __m512 a = (__m512)v[i], b = (__m512)v[i + 4], c = (__m512)v[i + 8], d = (__m512)v[i + 12];
    __m512 ab = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
    __m512 cd = _mm512_shuffle_f32x4(c, d, 0x44) + _mm512_shuffle_f32x4(c, d, 0xee);
    quarters[i] = _mm512_shuffle_f32x4(ab, cd, 0x88) + _mm512_shuffle_f32x4(ab, cd, 0xdd);
  }
  __m512 p = _mm512_unpacklo_ps(quarters[0], quarters[1]) + _mm512_unpackhi_ps(quarters[0], quarters[1]);
  __m512 q = _mm512_unpacklo_ps(quarters[2], quarters[3]) + _mm512_unpackhi_ps(quarters[2], quarters[3]);
  __m512d low = _mm512_unpacklo_pd((__m512d)p, (__m512d)q), high = _mm512_unpackhi_pd((__m512d)p, (__m512d)q);
  return (vf)((__m512)low + (__m512)high);
}
#endif

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

static __thread scratch linear_scratch, score_scratch, pass_scratch;

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

/* Rows of the next tile, of `rows` that are left: as even as can be, since a tile of one row takes
 * nearly the time of three. */
INLINE int64_t next_tile(int64_t rows) {
  int64_t tiles = (rows + ROWS - 1) / ROWS;
  return (rows + tiles - 1) / tiles;
}

/* Bytes of a row's packed group of k. */
INLINE int64_t packed_step(int type) { return GROUP * (PAIRS && type == BF16 ? 2 : 4); }

/* The rows of x as the tiles read them, tile by tile: inside a tile the rows alternate per k group. bfloat16 is
 * expanded, the even elements of a group before the odd ones, but where instructions take it in pairs. */
static void pack_rows(char *out, const void *x, int64_t ldx, int64_t rows, int64_t k, int64_t groups, int type) {
  const int64_t size = type == BF16 ? 2 : 4, step = packed_step(type);
  int64_t tile = 0;
  for (int64_t r0 = 0; r0 < rows; r0 += tile) {
    tile = next_tile(rows - r0);
    for (int64_t r = 0; r < tile; r++) {
      const char *row = (const char *)x + (r0 + r) * ldx * size;
      for (int64_t g = 0; g < groups; g++) {
        char *dst = out + (g * tile + r) * step;
        int64_t left = k - g * GROUP < GROUP ? k - g * GROUP : GROUP;
        char rest[GROUP * 4] __attribute__((aligned(64)));
        const char *from = row + g * GROUP * size;
        if (left < GROUP) {
          memset(rest, 0, sizeof rest);
          memcpy(rest, from, (size_t)(left * size));
          from = rest;
        }
        if (type == BF16 && !PAIRS) {
          vu raw = *(const vuu *)from;
          *(vf *)dst = (vf)(raw << 16);
          *(vf *)(dst + LANES * 4) = (vf)(raw & 0xffff0000u);
        } else {
          memcpy(dst, from, (size_t)(GROUP * size));
        }
      }
    }
    out += tile * groups * step;
  }
}

INLINE vf even_weights(const char *w, int w_type) {
  return w_type == BF16 ? (vf)(*(const vuu *)w << 16) : (vf) * (const vfu *)w;
}

INLINE vf odd_weights(const char *w, int w_type) {
  return w_type == BF16 ? (vf)(*(const vuu *)w & 0xffff0000u) : (vf) * (const vfu *)(w + LANES * 4);
}

/* Keeps a vector in a register: else the compiler would read it from memory at every use, and loads
 * are scarcer than multiply-adds. */
#if defined(__AVX512F__)
#define HOLD(v) __asm__("" : "+v"(v))
#elif defined(__AVX__)
#define HOLD(v) __asm__("" : "+x"(v))
#elif defined(__aarch64__)
#define HOLD(v) __asm__("" : "+w"(v))
#else
#define HOLD(v) (void)(v)
#endif

/* Weights to fetch into L2 meanwhile, `step` bytes a group, in the order of memory: columns taken side
 * by side are no stream to the hardware. `from` is NULL where there are none. */
typedef struct {
  const char *from;
  int64_t step;
} ahead;

#if PAIRS
/* acc of every lane plus the products of its pair, in the order of the instruction. */
INLINE vf add_pairs(vf acc, vf x, vf w) { return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)x, (__m512bh)w); }
#else
INLINE vf add_pairs(vf acc, vf x, vf w) { return (void)x, (void)w, acc; }
#endif

/* acc[r][c] += x[r] . w[c] over whole groups. The empty statements keep the compiler from holding even and odd weights at
 * once, for which there are not enough registers. */
INLINE void dots(const int R, const int C, vf (*acc)[2 * COLS], const char *xp, const char *p, ahead next,
                 int64_t stride, int64_t groups, int w_type) {
  const int64_t step = GROUP * (w_type == BF16 ? 2 : 4), x_step = packed_step(w_type);
  for (; groups > 0; groups--, xp += R * x_step, p += step) {
    vf v[2 * COLS];
    if (next.from) {
      UNROLL for (int at = 0; at < C * 4 * GROUP; at += 64)
        if (at < next.step) __builtin_prefetch(next.from + at, 0, 2);
      next.from += next.step;
    }
    if (PAIRS && w_type == BF16) {
      UNROLL for (int c = 0; c < C; c++) v[c] = *(const vfu *)(p + c * stride);
      UNROLL for (int r = 0; r < R; r++) {
        vf x = *(const vf *)(xp + r * x_step);
        HOLD(x);
        UNROLL for (int c = 0; c < C; c++) acc[r][c] = add_pairs(acc[r][c], x, v[c]);
      }
      continue;
    }
    UNROLL for (int c = 0; c < C; c++) v[c] = even_weights(p + c * stride, w_type);
    UNROLL for (int r = 0; r < R; r++) {
      vf x = *(const vf *)(xp + r * x_step);
      HOLD(x);
      UNROLL for (int c = 0; c < C; c++) acc[r][c] = fma_lanes(x, v[c], acc[r][c]);
    }
    __asm__ volatile("" ::: "memory");
    UNROLL for (int c = 0; c < C; c++) v[c] = odd_weights(p + c * stride, w_type);
    UNROLL for (int r = 0; r < R; r++) {
      vf x = *(const vf *)(xp + r * x_step + LANES * 4);
      HOLD(x);
      UNROLL for (int c = 0; c < C; c++) acc[r][c] = fma_lanes(x, v[c], acc[r][c]);
    }
    __asm__ volatile("" ::: "memory");
  }
}

#if LANES == 8 && defined(__FMA__) && defined(__x86_64__)
#define HAND_WRITTEN 1
/* dots(4, 3) for bfloat16: it takes all 16 registers, which no compiler deals out without spilling.
 * ymm0 to 11: sums, row by row; 12 to 14: weights; 15: x. */
#define EVEN_HALF "vpslld $16, %%ymm12, %%ymm12\n vpslld $16, %%ymm13, %%ymm13\n vpslld $16, %%ymm14, %%ymm14\n"
#define ODD_HALF "vpand (%[p]), %%ymm12, %%ymm12\n vpand (%[p],%[s]), %%ymm13, %%ymm13\n" \
                 "vpand (%[p],%[s],2), %%ymm14, %%ymm14\n"
#define ROW(AT, A, B, C)                                                      \
  "vmovaps " AT "(%[x]), %%ymm15\n"                                           \
  "vfmadd231ps %%ymm15, %%ymm12, %%ymm" A "\n"                                \
  "vfmadd231ps %%ymm15, %%ymm13, %%ymm" B "\n"                                \
  "vfmadd231ps %%ymm15, %%ymm14, %%ymm" C "\n"
#define ZERO(A) "vxorps %%ymm" A ", %%ymm" A ", %%ymm" A "\n"
#define STORE(AT, A) "vmovaps %%ymm" A ", " AT "(%[acc])\n"
static void dots_4x3(vf *acc, const char *xp, const char *p, ahead next, int64_t stride, int64_t groups) {
  static const vu mask = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                          0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
  const char *q = next.from ? next.from : p;
  __asm__ volatile(
      ZERO("0") ZERO("1") ZERO("2") ZERO("3") ZERO("4") ZERO("5") ZERO("6") ZERO("7") ZERO("8") ZERO("9")
      ZERO("10") ZERO("11")
      "test %[n], %[n]\n jle 2f\n .p2align 4\n 1:\n"
      "vmovdqu (%[p]), %%ymm12\n vmovdqu (%[p],%[s]), %%ymm13\n vmovdqu (%[p],%[s],2), %%ymm14\n"
      "prefetcht1 (%[q])\n prefetcht1 48(%[q])\n" EVEN_HALF
      ROW("0", "0", "1", "2") ROW("64", "3", "4", "5") ROW("128", "6", "7", "8") ROW("192", "9", "10", "11")
      "vmovdqa %[mask], %%ymm12\n vmovdqa %%ymm12, %%ymm13\n vmovdqa %%ymm12, %%ymm14\n" ODD_HALF
      ROW("32", "0", "1", "2") ROW("96", "3", "4", "5") ROW("160", "6", "7", "8") ROW("224", "9", "10", "11")
      "add $32, %[p]\n add %[move], %[q]\n add $256, %[x]\n dec %[n]\n jnz 1b\n 2:\n"
      STORE("0", "0") STORE("32", "1") STORE("64", "2") STORE("96", "3") STORE("128", "4") STORE("160", "5")
      STORE("192", "6") STORE("224", "7") STORE("256", "8") STORE("288", "9") STORE("320", "10")
      STORE("352", "11")
      : [p] "+r"(p), [x] "+r"(xp), [n] "+r"(groups), [q] "+r"(q)
      : [s] "r"(stride), [acc] "r"(acc), [mask] "m"(mask), [move] "r"(next.from ? next.step : 0)
      : "memory", "cc", "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10",
        "ymm11", "ymm12", "ymm13", "ymm14", "ymm15");
}
#else
#define HAND_WRITTEN 0
#endif

/* R rows x C columns of outputs; xp holds the packed tile. */
INLINE void tile(const int R, const int C, const char *xp, const char *w, ahead next, int64_t k, int w_type,
                 const float *bias, char *y, int64_t ldy, int y_type) {
  const int64_t size = w_type == BF16 ? 2 : 4, stride = k * size, groups = k / GROUP, i = groups * GROUP;
  const int64_t x_step = packed_step(w_type);
  vf acc[ROWS][2 * COLS];
#if HAND_WRITTEN
  if (R == 4 && C == 3 && w_type == BF16) {
    vf sums[12];
    dots_4x3(sums, xp, w, next, stride, groups);
    UNROLL for (int n = 0; n < 12; n++) acc[n / 3][n % 3] = sums[n];
  } else
#endif
  {
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++) acc[r][c] = (vf){0};
    dots(R, C, acc, xp, w, next, stride, groups, w_type);
  }
  const char *p = w + i * size;
  xp += groups * R * x_step;
  if (i < k) { /* zero padded rest, in the same order */
    UNROLL for (int c = 0; c < C; c++) {
      char rest[GROUP * 4] __attribute__((aligned(64))) = {0};
      memcpy(rest, p + c * stride, (size_t)((k - i) * size));
      if (PAIRS && w_type == BF16) {
        UNROLL for (int r = 0; r < R; r++) acc[r][c] = add_pairs(acc[r][c], *(const vf *)(xp + r * x_step), *(const vf *)rest);
        continue;
      }
      vf e = even_weights(rest, w_type), o = odd_weights(rest, w_type);
      UNROLL for (int r = 0; r < R; r++) {
        acc[r][c] = fma_lanes(*(const vf *)(xp + r * x_step), e, acc[r][c]);
        acc[r][c] = fma_lanes(*(const vf *)(xp + r * x_step + LANES * 4), o, acc[r][c]);
      }
    }
  }
  float sums[(ROWS * 2 * COLS + LANES - 1) / LANES * LANES] __attribute__((aligned(64)));
#if LANES == 16
  UNROLL for (int first = 0; first < R * C; first += 16) {
    vf part[16];
    UNROLL for (int i = 0; i < 16; i++)
      part[i] = first + i < R * C ? acc[(first + i) / C][(first + i) % C] : (vf){0};
    *(vf *)(sums + first) = sums16(part);
  }
#else
  UNROLL for (int first = 0; first < R * C; first += 4) {
    f4 part[4] = {{0}, {0}, {0}, {0}};
    UNROLL for (int i = 0; i < 4; i++)
      if (first + i < R * C) part[i] = sum_to_4(acc[(first + i) / C][(first + i) % C]);
    *(f4 *)(sums + first) = sums4(part[0], part[1], part[2], part[3]);
  }
#endif
  if (bias) UNROLL for (int i = 0; i < R * C; i++) sums[i] += bias[i % C];
  if (y_type == F32) {
    UNROLL for (int r = 0; r < R; r++) memcpy(y + r * ldy * 4, sums + r * C, C * 4);
    return;
  }
  uint16_t halves[sizeof sums / 4] __attribute__((aligned(64)));
  UNROLL for (int first = 0; first < R * C; first += 8)
    *(u16x8 *)(halves + first) = __builtin_convertvector(rounded8(*(f8 *)(sums + first)) >> 16, u16x8);
  UNROLL for (int r = 0; r < R; r++) memcpy(y + r * ldy * 2, halves + r * C, C * 2);
}

/* Strips of weights, each against all packed rows, a span of strips at a time: the weights of a span stay
 * in the nearest caches while one tile of rows after the other passes over them. Meanwhile the next span is
 * fetched, by every tile an equal part. */
#define SPAN_BYTES (24 * 1024)

typedef void tile_fn(const char *xp, const char *w, ahead next, int64_t k, const float *bias, char *y,
                     int64_t ldy, int y_type);
#define TILE(R, C, WT, NAME)                                                                            \
  static void NAME(const char *xp, const char *w, ahead next, int64_t k, const float *bias, char *y,   \
                   int64_t ldy, int y_type) {                                                           \
    tile(R, C, xp, w, next, k, WT, bias, y, ldy, y_type);                                               \
  }
#define TILES(R)                                                                                        \
  TILE(R, COLS, BF16, tile_##R##_bf16)                                                                  \
  TILE(R, COLS, F32, tile_##R##_f32)                                                                    \
  TILE(R, 1, BF16, single_##R##_bf16)                                                                   \
  TILE(R, 1, F32, single_##R##_f32)
TILES(1)
TILES(2)
TILES(3)
TILES(4)
/* For one or two rows twice the columns fit into registers; more streams hide the latency. */
TILE(1, 2 * COLS, BF16, wide_1_bf16)
TILE(1, 2 * COLS, F32, wide_1_f32)
TILE(2, 2 * COLS, BF16, wide_2_bf16)
TILE(2, 2 * COLS, F32, wide_2_f32)

static tile_fn *const tiles[2][ROWS] = {{tile_1_f32, tile_2_f32, tile_3_f32, tile_4_f32},
                                        {tile_1_bf16, tile_2_bf16, tile_3_bf16, tile_4_bf16}};
static tile_fn *const singles[2][ROWS] = {{single_1_f32, single_2_f32, single_3_f32, single_4_f32},
                                          {single_1_bf16, single_2_bf16, single_3_bf16, single_4_bf16}};
static tile_fn *const wides[2][2] = {{wide_1_f32, wide_2_f32}, {wide_1_bf16, wide_2_bf16}};

/* Columns [n0, n1) of one segment for `rows` packed rows. */
static void columns(const segment *s, int64_t n0, int64_t n1, const char *packed, int64_t row0,
                    int64_t rows, int64_t k, int64_t groups, int w_type, int y_type) {
  const int64_t w_size = w_type == BF16 ? 2 : 4, y_size = y_type == BF16 ? 2 : 4;
  const int64_t num_tiles = (rows + ROWS - 1) / ROWS, num_groups = k / GROUP;
  int64_t n = n0;
  while (n < n1) {
    const int64_t width = rows <= 2 && n1 - n >= 2 * COLS ? 2 * COLS : n1 - n >= COLS ? COLS : 1;
    const int64_t fitting = SPAN_BYTES / (width * k * w_size), most = fitting < 1 ? 1 : fitting;
    const int64_t strips = (n1 - n) / width < most ? (n1 - n) / width : most;
    const int64_t span = strips * width, step = width * GROUP * w_size / num_tiles;
    const char *xp = packed;
    for (int64_t left = rows, turn = 0, t; left > 0; left -= t, xp += t * groups * packed_step(w_type), turn++) {
      t = next_tile(left);
      tile_fn *fn = width == 1 ? singles[w_type][t - 1] : width == COLS ? tiles[w_type][t - 1] : wides[w_type][t - 1];
      for (int64_t strip = 0; strip < strips; strip++) {
        const int64_t at = n + strip * width;
        const char *w = (const char *)s->w + at * k * w_size;
        ahead next = {NULL, step};
        if (at + span + width <= s->n) next.from = w + span * k * w_size + turn * step * num_groups;
        fn(xp, w, next, k, s->bias ? s->bias + at : NULL,
           (char *)s->y + ((row0 + rows - left) * s->ldy + at) * y_size, s->ldy, y_type);
      }
    }
    n += span;
  }
}

typedef struct {
  const segment *segments;
  const char *packed;
  int64_t m, k, groups, block; /* block: rows whose packed form stays in L2 */
  int64_t strips, per_chunk;   /* strips of COLS columns over all segments */
  int num_segments, w_type, y_type;
} linear_call;

static void linear_chunk(const void *argument, int64_t index) {
  const linear_call *c = argument;
  int64_t from = index * c->per_chunk, to = from + c->per_chunk;
  for (int64_t row0 = 0; row0 < c->m; row0 += c->block) {
    int64_t rows = c->m - row0 < c->block ? c->m - row0 : c->block, base = 0;
    const char *packed = c->packed + row0 * c->groups * packed_step(c->w_type);
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

/* y_s = x w_s^T + bias_s for every segment s; x and the weights are of one type. The segments share x: q/k/v or
 * gate/up in one call. */
void outrider_linear(const void *x, int64_t ldx, int64_t m, int64_t k, int w_type, int y_type,
                     const segment *segments, int num_segments, int threads) {
  const int64_t groups = (k + GROUP - 1) / GROUP, size = w_type == BF16 ? 2 : 4, row = groups * packed_step(w_type);
  int64_t block = (256 * 1024) / row / ROWS * ROWS;
  block = block < 16 ? 16 : block > 64 ? 64 : block;
  char *packed = (char *)scratch_floats(&linear_scratch, (size_t)(m * row / 4));
  for (int64_t row0 = 0; row0 < m; row0 += block) /* blocks are tiled by themselves */
    pack_rows(packed + row0 * row, (const char *)x + row0 * ldx * size, ldx, m - row0 < block ? m - row0 : block, k,
              groups, w_type);
  linear_call call = {segments, packed, m, k, groups, block, 0, 0, num_segments, w_type, y_type};
  for (int s = 0; s < num_segments; s++) call.strips += (segments[s].n + COLS - 1) / COLS;
  /* A chunk is a multiple of two strips (wide ones), some 10 us of work or an eighth of a thread's. */
  int64_t least = 1 + 65536 / (COLS * k * size * (1 + m / 4));
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

/* ---------------------------------------------------------------- decoder layers
 *
 * Layers of the kind that Llama made common, one after the other without leaving this file:
 * h += o(attention(rope(qkv(norm(h))))), h += down(silu(gate(norm(h))) * up(norm(h))). Rounded to the
 * type of h wherever the library's modules round.
 */

typedef struct {
  const void *attention_norm, *mlp_norm; /* [width] */
  const void *q_norm, *k_norm;           /* [dk], norms of every head by itself, or NULL */
  segment qkv[3], o, gate_up[2], down;   /* y and ldy are filled in by the pass */
  slab pool;
} layer;

typedef struct {
  void *hidden; /* [rows, width] contiguous: what enters the first layer, then what leaves the last */
  int64_t rows, width, inner;
  const void *cos, *sin; /* [rows, dk] of the same type */
  const int64_t *slots, *kv_rows;
  int64_t num_slots;
  attention *attend; /* all but q and out */
  float eps;
  int type;
} pass;

INLINE f8 load8(const void *p, int64_t i, int type) {
  if (type == F32) return *(const f8u *)((const float *)p + i);
  u16x8 half = *(const u16x8u *)((const uint16_t *)p + i);
  return (f8)(__builtin_convertvector(half, u8v) << 16);
}

INLINE f8 round8(f8 v, int type) { return type == F32 ? v : (f8)rounded8(v); }

INLINE void store8(void *p, int64_t i, int type, f8 v) {
  if (type == F32)
    *(f8u *)((float *)p + i) = v;
  else
    *(u16x8u *)((uint16_t *)p + i) = __builtin_convertvector(rounded8(v) >> 16, u16x8);
}

/* In place: every head of a row turned by the row's position; halves belong together. */
static void rotate(char *x, int64_t heads, int64_t d, const char *cos, const char *sin, int type) {
  const int64_t size = type == BF16 ? 2 : 4, half = d / 2;
  for (int64_t h = 0; h < heads; h++, x += d * size)
    for (int64_t i = 0; i < half; i += 8) {
      f8 a = load8(x, i, type), b = load8(x, i + half, type);
      f8 left = round8(a * load8(cos, i, type), type) + round8(-b * load8(sin, i, type), type);
      f8 right = round8(b * load8(cos, i + half, type), type) + round8(a * load8(sin, i + half, type), type);
      store8(x, i, type, left);
      store8(x, i + half, type, right);
    }
}

/* gate = silu(gate) * up */
static void gate_row(char *gate, const char *up, int64_t n, int type) {
  for (int64_t i = 0; i < n; i += 8) {
    f8 g = load8(gate, i, type);
    i8v negative = g < 0.0f;
    f8 e = exp8((f8)((i8v)g | (i8v)all8(-0.0f))); /* of minus the absolute value */
    f8 top = (f8)(((i8v)e & negative) | ((i8v)all8(1.0f) & ~negative));
    f8 silu = round8(g * (top / (e + 1.0f)), type);
    store8(gate, i, type, silu * load8(up, i, type));
  }
}

/* What of a layer is done row by row: chunks of rows are independent. */
typedef struct {
  int step; /* NORM, TURN, GATE, ADD */
  const pass *p;
  const layer *l;
  const void *weight;
  char *in, *out, *k;
  int64_t per_chunk;
} row_call;

enum { NORM, TURN, GATE, ADD };

static void row_chunk(const void *argument, int64_t index) {
  const row_call *c = argument;
  const pass *p = c->p;
  const int64_t size = p->type == BF16 ? 2 : 4, dk = c->l->pool.dk, q_heads = p->attend->q_heads;
  const int64_t a = index * c->per_chunk, b = a + c->per_chunk < p->rows ? a + c->per_chunk : p->rows;
  if (c->step == NORM)
    outrider_rms_norm(c->in + a * p->width * size, p->width, c->weight, c->out + a * p->width * size, b - a,
                      p->width, p->type, p->eps, 0);
  for (int64_t r = a; r < b && c->step != NORM; r++) {
    if (c->step == TURN) {
      char *q = c->in + r * q_heads * dk * size, *k = c->k + r * c->l->pool.heads * dk * size;
      if (c->l->q_norm) outrider_rms_norm(q, dk, c->l->q_norm, q, q_heads, dk, p->type, p->eps, 0);
      if (c->l->k_norm) outrider_rms_norm(k, dk, c->l->k_norm, k, c->l->pool.heads, dk, p->type, p->eps, 0);
      const char *cos = (const char *)p->cos + r * dk * size, *sin = (const char *)p->sin + r * dk * size;
      rotate(q, q_heads, dk, cos, sin, p->type);
      rotate(k, c->l->pool.heads, dk, cos, sin, p->type);
    } else if (c->step == GATE) {
      gate_row(c->in + r * p->inner * size, c->out + r * p->inner * size, p->inner, p->type);
    } else {
      for (int64_t i = 0; i < p->width; i += 8) {
        char *h = c->out + r * p->width * size;
        store8(h, i, p->type, load8(h, i, p->type) + load8(c->in + r * p->width * size, i, p->type));
      }
    }
  }
}

static void row_wise(row_call call, int threads) {
  call.per_chunk = call.p->rows / (threads * 4);
  if (call.per_chunk < 8) call.per_chunk = 8; /* less is not worth handing out */
  run_chunks(row_chunk, &call, (call.p->rows + call.per_chunk - 1) / call.per_chunk, threads);
}

static void project(const pass *p, const char *x, int64_t k, segment *parts, int count, char *const *y, int threads) {
  for (int i = 0; i < count; i++) {
    parts[i].y = y[i];
    parts[i].ldy = parts[i].n;
  }
  outrider_linear(x, k, p->rows, k, p->type, p->type, parts, count, threads);
}

/* Layers [first, last). Rows, widths and heads are multiples of what the vectors hold, as the caller
 * has checked: width and inner of 8, dk of 16. */
void outrider_layers(layer *layers, int64_t first, int64_t last, const pass *p, int threads) {
  const int64_t size = p->type == BF16 ? 2 : 4, rows = p->rows, q_heads = p->attend->q_heads;
  for (layer *l = layers + first; l < layers + last; l++) {
    const int64_t dk = l->pool.dk, dv = l->pool.dv, heads = l->pool.heads;
    const int64_t widths[] = {p->width, q_heads * dk, heads * dk, heads * dv, q_heads * dv, p->inner, p->inner};
    char *at[7];
    int64_t total = 0;
    for (int i = 0; i < 7; i++) total += (rows * widths[i] * size + 63) / 64 * 64;
    at[0] = (char *)scratch_floats(&pass_scratch, (size_t)(total + 3) / 4);
    for (int i = 1; i < 7; i++) at[i] = at[i - 1] + (rows * widths[i - 1] * size + 63) / 64 * 64;
    char *hidden = p->hidden, *x = at[0], *q = at[1], *k = at[2], *v = at[3], *o = at[4], *gate = at[5], *up = at[6];
    row_call call = {.step = NORM, .p = p, .l = l, .weight = l->attention_norm, .in = hidden, .out = x};
    row_wise(call, threads);
    project(p, x, p->width, l->qkv, 3, (char *[]){q, k, v}, threads);
    call = (row_call){.step = TURN, .p = p, .l = l, .in = q, .k = k};
    row_wise(call, threads);
    outrider_kv_write(&l->pool, k, heads * dk, dk, v, heads * dv, dv, p->slots, p->kv_rows, p->num_slots);
    p->attend->q = q;
    p->attend->q_row = q_heads * dk;
    p->attend->q_head = dk;
    p->attend->out = o;
    outrider_attention(&l->pool, p->attend, threads);
    project(p, o, q_heads * dv, &l->o, 1, (char *[]){x}, threads);
    call = (row_call){.step = ADD, .p = p, .l = l, .in = x, .out = hidden};
    row_wise(call, threads);
    call = (row_call){.step = NORM, .p = p, .l = l, .weight = l->mlp_norm, .in = hidden, .out = x};
    row_wise(call, threads);
    project(p, x, p->width, l->gate_up, 2, (char *[]){gate, up}, threads);
    call = (row_call){.step = GATE, .p = p, .l = l, .in = gate, .out = up};
    row_wise(call, threads);
    project(p, gate, p->inner, &l->down, 1, (char *[]){x}, threads);
    call = (row_call){.step = ADD, .p = p, .l = l, .in = x, .out = hidden};
    row_wise(call, threads);
  }
}

/* Copies one block of every layer into others. */
void outrider_copy_block(const layer *layers, int64_t num_layers, int64_t source, const int32_t *targets,
                         int64_t count) {
  for (int64_t i = 0; i < num_layers; i++) {
    const slab *p = &layers[i].pool;
    const int64_t size = p->type == BF16 ? 2 : 4;
    const int64_t k_size = p->heads * p->dk * p->block_size * size, v_size = p->heads * p->dv * p->block_size * size;
    for (int64_t n = 0; n < count; n++) {
      memcpy((char *)p->k + targets[n] * k_size, (const char *)p->k + source * k_size, (size_t)k_size);
      memcpy((char *)p->v + targets[n] * v_size, (const char *)p->v + source * v_size, (size_t)v_size);
    }
  }
}

/* ---------------------------------------------------------------- largest entries */

#define GLANCE (4 * LANES) /* entries looked at together */

/* Whether any of GLANCE entries is larger than the least of those that are kept. */
INLINE int any_above(const float *x, vf least) {
  vu found = (vu)(*(const vfu *)x > least) | (vu)(*(const vfu *)(x + LANES) > least);
  found |= (vu)(*(const vfu *)(x + 2 * LANES) > least) | (vu)(*(const vfu *)(x + 3 * LANES) > least);
#if LANES == 16
  return _mm512_test_epi32_mask((__m512i)found, (__m512i)found) != 0;
#elif LANES == 8
  return _mm256_movemask_ps((__m256)found) != 0;
#else
  uint64_t halves[2];
  memcpy(halves, &found, 16);
  return (halves[0] | halves[1]) != 0;
#endif
}

/* The `count` largest entries of each row, largest first, the lowest index first among equals. NaN is taken
 * for the smallest. count <= width. */
void outrider_top(const float *x, int64_t ldx, int64_t rows, int64_t width, int64_t count, float *values,
                  int64_t *ids) {
  for (int64_t r = 0; r < rows; r++, x += ldx, values += count, ids += count) {
    int64_t kept = 0, i = 0;
    while (i < width) {
      if (kept == count) {
        vf least = (vf){0} + values[count - 1];
        while (i + GLANCE <= width && !any_above(x + i, least)) i += GLANCE;
      }
      for (int64_t end = i + GLANCE < width ? i + GLANCE : width; i < end; i++) {
        float v = x[i] == x[i] ? x[i] : -INFINITY;
        if (kept == count && !(v > values[count - 1])) continue;
        int64_t at = kept < count ? kept++ : count - 1;
        for (; at > 0 && values[at - 1] < v; at--) {
          values[at] = values[at - 1];
          ids[at] = ids[at - 1];
        }
        values[at] = v;
        ids[at] = i;
      }
    }
  }
}

const char *outrider_instructions(void) {
  if (PAIRS) return "avx512bf16";
  return LANES == 16 ? "avx512" : LANES == 8 ? "avx2" : "simd128";
}
