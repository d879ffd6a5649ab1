// A product of low rank that predicts words from their base, found by looking at most of them once.
// Not part of the format.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec.hpp"
#include "found_directions.hpp"
#include "integer_rows.hpp"
#include "plan.hpp"
#include "plan_directions.hpp"
#include "search_kernels.hpp"
#include "sharpening.hpp"
#include "size_model.hpp"
#include "trial.hpp"

namespace deltahub {

// What a row of the right factor points along is found on samples of the rows, by a power iteration
// that starts from noise; all rows are then projected on it (Halko, Martinsson and Tropp, 2011,
// algorithm 4.4, with other rows in each of its steps). The strongest components are kept, as many
// and as finely as a model of sizes says; a trial on some rows tells whether they pay.
template <class Words>
class FitDirections {
 public:
  using Word = typename Words::Word;

  FitDirections(const Kernels& kernels, const SearchKernels& search, WordRows source,
                WordRows base)
      : kernels_(kernels), search_(search), source_(source), base_(base),
        part_(search, source, base), size_(double(source.rows) * double(source.columns)) {}

  // The product; of rank 0 where none pays. At least 2 n_directions rows and columns.
  LowRank fit() {
    if (!find_basis() || !look_at_all()) return {};
    const UlpShares<Words> ulps(counted_exponents());
    if (ulps.empty()) return {};
    merged_rank_ = rank_of_merge(ulps);
    Tried best = tried(ulps);
    if (best.low_rank.rank > 0 && merged_rank_ > 0) sharpen(ulps, best);
    return best.pays() ? std::move(best.low_rank) : LowRank{};
  }

 private:
  static constexpr std::size_t n = n_directions;
  static constexpr double nothing = FoundDirections::nothing;
  using Numbers = Thin;
  using Squares = ThinSquares;

  std::size_t rows() const { return source_.rows; }
  std::size_t columns() const { return source_.columns; }

  // One in so many rows, in each step of the power iteration.
  std::size_t step_of(int power) const {
    const std::size_t least_rows = power == 0 ? 2 * n : 3 * n, most_rows = 8 * n;
    const std::size_t wanted = rows() / (power == 0 ? 8 : 4);
    const std::size_t n_rows =
        std::min(std::clamp(wanted, least_rows, most_rows), most_elements / columns());
    return std::max<std::size_t>(rows() / std::max<std::size_t>(n_rows, 1), 1);
  }

  // False where the differences are nothing, no numbers, or noise.
  bool find_basis() {
    basis_.resize(columns() * n);
    Numbers looked;
    for (int power = 0; power <= n_powers; ++power) {
      const std::size_t step = step_of(power), first = std::size_t(power) % step;
      part_.take(first, step, (rows() - first + step - 1) / step);
      looked.resize(part_.n_rows() * n);
      if (power == 0)
        fill_with_noise(looked);
      else
        part_.multiply(looked.data());
      if (power == 1 && is_noise(looked)) return false;
      part_.clear_sums();
      part_.add_turned(looked.data());
      if (!orthonormalize(part_.along())) return false;
    }
    return true;
  }

  // The same numbers each time, of mean 0.
  static void fill_with_noise(Numbers& numbers) {
    std::uint64_t state = 0;
    for (float& number : numbers) {
      state += 0x9e3779b97f4a7c15;
      std::uint64_t mixed = (state ^ state >> 30) * 0xbf58476d1ce4e5b9;
      mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
      number = float(std::int32_t(mixed >> 32)) * 0x1p-31f;
    }
  }

  Squares squares_of(const Numbers& rows) const { return deltahub::squares_of(search_, rows); }
  void multiply(const Numbers& x, const float* turn, Numbers& out) const {
    deltahub::multiply(search_, x, turn, out);
  }

