// Steps of alternating least squares: one thin factor of a product is updated while the other is
// fixed. Each row of words has its own system of normal equations.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "base/aligned_memory.hpp"
#include "base/registers.hpp"
#include "kernels/low_rank/kernels.hpp"
#include "kernels/low_rank/normal_equations.hpp"
#include "kernels/low_rank/targets.hpp"
#include "kernels/low_rank/transpose.hpp"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

DELTAHUB_BEGIN
namespace {

inline constexpr std::size_t n_side = 8;         // rows and columns of a block of sums of squares
inline constexpr std::size_t n_padded = 64;      // rows of floats have a multiple of this length
inline constexpr std::size_t n_lanes = 16;       // partial sums of floats, in every instruction set
inline constexpr std::size_t n_transposed = 32;  // most rows whose words are transposed at a time

inline constexpr std::size_t side_bytes = register_bytes < 4 * n_side ? register_bytes : 4 * n_side;
using SidePart = float __attribute__((vector_size(side_bytes)));
inline constexpr std::size_t n_side_parts = 4 * n_side / side_bytes;
// Systems that are summed together, so that factors are loaded less often. All sums stay in
// registers.
inline constexpr std::size_t n_together = register_bytes == 64 ? 4 : 2;

template <class Number>
using Numbers = std::vector<Number, LineAllocator<Number>>;

constexpr std::size_t padded_to(std::size_t unit, std::size_t n) {
  return (n + unit - 1) / unit * unit;
}

// The sums x^T diag(w) x, from x and w * x, in blocks on and above the diagonal.
struct Squares {
  std::size_t n_sides;
  // Blocks of n_side x n_side sums. Row t of blocks begins on the diagonal: it has n_sides - t.
  Numbers<float> blocks;

  explicit Squares(std::size_t n) : n_sides(n), blocks(n * (n + 1) / 2 * n_side * n_side) {}

  // at: offsets in x of the n vectors. weighted: n vectors, back to back.
  void sum(const float* x, const std::uint32_t* at, const float* weighted, std::size_t n) {
    const std::size_t length = n_sides * n_side;
    float* out = blocks.data();
    for (std::size_t top = 0; top < length; top += n_side)
      for (std::size_t left = top; left < length; left += n_side, out += n_side * n_side) {
        SidePart sums[n_side][n_side_parts] = {};
        const float *const right = x + left, *down = weighted + top;
        for (std::size_t i = 0; i < n; ++i, down += length)
          for (std::size_t part = 0; part < n_side_parts; ++part) {
            SidePart along;
            read(along, right + at[i] + part * (side_bytes / 4));
            for (std::size_t k = 0; k < n_side; ++k) sums[k][part] += down[k] * along;
          }
        std::memcpy(out, sums, sizeof sums);
      }
  }
};

// found: the indices of weights that are at least `least`, ascending. Returns their number.
inline std::size_t find_least(const float* weights, std::size_t n, float least,
                              std::uint32_t* found) {
  std::size_t n_found = 0, j = 0;
#if defined(__AVX512F__)
  const __m512 bound = _mm512_set1_ps(least);
  __m512i numbers = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (; j + 16 <= n; j += 16) {
    const __mmask16 is_found = _mm512_cmp_ps_mask(_mm512_loadu_ps(weights + j), bound, _CMP_GE_OQ);
    _mm512_storeu_si512(found + n_found, _mm512_maskz_compress_epi32(is_found, numbers));
    n_found += unsigned(std::popcount(unsigned(is_found)));
    numbers = _mm512_add_epi32(numbers, _mm512_set1_epi32(16));
  }
#endif
  for (; j < n; ++j) {
    found[n_found] = std::uint32_t(j);
    n_found += weights[j] >= least;
  }
  return n_found;
}

// Solves a system of normal equations for each row of words. The right side sums all words. The
// matrix sums only fine words one by one: weights are powers of 4, so a few fine words dominate it.
// For the other words the mean of all columns' squares is used, times the sum of their weights.
template <class Words, class Real>
class StepSolver {
 public:
  StepSolver(const LeastSquaresStep<Real>& step)
      : step_(step), length_(padded_to(n_side, step.rank)), stride_(padded_to(n_padded, step.n)),
        given_(length_ * stride_), floats_(sizeof(Real) == 4 ? 0 : given_.size()),
        x_(step.n * length_), products_(n_together * stride_), weights_(n_together * stride_),
        residuals_(n_together * stride_), fine_(stride_), weighted_(step.n * length_),
        squares_(length_ / n_side), mean_(length_ / n_side),
        triangle_(step.rank * (step.rank + 1) / 2), targets_(step.rank) {
    for (std::size_t k = 0; k < step.rank; ++k)
      for (std::size_t j = 0; j < step.n; ++j) {
        const Real number = step.given[k * step.n + j];
        given_[k * stride_ + j] = number;
        x_[j * length_ + k] = float(number);
        if constexpr (sizeof(Real) > sizeof(float)) floats_[k * stride_ + j] = float(number);
      }
    for (std::size_t j = 0; j < step.n; ++j) fine_[j] = std::uint32_t(j * length_);
    mean_.sum(x_.data(), fine_.data(), x_.data(), step.n);
    for (float& sum : mean_.blocks) sum /= float(step.n);
  }

