// Runs the threads of a launch as fibers of one CPU thread. See emulator.hpp.
#include "emulator.hpp"

#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

emulator::Dimensions threadIdx, blockIdx, blockDim, gridDim;

// As large as that of any GPU. A launch may use as many bytes as it asks for.
constexpr std::size_t most_shared_bytes = 227 << 10;
alignas(16) uint4 deltahub_shared_memory[most_shared_bytes / sizeof(uint4)];

namespace emulator {
namespace {

constexpr std::size_t stack_bytes = 128 << 10;

// Lanes of a warp that meet. The values of two meetings are kept: a lane that is ahead brings its
// value to the next one while others still read those of this one.
struct Warp {
  Intrinsic intrinsic;
  unsigned mask, arrived = 0;
  std::uint64_t meeting = 0, values[2][32];
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(stack_bytes);
  void* sanitizer_stack = nullptr;
  bool is_done = false;
  const std::uint64_t* awaited = nullptr;  // the fiber waits until this number changes
  std::uint64_t awaited_value = 0;
};

struct Launch {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::uint64_t barrier = 0;
  std::size_t n_at_barrier = 0, n_alive = 0;
  std::size_t current = 0;
  ucontext_t scheduler;
  void* sanitizer_stack = nullptr;
  const void* scheduler_stack = nullptr;
  std::size_t scheduler_stack_bytes = 0;
  std::string error;
  void (*kernel)(const void*, const void*, const void*, const void*, void*);
  const void* arguments[5];
};

Launch* launch;

void to_scheduler(bool is_done) {
  Fiber& fiber = launch->fibers[launch->current];
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(is_done ? nullptr : &fiber.sanitizer_stack,
                                 launch->scheduler_stack, launch->scheduler_stack_bytes);
#endif
  fiber.is_done = is_done;
  swapcontext(&fiber.context, &launch->scheduler);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fiber.sanitizer_stack, nullptr, nullptr);
#endif
}

void to_fiber(std::size_t index) {
  Fiber& fiber = launch->fibers[index];
  launch->current = index;
  threadIdx.x = unsigned(index);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&launch->sanitizer_stack, fiber.stack.get(), stack_bytes);
#endif
  swapcontext(&launch->scheduler, &fiber.context);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(launch->sanitizer_stack, nullptr, nullptr);
#endif
}

[[noreturn]] void fail(const std::string& error) {
  launch->error = "thread " + std::to_string(launch->current) + ": " + error;
  for (;;) to_scheduler(false);  // which does not come back
}

void wait_for_change(const std::uint64_t& number) {
  Fiber& fiber = launch->fibers[launch->current];
  fiber.awaited = &number;
  fiber.awaited_value = number;
  to_scheduler(false);
  fiber.awaited = nullptr;
}

void release_barrier() {
  if (launch->n_at_barrier == 0 || launch->n_at_barrier < launch->n_alive) return;
  launch->n_at_barrier = 0;
  ++launch->barrier;
}

void run_thread() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &launch->scheduler_stack,
                                  &launch->scheduler_stack_bytes);
#endif
  const auto& a = launch->arguments;
  launch->kernel(a[0], a[1], a[2], a[3], const_cast<void*>(a[4]));
  --launch->n_alive;
  release_barrier();
  to_scheduler(true);
}

// Runs one thread block. `random` gives the order in which its threads take turns.
void run_block(std::size_t n_threads, std::size_t shared_bytes, std::mt19937& random) {
  auto* const memory = reinterpret_cast<unsigned char*>(deltahub_shared_memory);
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(memory, most_shared_bytes);
#endif
  std::memset(memory, 0xa5, most_shared_bytes);  // shared memory begins with arbitrary bytes
#ifdef __SANITIZE_ADDRESS__
  __asan_poison_memory_region(memory + shared_bytes, most_shared_bytes - shared_bytes);
#else
  (void)shared_bytes;
#endif
  launch->warps.assign((n_threads + 31) / 32, {});
  launch->n_at_barrier = 0;
  launch->n_alive = n_threads;
  for (Fiber& fiber : launch->fibers) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = stack_bytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_thread, 0);
    fiber.is_done = false;
    fiber.awaited = nullptr;
  }
  std::vector<std::size_t> order(n_threads);
  std::iota(order.begin(), order.end(), std::size_t(0));
  while (launch->n_alive > 0 && launch->error.empty()) {
    std::shuffle(order.begin(), order.end(), random);
    bool has_run = false;
    for (const std::size_t index : order) {
      const Fiber& fiber = launch->fibers[index];
      if (fiber.is_done || (fiber.awaited && *fiber.awaited == fiber.awaited_value)) continue;
      has_run = true;
      to_fiber(index);
      if (!launch->error.empty()) return;
    }
    if (!has_run) launch->error = "all threads wait for each other";
  }
}

}  // namespace

unsigned lane() { return unsigned(launch->current % 32); }

const std::uint64_t* meet(Intrinsic intrinsic, unsigned mask, std::uint64_t brought) {
  Warp& warp = launch->warps[launch->current / 32];
  const unsigned own = lane();
  if (!(mask >> own & 1)) fail("a lane is not in its own mask");
  if (warp.arrived == 0) {
    warp.intrinsic = intrinsic;
    warp.mask = mask;
  } else if (warp.intrinsic != intrinsic || warp.mask != mask) {
    fail("lanes of a warp meet at different intrinsics");
  }
  std::uint64_t* const values = warp.values[warp.meeting % 2];
  values[own] = brought;
  warp.arrived |= 1u << own;
  if (warp.arrived == mask) {
    warp.arrived = 0;
    ++warp.meeting;
  } else {
    wait_for_change(warp.meeting);
  }
  return values;
}

void meet_threads() {
  ++launch->n_at_barrier;
  const std::uint64_t barrier = launch->barrier;
  release_barrier();
  if (launch->barrier == barrier) wait_for_change(launch->barrier);
}

}  // namespace emulator

// Runs a kernel. seed: of the order in which threads take turns. Returns null, or why it failed.
extern "C" const char* emulate(void (*kernel)(const void*, const void*, const void*, const void*,
                                              void*),
                               std::uint32_t n_blocks, std::uint32_t n_threads,
                               std::uint32_t shared_bytes, const void* const* arguments,
                               std::uint32_t seed) {
  using namespace emulator;
  static std::string error;
  if (shared_bytes > most_shared_bytes) return "no GPU has so much shared memory";
  Launch own;
  own.fibers.resize(n_threads);
  own.kernel = kernel;
  std::copy_n(arguments, 5, own.arguments);
  launch = &own;
  gridDim.x = n_blocks;
  blockDim.x = n_threads;
  std::mt19937 random(seed);
  for (blockIdx.x = 0; blockIdx.x < n_blocks && own.error.empty(); ++blockIdx.x)
    run_block(n_threads, shared_bytes, random);
  launch = nullptr;
  error = own.error;
  return error.empty() ? nullptr : error.c_str();
}
