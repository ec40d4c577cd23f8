// Vectors: the only file that knows instruction sets, but for the tiles of AMX.
//
// Responsible for: one float vector type F of W lanes and one int32 vector type I, their loads and
// stores, and the integer dot product behind the quantised linear layers.  Everything else is
// written once on top of it and compiled once per instruction set:
//
//   KVSERVE_AVX512   16 lanes, AVX-512 F/BW/DQ/VL with VNNI
//   KVSERVE_AMX      the same, with AVX-512 BF16 and the matrix registers of AMX
//   KVSERVE_AVX2      8 lanes, AVX2 with FMA and F16C
//   KVSERVE_AVXVNNI   the same, with the dot products of AVX-VNNI
//   KVSERVE_DOTPROD   4 lanes, NEON with the dot products of ARMv8.2
//   KVSERVE_I8MM      the same, with its products of 8-bit matrices
//   (none of them)    4 lanes, the compiler's vector extension: SSE2, NEON or anything else
//
// Rule for all users: an element's value must not depend on the lane it sits in.  All operations
// here are lane-wise, and a partial load fills the missing lanes with zeros, so a row's tail goes
// through the very same operations as its body.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(KVSERVE_AVX512) || defined(KVSERVE_AVX2)
#include <immintrin.h>
#elif defined(KVSERVE_DOTPROD)
#include <arm_neon.h>
#endif

#define KV_INLINE inline __attribute__((always_inline))
#define KV_UNROLL _Pragma("GCC unroll 32")

