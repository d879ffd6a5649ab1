// A randomized SVD of the difference of two tensors that reads most rows only once.
// Not part of the format.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/low_rank/kernels.hpp"
#include "kernels/low_rank/whitening.hpp"
#include "low_rank/factors.hpp"
#include "low_rank/int16_rows.hpp"

namespace deltahub {

struct SvdEffort {
  std::size_t n_components = component_step;
  int n_powers = 1;      // steps of the power iteration, without the last one, which reads all rows
  bool is_quick = true;  // steps read as few rows as possible
};

// The range finder is a power iteration from a random matrix, on samples of the rows. All rows are
// then projected on the basis that it finds (Halko, Martinsson and Tropp, 2011, algorithm 4.4, with
// different rows in each of its steps).
template <class Words>
class RandomizedSvd {
 public:
  // Words must have at least 2 component_step rows and columns.
  RandomizedSvd(const SearchKernels& search, WordRows source, WordRows base, SvdEffort effort)
      : search_(search), source_(source), base_(base), effort_(effort), n_(component_count()),
        thin_(search, n_), batch_(search, source, base, n_) {}

  // False if the differences are 0, not finite, or only noise.
  bool run() { return find_basis() && project(); }

  Components<float>& found() { return found_; }
  const Components<float>& found() const { return found_; }
  // The sum of squares of all differences.
  double energy() const { return energy_; }
  // Whether squares of differences overflowed.
  bool has_overflown() const { return has_overflown_; }
  IntegerRows<Words>& batch() { return batch_; }

  // Projects again in floats, because 16-bit integers are too coarse for a merged adapter in words
  // finer than BF16. False if the product is 0 or not finite. energy: becomes that of these floats.
  // found() is empty afterwards.
  template <class Real>
  bool project_exactly(Components<Real>& found, double& energy) {
    constexpr bool is_float = std::is_same_v<Real, float>;
    const std::size_t wide = (columns() + component_step - 1) / component_step * component_step;
    const std::size_t together = std::clamp<std::size_t>((std::size_t(1) << 17) / wide, 8, 64);
    // For long sides the fewest columns that kernels multiply, to limit memory.
    const std::size_t n = is_long() ? component_step * sizeof(float) / sizeof(Real) : n_;
    UninitializedVector<Real> basis(wide * n), difference(together * wide), projected(rows() * n);
    std::ranges::fill(basis, Real(0)), std::ranges::fill(difference, Real(0));
    fill_basis(basis, n);
    found_ = {};
    UninitializedVector<Real> sums(n * wide);
    std::ranges::fill(sums, Real(0));
    const auto& kernels = search_;
    const auto subtract = [&] {
      if constexpr (is_float)
        return kernels.subtract[kind_of<Words>];
      else
        return kernels.subtract_exactly[kind_of<Words>];
    }();
    const auto multiply = [&] {
      if constexpr (is_float)
        return kernels.multiply;
      else
        return kernels.multiply_exactly;
    }();
    energy = 0;
    for (std::size_t first = 0; first < rows(); first += together) {
      const std::size_t n_rows = std::min(together, rows() - first);
      for (std::size_t i = 0; i < n_rows; ++i) {
        Real* const numbers = &difference[i * wide];
        subtract(source_[first + i], base_[first + i], columns(), numbers);
        double of_row = 0;
        for (std::size_t j = 0; j < columns(); ++j)
          of_row += double(numbers[j]) * double(numbers[j]);
        energy += of_row;
      }
      Real* const out = &projected[first * n];
      multiply({difference.data(), std::ptrdiff_t(wide), 1}, n_rows, wide, basis.data(), n, out,
               false);
      multiply({out, 1, std::ptrdiff_t(n)}, n, n_rows, difference.data(), wide, sums.data(), true);
    }
    basis = {}, difference = {};
    const ThinProducts<Real> thin(search_, n);
    std::vector<double> squares = thin.squares(projected);
    const double trace = thin.trace(squares);
    if (!(trace > no_energy) || !std::isfinite(trace)) return false;
    UninitializedVector<Real> transform(n * n), along(columns() * n), core;
    if constexpr (is_float) {
      deltahub::whiten(squares.data(), n, transform.data());
    } else {
      const Eigenvectors axes(search_, squares, n, true);
      for (std::size_t k = 0; k < n; ++k) {
        const double length = std::sqrt(std::max(axes.values[k], 1e-14 * axes.values[0]));
        for (std::size_t l = 0; l < n; ++l) transform[l * n + k] = axes.rows[k * n + l] / length;
      }
    }
    for (std::size_t j = 0; j < columns(); ++j)
      for (std::size_t k = 0; k < n; ++k) along[j * n + k] = sums[k * wide + j];
    sums = {};
    thin.multiply(along, transform, core);
    along = {};
    found.n = n;
    return found.decompose(search_, projected, transform, core);
  }

