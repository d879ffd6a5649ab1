// Alternating least squares on a difference that is of low rank but for the rounding of its words, as a
// merged adapter's is: first to the differences, then to the intervals that words were rounded from.
// Not part of the format.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "base/short_floats.hpp"
#include "base/words.hpp"
#include "kernels/low_rank/kernels.hpp"
#include "kernels/low_rank/whitening.hpp"
#include "low_rank/entropy_model.hpp"
#include "low_rank/factors.hpp"
#include "low_rank/int16_rows.hpp"

namespace deltahub {

// What a step asks of products: see AskedRule. further: how many times as far a factor moves as it is
// asked to, because the other factor, as it is, asks for less than it will.
struct LeastSquaresStep {
  AskedRule rule;
  double further = 1;
};

// What is done in turn. on_sample: for both factors, on some of the rows. first: for the left factor, on
// all rows. on_all: for the right factor and the left one in turn, on all rows. if_rounded: instead of
// these two where products were rounded before they were added.
struct LeastSquaresPlan {
  struct OnAll {
    LeastSquaresStep first;
    std::span<const LeastSquaresStep> in_turn;
  };
  std::span<const LeastSquaresStep> on_sample;
  OnAll on_all, if_rounded;
  std::size_t sampled_words;
};

namespace detail {

constexpr LeastSquaresStep near(int octaves) { return {{.octaves = octaves}, 1.1}; }
constexpr LeastSquaresStep exact(int octaves) { return {{.octaves = octaves}, 1}; }
constexpr LeastSquaresStep inside(int octaves, float margin, float inertia, double further = 1) {
  return {{.octaves = octaves, .is_inside = true, .margin = margin, .inertia = inertia}, further};
}

// Too fine words from the start, and a few would rule before the factors are near.
inline constexpr LeastSquaresStep default_sample[] = {near(2)};
inline constexpr LeastSquaresStep default_all[] = {
    near(4), near(5), near(6), near(7), inside(8, 0.1f, 0.05f, 1.2), inside(8, 0.05f, 0.03f, 1.2)};
inline constexpr LeastSquaresStep max_sample[] = {exact(2)};
inline constexpr LeastSquaresStep max_all[] = {
    exact(3), exact(5), exact(6), exact(7),
    inside(8, 0.1f, 0.1f), inside(8, 0.1f, 0.1f),
    inside(8, 0.1f, 0.03f), inside(8, 0.1f, 0.03f), inside(8, 0.05f, 0.03f), inside(8, 0.05f, 0.03f),
    inside(8, 0.02f, 0.01f), inside(8, 0.02f, 0.01f), inside(8, 0.02f, 0.01f), inside(8, 0.02f, 0.01f)};
// Of products that were rounded to BF16 before they were added: their intervals are wide, and soon
// reached.
inline constexpr LeastSquaresStep rounded_all[] = {
    near(4), inside(4, 0.1f, 0.075f, 1.2), inside(7, 0.1f, 0.027f, 1.2), inside(11, 0.1f, 0.05f, 0.9)};
// Merging in F32 rounds sums of products too, about so much.
inline constexpr LeastSquaresStep f32_sample[] = {exact(2), exact(2)};

}  // namespace detail

template <class Words>
constexpr LeastSquaresPlan least_squares_plan(bool is_max) {
  using namespace detail;
  const std::size_t sampled_words = std::size_t(1) << (is_max ? 17 : 16);
  if (Words::word_bits == 32) {
    const LeastSquaresPlan::OnAll last{exact(2), {}};
    return {f32_sample, last, last, sampled_words};
  }
  if (is_max) return {max_sample, {exact(2), max_all}, {exact(2), max_all}, sampled_words};
  const LeastSquaresPlan::OnAll plain{near(3), default_all}, rounded{exact(3), rounded_all};
  return {default_sample, plain, Words::exponent_bits == 8 ? rounded : plain, sampled_words};
}

template <class Real>
struct RefinedMerge {
  Components<Real> components;
  std::size_t rank;
  bool is_rounded;  // the product fits better where it is rounded before it is added
};

template <class Words>
class AlternatingLeastSquares {
 public:
  // Float32 would round what the last digits of F32 words tell of a product.
  using Real = std::conditional_t<Words::word_bits == 32, double, float>;

  // ulps: those of source.
  AlternatingLeastSquares(const SearchKernels& search, WordRows source, WordRows base,
                          const UlpShares<Words>& ulps)
      : search_(search), source_(source), base_(base), ulps_(ulps),
        typical_(int(std::rint(std::log2(12 * ulps.rounding()) / 2)) + below_first) {}

