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

// Sets each member's shift and table. Members that counted nothing take table 0 and shift 0.
inline Clustering cluster(std::vector<Member>& members, int table_log, std::size_t most_tables) {
  struct Group {
    Counts counts{};
    std::uint64_t cost = 0;
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
    for (std::uint64_t& count : group.counts)
      count = count ? std::max<std::uint64_t>(scaled(count, member.count, member.counted), 1) : 0;
    result.bits += raw_bits(group.counts, member.shift, member.number_bits);
    group.cost = cost_of(group.counts, table_log);
    group.members.push_back(i);
    groups.push_back(std::move(group));
  }
  const auto together = [](const Group& a, const Group& b) {
    Counts counts = a.counts;
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += b.counts[i];
    return counts;
  };
  const auto extra = [&](const Group& a, const Group& b) {
    return std::int64_t(cost_of(together(a, b), table_log)) - std::int64_t(a.cost) -
           std::int64_t(b.cost);
  };
  // The best partner of each group among those after it.
  constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  std::vector<std::vector<std::int64_t>> extras(groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    extras[i].assign(groups.size(), none);
    for (std::size_t j = i + 1; j < groups.size(); ++j) extras[i][j] = extra(groups[i], groups[j]);
  }
  std::vector<bool> is_gone(groups.size());
  for (std::size_t left = groups.size(); left > 1; --left) {
    std::size_t a = 0, b = 0;
    std::int64_t least = none;
    for (std::size_t i = 0; i < groups.size(); ++i)
      for (std::size_t j = i + 1; j < groups.size(); ++j)
        if (!is_gone[i] && !is_gone[j] && extras[i][j] < least) least = extras[i][j], a = i, b = j;
    if (left <= most_tables && least >= 0) break;
    groups[a].counts = together(groups[a], groups[b]);
    groups[a].cost = cost_of(groups[a].counts, table_log);
    groups[a].members.insert(groups[a].members.end(), groups[b].members.begin(),
                             groups[b].members.end());
    is_gone[b] = true;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (is_gone[i] || i == a) continue;
      const std::size_t first = std::min(i, a), second = std::max(i, a);
      extras[first][second] = extra(groups[first], groups[second]);
    }
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (is_gone[i]) continue;
    for (const std::size_t member : groups[i].members)
      members[member].table = unsigned(result.tables.size());
    result.tables.push_back(groups[i].counts);
    result.bits += groups[i].cost;
  }
  return result;
}

}  // namespace deltahub
