// Integers of the components that were found: as many and as fine as a model of sizes says.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/words.hpp"
#include "fm_delta/plan.hpp"
#include "low_rank/entropy_model.hpp"
#include "low_rank/factors.hpp"

namespace deltahub {

struct PlanOfDirections {
  // The mean square of what no component leaves, and of what the first k + 1 leave, less what rounding
  // the words has added.
  double error_without = 0;
  std::array<double, n_directions> error{};
  std::size_t most_rank = n_directions;  // components behind it are nothing
  // log2 of how much noise rounding a component may add, from the finest to the coarsest that is looked
  // at, of what the error would allow.
  int finest_noise = -8, coarsest_noise = 2;
};

template <class Words>
class IntegersOfDirections {
 public:
  IntegersOfDirections(const SearchKernels& search, const FoundDirections& found,
                       std::size_t rows, std::size_t columns)
      : search_(search), found_(found), rows_(rows), columns_(columns),
        size_(double(rows) * double(columns)) {}

  // Of rank 0 where none pays, or where the unit has no exponent. plan: becomes the noise that was
  // chosen, alone.
  LowRank best(const UlpShares<Words>& ulps, PlanOfDirections& plan) const {
    const Kept kept = fewest(ulps, plan);
    plan.finest_noise = plan.coarsest_noise = kept.noise;
    return kept.rank > 0 ? rounded(kept) : LowRank{};
  }

 private:
  static constexpr std::size_t n = n_directions;

  // Components to keep, and log2 of the unit of each one's product; none is finer than the first.
  struct Kept {
    std::size_t rank = 0;
    std::array<int, n> units{};
    int noise = 0;
  };

  // What takes the fewest bits by the model of sizes. The noise of a rounded component grows with its
  // strength and with its unit: so the strongest has the finest unit, and the weaker ones multiples of
  // it by powers of two.
  Kept fewest(const UlpShares<Words>& ulps, const PlanOfDirections& plan) const {
    const double root = std::sqrt(size_), n_values = double(rows_ + columns_);
    const int least = least_unit(plan.most_rank);
    Kept best;
    double fewest = size_ * ulps.bits(std::log2(plan.error_without));
    for (int octave = plan.finest_noise; octave <= plan.coarsest_noise; ++octave) {
      const double noise = std::ldexp(plan.error[n / 2] * n_values / size_, octave);
      Kept kept;
      double added = 0, of_factors = 0;
      for (std::size_t k = 0; k < plan.most_rank; ++k) {
        const double finest = std::log2(6 * noise * root / found_.strengths[k]);
        const int first = k == 0 ? std::max(int(std::rint(finest)), least) : kept.units[0];
        kept.units[k] = first + std::clamp(int(std::rint(finest)) - first, 0, most_stride);
        added += std::ldexp(found_.strengths[k], kept.units[k]) / (6 * root);
        const double square = std::ldexp(found_.strengths[k] / root, -kept.units[k]);
        of_factors += n_values * std::log2(1 + 17 * square) / 2 + bits_of_tables;
        const double bits = size_ * ulps.bits(std::log2(plan.error[k] + added)) + of_factors;
        if (bits < fewest) fewest = bits, best = kept, best.rank = k + 1, best.noise = octave;
      }
    }
    return best;
  }

  // log2 of the finest unit in which so many components fit the format.
  int least_unit(std::size_t rank) const {
    std::array<float, n> left{}, right{};
    for (std::size_t i = 0; i < rows_; ++i)
      for (std::size_t k = 0; k < n; ++k)
        left[k] = std::max(left[k], std::abs(found_.left[i * n + k]));
    for (std::size_t j = 0; j < columns_; ++j)
      for (std::size_t k = 0; k < n; ++k)
        right[k] = std::max(right[k], std::abs(found_.right[j * n + k]));
    double largest = 1e-300;
    for (std::size_t k = 0; k < rank; ++k) {
      const double of_right = double(right[k]) / found_.strengths[k] / balance();
      const double most = std::max(double(left[k]) * balance(), of_right);
      largest = std::max(largest, found_.strengths[k] * most * most);
    }
    // Less than a unit above what is left of the greatest product, and of the greatest integers.
    const double of_product = std::log2(std::sqrt(found_.energy(rank) / size_) * reach) - 30;
    const double unit = std::ceil(std::max(of_product, std::log2(largest) - 30) + 0.01);
    return std::max(int(unit), 1 - unit_of_floor);
  }
  // Both factors have numbers of about one size then.
  double balance() const { return std::sqrt(std::sqrt(double(rows_) / double(columns_))); }

  // Of rank 0 where the unit has no exponent.
  LowRank rounded(const Kept& kept) const {
    LowRank found;
    found.floor = kept.units[0] + unit_of_floor;
    if (found.floor < 1 || found.floor >= (1 << Words::exponent_bits) - 1) return {};
    found.rank = int(kept.rank);
    std::array<float, n> of_left{}, of_right{};
    std::array<std::int32_t, n> shifts_left{}, shifts_right{};
    for (std::size_t k = 0; k < kept.rank; ++k) {
      const double scale = std::sqrt(std::ldexp(found_.strengths[k], -kept.units[k]));
      of_left[k] = float(scale * balance());
      of_right[k] = float(scale / balance() / found_.strengths[k]);  // it is as long as its strength
      const int stride = kept.units[k] - kept.units[0];
      shifts_left[k] = (stride + 1) / 2, shifts_right[k] = stride / 2;
    }
    found.left.resize(rows_ * kept.rank), found.right.resize(columns_ * kept.rank);
    std::int16_t numbers[n];
    for (std::size_t i = 0; i < rows_; ++i) {
      search_.integers(&found_.left[i * n], of_left.data(), shifts_left.data(), n, numbers);
      std::copy_n(numbers, kept.rank, &found.left[i * kept.rank]);
    }
    for (std::size_t j = 0; j < columns_; ++j) {
      search_.integers(&found_.right[j * n], of_right.data(), shifts_right.data(), n, numbers);
      for (std::size_t k = 0; k < kept.rank; ++k) found.right[k * columns_ + j] = numbers[k];
    }
    return found;
  }

  static constexpr int most_stride = 12;
  static constexpr double bits_of_tables = 200;  // of a component, beside its numbers, about
  static constexpr double reach = 12;  // of products, times their root mean square
  static constexpr int unit_of_floor =
      middle_exponent<Words> + Words::mantissa_bits + guard_bits(Words::mantissa_bits);

  const SearchKernels& search_;
  const FoundDirections& found_;
  std::size_t rows_, columns_;
  double size_;
};

}  // namespace deltahub
