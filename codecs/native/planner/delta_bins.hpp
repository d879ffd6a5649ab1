// Magnitude bins of differences, for frames with and without a stride.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/words.hpp"
#include "coder/histograms.hpp"
#include "kernels/kernels.hpp"

namespace deltahub {

template <class Words>
class DeltaBins {
 public:
  DeltaBins(const Kernels& kernels, unsigned stride)
      : kernel_(kernels.bins[kind_of<Words>]), stride_(stride) {
    if (stride == 0) return;
    for (unsigned bin = 0; bin < n_bins(Words::word_bits); ++bin)
      quotients_.push_back(std::uint16_t(bin_of(bin_start(bin) >> stride, bin % 2)));
  }
  unsigned stride() const { return stride_; }

  // Fills `bins` with the bins of words[j] - base[j], divided by 2^stride. Bins can be looked up
  // from bins: all differences of one bin share their leading bits, and quotients have no other
  // bits.
  void find(const std::uint8_t* words, const std::uint8_t* base, std::size_t n,
            std::uint16_t* bins) const {
    kernel_(words, base, n, bins);
    if (stride_ == 0) return;
    for (std::size_t j = 0; j < n; ++j) bins[j] = quotients_[bins[j]];
  }

 private:
  Kernels::Bin kernel_;
  unsigned stride_;
  std::vector<std::uint16_t> quotients_;
};

}  // namespace deltahub