  // The first components fitted again, as many as an adapter may have: those that are noise are left out.
  // Nothing where they leave more than rounding does. Numbers are below 2^30, so that squares of sums are
  // numbers.
  std::optional<RefinedMerge<Real>> run(const Components<Real>& found, std::size_t rank,
                                        const LeastSquaresPlan& plan) const {
    Product all = product_of(found, rank);
    const std::size_t wanted = std::max(8 * rank, plan.sampled_words / source_.columns);
    const std::size_t every = std::max<std::size_t>(source_.rows / wanted, 1);
    const Pair pair{source_, base_, false}, part = pair.every(every);
    Product some{all.n, all.rank, {}, all.right};
    for (std::size_t i = 0; i < source_.rows; i += every)
      some.left.insert(some.left.end(), &all.left[i * all.n], &all.left[i * all.n] + all.n);
    if (!is_f32) {
      const double share = double(rank) * double(part.source.rows + source_.columns) /
                           (double(part.source.rows) * double(source_.columns));
      if (!(error(part, some, plan.on_sample[0]) <= most_of_svd + most_in_factors * share)) return {};
    }
    bool is_rounded = false;
    Pair on = part;
    for (std::size_t i = 0; i < plan.on_sample.size(); ++i) {
      const LeastSquaresStep& step = plan.on_sample[i];
      move_left(on, some, step);
      if (!orthonormalize(some.left, some.right, some.n)) return {};
      move_right(on, some, step);
      if (!drop_noise(on, some, step)) return {};
      if (i > 0) continue;
      if (!(error(on, some, step) <= (is_f32 ? most_error_f32 : most_error))) return {};
      is_rounded = !is_f32 && is_rounded_before(on, some);
      on.is_rounded = is_rounded;
    }
    const LeastSquaresPlan::OnAll& on_all = is_rounded ? plan.if_rounded : plan.on_all;
    // The SVD tells the left factor of all rows, but for what turns it to the new right factor.
    turn_left(all, some);
    const Pair whole{source_, base_, is_rounded};
    move_left(whole, all, on_all.first);
    for (std::size_t i = 0; i < on_all.in_turn.size(); ++i) {
      const bool is_right = i % 2 == 0;
      auto& given = is_right ? all.left : all.right;
      if (!orthonormalize(given, is_right ? all.right : all.left, all.n)) return {};
      if (is_right)
        move_right(whole, all, on_all.in_turn[i]);
      else
        move_left(whole, all, on_all.in_turn[i]);
    }
    const std::size_t kept = all.rank;
    RefinedMerge<Real> merge{components_of(std::move(all)), kept, is_rounded};
    if (merge.components.n == 0) return {};
    return merge;
  }

 private:
  static constexpr bool is_f32 = Words::word_bits == 32;
  using Numbers = UnsetNumbers<Real>;
  static constexpr int below_first = middle_exponent<Words> + Words::mantissa_bits;

  // Kernels multiply so many columns at once.
  static constexpr std::size_t rank_step = direction_step * sizeof(float) / sizeof(Real);

  // left right^T: rows of n numbers, of which `rank` are set and all others 0.
  struct Product {
    std::size_t n, rank;
    Numbers left, right;
  };
  struct Pair {
    WordRows source, base;
    bool is_rounded;

    Pair every(std::size_t step) const {
      Pair part = *this;
      for (WordRows* words : {&part.source, &part.base}) {
        words->stride *= std::ptrdiff_t(step);
        words->rows = (words->rows + step - 1) / step;
      }
      return part;
    }
  };

  static Product product_of(const Components<Real>& found, std::size_t rank) {
    Product product{(rank + rank_step - 1) / rank_step * rank_step, rank, {}, {}};
    const auto copy = [&](const Numbers& from, Numbers& to, bool is_longer) {
      const std::size_t n_rows = from.size() / found.n;
      to.resize(n_rows * product.n);
      for (std::size_t i = 0; i < n_rows; ++i)
        for (std::size_t k = 0; k < product.n; ++k) {
          const double number = k < rank ? double(from[i * found.n + k]) : 0;
          const double strength = k < rank ? found.strengths[k] : 1;
          to[i * product.n + k] = Real(is_longer ? number * strength : number / strength);
        }
    };
    copy(found.left, product.left, true);
    copy(found.right, product.right, false);
    return product;
  }