namespace kvserve {

#if defined(KVSERVE_AVX512)
constexpr int W = 16;
#elif defined(KVSERVE_AVX2)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float F __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef uint32_t U __attribute__((vector_size(4 * W)));

// A panel is 16 outputs wide on every instruction set, so packed weights do not depend on it.
constexpr int kPanel = 16;
constexpr int kVectors = kPanel / W;  // vectors per panel

// x - 0 is x for every x, so the compiler drops the subtraction; x + 0 would turn -0 into 0.
KV_INLINE F set1(float x) { return x - F{}; }
KV_INLINE I set1(int32_t x) { return x - I{}; }

template <class Vector>
KV_INLINE Vector load_as(const void* p) {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class Vector>
KV_INLINE void store_as(void* p, Vector v) {
  std::memcpy(p, &v, sizeof v);
}
KV_INLINE F load(const float* p) { return load_as<F>(p); }
KV_INLINE void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }

KV_INLINE F load_int8(const int8_t* p) {
#if defined(KVSERVE_AVX512)
  return (F)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(KVSERVE_AVX2)
  return (F)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
  typedef int8_t Bytes __attribute__((vector_size(W)));
  return __builtin_convertvector(load_as<Bytes>(p), F);
#endif
}

// The first `n` lanes, n < W; the others are zero.
KV_INLINE F load_partial(const float* p, int64_t n) {
#if defined(KVSERVE_AVX512)
  return (F)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
#else
  float lanes[W] = {};
  std::memcpy(lanes, p, sizeof(float) * n);
  return load(lanes);
#endif
}
KV_INLINE void store_partial(float* p, F v, int64_t n) {
#if defined(KVSERVE_AVX512)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), (__m512)v);
#else
  std::memcpy(p, &v, sizeof(float) * n);
#endif
}
// min(n, W) lanes.
KV_INLINE F load_upto(const float* p, int64_t n) { return n >= W ? load(p) : load_partial(p, n); }
KV_INLINE void store_upto(float* p, F v, int64_t n) {
  if (n >= W) store(p, v);
  else store_partial(p, v, n);
}

// a * b + c, rounded once where the processor can.  The compiler may not fuse on its own
// (-ffp-contract=off): what is fused is decided here, once, for every tile shape.
KV_INLINE F fma(F a, F b, F c) {
#if defined(KVSERVE_AVX512)
  return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(KVSERVE_AVX2)
  return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(KVSERVE_DOTPROD)
  return (F)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

KV_INLINE F max(F a, F b) {
#if defined(KVSERVE_AVX512)
  return (F)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(KVSERVE_AVX2)
  return (F)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}
KV_INLINE F min(F a, F b) {
#if defined(KVSERVE_AVX512)
  return (F)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(KVSERVE_AVX2)
  return (F)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}
// 1 / a for 0 < a < 2^126, within two units in the last place.
KV_INLINE F reciprocal(F a) {
#if defined(KVSERVE_AVX512)
  const F guess = (F)_mm512_rcp14_ps((__m512)a);  // half the digits; one step of Newton's doubles
  return guess * fma(-a, guess, set1(2.0f));
#else
  return set1(1.0f) / a;
#endif
}
KV_INLINE F abs(F a) { return (F)((I)a & set1(int32_t(0x7fffffff))); }

KV_INLINE F to_float(I v) { return __builtin_convertvector(v, F); }
// Truncates; used on values that are already whole.
KV_INLINE I to_int(F v) { return __builtin_convertvector(v, I); }
// To the nearest whole number, ties to even, for |v| < 2^22.
KV_INLINE F round_even(F v) {
  const F magic = set1(12582912.0f);  // 1.5 * 2^23: no fraction bits left
  return (v + magic) - magic;
}

// Sum and maximum over the lanes, by a fixed tree.
KV_INLINE float reduce_add(F v) {
#if defined(KVSERVE_AVX512)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float a[W];
  store(a, v);
  for (int step = W / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) a[i] = a[i] + a[i + step];
  return a[0];
#endif
}
KV_INLINE float reduce_max(F v) {
#if defined(KVSERVE_AVX512)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float a[W];
  store(a, v);
  for (int step = W / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) a[i] = a[i] > a[i + step] ? a[i] : a[i + step];
  return a[0];
#endif
}
KV_INLINE int32_t reduce_max(I v);

// Lane i of the result is vector i's lanes put together by `both`, all vectors in one tree.  The
// tree is the same for each of them.
template <class Vector, class Both>
KV_INLINE Vector reduce_each(const Vector (&vectors)[W], Both both) {
  Vector result;
#if defined(KVSERVE_AVX512)
  const auto at = [&](int i) { return (__m512i)vectors[i / 4 + i % 4 * 4]; };
  const auto join = [&](__m512i a, __m512i b) { return (__m512i)both((Vector)a, (Vector)b); };
  __m512i quarters[4];  // four vectors each, of four lanes
  KV_UNROLL
  for (int i = 0; i < 4; ++i) {
    __m512i halves[2];
    KV_UNROLL
    for (int j = 0; j < 2; ++j) {
      const __m512i a = at(4 * i + 2 * j), b = at(4 * i + 2 * j + 1);
      halves[j] = join(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
    }
    quarters[i] = join(_mm512_shuffle_i32x4(halves[0], halves[1], 0x88),
                       _mm512_shuffle_i32x4(halves[0], halves[1], 0xdd));
  }
  __m512i pairs[2];
  KV_UNROLL
  for (int i = 0; i < 2; ++i)
    pairs[i] = join(_mm512_unpacklo_epi32(quarters[2 * i], quarters[2 * i + 1]),
                    _mm512_unpackhi_epi32(quarters[2 * i], quarters[2 * i + 1]));
  result = (Vector)join(_mm512_unpacklo_epi64(pairs[0], pairs[1]),
                        _mm512_unpackhi_epi64(pairs[0], pairs[1]));
#elif defined(KVSERVE_AVX2)
  const auto at = [&](int i) { return (__m256i)vectors[i]; };
  const auto join = [&](__m256i a, __m256i b) { return (__m256i)both((Vector)a, (Vector)b); };
  __m256i halves[4];  // two vectors each, of four lanes
  KV_UNROLL
  for (int i = 0; i < 4; ++i)
    halves[i] = join(_mm256_permute2x128_si256(at(i), at(i + 4), 0x20),
                     _mm256_permute2x128_si256(at(i), at(i + 4), 0x31));
  __m256i pairs[2];
  KV_UNROLL
  for (int i = 0; i < 2; ++i)
    pairs[i] = join(_mm256_unpacklo_epi32(halves[2 * i], halves[2 * i + 1]),
                    _mm256_unpackhi_epi32(halves[2 * i], halves[2 * i + 1]));
  result = (Vector)join(_mm256_unpacklo_epi64(pairs[0], pairs[1]),
                        _mm256_unpackhi_epi64(pairs[0], pairs[1]));
#elif defined(KVSERVE_DOTPROD)
  const auto at = [&](int i) { return (int32x4_t)vectors[i]; };
  const auto join = [&](int32x4_t a, int32x4_t b) { return (int32x4_t)both((Vector)a, (Vector)b); };
  // Lanes 0 and 2 beside 1 and 3, of two vectors each.
  const auto halves = [&](int32x4_t a, int32x4_t b) {
    return join(vreinterpretq_s32_s64(
                    vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b))),
                vreinterpretq_s32_s64(
                    vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b))));
  };
  const int32x4_t low = halves(at(0), at(1)), high = halves(at(2), at(3));
  result = (Vector)join(vuzp1q_s32(low, high), vuzp2q_s32(low, high));
#else
  for (int i = 0; i < W; ++i) {
    Vector v = vectors[i];
    for (int step = W / 2; step > 0; step /= 2) {
      Vector upper{};
      for (int lane = 0; lane < step; ++lane) upper[lane] = v[lane + step];
      v = both(v, upper);
    }
    result[i] = v[0];
  }
#endif
  return result;
}
// Whether any lane is NaN.
KV_INLINE bool any_nan(F v) {
#if defined(KVSERVE_AVX512)
  return _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q) != 0;
