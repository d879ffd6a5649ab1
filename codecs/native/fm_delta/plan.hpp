// What planning makes of a frame, and what it is given beside the words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fm_delta/decode.hpp"
#include "fm_delta/encode.hpp"
#include "fm_delta/model.hpp"

namespace deltahub {

enum class Effort { fast = 1, balanced = 2, max = 3 };

// A low-rank part of the differences, found elsewhere. left: rows x rank; right: rank x columns.
struct LowRank {
  int rank = 0;
  int floor = 0;
  bool is_rounded = false;  // the product, before it is added
  std::vector<std::int16_t> left, right;
};

template <class Words>
struct Plan {
  Model model;
  ColumnSides<Words> columns;
  RowSides rows;  // of the whole frame
  std::uint64_t estimated_bytes = 0;
};

}  // namespace deltahub
