// Which contexts share a table: those that cost least together, until merging no longer pays.
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

// One context to be: its numbers at its own shift, scaled from the sample to the frame.
struct Member {
  Bins histogram;
  int number_bits;
  std::uint64_t counted = 1, count = 1;  // numbers that were counted, and that there are
  unsigned shift = 0;       // set by clustering
  unsigned table = 0;       // set by clustering
};

// What was seen of a sample, for the whole.
class Scaling {
 public:
  Scaling(std::uint64_t count, std::uint64_t counted)
      : is_whole_(counted == count || counted == 0),
        by_(is_whole_ ? 1 : double(std::int64_t(count)) / double(std::int64_t(counted))) {}

  std::uint64_t operator()(std::uint64_t seen) const {
    // By way of signed numbers, which processors convert in one instruction.
    return is_whole_ ? seen : std::uint64_t(std::int64_t(double(std::int64_t(seen)) * by_));
  }

 private:
  bool is_whole_;
  double by_;
};
inline std::uint64_t scaled(std::uint64_t seen, std::uint64_t count, std::uint64_t counted) {
  return Scaling(count, counted)(seen);
}

struct Clustering {
  std::vector<Counts> tables;
  std::uint64_t bits = 0;  // of states, raw digits and tables
};

// Contexts that share a table.
struct Group {
  static constexpr std::size_t room =
      (n_delta_symbols + shared_cost_lanes - 1) / shared_cost_lanes * shared_cost_lanes;
  alignas(64) std::array<std::uint32_t, room> counts{};
  std::size_t end = 0;  // symbols from here on have no counts; whole vectors of them
  std::uint64_t total = 0, mean = 0;
  std::int64_t cost = 0;

  // What both cost with one table.
  std::int64_t cost_with(const Group& other, const Kernels& kernels, int table_log) const {
    const SharedCost shared =
        kernels.shared_cost(counts.data(), other.counts.data(), std::max(end, other.end));
    const auto all = std::int64_t(log_product(total + other.total) >> 16);
    return std::max<std::int64_t>(all - std::int64_t(shared.own), 0) +
           std::int64_t(table_bits(shared.n_used, n_delta_symbols - shared.n_used, table_log));
  }
  void take(const Group& other) {
    for (std::size_t i = 0; i < other.end; ++i) counts[i] += other.counts[i];
    end = std::max(end, other.end);
    total += other.total;
  }
};

// What a group and each of those that follow it cost more as one.
struct Extras {
  static constexpr std::int64_t unknown = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> by_step;
  std::size_t best = 0;  // the step with the least, from 1 on; 0: there is none
  std::int64_t least = unknown;
  bool is_stale = true;
};

// Sets each member's shift and table. Members that counted nothing take table 0 and shift 0. A group
// is only tried with the `reach` next ones in the order of their mean magnitudes, since those that
// are alike lie near each other.
inline Clustering cluster(const Kernels& kernels, std::vector<Member>& members, int table_log,
                          std::size_t most_tables, std::size_t reach) {
  Clustering result;
  constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  // Groups stay where they are: they are large. The order of those that are left is kept beside them.
  std::vector<Group> groups;
  groups.reserve(members.size());
  std::vector<std::size_t> order, group_of(members.size(), none);
  const Group nothing;
  for (std::size_t i = 0; i < members.size(); ++i) {
    Member& member = members[i];
    const Bins used = trimmed(member.histogram);
    if (used.empty()) continue;
    const CumulativeHistogram tally(used);
    member.shift = tally.shift();
    group_of[i] = groups.size();
    order.push_back(groups.size());
    Group& group = groups.emplace_back();
    Counts counts = tally.symbols(member.shift);
    const Scaling scaling(member.count, member.counted);
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
    result.bits += raw_bits(counts, member.shift, member.number_bits);
    group.cost = group.cost_with(nothing, kernels, table_log);
  }
  std::ranges::stable_sort(order, {}, [&](std::size_t g) { return groups[g].mean; });
  std::vector<Extras> extras(groups.size());
  const auto refresh = [&](std::size_t i) {
    Extras& all = extras[i];
    const Group& group = groups[order[i]];
    all.by_step.resize(std::min(reach, order.size() - 1 - i), Extras::unknown);
    all.best = 0, all.least = Extras::unknown;
    for (std::size_t d = 1; d <= all.by_step.size(); ++d) {
      std::int64_t& extra = all.by_step[d - 1];
      const Group& other = groups[order[i + d]];
      if (extra == Extras::unknown)
        extra = group.cost_with(other, kernels, table_log) - group.cost - other.cost;
      if (all.best == 0 || extra < all.least) all.best = d, all.least = extra;
    }
    all.is_stale = false;
  };
  std::vector<std::size_t> merged_into(groups.size(), none);
  while (order.size() > 1) {
    std::size_t best = none;
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (extras[i].is_stale) refresh(i);
      if (best == none || extras[i].least < extras[best].least) best = i;
    }
    if (order.size() <= most_tables && extras[best].least >= 0) break;
    const std::size_t gone = best + extras[best].best;
    Group& group = groups[order[best]];
    group.cost += groups[order[gone]].cost + extras[best].least;
    group.take(groups[order[gone]]);
    merged_into[order[gone]] = order[best];
    order.erase(order.begin() + std::ptrdiff_t(gone));
    extras.erase(extras.begin() + std::ptrdiff_t(gone));
    // Those before either one lie at other steps from what follows, or beside another group now.
    for (std::size_t i = best - std::min(best, reach); i < gone; ++i) {
      std::vector<std::int64_t>& by_step = extras[i].by_step;
      if (i == best) by_step.clear();
      if (i < best && best - i <= by_step.size()) by_step[best - i - 1] = Extras::unknown;
      if (gone - i <= by_step.size())
        by_step.erase(by_step.begin() + std::ptrdiff_t(gone - i - 1));
      extras[i].is_stale = true;
    }
  }
  std::vector<unsigned> table_of(groups.size());
  for (const std::size_t g : order) {
    table_of[g] = unsigned(result.tables.size());
    std::copy_n(groups[g].counts.begin(), n_delta_symbols, result.tables.emplace_back().begin());
    result.bits += std::uint64_t(groups[g].cost);
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    std::size_t g = group_of[i];
    if (g == none) continue;
    while (merged_into[g] != none) g = merged_into[g];
    members[i].table = table_of[g];
  }
  return result;
}

}  // namespace deltahub