  // The left factor becomes the one that fits best.
  void move_left(const Pair& pair, Product& product, const LeastSquaresStep& step) const {
    const std::size_t stride = stride_of(pair, pair.source.columns, product.rank);
    const std::size_t n = (pair.source.columns + stride - 1) / stride;
    const auto grid = [&](const WordRows& words) {
      return WordGrid{words.begin, words.stride, std::ptrdiff_t(stride * word_bytes)};
    };
    move(grid(pair.source), grid(pair.base), n, stride, pair.is_rounded, step, product.left,
         product.right, product);
  }
  void move_right(const Pair& pair, Product& product, const LeastSquaresStep& step) const {
    const std::size_t stride = stride_of(pair, pair.source.rows, product.rank);
    const std::size_t n = (pair.source.rows + stride - 1) / stride;
    const auto grid = [&](const WordRows& words) {
      return WordGrid{words.begin, std::ptrdiff_t(word_bytes),
                      words.stride * std::ptrdiff_t(stride)};
    };
    move(grid(pair.source), grid(pair.base), n, stride, pair.is_rounded, step, product.right,
         product.left, product);
  }
  // Every how many of n rows or columns are enough to look at.
  static std::size_t stride_of(const Pair& pair, std::size_t n, std::size_t rank) {
    const double words = double(pair.source.rows) * double(pair.source.columns);
    const double work = words * double(rank * (rank + 1) / 2);
    const auto wanted = std::size_t(std::ceil(work / most_work));
    return std::max<std::size_t>(std::min(wanted, n / (8 * rank)), 1);
  }
  // own: a row for each row of words; given: a row for each `stride`-th column of them, of n.
  void move(const WordGrid& words, const WordGrid& base, std::size_t n, std::size_t stride,
            bool is_rounded, const LeastSquaresStep& step, Numbers& own, const Numbers& given,
            const Product& product) const {
    const std::size_t rank = product.rank, n_systems = own.size() / product.n;
    AskedRule rule = step.rule;
    rule.typical = typical_, rule.is_rounded = is_rounded;
    UnsetNumbers<Real> fixed(rank * n), moved(std::min(n_systems, systems_together) * rank);
    for (std::size_t k = 0; k < rank; ++k)
      for (std::size_t j = 0; j < n; ++j)
        fixed[k * n + j] = given[j * stride * product.n + k];
    UnsetNumbers<double> solutions(moved.size());
    for (std::size_t first = 0; first < n_systems; first += systems_together) {
      const std::size_t count = std::min(systems_together, n_systems - first);
      for (std::size_t i = 0; i < count; ++i)
        for (std::size_t k = 0; k < rank; ++k)
          moved[i * rank + k] = own[(first + i) * product.n + k];
      const auto from = [&](const WordGrid& grid) {
        return WordGrid{grid.begin + std::ptrdiff_t(first) * grid.row, grid.row, grid.column};
      };
      const HalfStep<Real> half{from(words), from(base), count, n, rank, moved.data(),
                                fixed.data(), rule, solutions.data()};
      if constexpr (is_f32)
        search_.half_step_exactly[kind_of<Words>](half);
      else
        search_.half_step[kind_of<Words>](half);
      for (std::size_t i = 0; i < count; ++i)
        for (std::size_t k = 0; k < rank; ++k)
          own[(first + i) * product.n + k] += Real(step.further * solutions[i * rank + k]);
    }
  }

  // Columns of `given` become orthonormal, nearly; `other` what leaves the product as it is. False where
  // they are nothing, or no numbers.
  bool orthonormalize(Numbers& given, Numbers& other, std::size_t n) const {
    const ThinProducts<Real> thin(search_, n);
    std::vector<double> upper = thin.squares(given);
    const double trace = thin.trace(upper);
    if (!(trace > no_energy) || !std::isfinite(trace)) return false;
    Numbers turn(n * n), back(n * n), out;
    whiten(upper.data(), n, turn.data());  // its inverse is `upper` now
    for (std::size_t k = 0; k < n; ++k)
      for (std::size_t l = 0; l < n; ++l) back[l * n + k] = l >= k ? Real(upper[k * n + l]) : 0;
    thin.multiply(given, turn, out);
    given.swap(out);
    thin.multiply(other, back, out);
    other.swap(out);
    return true;
  }

