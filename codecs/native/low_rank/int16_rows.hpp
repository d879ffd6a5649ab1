// Differences of some rows as 16-bit integers, and their products with thin matrices, for a
// randomized SVD. 16-bit integers multiply three times as fast as floats, and their sums are the
// same on every machine. "Words" are the bit patterns of floats.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "base/aligned_memory.hpp"
#include "base/words.hpp"
#include "kernels/low_rank/kernels.hpp"

namespace deltahub {

// Rows of words; each row is contiguous.
struct WordRows {
  const std::uint8_t* begin;
  std::ptrdiff_t stride;  // bytes
  std::size_t rows, columns;

  const std::uint8_t* operator[](std::size_t row) const {
    return begin + std::ptrdiff_t(row) * stride;
  }
};

template <class Number>
using UninitializedVector = std::vector<Number, UnsetLineAllocator<Number>>;

// Each row has its own quantization step, because rows differ in size.
template <class Words>
class IntegerRows {
 public:
  using Numbers = UninitializedVector<float>;

  // n_components: columns of the thin matrices.
  IntegerRows(const SearchKernels& search, WordRows source, WordRows base, std::size_t n_components)
      : n(n_components), search_(search), source_(source), base_(base), columns_(source.columns),
        padded_((columns_ + 1) / 2 * 2), wide_((columns_ + 31) / 32 * 32), difference_(columns_),
        nothing_(columns_, 0) {}

  std::size_t n_rows() const { return n_rows_; }
  // The sum of squares of the rows' differences.
  double energy() const { return energy_; }

  // Holds the differences of n_rows rows: every `step`-th from `first` on.
  void load(std::size_t first, std::size_t step, std::size_t n_rows) {
    load(n_rows, [&](std::size_t i, float* numbers) {
      const std::size_t row = first + i * step;
      search_.subtract_finite[kind_of<Words>](source_[row], base_[row], columns_, numbers);
    });
  }
  // Holds n_rows rows of numbers. fill(i, numbers) sets row i; it is called in order.
  template <class Fill>
  void load(std::size_t n_rows, Fill&& fill) {
    n_rows_ = n_rows, energy_ = 0;
    units_.resize(n_rows), numbers_.resize(n_rows * padded_);
    for (std::size_t i = 0; i < n_rows; ++i) {
      fill(i, difference_.data());
      take_row(i);
    }
  }

  // basis: columns x n; its columns are orthonormal or 0.
  void set_basis(const float* basis) {
    const auto scale = float(size_of_numbers() * std::sqrt(double(columns_)));
    UninitializedVector<std::int16_t> numbers(padded_ * n, 0);
    basis_pairs_.resize(numbers.size());
    search_.quantize(basis, columns_ * n, scale, numbers.data());
    for (std::size_t j = 0; j < padded_; j += 2)
      search_.interleave(&numbers[j * n], &numbers[(j + 1) * n], n, &basis_pairs_[j * n]);
  }

  // out = differences basis
  void multiply(float* out) {
    products_.resize(n_rows_ * n);
    search_.multiply_integers(numbers_.data(), n_rows_, padded_ / 2, basis_pairs_.data(), n,
                              products_.data());
    const double size = size_of_numbers() * std::sqrt(double(columns_));
    with_known_n([&](auto n) {
      for (std::size_t i = 0; i < n_rows_; ++i) {
        const auto unit = float(double(units_[i]) / size);
        for (std::size_t k = 0; k < n; ++k) out[i * n + k] = float(products_[i * n + k]) * unit;
      }
    });
  }