  void run() {
    const std::size_t n = step_.n;
    std::vector<Word> transposed;
    for (std::size_t first = 0; first < step_.n_systems; first += n_transposed) {
      const std::size_t n_rows = std::min(n_transposed, step_.n_systems - first);
      const std::uint8_t *words = at(step_.words, first), *base = at(step_.base, first);
      std::ptrdiff_t words_row = step_.words.row, base_row = step_.base.row;
      if (step_.words.column != sizeof(Word) || step_.base.column != sizeof(Word)) {
        transposed.resize(2 * n_transposed * n);
        copy(step_.words, first, n_rows, &transposed[0]);
        copy(step_.base, first, n_rows, &transposed[n_transposed * n]);
        words = reinterpret_cast<const std::uint8_t*>(&transposed[0]);
        base = reinterpret_cast<const std::uint8_t*>(&transposed[n_transposed * n]);
        words_row = base_row = std::ptrdiff_t(n * sizeof(Word));
      }
      for (std::size_t row = 0; row < n_rows; row += n_systems) {
        const std::size_t used = std::min(n_systems, n_rows - row);
        for (std::size_t s = 0; s < used; s += n_together) {
          const Real* own[n_together];
          for (std::size_t i = 0; i < n_together; ++i)
            own[i] = step_.own + (first + row + std::min(s + i, used - 1)) * step_.rank;
          multiply(own);
          for (std::size_t i = 0; i < n_together; ++i) {
            const auto at = std::ptrdiff_t(row + std::min(s + i, used - 1));
            const std::size_t to = i * stride_;
            weighted_residuals<Words, Real>(words + at * words_row, base + at * base_row,
                                            &products_[to], n, step_.rule, &weights_[to],
                                            &residuals_[to]);
          }
          sum_residuals(s);
          for (std::size_t i = 0; i < n_together; ++i) sum_squares(&weights_[i * stride_], s + i);
        }
        for (std::size_t s = used; s < n_systems; ++s) repeat(s);
        solve(first + row, used);
      }
    }
  }

 private:
  using Word = typename Words::Word;