  // The product by its components; n is 0 where it is nothing, or no numbers.
  Components<Real> components_of(Product product) const {
    Components<Real> found;
    if (!orthonormalize(product.left, product.right, product.n)) return found;
    Numbers turn(product.n * product.n);
    std::fill(turn.begin(), turn.end(), Real(0));
    for (std::size_t k = 0; k < product.n; ++k) turn[k * product.n + k] = 1;
    found.n = product.n;
    if (!found.settle(search_, product.left, turn, product.right)) found.n = 0;
    return found;
  }

  // Leaves out components that noise would have. A few rows or columns of large words have much more of it
  // than all others: components that lie in these alone are compared with it.
  bool drop_noise(const Pair& pair, Product& product, const LeastSquaresStep& step) const {
    const auto n_rows = double(product.left.size() / product.n);
    const auto n_columns = double(product.right.size() / product.n);
    const double weighed = ulps_.weighed(typical_ - below_first - step.rule.octaves).rounding;
    const double edge = 1.2 * (std::sqrt(n_rows) + std::sqrt(n_columns));
    const Components<Real> found = components_of(std::move(product));
    if (found.n == 0) return false;
    const RoundingNoise noise(pair);
    Components<Real> kept{found.n, found.left, found.right, {}};
    std::size_t rank = 0;
    for (std::size_t k = 0; k < found.n; ++k) {
      const double strength = found.strengths[k];
      if (!(strength > edge * std::sqrt(weighed))) break;
      const double there = std::max(noise.of_few(noise.rows, found.left, found.n, k, 1),
                                    noise.of_few(noise.columns, found.right, found.n, k, 1 / strength));
      if (!(strength > edge * std::sqrt(there))) continue;
      for (std::size_t i = 0; i < found.left.size(); i += found.n) kept.left[i + rank] = found.left[i + k];
      for (std::size_t j = 0; j < found.right.size(); j += found.n)
        kept.right[j + rank] = found.right[j + k];
      kept.strengths.push_back(strength), ++rank;
    }
    if (rank == 0) kept.strengths = {found.strengths[0]}, rank = 1;
    product = product_of(kept, rank);
    return true;
  }
  // The mean squares of what rounding has added to the words of rows and of columns.
  struct RoundingNoise {
    std::vector<double> rows, columns;

    explicit RoundingNoise(const Pair& pair) : rows(pair.source.rows), columns(pair.source.columns) {
      std::vector<double> squares(std::size_t(1) << Words::exponent_bits);  // by exponents
      for (std::size_t field = 0; field + 1 < squares.size(); ++field)  // the last one has no numbers
        squares[field] = std::exp2(2 * (std::max(int(field), 1) - below_first)) / 12;
      for (std::size_t i = 0; i < rows.size(); ++i)
        for (std::size_t j = 0; j < columns.size(); ++j) {
          const double square =
              squares[Words::exponent(load<Word>(pair.source[i] + j * word_bytes))];
          rows[i] += square, columns[j] += square;
        }
      for (double& each : rows) each /= double(columns.size());
      for (double& each : columns) each /= double(rows.size());
    }
    // Of the rows, or columns, that column k of a factor lies in, if these are few; else 0.
    double of_few(const std::vector<double>& noise, const Numbers& factor, std::size_t n,
                  std::size_t k, double scale) const {
      constexpr double few = 5;
      double squares = 0, fourths = 0;
      for (std::size_t i = 0; i < noise.size(); ++i) {
        const double number = double(factor[i * n + k]) * scale, square = number * number;
        squares += square * noise[i], fourths += square * square;
      }
      return fourths > 1 / few ? squares : 0;
    }
  };

  // all: becomes its own product, as far as the right factor of `some` has it, in terms of that one.
  void turn_left(Product& all, const Product& some) const {
    std::vector<Real> turn(all.n * some.n);
    for (std::size_t j = 0; j < source_.columns; ++j)
      for (std::size_t k = 0; k < all.rank; ++k)
        for (std::size_t l = 0; l < some.n; ++l)
          turn[k * some.n + l] += all.right[j * all.n + k] * some.right[j * some.n + l];
    Numbers left(source_.rows * some.n);
    for (std::size_t i = 0; i < source_.rows; ++i) {
      Real* const row = &left[i * some.n];
      std::fill_n(row, some.n, Real(0));
      for (std::size_t k = 0; k < all.rank; ++k)
        for (std::size_t l = 0; l < some.n; ++l)
          row[l] += all.left[i * all.n + k] * turn[k * some.n + l];
    }
    all = {some.n, some.rank, std::move(left), some.right};
  }

