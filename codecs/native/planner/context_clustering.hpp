// Context clustering: merges the contexts that are cheapest with one table, until merging costs
// more bits than it saves.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "coder/histograms.hpp"
#include "kernels/kernels.hpp"

namespace deltahub {

// The statistics of one context, from a sample of its numbers.
struct ContextStatistics {
  Bins histogram;
  int number_bits;
  std::uint64_t n_counted = 1, count = 1;  // numbers in the sample and in the frame
  unsigned shift = 0;       // set by clustering
  unsigned table = 0;       // set by clustering
};

// Scales counts from a sample of `n_counted` numbers to all `count` numbers.
class SampleScaling {
 public:
  SampleScaling(std::uint64_t count, std::uint64_t n_counted)
      : is_whole_(n_counted == count || n_counted == 0),
        factor_(is_whole_ ? 1 : double(std::int64_t(count)) / double(std::int64_t(n_counted))) {}

  std::uint64_t operator()(std::uint64_t n_seen) const {
    // Through signed integers, because processors convert those in one instruction.
    return is_whole_ ? n_seen : std::uint64_t(std::int64_t(double(std::int64_t(n_seen)) * factor_));
  }

 private:
  bool is_whole_;
  double factor_;
};
inline std::uint64_t scaled(std::uint64_t n_seen, std::uint64_t count, std::uint64_t n_counted) {
  return SampleScaling(count, n_counted)(n_seen);
}

struct Clustering {
  std::vector<Counts> tables;
  std::uint64_t bits = 0;  // estimate for states, raw bits and tables
};

// Contexts that share a table.
struct Group {
  static constexpr std::size_t capacity =
      (n_delta_symbols + shared_cost_lanes - 1) / shared_cost_lanes * shared_cost_lanes;
  alignas(64) std::array<std::uint32_t, capacity> counts{};
  std::size_t end = 0;  // symbols from here on have no counts; a multiple of shared_cost_lanes
  std::uint64_t total = 0, mean = 0;
  std::int64_t cost = 0;

  // Bits that both groups cost with one table for both.
  std::int64_t cost_with(const Group& other, const Kernels& kernels, int table_log) const {
    const SharedCost shared =
        kernels.shared_cost(counts.data(), other.counts.data(), std::max(end, other.end));
    const auto total_cost = std::int64_t(log_product(total + other.total) >> 16);
    return std::max<std::int64_t>(total_cost - std::int64_t(shared.own), 0) +
           std::int64_t(table_bits(shared.n_used, n_delta_symbols - shared.n_used, table_log));
  }
  void absorb(const Group& other) {
    for (std::size_t i = 0; i < other.end; ++i) counts[i] += other.counts[i];
    end = std::max(end, other.end);
    total += other.total;
  }
};

// For one group: the bits that merging it with each of the next groups in order adds.
struct MergeCosts {
  static constexpr std::int64_t unknown = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> by_distance;
  std::size_t best = 0;  // the cheapest distance, from 1 on; 0: no group follows
  std::int64_t lowest = unknown;
  bool is_stale = true;
};

// Sets the shift and the table of each context. Contexts without counts get table 0 and shift 0.
// Groups are sorted by mean magnitude, and each is only compared with the `reach` next groups,
// because similar groups have similar means.
inline Clustering cluster(const Kernels& kernels, std::vector<ContextStatistics>& contexts,
                          int table_log, std::size_t table_limit, std::size_t reach) {
  Clustering result;
  constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  // Groups are large and never move; `order` holds the indices of the groups that are left.
  std::vector<Group> groups;
  groups.reserve(contexts.size());
  std::vector<std::size_t> order, group_of(contexts.size(), none);
  const Group nothing;
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    ContextStatistics& context = contexts[i];
    const Bins used = trimmed(context.histogram);
    if (used.empty()) continue;
    const CumulativeHistogram tally(used);
    context.shift = tally.shift();
    group_of[i] = groups.size();
    order.push_back(groups.size());
    Group& group = groups.emplace_back();
    Counts counts = tally.symbols(context.shift);
    const SampleScaling scaling(context.count, context.n_counted);
    for (std::size_t symbol = 0; symbol < counts.size(); ++symbol) {
      std::uint64_t& count = counts[symbol];
      if (count == 0) continue;
      count = std::max<std::uint64_t>(scaling(count), 1);
      group.counts[symbol] = std::uint32_t(count);
      group.mean += count * (symbol / 2);
      group.total += count;
      group.end = (symbol / shared_cost_lanes + 1) * shared_cost_lanes;
    }
    group.mean = (group.mean << 8) / group.total;
    result.bits += raw_bits(counts, context.shift, context.number_bits);
    group.cost = group.cost_with(nothing, kernels, table_log);
  }
  std::ranges::stable_sort(order, {}, [&](std::size_t g) { return groups[g].mean; });
  std::vector<MergeCosts> merge_costs(groups.size());
  const auto refresh = [&](std::size_t i) {
    MergeCosts& costs = merge_costs[i];
    const Group& group = groups[order[i]];
    costs.by_distance.resize(std::min(reach, order.size() - 1 - i), MergeCosts::unknown);
    costs.best = 0, costs.lowest = MergeCosts::unknown;
    for (std::size_t d = 1; d <= costs.by_distance.size(); ++d) {
      std::int64_t& added = costs.by_distance[d - 1];
      const Group& other = groups[order[i + d]];
      if (added == MergeCosts::unknown)
        added = group.cost_with(other, kernels, table_log) - group.cost - other.cost;
      if (costs.best == 0 || added < costs.lowest) costs.best = d, costs.lowest = added;
    }
    costs.is_stale = false;
  };
  std::vector<std::size_t> merged_into(groups.size(), none);
  while (order.size() > 1) {
    std::size_t best = none;
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (merge_costs[i].is_stale) refresh(i);
      if (best == none || merge_costs[i].lowest < merge_costs[best].lowest) best = i;
    }
    if (order.size() <= table_limit && merge_costs[best].lowest >= 0) break;
    const std::size_t absorbed = best + merge_costs[best].best;
    Group& group = groups[order[best]];
    group.cost += groups[order[absorbed]].cost + merge_costs[best].lowest;
    group.absorb(groups[order[absorbed]]);
    merged_into[order[absorbed]] = order[best];
    order.erase(order.begin() + std::ptrdiff_t(absorbed));
    merge_costs.erase(merge_costs.begin() + std::ptrdiff_t(absorbed));
    // The distances from earlier groups to later ones changed, and so did the merged group.
    for (std::size_t i = best - std::min(best, reach); i < absorbed; ++i) {
      std::vector<std::int64_t>& by_distance = merge_costs[i].by_distance;
      if (i == best) by_distance.clear();
      if (i < best && best - i <= by_distance.size())
        by_distance[best - i - 1] = MergeCosts::unknown;
      if (absorbed - i <= by_distance.size())
        by_distance.erase(by_distance.begin() + std::ptrdiff_t(absorbed - i - 1));
      merge_costs[i].is_stale = true;
    }
  }
  std::vector<unsigned> table_of(groups.size());
  for (const std::size_t g : order) {
    table_of[g] = unsigned(result.tables.size());
    std::copy_n(groups[g].counts.begin(), n_delta_symbols, result.tables.emplace_back().begin());
    result.bits += std::uint64_t(groups[g].cost);
  }
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    std::size_t g = group_of[i];
    if (g == none) continue;
    while (merged_into[g] != none) g = merged_into[g];
    contexts[i].table = table_of[g];
  }
  return result;
}

}  // namespace deltahub
