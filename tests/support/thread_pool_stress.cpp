// Runs many phases of all sizes on pools of several sizes; ends with 0 if each piece ran exactly
// once, within its phase, and no two running pieces had the same thread number.
//
// Meant to be compiled with thread_pool.cpp, under ThreadSanitizer where there is one.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "thread_pool.h"

namespace {

constexpr int kPhases = 3000;
constexpr auto kLongerThanAnyoneSpins = std::chrono::milliseconds(2);

bool stress(int threads) {
  kvserve::ThreadPool pool(threads);
  std::unique_ptr<std::atomic<bool>[]> taken(new std::atomic<bool>[threads]());
  std::atomic<bool> unique{true};
  for (int phase = 0; phase < kPhases; ++phase) {
    const int64_t pieces = phase * 7 % 23;
    std::vector<int> runs(pieces, 0);  // plain numbers: a piece that ran late would be a race
    const bool slow = phase % 500 == 499;
    pool.run(pieces, [&](int64_t piece, int thread) {
      if (thread < 0 || thread >= threads || taken[thread].exchange(true)) unique = false;
      // Every now and then the others, the caller among them, wait until they fall asleep.
      if (slow && piece == pieces - 1) std::this_thread::sleep_for(kLongerThanAnyoneSpins);
      ++runs[piece];
      taken[thread] = false;
    });
    for (int64_t piece = 0; piece < pieces; ++piece) {
      if (runs[piece] == 1) continue;
      std::printf("%d threads, phase %d: piece %ld ran %d times\n", threads, phase,
                  static_cast<long>(piece), runs[piece]);
      return false;
    }
    if (phase % 500 == 250) std::this_thread::sleep_for(kLongerThanAnyoneSpins);  // workers sleep
  }
  if (!unique) std::printf("%d threads: two pieces ran at once under one number\n", threads);
  return unique;
}

}  // namespace

int main() {
  for (int threads : {1, 2, 3, 9})
    if (!stress(threads)) return 1;
  return 0;
}