  static const std::uint8_t* at(const WordGrid& grid, std::size_t row) {
    return grid.begin + std::ptrdiff_t(row) * grid.row;
  }
  void copy(const WordGrid& grid, std::size_t first, std::size_t n_rows, Word* out) const {
    const std::size_t n = step_.n;
    std::size_t transposed = 0;  // columns
    if (grid.row == sizeof(Word) && n_rows == n_transposed)
      for (; transposed + n_square<Word> <= n; transposed += n_square<Word>)
        for (std::size_t i = 0; i < n_transposed; i += n_square<Word>)
          transpose_square<Word>(at(grid, first + i) + std::ptrdiff_t(transposed) * grid.column,
                                 grid.column, out + i * n + transposed, n);
    for (std::size_t i = 0; i < n_rows; ++i) {
      const std::uint8_t* const from = at(grid, first + i);
      for (std::size_t j = transposed; j < n; ++j)
        out[i * n + j] = load<Word>(from + std::ptrdiff_t(j) * grid.column);
    }
  }

  void sum_squares(const float* weights, std::size_t lane) {
    const float coarse = find_fine(weights);
    squares_.sum(x_.data(), fine_.data(), weighted_.data(), n_fine_);
    const std::size_t rank = step_.rank, n_sides = squares_.n_sides;
    double* to = &triangle_.data()->of[lane];
    for (std::size_t k = 0; k < rank; ++k) {
      const std::size_t top = k / n_side;
      // The offset of the block on the diagonal: row t of blocks has n_sides - t blocks.
      std::size_t row =
          (top * n_sides - top * (top - 1) / 2) * n_side * n_side + k % n_side * n_side;
      std::size_t first = k % n_side;
      for (std::size_t left = top * n_side; left < rank; left += n_side, first = 0) {
        const float *const of_fine = &squares_.blocks[row], *const of_all = &mean_.blocks[row];
        const std::size_t n = std::min(n_side, rank - left);
        for (std::size_t l = first; l < n; ++l, to += n_systems)
          *to = double(of_fine[l] + coarse * of_all[l]);
        row += n_side * n_side;
      }
    }
  }

  // Fills a lane without a system with a copy of lane 0, because all lanes are solved.
  void repeat(std::size_t lane) {
    for (Lanes& each : triangle_) each.of[lane] = each.of[0];
    for (Lanes& each : targets_) each.of[lane] = each.of[0];
  }

  void multiply(const Real* const* own) {
    constexpr std::size_t width = register_bytes / sizeof(Real), n_registers = 4;
    static_assert(n_padded % (n_registers * width) == 0);
    for (std::size_t j = 0; j < stride_; j += n_registers * width) {
      Register<Real> sums[n_together][n_registers] = {}, given;
      for (std::size_t k = 0; k < step_.rank; ++k)
        for (std::size_t i = 0; i < n_registers; ++i) {
          read(given, &given_[k * stride_ + j + i * width]);
          for (std::size_t s = 0; s < n_together; ++s) sums[s][i] += own[s][k] * given;
        }
      for (std::size_t s = 0; s < n_together; ++s)
        std::memcpy(&products_[s * stride_ + j], sums[s], sizeof sums[s]);
    }
  }

  // Sums the right sides of n_together systems, into lanes from `lane` on.
  void sum_residuals(std::size_t lane) {
    constexpr std::size_t width = register_bytes / 4, n_parts = n_lanes / width, n_rows = 4;
    static_assert(n_side % n_rows == 0);
    const float* const factors = given_floats();
    for (std::size_t first = 0; first < step_.rank; first += n_rows) {
      float lanes[n_parts][n_together][n_rows][width];
      for (std::size_t part = 0; part < n_parts; ++part) {
        FloatRegister sums[n_together][n_rows] = {}, residuals[n_together], given;
        for (std::size_t j = part * width; j < stride_; j += n_lanes) {
          for (std::size_t s = 0; s < n_together; ++s)
            read(residuals[s], &residuals_[s * stride_ + j]);
          for (std::size_t k = 0; k < n_rows; ++k) {
            read(given, factors + (first + k) * stride_ + j);
            for (std::size_t s = 0; s < n_together; ++s) sums[s][k] += residuals[s] * given;
          }
        }
        std::memcpy(lanes[part], sums, sizeof sums);
      }
      const std::size_t n = std::min(n_rows, step_.rank - first);
      for (std::size_t s = 0; s < n_together; ++s)
        for (std::size_t k = 0; k < n; ++k) {
          float all = 0;
          for (std::size_t i = 0; i < n_lanes; ++i) all += lanes[i / width][s][k][i % width];
          targets_[first + k].of[lane + s] = double(all);
        }
    }
  }

