// The record: what one (slot, op) pair leaves on the device. The same truth as records/layout.py,
// where every field is explained; tests compare the two (op record_layout).

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace flagprism {

struct Record {
  int64_t executions;
  int64_t live;
  int64_t nan;
  int64_t posinf;
  int64_t neginf;
  int64_t zero;
  uint64_t min_key;
  uint64_t max_key;
  double sum;
  double sumsq;
  uint64_t first;
  int32_t scale;
  int32_t flags;
};

constexpr int64_t kRecordWords = 24;
constexpr int64_t kHistogramBuckets = 64;

static_assert(std::is_trivially_copyable_v<Record> && std::is_standard_layout_v<Record>);
static_assert(sizeof(Record) == kRecordWords * sizeof(int32_t));
static_assert(offsetof(Record, executions) == 0);
static_assert(offsetof(Record, live) == 8);
static_assert(offsetof(Record, nan) == 16);
static_assert(offsetof(Record, posinf) == 24);
static_assert(offsetof(Record, neginf) == 32);
static_assert(offsetof(Record, zero) == 40);
static_assert(offsetof(Record, min_key) == 48);
static_assert(offsetof(Record, max_key) == 56);
static_assert(offsetof(Record, sum) == 64);
static_assert(offsetof(Record, sumsq) == 72);
static_assert(offsetof(Record, first) == 80);
static_assert(offsetof(Record, scale) == 88);
static_assert(offsetof(Record, flags) == 92);

// Records lie in int32 tensors whose data pointer need not be aligned to 8 bytes (a view may start
// at any word), so they are copied in and out; the compiler turns this into plain moves.
inline Record load(const int32_t* words) {
  Record record;
  std::memcpy(&record, words, sizeof(Record));
  return record;
}

inline void store(int32_t* words, const Record& record) {
  std::memcpy(words, &record, sizeof(Record));
}

// `sumsq` in units of 2**(2 * scale), for scale >= the record's own. Exact unless it underflows.
inline double rescaled(const Record& record, int32_t scale) {
  const int64_t exponent = 2 * (int64_t{record.scale} - scale);
  return std::ldexp(record.sumsq, static_cast<int>(std::max<int64_t>(exponent, -5000)));
}

// Merges `from` into `into`. The all-zero record is the identity; counters wrap instead of being
// undefined, so that corrupt memory cannot do worse than a wrong number.
inline void merge(Record& into, const Record& from) {
  const auto add = [](int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  };
  into.executions = add(into.executions, from.executions);
  into.live = add(into.live, from.live);
  into.nan = add(into.nan, from.nan);
  into.posinf = add(into.posinf, from.posinf);
  into.neginf = add(into.neginf, from.neginf);
  into.zero = add(into.zero, from.zero);
  into.min_key = std::max(into.min_key, from.min_key);
  into.max_key = std::max(into.max_key, from.max_key);
  into.sum += from.sum;
  into.first = std::max(into.first, from.first);
  into.flags |= from.flags;
  // The scale of a record without squares carries no information.
  if (from.sumsq == 0) return;
  if (into.sumsq == 0) {
    into.sumsq = from.sumsq;
    into.scale = from.scale;
  } else if (into.scale == from.scale) {
    into.sumsq += from.sumsq;
  } else {
    const int32_t scale = std::max(into.scale, from.scale);
    into.sumsq = rescaled(into, scale) + rescaled(from, scale);
    into.scale = scale;
  }
}

}  // namespace flagprism