  // Into basis_; false where nothing is left of them, or they are no numbers.
  bool orthonormalize(const Numbers& along) {
    Squares squares = squares_of(along);
    const double trace = trace_of(squares);
    if (!(trace > nothing) || !std::isfinite(trace)) return false;
    alignas(64) float turn[n * n];
    search_.whiten(squares.data(), n, turn);
    multiply(along, turn, basis_);
    part_.set_basis(basis_.data());
    return true;
  }

  // Whether no direction of a part is stronger than noise has it.
  bool is_noise(const Numbers& looked) const {
    const double strongest = greatest(squares_of(looked));
    const auto n_rows = double(part_.n_rows()), n_columns = double(columns());
    const double edge = std::sqrt(n_rows) + std::sqrt(n_columns);
    return strongest * n_rows * n_columns <= 1.5 * edge * edge * (part_.energy() - strongest);
  }
  // The greatest eigenvalue, or a little less.
  static double greatest(const Squares& squares) {
    std::size_t at = 0;
    for (std::size_t k = 1; k < n; ++k)
      if (squares[k * n + k] > squares[at * n + at]) at = k;
    std::array<double, n> along, next;
    std::copy_n(&squares[at * n], n, along.begin());
    double value = 0;
    for (int i = 0; i < 4; ++i) {
      double length = 0;
      for (const double each : along) length += each * each;
      length = std::sqrt(length);
      if (!(length > 0)) return 0;
      double square = 0;
      for (std::size_t k = 0; k < n; ++k) {
        next[k] = 0;
        for (std::size_t l = 0; l < n; ++l) next[k] += squares[k * n + l] * along[l] / length;
        square += next[k] * next[k];
      }
      along = next, value = std::sqrt(square);
    }
    return value;
  }

  // The differences' part in the span of differences basis, its strongest component first. All rows
  // are looked at once: nothing is made orthonormal before all are known.
  bool look_at_all() {
    Numbers looked(rows() * n);
    part_.clear_sums();
    const std::size_t together = std::clamp<std::size_t>(most_together / columns(), 32, 96) / 2 * 2;
    energy_ = 0;
    for (std::size_t first = 0; first < rows(); first += together) {
      part_.take(first, 1, std::min(together, rows() - first));
      energy_ += part_.energy();
      part_.multiply(&looked[first * n]);
      part_.add_turned(&looked[first * n]);
    }
    Squares squares = squares_of(looked);
    const double trace = trace_of(squares);
    if (!(trace > nothing) || !std::isfinite(trace)) return false;
    alignas(64) float turn[n * n];
    search_.whiten(squares.data(), n, turn);
    Numbers core;  // a row for each column: looked turn is orthonormal
    multiply(part_.along(), turn, core);
    return found_.settle(search_, looked, turn, core);
  }

  auto counted_exponents() const {
    std::array<std::uint32_t, std::size_t(1) << Words::exponent_bits> counts{};
    const std::size_t n_rows = std::clamp<std::size_t>(counted / columns(), 16, 64);
    const std::size_t step = (rows() + n_rows - 1) / n_rows;
    for (std::size_t row = 0; row < rows(); row += step)
      for (std::size_t j = 0; j < columns(); ++j)
        ++counts[Words::exponent(load<Word>(source_[row] + j * sizeof(Word)))];
    return counts;
  }

  // The product that the model of sizes finds best, and what a trial says of it.
  struct Tried {
    LowRank low_rank;
    double without = 0, with = 0;  // bits of all words: alone, and with the product and its factors
    bool pays() const { return low_rank.rank > 0 && with < (1 - least_gain) * without; }
  };
  Tried tried(const UlpShares<Words>& ulps) const {
    const double floor = 1.02 * ulps.rounding(), least = 1e-3 * ulps.rounding();
    const auto error = [&](double left) { return std::max(left / size_ - floor, least); };
    PlanOfDirections plan{.error_without = error(energy_)};
    double left = energy_;
    for (std::size_t k = 0; k < n; ++k) {
      left -= found_.strengths[k] * found_.strengths[k];
      plan.error[k] = error(left);
    }
    // What a merge leaves is hardly noise, so that finer factors tell more than the model knows.
    plan.finest_noise = merged_rank_ > 0 ? -11 : -8;
    plan.coarsest_noise = plan.finest_noise + 10;
    return tried(ulps, plan);
  }
  Tried tried(const UlpShares<Words>& ulps, PlanOfDirections& plan) const {
    const IntegersOfDirections<Words> integers(search_, found_, rows(), columns());
    Tried tried{integers.best(ulps, plan)};
    if (tried.low_rank.rank > 0) try_on_rows(tried);
    return tried;
  }

