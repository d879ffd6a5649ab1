// Work on many blocks by a few threads. The threads end with the call, so that a process can fork
// between two calls.
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

// Calls work(i) for i = 0 to n - 1, in this order, on `threads` threads, one of which is the
// caller. After a call returns false or throws, no further call starts; the exception is rethrown
// when all threads have ended.
template <class Work>
void for_each_block(std::size_t n, std::size_t threads, Work&& work) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto worker = [&]() noexcept {
    try {
      for (std::size_t i = next++; i < n; i = next++)
        if (!work(i)) next = n;
    } catch (...) {
      next = n;
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> started;
    started.reserve(std::min(threads, n));
    try {
      while (started.size() + 1 < std::min(threads, n)) started.emplace_back(worker);
    } catch (const std::exception&) {
      // The system has no more threads, or no memory for them: the threads already started do all
      // the work.
    }
    worker();
  }
  if (error) std::rethrow_exception(error);
}

// Passes the results of several threads to `use` in the order of their indices. At most `capacity`
// results wait for earlier ones, after keep() has copied the data that they refer to. A thread
// with a result beyond that waits.
template <class Result, class Use>
class InOrder {
 public:
  InOrder(std::size_t capacity, Use use) : slots_(capacity), use_(std::move(use)) {}

  void put(std::size_t index, Result&& result) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return index < next_ + slots_.size() || is_cancelled_; });
    if (is_cancelled_) return;
    if (index != next_) {
      result.keep();
      slot_of(index) = std::move(result);
      return;
    }
    use_(next_++, result);
    for (; slot_of(next_).has_value(); ++next_) {
      use_(next_, *slot_of(next_));
      slot_of(next_).reset();
    }
    changed_.notify_all();
  }
  // Ends all waiting, because a result will never come.
  void cancel() {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
    changed_.notify_all();
  }

 private:
  std::optional<Result>& slot_of(std::size_t index) { return slots_[index % slots_.size()]; }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::optional<Result>> slots_;
  Use use_;
  std::size_t next_ = 0;
  bool is_cancelled_ = false;
};

}  // namespace deltahub
