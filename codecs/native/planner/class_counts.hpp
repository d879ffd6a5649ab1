// What the differences of a frame look like in each class.
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
  std::size_t together = 1;  // classes that are counted as one: a power of two
  bool by_row = false, by_column = false;
  int offset = 0;
  RowSides rows;
  std::vector<std::int16_t> columns;
  Histogram histograms;  // n_classes() of them, one behind the other
  std::uint64_t counted = 0;

  std::size_t n_classes() const { return max_classes / together; }
  std::span<std::uint32_t> histogram(std::size_t z) {
    const std::size_t size = histograms.size() / n_classes();
    return std::span(histograms).subspan(z * size, size);
  }

  // Classes of few words are counted with a neighbour, whose context they take. The result: the
  // class whose context each one takes.
  std::vector<std::size_t> absorb_thin() {
    constexpr std::uint64_t least = 64;
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
      while (total < least && last + 1 < n) {
        const std::uint64_t more = total_of(histogram(++last));
        if (more > 0) move_counts(last, z);
        total += more;
      }
      std::size_t into = z;
      if (total < least && z > 0) {
        into = owner[z - 1];
        if (total > 0) move_counts(z, into);
      }
      for (; z <= last; ++z) owner[z] = into;
    }
    return owner;
  }
};

}  // namespace deltahub
