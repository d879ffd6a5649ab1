// Selects kernels: which sets this processor supports, and which set is in use.
#pragma once

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string>
#include <utility>
#include <vector>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "kernels/kernels.hpp"
#include "kernels/low_rank/kernels.hpp"
#include "kernels/masks/kernels.hpp"
#include "kernels/planes/kernels.hpp"

namespace deltahub {

#ifdef __x86_64__
// Whether gathers are fast on an Intel processor with AVX-512, by the family and model of CPUID
// (leaf 1, eax). The models named here are vulnerable to Gather Data Sampling, and the microcode
// that prevents it makes gathers slow; later models need no such microcode.
constexpr bool are_gathers_fast(unsigned signature) {
  constexpr unsigned ice_lake[] = {0x6a, 0x6c, 0x7d, 0x7e},
                     ice_lake_of_qemu[] = {0x86},  // "Icelake-Server" up to version 3
                     tiger_lake[] = {0x8c, 0x8d}, rocket_lake[] = {0xa7};
  const unsigned family = signature >> 8 & 15;
  const unsigned model = (signature >> 4 & 15) | (signature >> 12 & 0xf0);
  const auto is_among = [model](const auto& models) {
    return std::ranges::find(models, model) != std::end(models);
  };
  return family != 6 || !(is_among(ice_lake) || is_among(ice_lake_of_qemu) ||
                          is_among(tiger_lake) || is_among(rocket_lake));
}
static_assert(are_gathers_fast(0x806f8), "Sapphire Rapids");
static_assert(are_gathers_fast(0xc06f2), "Emerald Rapids");
static_assert(!are_gathers_fast(0x606a6), "Ice Lake, of servers");
static_assert(!are_gathers_fast(0x80660), "Ice Lake, as QEMU has it");
static_assert(!are_gathers_fast(0x806c1), "Tiger Lake");

// The processor must have AVX-512. Processors of AMD load elements faster one by one.
inline bool has_fast_gathers() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __builtin_cpu_is("intel") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
         are_gathers_fast(eax);
}
#endif

// In order of speed, the slowest first.
inline std::vector<const Kernels*> supported_kernels() {
  std::vector<const Kernels*> found = {&portable_kernels};
#ifdef __x86_64__
  // Each test also says that the operating system saves the registers. The instruction sets are
  // those of CMakeLists.txt.
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                        __builtin_cpu_supports("bmi2");
  const bool has_avx512 =
      has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
      __builtin_cpu_supports("avx512vnni");
  if (has_avx2) found.push_back(&avx2_kernels);
  if (has_avx512) {
    found.push_back(&avx512_gathers_kernels);
    found.push_back(&avx512_kernels);
    if (has_fast_gathers()) std::swap(found.end()[-1], found.end()[-2]);
  }
#endif
  return found;
}

inline std::atomic<const Kernels*>& chosen_kernels() {
  static std::atomic<const Kernels*> chosen = supported_kernels().back();
  return chosen;
}

inline const SearchKernels& chosen_search() {
#ifdef __x86_64__
  const Kernels* const chosen = chosen_kernels();
  if (chosen == &avx512_kernels || chosen == &avx512_gathers_kernels) return avx512_search;
  if (chosen == &avx2_kernels) return avx2_search;
#endif
  return portable_search;
}

inline const MaskKernels& chosen_masks() {
#ifdef __x86_64__
  const Kernels* const chosen = chosen_kernels();
  if (chosen == &avx512_kernels || chosen == &avx512_gathers_kernels) return avx512_masks;
  if (chosen == &avx2_kernels) return avx2_masks;
#endif
  return portable_masks;
}

inline const PlaneKernels& chosen_planes() {
#ifdef __x86_64__
  const Kernels* const chosen = chosen_kernels();
  if (chosen == &avx512_kernels || chosen == &avx512_gathers_kernels) return avx512_planes;
  if (chosen == &avx2_kernels) return avx2_planes;
#endif
  return portable_planes;
}

}  // namespace deltahub