  // Products of some of the rows, one after the other: visit(row, products).
  template <class Visit>
  void for_some_rows(const Pair& pair, const Product& product, Visit&& visit) const {
    const std::size_t columns = pair.source.columns, rows = pair.source.rows;
    const std::size_t n_rows = std::clamp<std::size_t>(compared_words / columns, 1, 64);
    const std::size_t step = (rows + n_rows - 1) / n_rows;
    std::vector<Real> products(columns);
    for (std::size_t row = 0; row < rows; row += step) {
      for (std::size_t j = 0; j < columns; ++j) {
        double sum = 0;
        for (std::size_t k = 0; k < product.rank; ++k)
          sum += double(product.left[row * product.n + k] * product.right[j * product.n + k]);
        products[j] = Real(sum);
      }
      visit(row, products.data());
    }
  }

  // The mean square of what a product leaves, in ulps, in terms of what rounding alone leaves.
  double error(const Pair& pair, const Product& product, const LeastSquaresStep& step) const {
    const std::size_t columns = pair.source.columns;
    AskedRule rule = step.rule;
    rule.typical = typical_, rule.is_rounded = pair.is_rounded;
    std::vector<float> weights(columns), pulls(columns);
    double sum = 0, count = 0;
    for_some_rows(pair, product, [&](std::size_t row, const Real* products) {
      const std::uint8_t *const words = pair.source[row], *const base = pair.base[row];
      if constexpr (is_f32)
        search_.ask_exactly[kind_of<Words>](words, base, products, columns, rule, weights.data(),
                                            pulls.data());
      else
        search_.ask[kind_of<Words>](words, base, products, columns, rule, weights.data(),
                                    pulls.data());
      for (std::size_t j = 0; j < columns; ++j)
        sum += double(pulls[j]) * double(pulls[j]) / double(weights[j]);
      count += double(columns);
    });
    return sum / count * 12 / std::exp2(2 * (typical_ - below_first));
  }

  // Whether products that are rounded before they are added make more of the words.
  bool is_rounded_before(const Pair& pair, const Product& product) const {
    std::size_t n_equal[2] = {};
    for_some_rows(pair, product, [&](std::size_t row, const Real* products) {
      for (std::size_t j = 0; j < pair.source.columns; ++j) {
        const auto word = load<Word>(pair.source[row] + j * word_bytes);
        const double base = number<Words>(load<Word>(pair.base[row] + j * word_bytes));
        const double product = products[j];
        const double rounded = number<Words>(nearest(product));
        n_equal[0] += nearest(base + product) == word;
        n_equal[1] += nearest(base + rounded) == word;
      }
    });
    return n_equal[1] > n_equal[0];
  }

  using Word = typename Words::Word;
  static constexpr std::size_t word_bytes = sizeof(Word);

  // The word nearest to a number; about so: it is rounded to float32 before.
  static std::uint32_t nearest(double exact) {
    const auto bits = std::bit_cast<std::uint32_t>(float(exact));
    if constexpr (is_f32) {
      return bits;
    } else {
      constexpr int dropped = 23 - Words::mantissa_bits;
      constexpr std::uint32_t rebased = std::uint32_t(127 - middle_exponent<Words>) << 23;
      const std::uint32_t magnitude = bits & 0x7fffffff, sign = bits >> 31 << (Words::word_bits - 1);
      if (rebased > 0 && magnitude < rebased + (1u << 23))  // below the normal numbers
        return sign | std::uint32_t(std::nearbyint(std::abs(float(exact)) *
                                                   std::exp2(float(below_first - 1))));
      const std::uint32_t rounded =
          (magnitude - rebased + (1u << (dropped - 1)) - 1 + (magnitude >> dropped & 1)) >> dropped;
      return sign | std::min(rounded, infinite<Words>);
    }
  }

  // What the components leave at first, in terms of what rounding leaves, and more by this for each number
  // of the factors a word: so much of the rounding is in them, and in fine words it weighs more. Merges
  // leave 0.9 to 1.4.
  static constexpr double most_of_svd = 1.6, most_in_factors = 4;
  static constexpr double most_error = 1.5, most_error_f32 = 16;  // merging in F32 rounds sums, too
  static constexpr double most_work = double(1u << 31);  // words times pairs of components in a step
  static constexpr std::size_t compared_words = std::size_t(1) << 20;
  static constexpr std::size_t systems_together = std::size_t(1) << 12;

  const SearchKernels& search_;
  WordRows source_, base_;
  const UlpShares<Words>& ulps_;
  int typical_;
};

}  // namespace deltahub
