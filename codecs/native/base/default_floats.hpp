// The processor's default mode of float arithmetic, for as long as doubles must round as IEEE 754
// says.
#pragma once

#include <cfenv>

namespace deltahub {

// Rounding to nearest, and subnormal numbers as they are, whatever else the process has set. Of
// this thread alone: each thread that computes with doubles needs one.
class DefaultFloats {
 public:
  DefaultFloats() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloats() { std::fesetenv(&before_); }
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace deltahub
