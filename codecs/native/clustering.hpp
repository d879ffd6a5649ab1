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
  Histogram histogram;
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

inline std::uint64_t cost_of(const Counts& counts, int table_log) {
  return (entropy_bits(counts) >> 16) + table_bits(counts, table_log);
}

// Sets each member's shift and table. Members that counted nothing take table 0 and shift 0. A group
// is only tried with the `reach` next ones in the order of their mean magnitudes, since those that
// are alike lie near each other.
inline Clustering cluster(std::vector<Member>& members, int table_log, std::size_t most_tables,
                          std::size_t reach) {
  struct Group {
    Counts counts{};
    std::uint64_t cost = 0;
    std::uint64_t mean = 0;
    std::vector<std::size_t> members;
  };
  Clustering result;
  std::vector<Group> groups;
  for (std::size_t i = 0; i < members.size(); ++i) {
    Member& member = members[i];
    if (total_of(member.histogram) == 0) continue;
    member.shift = shift_for(member.histogram);
    Group group;
    add_counts(group.counts, member.histogram, member.shift);
    std::uint64_t total = 0;
    for (std::size_t symbol = 0; symbol < group.counts.size(); ++symbol) {
      std::uint64_t& count = group.counts[symbol];
      count = count ? std::max<std::uint64_t>(scaled(count, member.count, member.counted), 1) : 0;
      group.mean += count * (symbol / 2);
      total += count;
    }
    group.mean = (group.mean << 8) / total;
    result.bits += raw_bits(group.counts, member.shift, member.number_bits);
    group.cost = cost_of(group.counts, table_log);
    group.members.push_back(i);
    groups.push_back(std::move(group));
  }
  std::ranges::stable_sort(groups, {}, &Group::mean);
  const auto together = [](const Group& a, const Group& b) {
    Counts counts = a.counts;
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += b.counts[i];
    return counts;
  };
  // extras[i][d - 1]: what groups i and i + d cost more as one.
  constexpr std::int64_t unknown = std::numeric_limits<std::int64_t>::max();
  std::vector<std::vector<std::int64_t>> extras(groups.size());
  while (groups.size() > 1) {
    std::size_t best = 0, best_step = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      extras[i].resize(std::min(reach, groups.size() - 1 - i), unknown);
      for (std::size_t d = 1; d <= extras[i].size(); ++d) {
        std::int64_t& extra = extras[i][d - 1];
        if (extra == unknown)
          extra = std::int64_t(cost_of(together(groups[i], groups[i + d]), table_log)) -
                  std::int64_t(groups[i].cost) - std::int64_t(groups[i + d].cost);
        if (best_step == 0 || extra < extras[best][best_step - 1]) best = i, best_step = d;
      }
    }
    if (groups.size() <= most_tables && extras[best][best_step - 1] >= 0) break;
    const std::size_t gone = best + best_step;
    groups[best].counts = together(groups[best], groups[gone]);
    groups[best].cost = cost_of(groups[best].counts, table_log);
    groups[best].members.insert(groups[best].members.end(), groups[gone].members.begin(),
                                groups[gone].members.end());
    groups.erase(groups.begin() + std::ptrdiff_t(gone));
    extras.erase(extras.begin() + std::ptrdiff_t(gone));
    // Those before either one lie at other steps from what follows, or beside another group now.
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (i == best) extras[i].clear();
      for (std::size_t d = 1; d <= extras[i].size(); ++d)
        if (i + d == best) extras[i][d - 1] = unknown;
      if (i < gone && i + extras[i].size() >= gone)
        extras[i].erase(extras[i].begin() + std::ptrdiff_t(gone - i - 1));
    }
  }
  for (const Group& group : groups) {
    for (const std::size_t member : group.members)
      members[member].table = unsigned(result.tables.size());
    result.tables.push_back(group.counts);
    result.bits += group.cost;
  }
  return result;
}

}  // namespace deltahub