  void clear_sums() { sums_.assign(n * wide_, 0); }
  // sums += projected^T differences
  void add_transposed(const float* projected) {
    const std::size_t n_pairs = (n_rows_ + 1) / 2;
    // Units are divided by the largest one, because products of small units would underflow.
    const float largest = *std::max_element(units_.begin(), units_.end());
    const float common = largest > least_unit ? 1 / largest : 0;
    left_.resize(n * 2 * n_pairs), pairs_.resize(2 * n_pairs * wide_);
    transposed_.assign(n * 2 * n_pairs, 0);
    with_known_n([&](auto n) {
      for (std::size_t i = 0; i < n_rows_; ++i)
        for (std::size_t k = 0; k < n; ++k)
          transposed_[k * 2 * n_pairs + i] = projected[i * n + k] * (units_[i] * common);
    });
    // The finest quantization step with which sums fit 31 bits, however large single numbers are.
    const auto count = double(n_rows_);
    const double size_of_projected = std::min(60000 / count, 32767 / std::sqrt(count));
    std::vector<float> scales(n);
    for (std::size_t k = 0; k < n; ++k) {
      const float* const row = &transposed_[k * 2 * n_pairs];
      const double size = std::sqrt(search_.energy(row, n_rows_) / double(n_rows_));
      scales[k] = size > 0 ? float(size_of_projected / size) : 0;
      search_.quantize(row, 2 * n_pairs, scales[k], &left_[k * 2 * n_pairs]);
    }
    for (std::size_t i = 0; i < n_rows_; i += 2) {
      const std::int16_t* const row = &numbers_[i * padded_];
      const std::int16_t* const next = i + 1 < n_rows_ ? row + padded_ : nothing_.data();
      search_.interleave(row, next, columns_, &pairs_[i * wide_]);
    }
    products_.resize(n * wide_);
    search_.multiply_integers(left_.data(), n, n_pairs, pairs_.data(), wide_, products_.data());
    for (std::size_t k = 0; k < n; ++k) {
      const float unit = scales[k] > 0 ? largest / scales[k] : 0;
      for (std::size_t j = 0; j < columns_; ++j)
        sums_[k * wide_ + j] += float(products_[k * wide_ + j]) * unit;
    }
  }
  // Frees memory. Only `load` and `clear_sums` may be called next.
  void release() {
    numbers_ = {}, left_ = {}, pairs_ = {}, basis_pairs_ = {};
    transposed_ = {}, sums_ = {}, products_ = {};
  }
  // The transposed sums: a row for each column of the differences.
  Numbers transposed_sums() const {
    Numbers transposed(columns_ * n);
    with_known_n([&](auto n) {
      for (std::size_t j = 0; j < columns_; ++j)
        for (std::size_t k = 0; k < n; ++k) transposed[j * n + k] = sums_[k * wide_ + j];
    });
    return transposed;
  }

 private:
  // Calls visit(n), with a compile-time constant for the n of most searches.
  template <class Visit>
  void with_known_n(Visit&& visit) const {
    if (n == component_step)
      visit(std::integral_constant<std::size_t, component_step>{});
    else
      visit(n);
  }
  // The root mean square of a row's integers, so that sums of a row's products fit 31 bits.
  double size_of_numbers() const {
    return std::min(512.0, std::sqrt(double(1 << 30) / double(columns_)));
  }
  static constexpr float least_unit = 1e-30f;

  void take_row(std::size_t i) {
    std::int16_t* const out = &numbers_[i * padded_];
    const double square = search_.energy(difference_.data(), columns_);
    units_[i] = float(std::sqrt(square / double(columns_)) / size_of_numbers());
    search_.quantize(difference_.data(), columns_, units_[i] > 0 ? 1 / units_[i] : 0, out);
    if (padded_ > columns_) out[columns_] = 0;
    energy_ += square;
  }

  std::size_t n;
  const SearchKernels& search_;
  WordRows source_, base_;
  std::size_t columns_, padded_, wide_;
  std::size_t n_rows_ = 0;
  double energy_ = 0;
  Numbers units_, difference_, transposed_, sums_;  // sums_: n x wide_
  // numbers_: n_rows x padded_.
  UninitializedVector<std::int16_t> numbers_, nothing_, left_, pairs_;
  UninitializedVector<std::int16_t> basis_pairs_;
  UninitializedVector<std::int32_t> products_;
};

}  // namespace deltahub
