// A product of low rank that predicts words from their base, found by looking at most of them once.
// Not part of the format.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "codec.hpp"
#include "lines.hpp"
#include "plan.hpp"
#include "search_kernels.hpp"
#include "size_model.hpp"
#include "trial.hpp"

namespace deltahub {

// Rows of words, each of which is contiguous.
struct WordRows {
  const std::uint8_t* begin;
  std::ptrdiff_t stride;  // bytes
  std::size_t rows, columns;

  const std::uint8_t* operator[](std::size_t row) const {
    return begin + std::ptrdiff_t(row) * stride;
  }
};

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
        size_(double(source.rows) * double(source.columns)) {}

  // The product; of rank 0 where none pays. At least 2 n_directions rows and columns.
  LowRank fit() {
    if (!find_basis() || !look_at_all()) return {};
    const UlpShares<Words> ulps(counted_exponents());
    if (ulps.empty()) return {};
    const Plan plan = planned(ulps);
    LowRank found = rounded(plan);
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
  template <class Number>
  using Unset = std::vector<Number, UnsetLineAllocator<Number>>;
  using Numbers = Unset<float>;
  using Squares = std::array<double, n * n>;

  std::size_t rows() const { return source_.rows; }
  std::size_t columns() const { return source_.columns; }

  // One in so many rows, in each step of the power iteration.
  std::size_t step_of(int power) const {
    const std::size_t least_rows = power == 0 ? 2 * n : 3 * n, most_rows = 8 * n;
    const std::size_t wanted = rows() / (power == 0 ? 8 : 4);
    const std::size_t n_rows = std::min(std::clamp(wanted, least_rows, most_rows), most_elements / columns());
    return std::max<std::size_t>(rows() / std::max<std::size_t>(n_rows, 1), 1);
  }

  // False where the differences are nothing, no numbers, or noise.
  bool find_basis() {
    basis_.resize(columns() * n);
    Part part(*this);
    Numbers looked;
    for (int power = 0; power <= n_powers; ++power) {
      const std::size_t step = step_of(power), first = std::size_t(power) % step;
      part.take(first, step, (rows() - first + step - 1) / step);
      looked.resize(part.n_rows * n);
      if (power == 0)
        fill_with_noise(looked);
      else
        part.multiply(looked.data());
      if (power == 1 && is_noise(part.energy, part.n_rows, looked)) return false;
      part.sums.assign(n * part.wide, 0);
      part.add_turned(looked.data());
      if (!orthonormalize(part.along())) return false;
    }
    return true;
  }

  // Differences of some rows: integers, in units of each row's own size.
  struct Part {
    explicit Part(const FitDirections& fit)
        : fit(fit), wide((fit.columns() + 31) / 32 * 32), difference(fit.columns()),
          nothing(fit.columns(), 0), sums(n * wide, 0) {}

    void take(std::size_t first, std::size_t step, std::size_t n_taken) {
      n_rows = n_taken, energy = 0;
      units.resize(n_rows), numbers.resize(n_rows * fit.padded());
      for (std::size_t i = 0; i < n_rows; ++i) take_row(first + i * step, i);
    }

    // out = differences basis
    void multiply(float* out) {
      products.resize(n_rows * n);
      fit.search_.multiply_integers(numbers.data(), n_rows, fit.padded() / 2,
                                    fit.basis_pairs_.data(), n, products.data());
      const double size = fit.size_of_numbers() * std::sqrt(double(fit.columns()));
      for (std::size_t i = 0; i < n_rows; ++i) {
        const auto unit = float(double(units[i]) / size);
        for (std::size_t k = 0; k < n; ++k) out[i * n + k] = float(products[i * n + k]) * unit;
      }
    }

    // sums += looked^T differences
    void add_turned(const float* looked) {
      const std::size_t n_pairs = (n_rows + 1) / 2, columns = fit.columns();
      left.resize(n * 2 * n_pairs), pairs.resize(2 * n_pairs * wide);
      turned.assign(n * 2 * n_pairs, 0);
      for (std::size_t i = 0; i < n_rows; ++i)
        for (std::size_t k = 0; k < n; ++k)
          turned[k * 2 * n_pairs + i] = looked[i * n + k] * units[i];
      std::array<float, n> scales;
      for (std::size_t k = 0; k < n; ++k) {
        const float* const row = &turned[k * 2 * n_pairs];
        const double size = std::sqrt(fit.search_.energy(row, n_rows) / double(n_rows));
        scales[k] = size > 0 ? float(size_of_looked / size) : 0;
        fit.search_.quantize(row, 2 * n_pairs, scales[k], &left[k * 2 * n_pairs]);
      }
      for (std::size_t i = 0; i < n_rows; i += 2) {
        const std::int16_t* const row = &numbers[i * fit.padded()];
        const std::int16_t* const next = i + 1 < n_rows ? row + fit.padded() : nothing.data();
        fit.search_.interleave(row, next, columns, &pairs[i * wide]);
      }
      products.resize(n * wide);
      fit.search_.multiply_integers(left.data(), n, n_pairs, pairs.data(), wide, products.data());
      for (std::size_t k = 0; k < n; ++k) {
        const float unit = scales[k] > 0 ? 1 / scales[k] : 0;
        for (std::size_t j = 0; j < columns; ++j)
          sums[k * wide + j] += float(products[k * wide + j]) * unit;
      }
    }
    // Those sums, a row for each column of the differences.
    Numbers along() const {
      Numbers turned_sums(fit.columns() * n);
      for (std::size_t j = 0; j < fit.columns(); ++j)
        for (std::size_t k = 0; k < n; ++k) turned_sums[j * n + k] = sums[k * wide + j];
      return turned_sums;
    }

    const FitDirections& fit;
    std::size_t wide, n_rows = 0;
    double energy = 0;
    Numbers units, difference, turned;
    Unset<std::int16_t> numbers, nothing, left, pairs;  // numbers: n_rows x padded()
    Unset<std::int32_t> products;
    Numbers sums;  // n x wide

   private:
    void take_row(std::size_t row, std::size_t i) {
      const std::size_t columns = fit.columns();
      std::int16_t* const out = &numbers[i * fit.padded()];
      fit.search_.subtract_finite[kind_of<Words>](fit.source_[row], fit.base_[row], columns,
                                           difference.data());
      const double square = fit.search_.energy(difference.data(), columns);
      units[i] = float(std::sqrt(square / double(columns)) / fit.size_of_numbers());
      fit.search_.quantize(difference.data(), columns, units[i] > 0 ? 1 / units[i] : 0, out);
      if (fit.padded() > columns) out[columns] = 0;
      energy += square;
    }
  };

  std::size_t padded() const { return (columns() + 1) / 2 * 2; }
  // Of integers, their root mean square: sums of as many products as there are columns fit 31 bits.
  double size_of_numbers() const {
    return std::min(512.0, std::sqrt(double(1 << 30) / double(columns())));
  }
  void set_basis_pairs() {
    const auto scale = float(size_of_numbers() * std::sqrt(double(columns())));
    Unset<std::int16_t> numbers(padded() * n, 0);
    basis_pairs_.resize(numbers.size());
    search_.quantize(basis_.data(), basis_.size(), scale, numbers.data());
    for (std::size_t j = 0; j < padded(); j += 2)
      search_.interleave(&numbers[j * n], &numbers[(j + 1) * n], n, &basis_pairs_[j * n]);
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
    set_basis_pairs();
    return true;
  }

  // Whether no direction of a part is stronger than noise has it.
  bool is_noise(double energy, std::size_t part_rows, const Numbers& looked) const {
    const double strongest = greatest(squares_of(looked));
    const auto n_rows = double(part_rows), n_columns = double(columns());
    const double edge = std::sqrt(n_rows) + std::sqrt(n_columns);
    return strongest * n_rows * n_columns <= 1.5 * edge * edge * (energy - strongest);
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
    Part part(*this);
    const std::size_t together = std::clamp<std::size_t>(most_together / columns(), 16, 96) / 2 * 2;
    energy_ = 0;
    for (std::size_t first = 0; first < rows(); first += together) {
      part.take(first, 1, std::min(together, rows() - first));
      energy_ += part.energy;
      part.multiply(&looked[first * n]);
      part.add_turned(&looked[first * n]);
    }
    Squares squares = squares_of(looked);
    const double trace = trace_of(squares);
    if (!(trace > nothing) || !std::isfinite(trace)) return false;
    alignas(64) float turn[n * n], axes[n * n], both[n * n];
    search_.whiten(squares.data(), n, turn);
    Numbers core(columns() * n);  // a row for each column: looked turn is orthonormal
    multiply(part.along(), turn, core);
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
    double fewest = size_ * ulps.bits(std::log2(std::max(energy_ / size_ - 1.02 * floor, 1e-3 * floor)));
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
  double balance() const { return std::pow(double(rows()) / double(columns()), 0.25); }

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
  static constexpr double size_of_looked = 128;  // root mean square of integers: see size_of_numbers
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
  double size_;
  Numbers basis_, left_, right_;  // columns x n; rows x n; columns x n, as long as their strengths
  Unset<std::int16_t> basis_pairs_;
  std::array<double, n> strengths_{};
  double energy_ = 0;
  bool is_worth_more_ = false;
};

// Factors have at most so many numbers, for the memory that a search may take.
inline constexpr std::size_t most_factors = std::size_t(1) << 21;
// Of rows and of columns, at least.
inline constexpr std::size_t least_side = 2 * n_directions;

inline bool is_fit_in_directions(int kind, std::size_t rows, std::size_t columns) {
  return kind == kind_of<Bf16Words> && std::max(rows, columns) <= most_factors / n_directions;
}

struct FittedDirections {
  LowRank low_rank;           // of rank 0 where none pays
  bool is_worth_more = false;  // see FitDirections
};

// A product for the words of a frame whose sides and kind are such. Rows behind the last one of the
// base that is not zero have none: they are new, as of a vocabulary that was extended, and so large
// beside differences that they would take all directions.
inline FittedDirections fit_in_directions(const Kernels& kernels, const SearchKernels& search,
                                          View source, View base, std::size_t rows,
                                          std::size_t columns) {
  using Words = Bf16Words;
  const std::size_t row_bytes = columns * sizeof(Words::Word);
  std::size_t known = rows;
  const auto is_zero = [&](std::size_t row) {
    const View words = base.subspan(row * row_bytes, row_bytes);
    return words[0] == 0 && std::memcmp(words.data(), words.data() + 1, row_bytes - 1) == 0;
  };
  while (known > 0 && is_zero(known - 1)) --known;
  if (std::min(known, columns) < least_side) return {};
  const auto rows_of = [&](View words) {
    return WordRows{words.data(), std::ptrdiff_t(row_bytes), known, columns};
  };
  FitDirections<Words> search_of(kernels, search, rows_of(source), rows_of(base));
  FittedDirections found{search_of.fit(), search_of.is_worth_more()};
  found.low_rank.left.resize(rows * std::size_t(found.low_rank.rank));
  return found;
}

}  // namespace deltahub