  // Passes over all words, where the frame would take more than twice what the adapter's factors do.
  void sharpen(const UlpShares<Words>& ulps, Tried& best) {
    const auto of_adapter = [&](std::size_t rank) {
      return 16.0 * double(rank) * double(rows() + columns());
    };
    if (best.with <= most_of_merges * of_adapter(merged_rank_)) return;
    constexpr int below_first = middle_exponent<Words> + Words::mantissa_bits;
    const int typical = int(std::rint(std::log2(12 * ulps.rounding()) / 2)) + below_first;
    const double edge = std::sqrt(double(rows())) + std::sqrt(double(columns()));
    std::size_t rank = std::min(merged_rank_ + 2, n);  // weak components may yet be hidden
    Sharpening<Words> passes(search_, source_, base_, part_, found_);
    for (AskedRule rule : passes_of_merges) {
      rule.typical = typical, rule.is_rounded = best.low_rank.is_rounded;
      const auto weighed = ulps.weighed(typical - rule.octaves - below_first);
      if (!passes.run(rule, rank, weighed.spread)) return;
      // Noise that stays would become copies of what is strong.
      const double noise = least_over_noise * std::sqrt(weighed.rounding) * edge;
      while (rank > 1 && found_.strengths[rank - 1] < noise) --rank;
      Tried sharper = tried_sharper(ulps, rank);
      if (sharper.low_rank.rank > 0 && sharper.with < best.with) best = std::move(sharper);
      if (best.with <= enough_of_merges * of_adapter(rank)) return;
    }
  }
  Tried tried_sharper(const UlpShares<Words>& ulps, std::size_t rank) const {
    PlanOfDirections plan{.error_without = found_.energy(rank) / size_, .finest_noise = -20};
    for (std::size_t k = 0; k < n; ++k) {
      const double left = std::max(found_.energy(rank) - found_.energy(k + 1), 0.0);
      plan.error[k] = left / size_ + 0.01 * ulps.rounding();
    }
    Tried best = tried(ulps, plan);
    // The nearer the factors are, the more do finer integers tell: the model does not know how near.
    for (bool is_better = best.low_rank.rank > 0; is_better;) {
      plan.finest_noise -= 2, plan.coarsest_noise -= 2;
      Tried finer = tried(ulps, plan);
      is_better = finer.low_rank.rank > 0 && finer.with < best.with;
      if (is_better) best = std::move(finer);
    }
    return best;
  }