#elif defined(KVSERVE_AVX2)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)v, (__m256)v, _CMP_UNORD_Q)) != 0;
#elif defined(KVSERVE_DOTPROD)
  return vminvq_u32(vceqq_f32((float32x4_t)v, (float32x4_t)v)) == 0;
#else
  return reduce_max((I)abs(v)) > 0x7f800000;
#endif
}
// Exact, so the order is free.
KV_INLINE int32_t reduce_add(I v) {
#if defined(KVSERVE_AVX512)
  return _mm512_reduce_add_epi32((__m512i)v);
#else
  int32_t sum = 0;
  for (int i = 0; i < W; ++i) sum += v[i];
  return sum;
#endif
}
KV_INLINE int32_t reduce_max(I v) {
#if defined(KVSERVE_AVX512)
  return _mm512_reduce_max_epi32((__m512i)v);
#else
  int32_t largest = v[0];
  for (int i = 1; i < W; ++i) largest = v[i] > largest ? v[i] : largest;
  return largest;
#endif
}
// Every lane, in -128..127, as a byte.
KV_INLINE void store_bytes(int8_t* p, I v) {
#if defined(KVSERVE_AVX512)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8((__m512i)v));
#elif defined(KVSERVE_AVX2)
  const __m128i low = _mm256_castsi256_si128((__m256i)v);
  const __m128i words = _mm_packs_epi32(low, _mm256_extracti128_si256((__m256i)v, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
#elif defined(KVSERVE_DOTPROD)
  const int16x4_t words = vmovn_s32((int32x4_t)v);
  const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
  std::memcpy(p, &bytes, W);
#else
  for (int i = 0; i < W; ++i) p[i] = static_cast<int8_t>(v[i]);
#endif
}

// Writes the lanes where `where` is true one behind the other and returns how many; what follows
// them, up to W entries from p, is overwritten too.
template <class Vector, class Element>
KV_INLINE int64_t store_where(Element* p, Vector v, I where) {
#if defined(KVSERVE_AVX512)
  const __mmask16 mask = _mm512_movepi32_mask((__m512i)where);
  const __m512i packed = _mm512_maskz_compress_epi32(mask, (__m512i)v);
  std::memcpy(p, &packed, sizeof packed);
  return __builtin_popcount(mask);
#else
  int64_t count = 0;
  for (int i = 0; i < W; ++i) {
    p[count] = v[i];
    count += where[i] & 1;
  }
  return count;
#endif
}

// ---- bfloat16 and float16 -----------------------------------------------------------------

KV_INLINE float bf16_to_float(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
// To nearest, ties to even; a NaN stays a NaN.
KV_INLINE uint16_t float_to_bf16(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

KV_INLINE F load_bf16(const uint16_t* p) {
#if defined(KVSERVE_AVX512)
  return (F)_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16);
#elif defined(KVSERVE_AVX2)
  return (F)_mm256_slli_epi32(
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16);
#else
  U u;
  for (int i = 0; i < W; ++i) u[i] = static_cast<uint32_t>(p[i]) << 16;
  return (F)u;
#endif
}

// All lanes as bfloat16, to nearest, ties to even.
KV_INLINE void store_bf16(uint16_t* p, F v) {
#if defined(KVSERVE_AMX)
  store_as(p, (__m256i)_mm512_cvtneps_pbh((__m512)v));
#else
  for (int i = 0; i < W; ++i) p[i] = float_to_bf16(v[i]);
#endif
}

KV_INLINE float half_to_float(uint16_t h) {
#if defined(KVSERVE_AVX512) || defined(KVSERVE_AVX2)
  return _cvtsh_ss(h);
#else
  // Shifted into place, the exponent is 112 too small; one exact multiplication mends it, and
  // takes subnormals along.  Infinity and NaN keep their full exponent.
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fff) << 13;
  float f;
  std::memcpy(&f, &magnitude, 4);
  f *= 5.192296858534828e+33f;  // 2^112
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((h & 0x7c00) == 0x7c00) bits = magnitude | 0x7f800000u;
  bits |= static_cast<uint32_t>(h & 0x8000) << 16;
  std::memcpy(&f, &bits, 4);
  return f;
#endif
}
KV_INLINE F load_half(const uint16_t* p) {
#if defined(KVSERVE_AVX512)
  return (F)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(KVSERVE_AVX2)
  return (F)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(KVSERVE_DOTPROD)
  return (F)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
  U h;
  for (int i = 0; i < W; ++i) h[i] = p[i];
  return (F)((U)((F)((h & 0x7fffu) << 13) * set1(5.192296858534828e+33f)) |
             ((h & 0x8000u) << 16));  // scales are finite: no case for infinity
#endif
}

// ---- integer dot product ------------------------------------------------------------------
//
// Every int32 lane holds four unsigned weight bytes of one output; x4 holds the four signed
// activations of the same inputs, the same in every lane.  Exact, whatever the instruction.

// Sums of products of 4-bit weights, on their way to whole().
#if defined(KVSERVE_AVX2) && !defined(KVSERVE_AVXVNNI)
// Two 16-bit numbers a lane: a group of 32 inputs adds 16 products to each, at most 16 * 15 * 127.
typedef int16_t Sums4 __attribute__((vector_size(4 * W)));
KV_INLINE I whole(Sums4 sums) {
  return (I)_mm256_madd_epi16((__m256i)sums, _mm256_set1_epi16(1));
}
#else
typedef I Sums4;
#endif
KV_INLINE I whole(I sums) { return sums; }

// Unsigned 4-bit weights (0..15).
KV_INLINE Sums4 dot4_u4(Sums4 sum, I w, I x4) {
#if defined(KVSERVE_AVX512)
  return (I)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x4);
#elif defined(KVSERVE_AVXVNNI)
  return (I)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)x4);
