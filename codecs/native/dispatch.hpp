// Which kernels this processor can run, and which are in use.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "search_kernels.hpp"

namespace deltahub {

// From the slowest to the fastest.
inline std::vector<const Kernels*> supported_kernels() {
  std::vector<const Kernels*> found = {&portable_kernels};
#ifdef __x86_64__
  // Each of these says, too, that the system keeps the registers. The sets are those that
  // CMakeLists.txt names.
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                        __builtin_cpu_supports("bmi2");
  const bool has_avx512 =
      has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
      __builtin_cpu_supports("avx512vnni");
  if (has_avx2) found.push_back(&avx2_kernels);
  if (has_avx512) found.push_back(&avx512_kernels);
#endif
  return found;
}

inline std::atomic<const Kernels*>& chosen_kernels() {
  static std::atomic<const Kernels*> chosen = supported_kernels().back();
  return chosen;
}

inline const SearchKernels& chosen_search() {
#ifdef __x86_64__
  if (chosen_kernels() == &avx512_kernels) return avx512_search;
  if (chosen_kernels() == &avx2_kernels) return avx2_search;
#endif
  return portable_search;
}

}  // namespace deltahub