  void try_on_rows(Tried& tried) const {
    LowRank& found = tried.low_rank;
    const std::size_t rank = std::size_t(found.rank);
    // Some of all rows: of the left factor.
    const auto row_of = [&](std::size_t i, std::size_t n_rows) {
      return i * (rows() - 1) / std::max<std::size_t>(n_rows - 1, 1);
    };
    const auto left_of = [&](std::size_t n_rows) {
      std::vector<std::int16_t> left;
      for (std::size_t i = 0; i < n_rows; ++i) {
        const std::int16_t* const row = &found.left[row_of(i, n_rows) * rank];
        left.insert(left.end(), row, row + rank);
      }
      return left;
    };
    // Of a small merge fewer tell: it pays by far.
    const std::size_t n_words =
        merged_rank_ == 0 ? tried_words
                          : std::clamp(rows() * columns() / 128, tried_words / 2, 4 * tried_words);
    const std::size_t n_rows =
        std::min(rows(), std::clamp<std::size_t>(n_words / columns(), rows_that_tell, 64));
    std::vector<const std::uint8_t*> source, base;
    for (std::size_t i = 0; i < n_rows; ++i)
      source.push_back(source_[row_of(i, n_rows)]), base.push_back(base_[row_of(i, n_rows)]);
    const std::vector<std::int16_t> left = left_of(n_rows);
    const auto bits_of = [&](std::size_t n, const TrialFactors& factors) {
      Trial<Words> trial(kernels_, search_, columns());
      return trial.bits(source, base, n, factors) * double(rows()) / double(n);
    };
    const auto bits_with = [&](std::size_t n, bool is_rounded) {
      return bits_of(n, {rank, found.floor, is_rounded, left.data(), found.right.data()});
    };
    // Adapters are merged in BF16, too; a few rows tell.
    const std::size_t few = std::min(rows_that_tell, n_rows);
    found.is_rounded = merged_rank_ > 0 && bits_with(few, true) < bits_with(few, false);
    tried.without = bits_of(n_rows, {});
    tried.with = bits_with(n_rows, found.is_rounded);
    const std::size_t n_counted = std::min(rows(), counted_rows);
    const double of_left = factor_bits(search_, left_of(n_counted).data(), n_counted, rank);
    tried.with += of_left * double(rows() + columns()) / double(n_counted);
  }

  // The rank of the adapter that was merged: the differences are a product of so few components but
  // for the rounding of words. 0: they are no such product.
  std::size_t rank_of_merge(const UlpShares<Words>& ulps) const {
    const double edge = std::sqrt(double(rows())) + std::sqrt(double(columns()));
    const double noise = std::sqrt(ulps.rounding()) * edge;
    std::size_t n_found = 0;
    while (n_found < n && found_.strengths[n_found] > 1.1 * noise) ++n_found;
    const double left = energy_ - found_.energy(n);
    return n_found < n && left < most_left * ulps.rounding() * size_ ? n_found : 0;
  }

  static constexpr std::size_t most_elements = std::size_t(1) << 22;  // of a part
  static constexpr std::size_t most_together = std::size_t(1) << 15;  // words, but for wide rows
  static constexpr int n_powers = 1;  // beside the one that looks at all rows
  static constexpr std::size_t counted = std::size_t(1) << 14;      // words whose exponents are
  static constexpr std::size_t tried_words = std::size_t(1) << 13;
  static constexpr std::size_t counted_rows = 64, rows_that_tell = 4;
  static constexpr double least_gain = 0.01;
  static constexpr double most_of_merges = 2, enough_of_merges = 1.9;  // times what an adapter takes
  static constexpr double least_over_noise = 1.2;  // times the strongest direction of noise
  static constexpr double most_left = 1.4;  // of a merge, times what rounding has added
  // To the differences first, then to the intervals that words tell. Too fine words from the start, and
  // a few would rule before the factors are near.
  static constexpr AskedRule passes_of_merges[] = {
      {.octaves = 3},
      {.octaves = 5, .is_inside = true, .margin = 0.1f},
      {.octaves = 6, .is_inside = true, .margin = 0.1f},
      {.octaves = 7, .is_inside = true, .margin = 0.1f},
      {.octaves = 7, .is_inside = true, .margin = 0.05f},
      {.octaves = 7, .is_inside = true, .margin = 0.05f},
  };

  const Kernels& kernels_;
  const SearchKernels& search_;
  WordRows source_, base_;
  IntegerRows<Words> part_;
  double size_;
  Numbers basis_;  // columns x n
  FoundDirections found_;
  double energy_ = 0;
  std::size_t merged_rank_ = 0;
};

}  // namespace deltahub
