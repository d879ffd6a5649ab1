// Row and column scales: the mean size of the differences of a row and of a column, as four times
// its binary logarithm.
//
// Fine-tuning changes weights by steps of similar size, whatever their exponents, while the unit in
// the last place doubles with every exponent. The mean of the differences times their units
// therefore predicts how many units other differences of the same row or column have.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace deltahub {

// 4 * log2(x), rounded, for x > 0. It compares with constants, so that all machines round alike.
inline int quarter_log2(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const int exponent = int(bits >> 52) - 1023;
  const std::uint64_t fraction = bits & ((std::uint64_t(1) << 52) - 1);
  // The fractions of 2^(1/8), 2^(3/8), 2^(5/8), 2^(7/8).
  constexpr std::uint64_t bounds[] = {0x172b83c7d517b, 0x4bfdad5362a27, 0x8ace5422aa0db,
                                      0xd5818dcfba487};
  int quarter = 0;
  for (const std::uint64_t bound : bounds) quarter += fraction >= bound;
  return 4 * exponent + quarter;
}

// Adds up the sizes |difference| * 2^exponent of ranges of rows, and computes scales of them.
class ScaleSums {
 public:
  ScaleSums(std::size_t rows, std::size_t columns)
      : rows_(rows, 0.0), column_sums_(columns), coverage_changes_(columns + 1) {}

  // Returns memory for the n sizes of a range of the current row; the caller fills it and passes
  // the sum of the sizes to `add_sum`.
  float* add_range(std::size_t column, std::size_t n) {
    ranges_.push_back({column, sizes_.size(), n});
    sizes_.resize(sizes_.size() + n);
    return sizes_.data() + ranges_.back().first;
  }
  void add_sum(double sum) { sum_ += sum; }
  // has_columns: whether the row counts for the column scales, too.
  void finish_row(std::size_t row, bool has_columns) {
    if (sum_ > 0) {
      const float limit = size_limit();
      rows_[row] = clipped_sum(limit) / double(sizes_.size());
      const float inverse = float(1 / rows_[row]);
      for (const auto& [column, first, n] : ranges_) {
        if (!has_columns) break;
        add_clipped(&sizes_[first], limit, inverse, n, &column_sums_[column]);
        coverage_changes_[column] += 1, coverage_changes_[column + n] -= 1;
      }
    }
    sizes_.clear();
    ranges_.clear();
    sum_ = 0;
  }

  // Scales as deviations from their mean. A row or column without differences gets a scale 12
  // octaves below the smallest one.
  struct Scales {
    int mean = 0;
    std::vector<std::int16_t> deviations;
  };
  Scales rows() const { return scales_of(rows_); }
  Scales columns() const {
    std::vector<double> means;
    std::int64_t count = 0;
    for (std::size_t j = 0; j < column_sums_.size(); ++j) {
      count += coverage_changes_[j];
      means.push_back(count > 0 ? double(column_sums_[j] / float(count)) : 0);
    }
    return scales_of(means);
  }

 private:
  static Scales scales_of(const std::vector<double>& means) {
    Scales scales;
    std::int64_t total = 0, counted = 0;
    int lowest = 0;
    std::vector<int> logs(means.size(), no_difference);
    for (std::size_t i = 0; i < means.size(); ++i) {
      if (means[i] <= 0) continue;
      logs[i] = quarter_log2(means[i]);
      total += logs[i];
      lowest = counted++ == 0 ? logs[i] : std::min(lowest, logs[i]);
    }
    if (counted > 0) scales.mean = int(total / counted);
    scales.deviations.reserve(means.size());
    for (const int log : logs) {
      const int deviation = log == no_difference ? lowest - scales.mean - 48 : log - scales.mean;
      scales.deviations.push_back(std::int16_t(std::clamp(deviation, -2048, 2047)));
    }
    return scales;
  }

  // A few words are far smaller than the step that training added to them, so that their
  // differences cross many exponents. They would dominate the mean of a row. Sizes are therefore
  // clipped at this many times the mean size of the words that changed.
  static constexpr double limit_in_means = 3;
  float size_limit() const {
    std::uint32_t counts[n_partial_sums] = {};
    for_each_size([&](std::size_t k, float size) { counts[k] += size > 0; });
    return float(limit_in_means * sum_ /
                 double(std::accumulate(counts, counts + n_partial_sums, 0u)));
  }
  double clipped_sum(float limit) const {
    float sums[n_partial_sums] = {};
    for_each_size([&](std::size_t k, float size) { sums[k] += std::min(size, limit); });
    return std::accumulate(sums, sums + n_partial_sums, 0.0);
  }
  // Several partial sums let compilers use vectors, with the same order of additions on all
  // machines.
  static constexpr std::size_t n_partial_sums = 8;
  template <class Visit>
  [[gnu::always_inline]] void for_each_size(Visit&& visit) const {
    const std::size_t whole = sizes_.size() / n_partial_sums * n_partial_sums;
    for (std::size_t i = 0; i < whole; i += n_partial_sums)
      for (std::size_t k = 0; k < n_partial_sums; ++k) visit(k, sizes_[i + k]);
    for (std::size_t i = whole; i < sizes_.size(); ++i) visit(i - whole, sizes_[i]);
  }
  [[gnu::noinline]] static void add_clipped(const float* sizes, float limit, float factor,
                                            std::size_t n, float* sums) {
    for (std::size_t j = 0; j < n; ++j) sums[j] += std::min(sizes[j], limit) * factor;
  }

  static constexpr int no_difference = 1 << 30;
  struct Range {
    std::size_t column, first, n;
  };
  std::vector<double> rows_;
  std::vector<float> column_sums_;
  // For each column: the ranges that hold it less the ranges that hold the column before it.
  std::vector<std::int64_t> coverage_changes_;
  std::vector<float> sizes_;  // of the current row
  std::vector<Range> ranges_;
  double sum_ = 0;
};

}  // namespace deltahub
