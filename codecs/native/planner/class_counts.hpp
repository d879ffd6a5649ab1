// Histograms of the differences of a frame, one for each class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "coder/histograms.hpp"
#include "fm_delta/decode.hpp"
#include "fm_delta/model.hpp"

namespace deltahub {

struct ClassCounts {
  std::size_t classes_per_histogram = 1;  // adjacent classes that share a histogram: a power of two
  bool by_row = false, by_column = false;
  int offset = 0;
  RowSideInfo rows;
  std::vector<std::int16_t> columns;
  Histogram histograms;         // n_classes() histograms of equal size, concatenated
  std::uint64_t n_counted = 0;  // words in all histograms

  std::size_t n_classes() const { return max_classes / classes_per_histogram; }
  std::span<std::uint32_t> histogram(std::size_t z) {
    const std::size_t size = histograms.size() / n_classes();
    return std::span(histograms).subspan(z * size, size);
  }

  // Adds the counts of classes with fewer than 64 words to those of a neighbour, whose context they
  // then share. Returns for each class the index of the class whose context it uses.
  std::vector<std::size_t> merge_rare_classes() {
    constexpr std::uint64_t min_words = 64;
    const std::size_t n = n_classes();
    std::vector<std::size_t> owner(n);
    const auto move_counts = [&](std::size_t from, std::size_t to) {
      std::uint32_t* into = histogram(to).data();
      for (std::uint32_t& count : histogram(from)) *into++ += std::exchange(count, 0);
    };
    std::size_t z = 0;
    while (z < n) {
      std::size_t last = z;
      std::uint64_t total = total_of(histogram(z));
      while (total < min_words && last + 1 < n) {
        const std::uint64_t more = total_of(histogram(++last));
        if (more > 0) move_counts(last, z);
        total += more;
      }
      std::size_t into = z;
      if (total < min_words && z > 0) {
        into = owner[z - 1];
        if (total > 0) move_counts(z, into);
      }
      for (; z <= last; ++z) owner[z] = into;
    }
    return owner;
  }
};

}  // namespace deltahub
