// A product of low rank that predicts words from their base, found by looking at most of them once.
// Not part of the format.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "fm_delta/plan.hpp"
#include "kernels/codec_interface.hpp"
#include "kernels/low_rank/kernels.hpp"
#include "low_rank/entropy_model.hpp"
#include "low_rank/factors.hpp"
#include "low_rank/int16_rows.hpp"
#include "low_rank/quantize_factors.hpp"
#include "low_rank/refine.hpp"
#include "low_rank/size_estimate_rows.hpp"

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
    // Of a small merge fewer tell: it pays by far.
    rows_tried_.emplace(kernels_, search_, source_, base_,
                        merged_rank_ == 0 ? tried_words
                                          : std::clamp(rows() * columns() / 128, tried_words / 2,
                                                       4 * tried_words));
    Tried best = tried(ulps);
    if (best.low_rank.rank > 0 && merged_rank_ > 0) sharpen(ulps, best);
    const bool pays = best.with < (1 - least_gain) * rows_tried_->without();
    return best.low_rank.rank > 0 && pays ? std::move(best.low_rank) : LowRank{};
  }
  // Whether the words are those of a merged adapter and still take more than twice what its factors
  // would in 16 bits: then it pays to look closer, which takes much longer. See low_rank_merge.
  bool is_worth_more() const { return is_worth_more_; }
  // Whether a merged adapter was found, or nothing but noise.
  bool is_sure() const { return merged_rank_ > 0 || is_noise_; }
  // The sum of squares of each row's differences, where all of them were looked at.
  const std::vector<double>& energies() const { return energies_; }

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
      if (power == 1 && is_noise(looked)) {
        is_noise_ = std::isfinite(part_.energy());  // or one number is far off
        return false;
      }
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
      energies_.insert(energies_.end(), part_.energies().begin(), part_.energies().end());
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

  // The product that the model of sizes finds best, and by a trial the bits of all words and its factors.
  struct Tried {
    LowRank low_rank;
    double with = 0;
  };
  Tried tried(const UlpShares<Words>& ulps) {
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
  Tried tried(const UlpShares<Words>& ulps, PlanOfDirections& plan) {
    const IntegersOfDirections<Words> integers(search_, found_, rows(), columns());
    Tried tried{integers.best(ulps, plan)};
    // Adapters are merged in BF16, too.
    if (tried.low_rank.rank > 0)
      tried.with = rows_tried_->with(tried.low_rank, merged_rank_ > 0);
    return tried;
  }

  // Passes over all words, where the frame would take more than twice what the adapter's factors do,
  // while they make it smaller.
  void sharpen(const UlpShares<Words>& ulps, Tried& best) {
    const auto over = [&](double times, std::size_t rank) {
      return best.with > times * 16.0 * double(rank) * double(rows() + columns());
    };
    if (!over(most_of_merges, merged_rank_)) return;
    constexpr int below_first = middle_exponent<Words> + Words::mantissa_bits;
    const int typical = int(std::rint(std::log2(12 * ulps.rounding()) / 2)) + below_first;
    const double edge = std::sqrt(double(rows())) + std::sqrt(double(columns()));
    std::size_t rank = std::min(merged_rank_ + 2, n);  // weak components may yet be hidden
    Sharpening<Words> passes(search_, source_, base_, part_, found_);
    for (AskedRule rule : passes_of_merges) {
      rule.typical = typical, rule.is_rounded = best.low_rank.is_rounded;
      const auto weighed = ulps.weighed(typical - rule.octaves - below_first);
      if (!passes.run(rule, rank, weighed.spread)) break;
      // Noise that stays would become copies of what is strong.
      const double noise = least_over_noise * std::sqrt(weighed.rounding) * edge;
      while (rank > 1 && found_.strengths[rank - 1] < noise) --rank;
      Tried sharper = tried_sharper(ulps, rank);
      if (sharper.low_rank.rank == 0 || sharper.with >= best.with) break;
      best = std::move(sharper);
      if (!over(enough_of_merges, std::min(rank, merged_rank_))) return;
    }
    is_worth_more_ = over(most_of_merges, std::min(rank, merged_rank_));
  }
  Tried tried_sharper(const UlpShares<Words>& ulps, std::size_t rank) {
    PlanOfDirections plan{.error_without = found_.energy(rank) / size_, .most_rank = rank,
                         .finest_noise = -20};
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
  static constexpr double least_gain = 0.01;
  // Times what an adapter takes.
  static constexpr double most_of_merges = 2, enough_of_merges = 1.9;
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
  std::vector<double> energies_;
  bool is_noise_ = false;
  std::size_t merged_rank_ = 0;
  std::optional<TrialRows<Words>> rows_tried_;
  bool is_worth_more_ = false;
};

}  // namespace deltahub
