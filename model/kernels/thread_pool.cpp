// ThreadPool's waiting and hand-out; see the header for what it promises.
#include "thread_pool.h"

#include <chrono>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace kvserve {
namespace {

// Long enough to bridge the serial work between two phases and between two calls of one step, where
// waking a thread would cost as much again; far shorter than a time slice.
constexpr std::chrono::microseconds kSpin{200};
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

ThreadPool::ThreadPool(int threads) : size_(threads), hands_(new Hand[threads]) {
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
  if (pieces == 1 || size_ == 1) {
    for (int64_t i = 0; i < pieces; ++i) function(context, i, 0);
    return;
  }
  function_ = function;
  context_ = context;
  deal(pieces);
  if (sleeping_workers_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    work_ready_.notify_all();
  }
  run_what_is_left(0);
  wait_until_done();
}

void ThreadPool::deal(int64_t pieces) {
  unfinished_.store(pieces, std::memory_order_relaxed);
  for (int i = size_ - 1; i >= 0; --i) {  // the caller's last: it is not there to take them yet
    const int64_t count = (pieces - i + size_ - 1) / size_;
    hands_[i].end = i + count * size_;
    // seq_cst: pairs with a worker that announces its sleep and then looks at its hand once more.
    hands_[i].left.store(count, std::memory_order_seq_cst);
  }
}

int64_t ThreadPool::run_hand(Hand& hand, int thread) {
  int64_t count = 0;
  // Looked at before it is counted down, so that waiting threads do not write.
  while (hand.left.load(std::memory_order_relaxed) > 0) {
    const int64_t left = hand.left.fetch_sub(1, std::memory_order_acquire);
    if (left <= 0) break;
    function_(context_, hand.end - left * size_, thread);
    ++count;
  }
  return count;
}

bool ThreadPool::run_what_is_left(int thread) {
  int64_t count = 0;
  for (int i = 0; i < size_; ++i) count += run_hand(hands_[(thread + i) % size_], thread);
  if (count == 0) return false;
  // After this subtraction the phase may end and its fields may change.
  if (unfinished_.fetch_sub(count, std::memory_order_seq_cst) == count &&
      caller_sleeps_.load(std::memory_order_seq_cst)) {
    std::lock_guard<std::mutex> lock(mutex_);
    work_done_.notify_one();
  }
  return true;
}

void ThreadPool::wait_until_done() {
  const auto finished = [this] { return unfinished_.load(std::memory_order_seq_cst) == 0; };
  if (spin_until(finished)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  caller_sleeps_.store(true, std::memory_order_seq_cst);
  work_done_.wait(lock, finished);
  caller_sleeps_.store(false, std::memory_order_seq_cst);
}

void ThreadPool::wait_for_pieces(int thread) {
  const auto ready = [this, thread] {
    return hands_[thread].left.load(std::memory_order_seq_cst) > 0 ||
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
    if (!run_what_is_left(thread)) wait_for_pieces(thread);
  }
}

}  // namespace kvserve
