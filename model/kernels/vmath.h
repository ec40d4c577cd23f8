// exp, tanh, erf and the activations made of them, for vectors.
//
// Responsible for: results that are the same bits for the same input in every lane, tail or body,
// which a library's scalar and vector versions do not promise.  Within 2 ulp of the true value
// (erf: within 2^-23 absolute and 4 ulp; exp2_of_negative says its own); tests hold them against
// float64.
#pragma once

#include "simd.h"

namespace kvserve {

constexpr float kMinusInfinity = -__builtin_inff();

// e^x.  Below -87.3 the result is 0 (also for -inf); above 88.3 it stays near the largest float.
KV_INLINE F exp(F x) {
  const F clamped = min(max(x, set1(-87.5f)), set1(88.3f));
  const F n = round_even(clamped * set1(1.44269504088896f));
  F r = fma(n, set1(-0.693359375f), clamped);          // ln 2 in two parts, the first one exact
  r = fma(n, set1(2.12194440e-4f), r);
  F p = set1(0.0001989110342f);                        // minimax of (e^r - 1 - r) / r^2
  p = fma(p, r, set1(0.001393375139f));
  p = fma(p, r, set1(0.008333310824f));
  p = fma(p, r, set1(0.04166646401f));
  p = fma(p, r, set1(0.1666666668f));
  p = fma(p, r, set1(0.5000000014f));
  p = fma(p, r * r, r) + set1(1.0f);
  const F scaled = (F)((I)p + (to_int(n) << 23));      // times 2^n
  const F flushed = x < set1(-87.3f) ? F{} : scaled;
  return x != x ? x : flushed;
}

// 2^x for x <= 0, where exp's range and last digit are not needed: within 2e-7 of the true value,
// exactly 1 for 0, 0 below -126 (also for -inf), NaN for NaN.
KV_INLINE F exp2_of_negative(F x) {
  const F magic = set1(12582912.0f);                   // as in round_even: its last bits hold n
  const F shifted = x + magic;
  const F r = x - (shifted - magic);
  F p = set1(0.001326472731f);                         // minimax of 2^r
  p = fma(p, r, set1(0.009671512991f));
  p = fma(p, r, set1(0.05550733581f));
  p = fma(p, r, set1(0.2402224243f));
  p = fma(p, r, set1(0.6931470037f));
  p = fma(p, r, set1(1.0f));
  return x < set1(-126.0f) ? F{} : (F)((I)p + ((I)shifted << 23));
}

// x / (1 + e^-y): x times the logistic function of y; where e^-y would overflow, as good as 0.
KV_INLINE F times_sigmoid(F x, F y) {
  return x * reciprocal(set1(1.0f) + exp(min(-y, set1(87.0f))));
}

// The hyperbolic tangent, within 2^-23 absolute.
KV_INLINE F tanh(F x) {
  const F t = exp(abs(x) * set1(-2.0f));
  const F magnitude = (set1(1.0f) - t) / (set1(1.0f) + t);
  return (F)((I)magnitude | ((I)x & set1(int32_t(0x80000000u))));
}

KV_INLINE F silu(F x) { return times_sigmoid(x, x); }

// 0.5 x (1 + tanh u) is x * sigmoid(2 u), which has no cancellation for negative u.
KV_INLINE F gelu_tanh(F x) {
  const F cubic = fma(x * x * x, set1(0.044715f), x);
  return times_sigmoid(x, cubic * set1(2 * 0.7978845608028654f));
}

// A gated activation: g sigmoid(1.702 g) (u + 1) of a gate g up to 7 and u within +-7.
KV_INLINE F clamped_swiglu(F gate, F up) {
  // Written so that what is not a number stays so: min and max may drop it.
  const F limit = set1(7.0f);
  const F g = gate > limit ? limit : gate;
  const F bounded = up > limit ? limit : up;
  const F u = bounded < -limit ? -limit : bounded;
  return times_sigmoid(g, g * set1(1.702f)) * (u + set1(1.0f));
}

KV_INLINE F erf(F x) {
  const F a = abs(x);
  const F s = x * x;
  // |x| < 1: x * P(x^2).
  F p = set1(-9.667044571e-6f);
  p = fma(p, s, set1(0.0001126595903f));
  p = fma(p, s, set1(-0.0008484080406f));
  p = fma(p, s, set1(0.005221031808f));
  p = fma(p, s, set1(-0.02686543073f));
  p = fma(p, s, set1(0.112837825f));
  p = fma(p, s, set1(-0.3761263847f));
  p = fma(p, s, set1(1.128379167f));
  const F small = x * p;
  // |x| >= 1: 1 - e^(-x^2) Q(t), t = 1 / (1 + a / 2).
  const F t = set1(1.0f) / fma(a, set1(0.5f), set1(1.0f));
  F q = set1(0.0835876161f);
  q = fma(q, t, set1(-0.354875481f));
  q = fma(q, t, set1(0.4035756487f));
  q = fma(q, t, set1(0.01627328755f));
  q = fma(q, t, set1(0.2946617229f));
  q = fma(q, t, set1(0.2735972438f));
  q = fma(q, t, set1(0.2829209808f));
  q = fma(q, t, set1(-3.375026044e-5f));
  const F tail = set1(1.0f) - exp(-s) * q;
  const F signed_tail = (F)((I)tail | ((I)x & set1(int32_t(0x80000000u))));
  return a < set1(1.0f) ? small : signed_tail;
}

KV_INLINE F gelu_erf(F x) {
  return x * set1(0.5f) * (set1(1.0f) + erf(x * set1(0.7071067811865476f)));
}

}  // namespace kvserve
