// Which kernels this processor can run, and which are in use.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "kernels.hpp"

namespace deltahub {

// From the slowest to the fastest.
inline std::vector<const Kernels*> supported_kernels() {
  std::vector<const Kernels*> found = {&portable_kernels};
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
      __builtin_cpu_supports("bmi2"))
    found.push_back(&avx2_kernels);
#endif
  return found;
}

inline std::atomic<const Kernels*>& chosen_kernels() {
  static std::atomic<const Kernels*> chosen = supported_kernels().back();
  return chosen;
}

}  // namespace deltahub
