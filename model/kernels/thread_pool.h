// The one thread pool: hands the pieces of a phase out through a single atomic counter.
//
// Responsible for: who runs which piece, and how a thread waits.  It knows no tensors.
//
// A forward pass is a sequence of phases.  A phase is published by the calling thread, which also
// works on it; it ends when all its pieces are done, *not* when all threads have shown up: a worker
// that a busy neighbour keeps off its core simply takes no piece, and costs nothing but its help.
// Waiting threads spin for some tens of microseconds (phases follow each other that fast), then
// sleep, so an idle server uses no processor time and a busy neighbour gets the core at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace kvserve {

class ThreadPool {
 public:
  // `threads` counts the caller, so 1 starts no thread at all.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(piece, thread) for every piece in [0, pieces); returns when all have finished.
  // `thread` is in [0, size()) and no two running calls share it, so it can index scratch memory.
  // The pieces run in any order and on any thread: a result must not depend on either.
  template <class Body>
  void run(int64_t pieces, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased(pieces,
               [](void* context, int64_t piece, int thread) {
                 (*static_cast<Plain*>(context))(piece, thread);
               },
               const_cast<void*>(static_cast<const void*>(&body)));
  }

  // Held for the whole of one C call: two Python threads may share a pool, but not at once.
  std::mutex& call_mutex() { return call_mutex_; }

 private:
  using Function = void (*)(void* context, int64_t piece, int thread);

  void run_erased(int64_t pieces, Function function, void* context);
  bool take_and_run_one(int thread);
  void worker(int thread);
  void wait_for_pieces();
  void wait_until_done();

  // Written by the publisher before `remaining_`, read only by a thread that holds a piece: the
  // phase cannot end, and so the fields cannot change, before that piece is done.
  Function function_ = nullptr;
  void* context_ = nullptr;
  int64_t pieces_ = 0;

  alignas(64) std::atomic<int64_t> remaining_{0};  // pieces nobody has taken yet
  alignas(64) std::atomic<int64_t> done_{0};
  alignas(64) std::atomic<int> sleeping_workers_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stopping_{false};

  std::mutex mutex_;
  std::condition_variable work_ready_;
  std::condition_variable work_done_;
  std::mutex call_mutex_;
  std::vector<std::thread> workers_;
};

}  // namespace kvserve
