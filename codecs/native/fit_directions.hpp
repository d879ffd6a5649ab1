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
#include "integer_rows.hpp"
#include "plan.hpp"
#include "search_kernels.hpp"
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
    const Plan plan = planned(ulps);
    LowRank found = plan.rank > 0 ? rounded(plan) : LowRank{};
    if (found.rank == 0) return {};
    const Tried tried_bits = tried_on_rows(found);
    const double adapter = 16.0 * double(merged_rank(ulps)) * double(rows() + columns());
    is_worth_more_ = adapter > 0 && tried_bits.left + tried_bits.factors > most_of_merges * adapter;
    return tried_bits.pays() ? found : LowRank{};
  }
  // Whether the words are those of a merged adapter and take more than twice what its factors would
  // in 16 bits: then it pays to sharpen these, which takes much longer. See low_rank_merge.
  bool is_worth_more() const { return is_worth_more_; }

 private:
  static constexpr std::size_t n = n_directions;
  using Numbers = UnsetNumbers<float>;
  using Squares = std::array<double, n * n>;

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

  Squares squares_of(const Numbers& columns_of) const {
    Squares squares{};
    search_.add_squares(columns_of.data(), columns_of.size() / n, squares.data());
    for (std::size_t k = 0; k < n; ++k)
      for (std::size_t l = 0; l < k; ++l) squares[k * n + l] = squares[l * n + k];
    return squares;
  }
  static double trace_of(const Squares& squares) {
    double trace = 0;
    for (std::size_t k = 0; k < n; ++k) trace += squares[k * n + k];
    return trace;
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
    const std::size_t together = std::clamp<std::size_t>(most_together / columns(), 16, 96) / 2 * 2;
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
    alignas(64) float turn[n * n], axes[n * n], both[n * n];
    search_.whiten(squares.data(), n, turn);
    Numbers core(columns() * n);  // a row for each column: looked turn is orthonormal
    multiply(part_.along(), turn, core);
    Squares products = squares_of(core), exact;
    if (!std::isfinite(trace_of(products))) return false;
    std::array<double, n> lengths;
    search_.diagonalize(products.data(), exact.data(), lengths.data());
    std::array<std::size_t, n> order;
    for (std::size_t k = 0; k < n; ++k) order[k] = k;
    std::ranges::stable_sort(order, [&](std::size_t one, std::size_t other) {
      return lengths[one] > lengths[other];
    });
    for (std::size_t k = 0; k < n; ++k) {
      strengths_[k] = std::sqrt(std::max(lengths[order[k]], 1e-20 * trace));
      for (std::size_t l = 0; l < n; ++l) axes[l * n + k] = float(exact[order[k] * n + l]);
    }
    search_.multiply({turn, std::ptrdiff_t(n), 1}, n, n, axes, both);
    left_.resize(rows() * n), right_.resize(columns() * n);
    multiply(looked, both, left_);
    multiply(core, axes, right_);
    return true;
  }

  // out = x turn, a row for each of x
  void multiply(const Numbers& x, const float* turn, Numbers& out) const {
    search_.multiply({x.data(), std::ptrdiff_t(n), 1}, x.size() / n, n, turn, out.data());
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

  // Components to keep, and log2 of the unit of each one's product; none is finer than the first.
  struct Plan {
    std::size_t rank = 0;
    std::array<int, n> units{};
  };

  // The plan of fewest bits by the model of sizes. The noise of a rounded component grows with its
  // strength and with its unit: so the strongest has the finest unit, and the weaker ones multiples
  // of it by powers of two.
  Plan planned(const UlpShares<Words>& ulps) const {
    const double root = std::sqrt(size_), n_values = double(rows() + columns());
    const double floor = ulps.rounding();
    std::array<double, n> error;
    double left = energy_;
    for (std::size_t k = 0; k < n; ++k) {
      left -= strengths_[k] * strengths_[k];
      error[k] = std::max(left / size_ - 1.02 * floor, 1e-3 * floor);
    }
    const int least = least_unit();
    Plan best;
    double fewest =
        size_ * ulps.bits(std::log2(std::max(energy_ / size_ - 1.02 * floor, 1e-3 * floor)));
    // What a merge leaves is hardly noise, so that finer factors tell more than the model knows.
    const int finest_noise = merged_rank(ulps) > 0 ? -11 : -8;
    for (int octave = finest_noise; octave <= finest_noise + 10; ++octave) {
      const double noise = std::ldexp(error[n / 2] * n_values / size_, octave);
      Plan plan;
      double added = 0, of_factors = 0;
      for (std::size_t k = 0; k < n; ++k) {
        const double finest = std::log2(6 * noise * root / strengths_[k]);
        const int first = k == 0 ? std::max(int(std::rint(finest)), least) : plan.units[0];
        plan.units[k] = first + std::clamp(int(std::rint(finest)) - first, 0, most_stride);
        added += std::ldexp(strengths_[k], plan.units[k]) / (6 * root);
        const double square = std::ldexp(strengths_[k] / root, -plan.units[k]);
        of_factors += n_values * std::log2(1 + 17 * square) / 2 + bits_of_tables;
        const double bits = size_ * ulps.bits(std::log2(error[k] + added)) + of_factors;
        if (bits < fewest) fewest = bits, best = plan, best.rank = k + 1;
      }
    }
    return best;
  }

  // log2 of the finest unit in which all components fit the format.
  int least_unit() const {
    std::array<float, n> left{}, right{};
    for (std::size_t i = 0; i < rows(); ++i)
      for (std::size_t k = 0; k < n; ++k) left[k] = std::max(left[k], std::abs(left_[i * n + k]));
    for (std::size_t j = 0; j < columns(); ++j)
      for (std::size_t k = 0; k < n; ++k)
        right[k] = std::max(right[k], std::abs(right_[j * n + k]));
    double largest = 1e-300, energy = 0;
    for (std::size_t k = 0; k < n; ++k) {
      energy += strengths_[k] * strengths_[k];
      const double of_right = double(right[k]) / strengths_[k] / balance();
      const double most = std::max(double(left[k]) * balance(), of_right);
      largest = std::max(largest, strengths_[k] * most * most);
    }
    // Less than a unit above what is left of the greatest product, and of the greatest integers.
    const double of_product = std::log2(std::sqrt(energy / size_) * reach) - 30;
    const double unit = std::ceil(std::max(of_product, std::log2(largest) - 30) + 0.01);
    return std::max(int(unit), 1 - unit_of_floor);
  }
  // Both factors have numbers of about one size then.
  double balance() const { return std::sqrt(std::sqrt(double(rows()) / double(columns()))); }

  // Of rank 0 where the unit has no exponent.
  LowRank rounded(const Plan& plan) const {
    LowRank found;
    found.floor = plan.units[0] + unit_of_floor;
    if (found.floor < 1 || found.floor >= (1 << Words::exponent_bits) - 1) return {};
    found.rank = int(plan.rank);
    std::array<float, n> of_left{}, of_right{};
    std::array<std::int32_t, n> shifts_left{}, shifts_right{};
    for (std::size_t k = 0; k < plan.rank; ++k) {
      const double scale = std::sqrt(std::ldexp(strengths_[k], -plan.units[k]));
      of_left[k] = float(scale * balance());
      of_right[k] = float(scale / balance() / strengths_[k]);  // it is as long as its strength
      const int stride = plan.units[k] - plan.units[0];
      shifts_left[k] = (stride + 1) / 2, shifts_right[k] = stride / 2;
    }
    found.left.resize(rows() * plan.rank), found.right.resize(columns() * plan.rank);
    std::int16_t numbers[n];
    for (std::size_t i = 0; i < rows(); ++i) {
      search_.integers(&left_[i * n], of_left.data(), shifts_left.data(), n, numbers);
      std::copy_n(numbers, plan.rank, &found.left[i * plan.rank]);
    }
    for (std::size_t j = 0; j < columns(); ++j) {
      search_.integers(&right_[j * n], of_right.data(), shifts_right.data(), n, numbers);
      for (std::size_t k = 0; k < plan.rank; ++k) found.right[k * columns() + j] = numbers[k];
    }
    return found;
  }

  // Bits of the words without a product, of what it leaves, and of its factors, by some rows.
  struct Tried {
    double without, left, factors;
    bool pays() const { return left + factors < (1 - least_gain) * without; }
  };
  Tried tried_on_rows(const LowRank& found) const {
    const std::size_t rank = std::size_t(found.rank);
    const std::size_t n_rows = std::min(rows(), std::clamp<std::size_t>(tried / columns(), 4, 64));
    std::vector<const std::uint8_t*> source, base;
    std::vector<std::int16_t> left;
    for (std::size_t i = 0; i < n_rows; ++i) {
      const std::size_t row = i * (rows() - 1) / std::max<std::size_t>(n_rows - 1, 1);
      source.push_back(source_[row]), base.push_back(base_[row]);
      left.insert(left.end(), &found.left[row * rank], &found.left[row * rank] + rank);
    }
    const auto bits_of = [&](const TrialFactors& factors) {
      Trial<Words> trial(kernels_, search_, columns());
      return trial.bits(source, base, n_rows, factors) * double(rows()) / double(n_rows);
    };
    const double of_left = factor_bits(search_, left.data(), n_rows, rank) / double(n_rows);
    return {.without = bits_of({}),
            .left = bits_of({rank, found.floor, false, left.data(), found.right.data()}),
            .factors = of_left * double(rows() + columns())};
  }

  // The rank of the adapter that was merged: the differences are a product of so few components but
  // for the rounding of words. 0: they are no such product.
  std::size_t merged_rank(const UlpShares<Words>& ulps) const {
    const double edge = std::sqrt(double(rows())) + std::sqrt(double(columns()));
    const double noise = std::sqrt(ulps.rounding()) * edge;
    std::size_t n_found = 0;
    while (n_found < n && strengths_[n_found] > 1.1 * noise) ++n_found;
    double left = energy_;
    for (const double strength : strengths_) left -= strength * strength;
    return n_found < n && left < most_left * ulps.rounding() * size_ ? n_found : 0;
  }

  static constexpr std::size_t most_elements = std::size_t(1) << 22;  // of a part
  static constexpr std::size_t most_together = std::size_t(1) << 15;  // words, but for wide rows
  static constexpr int n_powers = 1;  // beside the one that looks at all rows
  static constexpr double nothing = 1e-60;  // a sum of squares that has no digits left
  static constexpr std::size_t counted = std::size_t(1) << 14;  // words whose exponents are
  static constexpr std::size_t tried = std::size_t(1) << 13;    // words
  static constexpr int most_stride = 12;
  static constexpr double bits_of_tables = 200;  // of a component, beside its numbers, about
  static constexpr double reach = 12;  // of products, times their root mean square
  static constexpr double least_gain = 0.01;
  static constexpr double most_of_merges = 3;  // times what an adapter takes
  static constexpr double most_left = 1.4;  // of a merge, times what rounding has added
  static constexpr int unit_of_floor =
      middle_exponent<Words> + Words::mantissa_bits + guard_bits(Words::mantissa_bits);

  const Kernels& kernels_;
  const SearchKernels& search_;
  WordRows source_, base_;
  IntegerRows<Words> part_;
  double size_;
  Numbers basis_, left_, right_;  // columns x n; rows x n; columns x n, as long as their strengths
  std::array<double, n> strengths_{};
  double energy_ = 0;
  bool is_worth_more_ = false;
};

}  // namespace deltahub
