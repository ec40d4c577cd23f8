// The one thread pool: hands out the pieces of a phase, and lets whoever is free take them.
//
// Responsible for: who runs which piece, and how a thread waits.  It knows no tensors.
//
// A forward pass is a sequence of phases.  A phase is published by the calling thread, which also
// works on it; it ends when all its pieces are done, *not* when all threads have shown up: a worker
// that a busy neighbour keeps off its core simply takes no piece, and costs nothing but its help.
// Each thread is dealt every size()-th piece and counts them down on a cache line of its own, so
// that taking one seldom touches what another thread writes; who has run out takes from the others.
// Waiting threads spin for a fraction of a millisecond (phases follow each other faster), then
// sleep, so an idle server uses no processor time and a busy neighbour gets the core at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
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

  int size() const { return size_; }

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

  // The pieces dealt to one thread: first, first + size(), ... below the number of pieces.
  struct alignas(64) Hand {
    std::atomic<int64_t> left{0};  // of them, those nobody has taken yet
    // Where a piece's number is counted back from; written before `left`, read by takers only.
    int64_t end = 0;
  };

  void run_erased(int64_t pieces, Function function, void* context);
  void deal(int64_t pieces);
  int64_t run_hand(Hand& hand, int thread);
  bool run_what_is_left(int thread);
  void worker(int thread);
  void wait_for_pieces(int thread);
  void wait_until_done();

  const int size_;

  // Written by the publisher before any `left`, read only by a thread that holds a piece: the
  // phase cannot end, and so the fields cannot change, before that piece is done.
  Function function_ = nullptr;
  void* context_ = nullptr;

  std::unique_ptr<Hand[]> hands_;
  alignas(64) std::atomic<int64_t> unfinished_{0};  // pieces of the phase, dealt or running
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
