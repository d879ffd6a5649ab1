// Quantized components. The entropy model chooses how many, and their quantization steps.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/words.hpp"
#include "fm_delta/plan.hpp"
#include "low_rank/entropy_model.hpp"
#include "low_rank/factors.hpp"

namespace deltahub {

inline constexpr std::size_t most_rank = 64;  // of the format

// The choices that the entropy model compares.
struct QuantizationPlan {
  // The mean square of the differences, and of the residuals after the first k + 1 components; both
  // without the words' rounding errors.
  double error_without = 0;
  std::vector<double> error;
  double error_of_noise = 0;  // the unit of the noise below
  // How many components are kept. A least rank above 0 is kept even if none pay.
  std::size_t least_rank = 0, greatest_rank = most_rank;
  // The range of log2 of the noise that quantizing one component adds. Noise 0 is the mean square
  // error_of_noise * (rows + columns) / (rows * columns).
  int finest_noise = -8, coarsest_noise = 2;
};

template <class Words, class Real>
class QuantizedComponents {
 public:
  // found: components of a rows x columns product.
  QuantizedComponents(const SearchKernels& search, const Components<Real>& found, std::size_t rows,
                      std::size_t columns)
      : search_(search), found_(found), n_(found.n), rows_(rows), columns_(columns),
        size_(double(rows) * double(columns)), largest_left_(largest(found.left)),
        largest_right_(largest(found.right)) {}

  // The smallest product of the plan. Of rank 0 if no component pays, or if the unit is not in the
  // format's range. plan: its noise becomes the chosen one.
  LowRank best(const UlpShares<Words>& ulps, QuantizationPlan& plan) const {
    const Kept kept = fewest(ulps, plan);
    plan.finest_noise = plan.coarsest_noise = kept.noise;
    return kept.rank > 0 ? quantized(kept) : LowRank{};
  }

  // The noise with the fewest bits.
  int best_noise(const UlpShares<Words>& ulps, const QuantizationPlan& plan) const {
    return fewest(ulps, plan).noise;
  }

  // The first components in one unit, and for each component two more for the remainders of its two
  // rounded factors, because 16 bits may be too few for words finer than BF16. coarser: log2 of the
  // unit divided by the finest one that fits the format. Of rank 0 if the unit is not in the
  // format's range.
  LowRank quantized_with_remainders(std::size_t rank, int coarser) const {
    const int unit = finest_unit(rank) + coarser;
    LowRank found;
    found.floor = unit + unit_of_floor;
    if (!has_exponent(found.floor)) return {};
    found.rank = int(3 * rank);
    found.left.resize(rows_ * 3 * rank), found.right.resize(columns_ * 3 * rank);
    std::vector<double> scales(rank), gains(rank);
    for (std::size_t k = 0; k < rank; ++k) {
      scales[k] = std::sqrt(std::ldexp(found_.singular_values[k], -unit));
      // Remainders are below 1/2. They are multiplied by a gain and the other factor is divided by
      // it, so that both are rounded equally coarsely.
      gains[k] = std::max(std::sqrt(scales[k] / std::sqrt(std::sqrt(size_)) * 3.5), 1.0);
    }
    const auto integer = [](double number) {
      return std::int16_t(std::clamp(std::rint(number), -32767.0, 32767.0));
    };
    for (std::size_t i = 0; i < rows_; ++i)
      for (std::size_t k = 0; k < rank; ++k) {
        const double number = double(found_.left[i * n_ + k]) * scales[k] * balance();
        const double whole = std::rint(number);
        std::int16_t* const out = &found.left[i * 3 * rank + k];
        out[0] = integer(whole), out[rank] = integer((number - whole) * gains[k]);
        out[2 * rank] = integer(whole / gains[k]);
      }
    for (std::size_t k = 0; k < rank; ++k)
      for (std::size_t j = 0; j < columns_; ++j) {
        const double number =
            double(found_.right[j * n_ + k]) / found_.singular_values[k] * (scales[k] / balance());
        const double whole = std::rint(number);
        std::int16_t* const out = &found.right[k * columns_ + j];
        out[0] = integer(whole), out[rank * columns_] = integer(number / gains[k]);
        out[2 * rank * columns_] = integer((number - whole) * gains[k]);
      }
    return found;
  }

 private:
  // Components to keep, and log2 of the unit of each component's product; none is finer than the
  // first.
  struct Kept {
    std::size_t rank = 0;
    std::vector<int> units;
    int noise = 0;
  };

