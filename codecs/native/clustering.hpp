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
  std::vector<std::size_t> members;

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
    members.insert(members.end(), other.members.begin(), other.members.end());
  }
};

// Sets each member's shift and table. Members that counted nothing take table 0 and shift 0. A group
// is only tried with the `reach` next ones in the order of their mean magnitudes, since those that
// are alike lie near each other.
inline Clustering cluster(std::vector<Member>& members, int table_log, std::size_t most_tables,
                          std::size_t reach) {
  Clustering result;
  std::vector<Group> groups;
  for (std::size_t i = 0; i < members.size(); ++i) {
    Member& member = members[i];
    const Bins used = trimmed(member.histogram);
    if (used.empty()) continue;
    const Tally tally(used);
    member.shift = tally.shift();
    Group group;
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
    group.cost = group.cost_with({}, table_log);
    group.members.push_back(i);
    groups.push_back(std::move(group));
  }
  std::ranges::stable_sort(groups, {}, &Group::mean);
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
          extra = std::int64_t(groups[i].cost_with(groups[i + d], table_log)) -
                  std::int64_t(groups[i].cost) - std::int64_t(groups[i + d].cost);
        if (best_step == 0 || extra < extras[best][best_step - 1]) best = i, best_step = d;
      }
    }
    if (groups.size() <= most_tables && extras[best][best_step - 1] >= 0) break;
    const std::size_t gone = best + best_step;
    groups[best].cost = groups[best].cost_with(groups[gone], table_log);
    groups[best].take(groups[gone]);
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
