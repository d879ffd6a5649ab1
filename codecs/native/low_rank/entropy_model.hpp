// The entropy model: how many bits the residuals of words take after a prediction with a given
// error. Not part of the format.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/words.hpp"

namespace deltahub {

// The entropy of a residual, in words, that a normal error of a prediction causes before it is
// rounded. Its argument is log2 of the error's variance, in squares of ulps.
class RoundedError {
 public:
  static constexpr int n_points = 33;
  static constexpr double least = -12, most = 4;  // with a point at every half octave

  RoundedError() {
    for (int i = 0; i < n_points; ++i)
      bits_[std::size_t(i)] = exact(std::exp2((least + i / 2.0) / 2));
  }
  double operator()(double variance) const {
    const double at = 2 * (std::clamp(variance, least, most) - least);
    const auto i = std::min(std::size_t(at), std::size_t(n_points - 2));
    const double inner = bits_[i] + (at - double(i)) * (bits_[i + 1] - bits_[i]);
    return inner + std::max(variance - most, 0.0) / 2;
  }

 private:
  static double exact(double deviation) {
    // The mean excess of the error over a whole number, in deviations. The position of a number
    // between two words is uniform, so the probability of a residual is a second difference of
    // these.
    const auto beyond = [&](double number) {
      const double end = number / deviation;
      return std::exp(-end * end / 2) / std::sqrt(2 * M_PI) - end * std::erfc(end / M_SQRT2) / 2;
    };
    double bits = 0;
    for (int number = 0; number < 10 + int(6 * deviation); ++number) {
      const double share =
          deviation * (beyond(number - 1) - 2 * beyond(number) + beyond(number + 1));
      if (share > 1e-30) bits -= (number == 0 ? 1 : 2) * share * std::log2(share);
    }
    return bits;
  }

  std::array<double, n_points> bits_{};
};

// Which shares of a tensor's words have which ulp.
template <class Words>
class UlpShares {
 public:
  // counts: of words by exponent field.
  explicit UlpShares(std::array<std::uint32_t, std::size_t(1) << Words::exponent_bits> counts) {
    counts[1] += counts[0];  // subnormal words have the same ulp
    counts[0] = counts.back() = 0;
    double all = 0;
    for (const std::uint32_t count : counts) all += count;
    for (std::size_t field = 1; field < counts.size(); ++field)
      if (counts[field] > 0)
        shares_.push_back({int(field) - middle_exponent<Words> - Words::mantissa_bits,
                           double(counts[field]) / all});
    double most = 0;
    for (const Share& each : shares_) {
      mean_square_ += each.of_words * std::exp2(2 * each.ulp);
      if (each.of_words > most) most = each.of_words, typical_ = each.ulp;
    }
    for (std::size_t i = 0; i < bits_.size(); ++i)
      bits_[i] = exact(2 * typical_ + first_point + int(i));
  }
  bool empty() const { return shares_.empty(); }
  // The mean square of the words' rounding errors.
  double rounding() const { return mean_square_ / 12; }
  // For words with weights of 1 / ulp^2, limited to the weight of an ulp of 2^finest.
  struct Weighted {
    double spread;  // the mean square of weights over the square of their mean
    // The mean square of a weighted mean's rounding error, times its number of words.
    double rounding;
  };
  Weighted weighted(int finest) const {
    double mean = 0, mean_square = 0;
    for (const Share& each : shares_) {
      const double weight = std::exp2(2 * std::min(finest - each.ulp, 0));
      mean += each.of_words * weight, mean_square += each.of_words * weight * weight;
    }
    return {mean_square / (mean * mean), std::exp2(2 * finest) / (12 * mean)};
  }
  // Bits per word, from log2 of the variance of the prediction's error before it is rounded.
  double bits(double variance) const {
    const double at = std::clamp(variance - 2 * typical_ - first_point, 0.0, double(n_points - 1));
    const auto i = std::min(std::size_t(at), std::size_t(n_points - 2));
    return bits_[i] + (at - double(i)) * (bits_[i + 1] - bits_[i]);
  }

 private:
  struct Share {
    int ulp;  // log2
    double of_words;
  };
  double exact(int variance) const {
    static const RoundedError of_error;
    double bits = 0;
    for (const Share& each : shares_) bits += each.of_words * of_error(variance - 2 * each.ulp);
    return bits;
  }

  // In octaves from the typical ulp's square.
  static constexpr int first_point = -24, n_points = 65;
  std::vector<Share> shares_;
  double mean_square_ = 0;
  int typical_ = 0;
  std::array<double, n_points> bits_{};
};

}  // namespace deltahub
