// Which contexts share a table: those that cost least together, until merging no longer pays.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "histograms.hpp"

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
inline std::uint64_t scaled(std::uint64_t seen, std::uint64_t count, std::uint64_t counted) {
  return counted == count || counted == 0
             ? seen
             : std::uint64_t(double(seen) * (double(count) / double(counted)));
}

struct Clustering {
  std::vector<Counts> tables;
  std::uint64_t bits = 0;  // of states, raw digits and tables
};

// Contexts that share a table.
struct Group {
  Counts counts{};
  std::size_t end = 0;  // symbols from here on have no counts
  std::uint64_t total = 0, cost = 0, mean = 0;

  // What both cost with one table.
  std::uint64_t cost_with(const Group& other, int table_log) const {
    std::uint64_t own = 0, n_used = 0;
    for (std::size_t i = 0; i < std::max(end, other.end); ++i) {
      const std::uint64_t count = counts[i] + other.counts[i];
      own += log_product(count);
      n_used += count > 0;
    }
    return ((log_product(total + other.total) - own) >> 16) +
           table_bits(n_used, n_delta_symbols - n_used, table_log);
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
  bool is_stale = true;

  std::int64_t least() const { return by_step[best - 1]; }
};

// Sets each member's shift and table. Members that counted nothing take table 0 and shift 0. A group
// is only tried with the `reach` next ones in the order of their mean magnitudes, since those that
// are alike lie near each other.
inline Clustering cluster(std::vector<Member>& members, int table_log, std::size_t most_tables,
                          std::size_t reach) {
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
    const Tally tally(used);
    member.shift = tally.shift();
    group_of[i] = groups.size();
    order.push_back(groups.size());
    Group& group = groups.emplace_back();
    group.counts = tally.symbols(member.shift);
    for (std::size_t symbol = 0; symbol < group.counts.size(); ++symbol) {
      std::uint64_t& count = group.counts[symbol];
      if (count == 0) continue;
      count = std::max<std::uint64_t>(scaled(count, member.count, member.counted), 1);
      group.mean += count * (symbol / 2);
      group.total += count;
      group.end = symbol + 1;
    }
    group.mean = (group.mean << 8) / group.total;
    result.bits += raw_bits(group.counts, member.shift, member.number_bits);
    group.cost = group.cost_with(nothing, table_log);
  }
  std::ranges::stable_sort(order, {}, [&](std::size_t g) { return groups[g].mean; });
  std::vector<Extras> extras(groups.size());
  const auto refresh = [&](std::size_t i) {
    Extras& all = extras[i];
    const Group& group = groups[order[i]];
    all.by_step.resize(std::min(reach, order.size() - 1 - i), Extras::unknown);
    all.best = 0;
    for (std::size_t d = 1; d <= all.by_step.size(); ++d) {
      std::int64_t& extra = all.by_step[d - 1];
      const Group& other = groups[order[i + d]];
      if (extra == Extras::unknown)
        extra = std::int64_t(group.cost_with(other, table_log)) - std::int64_t(group.cost) -
                std::int64_t(other.cost);
      if (all.best == 0 || extra < all.least()) all.best = d;
    }
    all.is_stale = false;
  };
  std::vector<std::size_t> merged_into(groups.size(), none);
  while (order.size() > 1) {
    std::size_t best = none;
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (extras[i].is_stale) refresh(i);
      if (extras[i].best > 0 && (best == none || extras[i].least() < extras[best].least()))
        best = i;
    }
    if (order.size() <= most_tables && extras[best].least() >= 0) break;
    const std::size_t gone = best + extras[best].best;
    Group& group = groups[order[best]];
    group.cost += groups[order[gone]].cost + std::uint64_t(extras[best].least());
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
    result.tables.push_back(groups[g].counts);
    result.bits += groups[g].cost;
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