 private:
  using Numbers = UninitializedVector<float>;

  std::size_t rows() const { return source_.rows; }
  std::size_t columns() const { return source_.columns; }

  // Whether factors have nearly the greatest size.
  bool is_long() const { return 2 * std::max(rows(), columns()) > most_factors / component_step; }
  // The components that the effort asks for, limited by the memory of factors and by about half of
  // the rows and columns.
  std::size_t component_count() const {
    const std::size_t half = std::min(rows(), columns()) / 2;
    const std::size_t of_sides = (half + component_step - 1) / component_step;
    const std::size_t of_memory = most_factors / std::max(rows(), columns()) / component_step;
    const std::size_t wanted = std::min(effort_.n_components, most_components) / component_step;
    return std::max(std::min({wanted, of_sides, of_memory}), std::size_t(1)) * component_step;
  }

  // An orthonormal basis of the first n right singular vectors. Random vectors replace those that
  // are too weak to be exact in 16-bit integers.
  template <class Real>
  void fill_basis(UninitializedVector<Real>& basis, std::size_t n) const {
    constexpr double faint = 1e-4;  // of the largest singular value
    Numbers random(columns() * n);
    fill_with_random(random);
    for (std::size_t k = 0; k < n; ++k) {
      const bool is_known = found_.singular_values[k] > faint * found_.singular_values[0];
      const double scale =
          is_known ? 1 / found_.singular_values[k] : 1 / std::sqrt(double(columns()));
      for (std::size_t j = 0; j < columns(); ++j)
        basis[j * n + k] =
            Real(double(is_known ? found_.right[j * n_ + k] : random[j * n + k]) * scale);
    }
    const ThinProducts<Real> thin(search_, n);
    std::vector<double> squares = thin.squares(basis);
    UninitializedVector<Real> transform(n * n), out;
    deltahub::whiten(squares.data(), n, transform.data());
    thin.multiply(basis, transform, out);
    basis.swap(out);
  }

  // A step of the power iteration reads one row of so many.
  std::size_t step_of(int power) const {
    const std::size_t least = power == 0 ? 2 * n_ : 3 * n_;
    const std::size_t most = effort_.is_quick ? 8 * n_ : rows();
    const std::size_t wanted =
        effort_.is_quick ? rows() / (power == 0 ? 8 : 4) : rows() >> std::max(4 - power, 0);
    const std::size_t n_rows =
        std::min(std::clamp(wanted, least, std::max(least, most)), most_elements / columns());
    return std::max<std::size_t>(rows() / std::max<std::size_t>(n_rows, 1), 1);
  }

  bool find_basis() {
    basis_.resize(columns() * n_);
    Numbers projected;
    for (int power = 0; power <= effort_.n_powers; ++power) {
      const std::size_t step = step_of(power), first = std::size_t(power) % step;
      batch_.load(first, step, (rows() - first + step - 1) / step);
      projected.resize(batch_.n_rows() * n_);
      if (power == 0)
        fill_with_random(projected);
      else
        batch_.multiply(projected.data());
      if (power == 1 && is_noise(projected)) {
        has_overflown_ = !std::isfinite(batch_.energy());
        return false;
      }
      batch_.clear_sums();
      batch_.add_transposed(projected.data());
      if (!orthonormalize(batch_.transposed_sums())) return false;
    }
    return true;
  }