  // The fixed factor as floats.
  const float* given_floats() const {
    if constexpr (sizeof(Real) == sizeof(float))
      return given_.data();
    else
      return floats_.data();
  }

  // Finds the fine words, which are summed one by one, and their weights times x. Returns the sum
  // of the other weights.
  float find_fine(const float* weights) {
    const std::size_t n = step_.n;
    // The mean of the weights' logarithms. A float's bits approximate its log2, in eighths of
    // octaves here.
    std::uint64_t eighths = 0;
    for (std::size_t begin = 0; begin < n; begin += most_eighths) {
      const std::size_t end = std::min(n, begin + most_eighths);
      std::uint32_t some = 0;
      for (std::size_t j = begin; j < end; ++j)
        some += std::bit_cast<std::uint32_t>(weights[j]) >> 20;
      eighths += some;
    }
    const float typical = std::bit_cast<float>(std::uint32_t(eighths / n) << 20);
    const float least = typical * std::min(most_coarse, float(n) / float(4 * step_.rank));
    float sums[n_lanes] = {};
    for (std::size_t j = 0; j < stride_; j += n_lanes)
      for (std::size_t i = 0; i < n_lanes; ++i)
        sums[i] += weights[j + i] < least ? weights[j + i] : 0;
    n_fine_ = find_least(weights, n, least, fine_.data());
    const std::size_t length = length_, n_fine = n_fine_;
    const float* const all_x = x_.data();
    float* y = weighted_.data();
    std::uint32_t* const fine = fine_.data();
    for (std::size_t i = 0; i < n_fine; ++i) {
      const float weight = weights[fine[i]];
      fine[i] *= std::uint32_t(length);
      const float* const x = all_x + fine[i];
      for (std::size_t k = 0; k < length; k += side_bytes / 4, y += side_bytes / 4) {
        SidePart part;
        read(part, x + k);
        part *= weight;
        std::memcpy(y, &part, sizeof part);
      }
    }
    float coarse = 0;
    for (std::size_t i = 0; i < n_lanes; ++i) coarse += sums[i];
    return coarse;
  }

  void solve(std::size_t first, std::size_t used) {
    const std::size_t rank = step_.rank;
    add_ridge(triangle_.data(), rank);
    solve_lanes(triangle_.data(), targets_.data(), rank);
    for (std::size_t s = 0; s < used; ++s)
      for (std::size_t k = 0; k < rank; ++k)
        step_.solutions[(first + s) * rank + k] = targets_[k].of[s];
  }

  // Words below this many times the typical weight of their row count as coarse. In short rows the
  // limit is lower, so that no coarse word can dominate.
  static constexpr float most_coarse = 4;
  // The number of eighths whose sum fits 32 bits.
  static constexpr std::size_t most_eighths = std::size_t(1) << 20;

  const LeastSquaresStep<Real>& step_;
  std::size_t length_, stride_;  // of a vector x; of a row of floats
  Numbers<Real> given_;
  Numbers<float> floats_, x_;
  Numbers<Real> products_;
  Numbers<float> weights_, residuals_;
  std::vector<std::uint32_t> fine_;
  std::size_t n_fine_ = 0;
  Numbers<float> weighted_;
  Squares squares_, mean_;
  Numbers<Lanes> triangle_, targets_;
};

template <class Words, class Real>
void least_squares_step(const LeastSquaresStep<Real>& step) {
  StepSolver<Words, Real>(step).run();
}

}  // namespace
DELTAHUB_END
