// Row and column scales: how large the differences of a row and of a column are, in quarters of an
// octave.
//
// A fine-tune's steps are of about one size where the unit in the last place doubles with every
// exponent: a difference times its unit, averaged over its row, and over its column after that,
// says how many units are to be expected elsewhere in them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace deltahub {

// 4 * log2(x), rounded, for x > 0; by comparison, so that every machine rounds alike.
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

// Collects |difference| * 2^exponent of rows, or of pieces of them, then gives scales.
class ScaleSums {
 public:
  ScaleSums(std::size_t rows, std::size_t columns)
      : rows_(rows, 0.0), column_sums_(columns), steps_(columns + 1) {}

  // Where the n sizes of a piece of the row in hand go; then `added` says their sum.
  float* piece(std::size_t column, std::size_t n) {
    pieces_.push_back({column, sizes_.size(), n});
    sizes_.resize(sizes_.size() + n);
    return sizes_.data() + pieces_.back().first;
  }
  void added(double sum) { sum_ += sum; }
  // has_columns: whether the row says something of its columns, too.
  void finish_row(std::size_t row, bool has_columns) {
    if (sum_ > 0) {
      const float most = most_of_a_size();
      rows_[row] = sum_to(most) / double(sizes_.size());
      const float inverse = float(1 / rows_[row]);
      for (const auto& [column, first, n] : pieces_) {
        if (!has_columns) break;
        add_scaled(&sizes_[first], most, inverse, n, &column_sums_[column]);
        steps_[column] += 1, steps_[column + n] -= 1;
      }
    }
    sizes_.clear();
    pieces_.clear();
    sum_ = 0;
  }

  // Around zero, the mean being told apart; a row or column without any difference gets the least.
  struct Scales {
    int mean = 0;
    std::vector<std::int16_t> around;
  };
  Scales rows() const { return scales_of(rows_); }
  Scales columns() const {
    std::vector<double> means;
    std::int64_t count = 0;
    for (std::size_t j = 0; j < column_sums_.size(); ++j) {
      count += steps_[j];
      means.push_back(count > 0 ? double(column_sums_[j] / float(count)) : 0);
    }
    return scales_of(means);
  }

 private:
  static Scales scales_of(const std::vector<double>& means) {
    Scales scales;
    std::int64_t total = 0, counted = 0;
    int least = 0;
    std::vector<int> logs(means.size(), nothing);
    for (std::size_t i = 0; i < means.size(); ++i) {
      if (means[i] <= 0) continue;
      logs[i] = quarter_log2(means[i]);
      total += logs[i];
      least = counted++ == 0 ? logs[i] : std::min(least, logs[i]);
    }
    if (counted > 0) scales.mean = int(total / counted);
    scales.around.reserve(means.size());
    for (const int log : logs) {
      const int around = log == nothing ? least - scales.mean - 48 : log - scales.mean;
      scales.around.push_back(std::int16_t(std::clamp(around, -2048, 2047)));
    }
    return scales;
  }

  // A few words are far smaller than what was added to them and cross many exponents on their way.
  // They would say more of a row than all others: sizes are held at so many times the mean of those
  // of words that changed.
  static constexpr double most_means = 3;
  float most_of_a_size() const {
    std::uint32_t counts[n_turns] = {};
    for_each_turn([&](std::size_t turn, float size) { counts[turn] += size > 0; });
    return float(most_means * sum_ / double(std::accumulate(counts, counts + n_turns, 0u)));
  }
  double sum_to(float most) const {
    float sums[n_turns] = {};
    for_each_turn([&](std::size_t turn, float size) { sums[turn] += std::min(size, most); });
    return std::accumulate(sums, sums + n_turns, 0.0);
  }
  // Sums in turns are made side by side, in the same order on every machine.
  static constexpr std::size_t n_turns = 8;
  template <class Visit>
  [[gnu::always_inline]] void for_each_turn(Visit&& visit) const {
    const std::size_t whole = sizes_.size() / n_turns * n_turns;
    for (std::size_t i = 0; i < whole; i += n_turns)
      for (std::size_t turn = 0; turn < n_turns; ++turn) visit(turn, sizes_[i + turn]);
    for (std::size_t i = whole; i < sizes_.size(); ++i) visit(i - whole, sizes_[i]);
  }
  [[gnu::noinline]] static void add_scaled(const float* sizes, float most, float by, std::size_t n,
                                           float* sums) {
    for (std::size_t j = 0; j < n; ++j) sums[j] += std::min(sizes[j], most) * by;
  }

  static constexpr int nothing = 1 << 30;
  struct Piece {
    std::size_t column, first, n;
  };
  std::vector<double> rows_;
  std::vector<float> column_sums_;
  std::vector<std::int64_t> steps_;  // by how many more pieces a column was seen than the one before
  std::vector<float> sizes_;  // of the row in hand
  std::vector<Piece> pieces_;
  double sum_ = 0;
};

}  // namespace deltahub