#elif defined(KVSERVE_AVX2)
  sum = sum + (Sums4)_mm256_maddubs_epi16((__m256i)w, (__m256i)x4);
  asm("" : "+x"(sum));  // else the compiler adds in a tree and has no registers for its leaves
  return sum;
#elif defined(KVSERVE_DOTPROD)
  return (I)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)x4);
#else
  typedef int16_t S __attribute__((vector_size(4 * W)));
  const S we = (S)w & 0xff, wo = (S)((U)w >> 8 & 0x00ff00ffu);
  const S xe = (S)((S)x4 << 8) >> 8, xo = (S)x4 >> 8;
  const I pairs = (I)(S)(we * xe + wo * xo);
  return sum + ((I)(pairs << 16) >> 16) + (pairs >> 16);
#endif
}

// 8-bit weights stored as w + 128.  The sum is too large by kExcess8 * sum(x): VNNI multiplies
// unsigned by signed, the others go back to signed weights first.
#if defined(KVSERVE_AVX512) || defined(KVSERVE_AVXVNNI)
constexpr int32_t kExcess8 = 128;
#else
constexpr int32_t kExcess8 = 0;
#endif

KV_INLINE I dot4_u8(I sum, I w, I x4) {
#if defined(KVSERVE_AVX512)
  return (I)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x4);
#elif defined(KVSERVE_AVXVNNI)
  return (I)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)x4);
#elif defined(KVSERVE_AVX2)
  // maddubs saturates at 16 bits: |w| <= 128 and |x| <= 127 keep a pair at 32512.
  const __m256i ws = _mm256_xor_si256((__m256i)w, _mm256_set1_epi8(-128));
  const __m256i xs = _mm256_sign_epi8((__m256i)x4, ws);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(ws), xs);
  sum = sum + (I)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  asm("" : "+x"(sum));
  return sum;
#elif defined(KVSERVE_DOTPROD)
  const int8x16_t ws = (int8x16_t)(w ^ set1(int32_t(0x80808080u)));
  return (I)vdotq_s32((int32x4_t)sum, ws, (int8x16_t)x4);
#else
  typedef int16_t S __attribute__((vector_size(4 * W)));
  const S ws = (S)(w ^ set1(int32_t(0x80808080u)));
  const S we = (S)(ws << 8) >> 8, wo = ws >> 8;
  const S xe = (S)((S)x4 << 8) >> 8, xo = (S)x4 >> 8;
  const I pairs = (I)(S)(we * xe + wo * xo);
  return sum + ((I)(pairs << 16) >> 16) + (pairs >> 16);
#endif
}

#if defined(KVSERVE_I8MM)
// Sums of signed bytes for two rows: lanes (output, row), of two outputs each.
struct PairSums {
  int32x4_t low, high;

  I first() const { return (I)vuzp1q_s32(low, high); }
  I second() const { return (I)vuzp2q_s32(low, high); }
};

// Eight inputs: four of every output in w_even and the next four in w_odd, those of the rows in
// one half of x each.
KV_INLINE void add_pair(PairSums& sums, I w_even, I w_odd, int8x16_t x) {
  const int32x4_t even = (int32x4_t)w_even, odd = (int32x4_t)w_odd;
  sums.low = vmmlaq_s32(sums.low, vreinterpretq_s8_s32(vzip1q_s32(even, odd)), x);
  sums.high = vmmlaq_s32(sums.high, vreinterpretq_s8_s32(vzip2q_s32(even, odd)), x);
}
#endif

// Both products of the pairs of int16 in every lane, added up.
KV_INLINE I dot2_s16(I a, I b) {
#if defined(KVSERVE_AVX512)
  return (I)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(KVSERVE_AVX2)
  return (I)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

}  // namespace kvserve
