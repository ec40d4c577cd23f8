// ThreadPool's waiting and hand-out; see the header for what it promises.
#include "thread_pool.h"

#include <chrono>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace kvserve {
namespace {

// Long enough to bridge the short serial steps between two phases, far shorter than a time slice.
constexpr std::chrono::microseconds kSpin{40};
constexpr int kPausesPerClockRead = 16;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `ready()` holds or the time is up; returns whether it held.
template <class Ready>
bool spin_until(Ready ready) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (ready()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return ready();
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_.store(true);
  }
  work_ready_.notify_all();
  for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::run_erased(int64_t pieces, Function function, void* context) {
  if (pieces <= 0) return;
  // A single piece, or a single thread, wakes nobody.
  if (pieces == 1 || workers_.empty()) {
    for (int64_t i = 0; i < pieces; ++i) function(context, i, 0);
    return;
  }
  function_ = function;
  context_ = context;
  pieces_ = pieces;
  done_.store(0, std::memory_order_relaxed);
  // seq_cst: pairs with a worker that announces its sleep and then looks at remaining_ once more.
  remaining_.store(pieces, std::memory_order_seq_cst);
  if (sleeping_workers_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    work_ready_.notify_all();
  }
  while (take_and_run_one(0)) {
  }
  wait_until_done();
}

bool ThreadPool::take_and_run_one(int thread) {
  int64_t left = remaining_.load(std::memory_order_relaxed);
  do {
    if (left <= 0) return false;
  } while (!remaining_.compare_exchange_weak(left, left - 1, std::memory_order_acquire,
                                             std::memory_order_relaxed));
  const int64_t pieces = pieces_;
  function_(context_, pieces - left, thread);
  // After this addition the phase may end and the fields above may change.
  if (done_.fetch_add(1, std::memory_order_seq_cst) + 1 == pieces &&
      caller_sleeps_.load(std::memory_order_seq_cst)) {
    std::lock_guard<std::mutex> lock(mutex_);
    work_done_.notify_one();
  }
  return true;
}

void ThreadPool::wait_until_done() {
  const auto finished = [this] { return done_.load(std::memory_order_seq_cst) == pieces_; };
  if (spin_until(finished)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  caller_sleeps_.store(true, std::memory_order_seq_cst);
  work_done_.wait(lock, finished);
  caller_sleeps_.store(false, std::memory_order_seq_cst);
}

void ThreadPool::wait_for_pieces() {
  const auto ready = [this] {
    return remaining_.load(std::memory_order_seq_cst) > 0 ||
           stopping_.load(std::memory_order_relaxed);
  };
  if (spin_until(ready)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  sleeping_workers_.fetch_add(1, std::memory_order_seq_cst);
  work_ready_.wait(lock, ready);
  sleeping_workers_.fetch_sub(1, std::memory_order_seq_cst);
}

void ThreadPool::worker(int thread) {
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (!take_and_run_one(thread)) wait_for_pieces();
  }
}

}  // namespace kvserve
