// Input and result of planning a frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fm_delta/decode.hpp"
#include "fm_delta/encode.hpp"
#include "fm_delta/model.hpp"

namespace deltahub {

enum class Effort { fast = 1, balanced = 2, max = 3 };

// A low-rank part of the differences, which the planner is given. left: rows x rank; right: rank x
// columns. floor: as in Model.
struct LowRank {
  int rank = 0;
  int floor = 0;
  bool is_rounded = false;  // round the product before it is added
  std::vector<std::int16_t> left, right;
};

template <class Words>
struct Plan {
  Model model;
  ColumnSideInfo<Words> columns;
  RowSideInfo rows;                   // of the whole frame
  std::uint64_t estimated_bytes = 0;  // of coded blocks and tables
};

}  // namespace deltahub
