// kv_pool: the C name of a ThreadPool.  Every exported operation takes it for its whole duration.
#pragma once

#include "kvserve.h"
#include "thread_pool.h"

struct kv_pool {
  explicit kv_pool(int threads) : threads(threads) {}
  kvserve::ThreadPool threads;
};

namespace kvserve {

class PoolCall {
 public:
  explicit PoolCall(kv_pool* pool) : lock_(pool->threads.call_mutex()), pool_(pool->threads) {}
  ThreadPool& operator*() { return pool_; }
  ThreadPool* operator->() { return &pool_; }

 private:
  std::lock_guard<std::mutex> lock_;
  ThreadPool& pool_;
};

}  // namespace kvserve