  // The choice with the fewest bits in the entropy model. The noise of a quantized component grows
  // with its singular value and with its unit. So the strongest component has the finest unit, and
  // the units of weaker ones are this one times powers of two.
  Kept fewest(const UlpShares<Words>& ulps, const QuantizationPlan& plan) const {
    const double root = std::sqrt(size_), n_values = double(rows_ + columns_);
    const std::size_t greatest = std::min(plan.greatest_rank, n_);
    const int least = finest_unit(greatest);
    Kept best;
    double fewest = plan.least_rank > 0 ? std::numeric_limits<double>::infinity()
                                        : size_ * ulps.bits(std::log2(plan.error_without));
    for (int octave = plan.finest_noise; octave <= plan.coarsest_noise; ++octave) {
      const double noise = std::ldexp(plan.error_of_noise * n_values / size_, octave);
      std::vector<int> units(greatest);
      std::size_t rank = 0;
      double added = 0, of_factors = 0;
      for (std::size_t k = 0; k < greatest; ++k) {
        const double finest = std::log2(6 * noise * root / found_.singular_values[k]);
        const int first = k == 0 ? std::max(int(std::rint(finest)), least) : units[0];
        units[k] = first + std::clamp(int(std::rint(finest)) - first, 0, most_stride);
        added += std::ldexp(found_.singular_values[k], units[k]) / (6 * root);
        const double square = std::ldexp(found_.singular_values[k] / root, -units[k]);
        of_factors += n_values * std::log2(1 + 17 * square) / 2 + bits_of_tables;
        if (k + 1 < plan.least_rank) continue;
        const double bits = size_ * ulps.bits(std::log2(plan.error[k] + added)) + of_factors;
        if (bits < fewest) fewest = bits, rank = k + 1;
      }
      if (rank > 0) best = {rank, std::move(units), octave};
    }
    return best;
  }

  std::vector<double> largest(const UninitializedVector<Real>& rows) const {
    std::vector<Real> found(n_);
    for (std::size_t i = 0; i < rows.size(); i += n_)
      for (std::size_t k = 0; k < n_; ++k) found[k] = std::max(found[k], std::abs(rows[i + k]));
    return {found.begin(), found.end()};
  }
  // log2 of the finest unit in which the first `rank` components fit the format.
  int finest_unit(std::size_t rank) const {
    double largest = 1e-300;
    for (std::size_t k = 0; k < rank; ++k) {
      const double of_right = largest_right_[k] / found_.singular_values[k] / balance();
      const double most = std::max(largest_left_[k] * balance(), of_right);
      largest = std::max(largest, found_.singular_values[k] * most * most);
    }
    // The shifted product must stay below 2^30, and integers below 2^15; 0.01 is for rounding.
    const double of_product = std::log2(std::sqrt(found_.energy(rank) / size_) * reach) - 30;
    const double unit = std::ceil(std::max(of_product, std::log2(largest) - 30) + 0.01);
    return std::max(int(unit), 1 - unit_of_floor);
  }
  // Scales the left factor, so that numbers of both factors have about the same size.
  double balance() const { return std::sqrt(std::sqrt(double(rows_) / double(columns_))); }
  static bool has_exponent(int floor) {
    return floor >= 1 && floor < (1 << Words::exponent_bits) - 1;
  }

  // Of rank 0 if the unit is not in the format's range.
  LowRank quantized(const Kept& kept) const {
    LowRank found;
    found.floor = kept.units[0] + unit_of_floor;
    if (!has_exponent(found.floor)) return {};
    found.rank = int(kept.rank);
    std::vector<Real> of_left(n_), of_right(n_);
    std::vector<std::int32_t> shifts_left(n_), shifts_right(n_);
    for (std::size_t k = 0; k < kept.rank; ++k) {
      const double scale = std::sqrt(std::ldexp(found_.singular_values[k], -kept.units[k]));
      of_left[k] = Real(scale * balance());
      // Its length is the singular value.
      of_right[k] = Real(scale / balance() / found_.singular_values[k]);
      const int stride = kept.units[k] - kept.units[0];
      shifts_left[k] = (stride + 1) / 2, shifts_right[k] = stride / 2;
    }
    found.left.resize(rows_ * kept.rank), found.right.resize(columns_ * kept.rank);
    std::int16_t numbers[most_components];
    for (std::size_t i = 0; i < rows_; ++i) {
      make_integers(&found_.left[i * n_], of_left.data(), shifts_left.data(), numbers);
      std::copy_n(numbers, kept.rank, &found.left[i * kept.rank]);
    }
    for (std::size_t j = 0; j < columns_; ++j) {
      make_integers(&found_.right[j * n_], of_right.data(), shifts_right.data(), numbers);
      for (std::size_t k = 0; k < kept.rank; ++k) found.right[k * columns_ + j] = numbers[k];
    }
    return found;
  }
  void make_integers(const Real* values, const Real* scales, const std::int32_t* shifts,
                     std::int16_t* out) const {
    if constexpr (sizeof(Real) == sizeof(float))
      search_.integers(values, scales, shifts, n_, out);
    else
      search_.integers_exactly(values, scales, shifts, n_, out);
  }

  static constexpr int most_stride = 12;
  static constexpr double bits_of_tables = 200;  // of a component, about
  static constexpr double reach = 12;  // the greatest product, in units of the root mean square
  static constexpr int unit_of_floor =
      middle_exponent<Words> + Words::mantissa_bits + guard_bits(Words::mantissa_bits);

  const SearchKernels& search_;
  const Components<Real>& found_;
  std::size_t n_, rows_, columns_;
  double size_;
  std::vector<double> largest_left_, largest_right_;
};

}  // namespace deltahub