  // Pseudorandom numbers of mean 0; the same in each call.
  static void fill_with_random(Numbers& numbers) {
    std::uint64_t state = 0;
    for (float& number : numbers) {
      state += 0x9e3779b97f4a7c15;
      std::uint64_t mixed = (state ^ state >> 30) * 0xbf58476d1ce4e5b9;
      mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
      number = float(std::int32_t(mixed >> 32)) * 0x1p-31f;
    }
  }

  // Makes a basis of these columns in basis_. False if they are 0 or not finite.
  bool orthonormalize(const Numbers& along) {
    Numbers transform;
    if (!whiten(along, transform)) return false;
    thin_.multiply(along, transform, basis_);
    batch_.set_basis(basis_.data());
    return true;
  }
  // transform: makes the columns of `rows` orthonormal. False if they are 0 or not finite.
  bool whiten(const Numbers& rows, Numbers& transform) {
    std::vector<double> squares = thin_.squares(rows);
    const double trace = thin_.trace(squares);
    has_overflown_ = !std::isfinite(trace);
    if (!(trace > no_energy) || has_overflown_) return false;
    transform.resize(n_ * n_);
    search_.whiten(squares.data(), n_, transform.data());
    return true;
  }

  // Whether no component of the sampled rows is stronger than a component of noise.
  bool is_noise(const Numbers& projected) const {
    const double largest = greatest(thin_.squares(projected));
    const auto n_rows = double(batch_.n_rows()), n_columns = double(columns());
    const double edge = std::sqrt(n_rows) + std::sqrt(n_columns);
    return largest * n_rows * n_columns <= 1.5 * edge * edge * (batch_.energy() - largest);
  }
  // The largest eigenvalue, or a little less, by power iteration.
  double greatest(const std::vector<double>& squares) const {
    std::size_t at = 0;
    for (std::size_t k = 1; k < n_; ++k)
      if (squares[k * n_ + k] > squares[at * n_ + at]) at = k;
    std::vector<double> along(&squares[at * n_], &squares[at * n_] + n_), next(n_);
    double value = 0;
    for (int i = 0; i < 4; ++i) {
      double length = 0;
      for (const double each : along) length += each * each;
      length = std::sqrt(length);
      if (!(length > 0)) return 0;
      double square = 0;
      for (std::size_t k = 0; k < n_; ++k) {
        next[k] = 0;
        for (std::size_t l = 0; l < n_; ++l) next[k] += squares[k * n_ + l] * along[l] / length;
        square += next[k] * next[k];
      }
      along = next, value = std::sqrt(square);
    }
    return value;
  }

  // Projects all rows on the basis and decomposes the result. Projections are made orthonormal only
  // when all are known, so each row is read once.
  bool project() {
    Numbers projected(rows() * n_);
    batch_.clear_sums();
    const std::size_t together = std::clamp<std::size_t>(most_together / columns(), 32, 96) / 2 * 2;
    energy_ = 0;
    for (std::size_t first = 0; first < rows(); first += together) {
      batch_.load(first, 1, std::min(together, rows() - first));
      energy_ += batch_.energy();
      batch_.multiply(&projected[first * n_]);
      batch_.add_transposed(&projected[first * n_]);
    }
    if (is_long()) basis_ = {};
    Numbers along = batch_.transposed_sums(), transform, core;
    // Memory is freed only if it is much, because allocating it again takes longer than filling it.
    if (is_long()) batch_.release();
    if (!whiten(projected, transform)) return false;
    thin_.multiply(along, transform, core);
    if (is_long()) along = {};
    found_.n = n_;
    return found_.decompose(search_, projected, transform, core);
  }

  static constexpr std::size_t most_factors = std::size_t(1) << 21;   // numbers in a factor
  static constexpr std::size_t most_elements = std::size_t(1) << 22;  // of a sample
  static constexpr std::size_t most_together = std::size_t(1) << 15;  // words; wide rows have more

  const SearchKernels& search_;
  WordRows source_, base_;
  SvdEffort effort_;
  std::size_t n_;
  ThinProducts<float> thin_;
  IntegerRows<Words> batch_;
  Numbers basis_;  // columns x n
  Components<float> found_;
  double energy_ = 0;
  bool has_overflown_ = false;
};

}  // namespace deltahub
