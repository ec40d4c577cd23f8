// What this library is, what this processor can run, and the life of a thread pool.
//
// The same sources are compiled once per instruction set into libraries of their own; the caller
// asks any of them which ones run here and then uses one only.  So nothing compiled for a newer
// processor can end up in a function an older one calls.
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <string>

#include "pool_handle.h"

#if defined(__x86_64__)
namespace {
// Not every compiler's __builtin_cpu_supports knows float16 conversions.
bool supports_f16c() {
  unsigned int a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

// AVX-VNNI, the form of VNNI that does not need AVX-512; not every compiler knows its name.
bool supports_avxvnni() {
  constexpr unsigned int kAvxVnni = 1u << 4;
  unsigned int a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kAvxVnni) != 0;
}

// Whether AMX and AVX-512 can multiply bfloat16.  Linux gives a process the matrix registers only
// when it asks for them.
bool may_use_amx() {
#if defined(__linux__)
  constexpr unsigned int kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAvx512Bf16 = 1u << 5;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  unsigned int a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kAmxBf16) || !(d & kAmxTile)) return false;
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & kAvx512Bf16)) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

std::string find_instruction_sets() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !supports_f16c())
    return "portable";
  std::string sets = supports_avxvnni() ? "avxvnni,avx2,portable" : "avx2,portable";
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni"))
    sets = (may_use_amx() ? "amx,avx512," : "avx512,") + sets;
  return sets;
}
}  // namespace
#elif defined(__aarch64__)
namespace {
std::string find_instruction_sets() {
#if defined(__linux__)
  constexpr unsigned long kDotProducts = 1ul << 20, kMatrices = 1ul << 13;
  const bool dotprod = (getauxval(AT_HWCAP) & kDotProducts) != 0;
  const bool i8mm = dotprod && (getauxval(AT_HWCAP2) & kMatrices) != 0;
#elif defined(__APPLE__)
  const auto has = [](const char* feature) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
  };
  const bool dotprod = has("hw.optional.arm.FEAT_DotProd");
  const bool i8mm = dotprod && has("hw.optional.arm.FEAT_I8MM");
#else
  const bool dotprod = false, i8mm = false;
#endif
  return i8mm ? "i8mm,dotprod,portable" : dotprod ? "dotprod,portable" : "portable";
}
}  // namespace
#else
namespace {
std::string find_instruction_sets() { return "portable"; }
}  // namespace
#endif

int32_t kv_abi_version(void) { return KV_ABI_VERSION; }

const char* kv_instruction_set(void) {
#if defined(KVSERVE_AMX)
  return "amx";
#elif defined(KVSERVE_AVX512)
  return "avx512";
#elif defined(KVSERVE_AVXVNNI)
  return "avxvnni";
#elif defined(KVSERVE_AVX2)
  return "avx2";
#elif defined(KVSERVE_I8MM)
  return "i8mm";
#elif defined(KVSERVE_DOTPROD)
  return "dotprod";
#else
  return "portable";
#endif
}

const char* kv_instruction_sets(void) {
  static const std::string sets = find_instruction_sets();
  return sets.c_str();
}

kv_pool* kv_pool_create(int32_t threads) { return new kv_pool(threads < 1 ? 1 : threads); }

void kv_pool_destroy(kv_pool* pool) { delete pool; }
