// Work on many blocks by a few threads, which live as long as one call: a process may fork between.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace deltahub {

// work(i) for i = 0 to n - 1, begun in this order by so many threads, the caller's among them. After
// one that says false or throws no other begins; its error is thrown again once all are back.
template <class Work>
void for_each_block(std::size_t n, std::size_t threads, Work&& work) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr fault;
  const auto run = [&]() noexcept {
    try {
      for (std::size_t i = next++; i < n; i = next++)
        if (!work(i)) next = n;
    } catch (...) {
      next = n;
      const std::lock_guard lock(mutex);
      if (!fault) fault = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    others.reserve(std::min(threads, n));
    try {
      while (others.size() + 1 < std::min(threads, n)) others.emplace_back(run);
    } catch (const std::exception&) {
      // The system gives no more threads, or memory for them: those that there are do all the work.
    }
    run();
  }
  if (fault) std::rethrow_exception(fault);
}

// Hands on what threads make, in the order of its indices. At most `most` results wait for others
// that come before them, and keep() what they are made of: until then whoever brings one more waits,
// too.
template <class Result, class Use>
class InOrder {
 public:
  InOrder(std::size_t most, Use use) : waiting_(most), use_(std::move(use)) {}

  void put(std::size_t index, Result&& result) {
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [&] { return index < next_ + waiting_.size() || is_given_up_; });
    if (is_given_up_) return;
    if (index != next_) {
      result.keep();
      place_of(index) = std::move(result);
      return;
    }
    use_(next_++, result);
    for (; place_of(next_).has_value(); ++next_) {
      use_(next_, *place_of(next_));
      place_of(next_).reset();
    }
    moved_.notify_all();
  }
  // A result will never come: nobody waits for it any more.
  void give_up() {
    const std::lock_guard lock(mutex_);
    is_given_up_ = true;
    moved_.notify_all();
  }

 private:
  std::optional<Result>& place_of(std::size_t index) { return waiting_[index % waiting_.size()]; }

  std::mutex mutex_;
  std::condition_variable moved_;
  std::vector<std::optional<Result>> waiting_;
  Use use_;
  std::size_t next_ = 0;
  bool is_given_up_ = false;
};

}  // namespace deltahub
