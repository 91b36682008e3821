// Merging of records and histograms on the host.
//
// Shapes, dtypes and devices are validated in records/native.py, because below torch 2.13 the text
// of an error raised here does not reach the user. What is checked here again is only what would
// otherwise write outside a tensor.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <vector>

#include "record.h"

using flagprism::kHistogramBuckets;
using flagprism::kRecordWords;
using flagprism::Record;
using torch::stable::Tensor;

namespace {

// Slots that one thread merges in sequence. Fixed, so that the order of the floating-point
// additions, and with it every bit of the result, does not depend on the number of threads.
constexpr int64_t kChunk = 1024;

const int32_t* words_of(const Tensor& tensor) {
  return static_cast<const int32_t*>(tensor.const_data_ptr());
}

void fold(const Tensor& scratch, Tensor out, int64_t slots, int64_t ops) {
  STD_TORCH_CHECK(scratch.numel() >= slots * ops * kRecordWords, "fold: scratch is too small");
  STD_TORCH_CHECK(out.numel() >= ops * kRecordWords, "fold: out is too small");
  const int32_t* words = words_of(scratch);
  const int64_t chunks = (slots + kChunk - 1) / kChunk;
  std::vector<Record> partial(chunks * ops, Record{});
  torch::stable::parallel_for(0, chunks, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      Record* into = partial.data() + chunk * ops;
      const int64_t last = std::min(slots, (chunk + 1) * kChunk);
      const int32_t* from = words + chunk * kChunk * ops * kRecordWords;
      for (int64_t slot = chunk * kChunk; slot < last; ++slot) {
        for (int64_t op = 0; op < ops; ++op, from += kRecordWords) {
          flagprism::merge(into[op], flagprism::load(from));
        }
      }
    }
  });
  auto* result = static_cast<int32_t*>(out.mutable_data_ptr());
  for (int64_t op = 0; op < ops; ++op) {
    Record total{};
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      flagprism::merge(total, partial[chunk * ops + op]);
    }
    flagprism::store(result + op * kRecordWords, total);
  }
}

void check_index(const int64_t* index, int64_t rows, int64_t totals) {
  for (int64_t i = 0; i < rows; ++i) {
    STD_TORCH_CHECK(index[i] >= 0 && index[i] < totals, "index out of range");
  }
}

void merge(const Tensor& records, const Tensor& index, Tensor totals) {
  const int64_t rows = index.numel();
  const auto* targets = static_cast<const int64_t*>(index.const_data_ptr());
  STD_TORCH_CHECK(records.numel() == rows * kRecordWords, "merge: one index per record");
  check_index(targets, rows, totals.size(0));
  const int32_t* from = words_of(records);
  auto* total = static_cast<int32_t*>(totals.mutable_data_ptr());
  for (int64_t i = 0; i < rows; ++i) {
    int32_t* at = total + targets[i] * kRecordWords;
    Record into = flagprism::load(at);
    flagprism::merge(into, flagprism::load(from + i * kRecordWords));
    flagprism::store(at, into);
  }
}

void merge_histograms(const Tensor& counts, const Tensor& index, Tensor totals) {
  const int64_t rows = index.numel();
  const auto* targets = static_cast<const int64_t*>(index.const_data_ptr());
  STD_TORCH_CHECK(counts.numel() == rows * kHistogramBuckets,
                  "merge_histograms: one index per row");
  check_index(targets, rows, totals.size(0));
  const auto* from = static_cast<const int64_t*>(counts.const_data_ptr());
  auto* total = static_cast<int64_t*>(totals.mutable_data_ptr());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t bucket = 0; bucket < kHistogramBuckets; ++bucket) {
      total[targets[i] * kHistogramBuckets + bucket] += from[i * kHistogramBuckets + bucket];
    }
  }
}

// int64: the byte offset of each field in declaration order, then the size of a record.
Tensor record_layout() {
  const int64_t layout[] = {
      offsetof(Record, executions), offsetof(Record, live),
      offsetof(Record, nan),        offsetof(Record, posinf),
      offsetof(Record, neginf),     offsetof(Record, zero),
      offsetof(Record, min_key),    offsetof(Record, max_key),
      offsetof(Record, sum),        offsetof(Record, sumsq),
      offsetof(Record, first),      offsetof(Record, scale),
      offsetof(Record, flags),      sizeof(Record),
  };
  const int64_t length = std::size(layout);
  Tensor out = torch::stable::empty({&length, 1}, torch::headeronly::ScalarType::Long);
  std::memcpy(out.mutable_data_ptr(), layout, sizeof(layout));
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(flagprism_torch, CPU, m) {
  m.impl("fold", TORCH_BOX(&fold));
  m.impl("merge", TORCH_BOX(&merge));
  m.impl("merge_histograms", TORCH_BOX(&merge_histograms));
}

STABLE_TORCH_LIBRARY_IMPL(flagprism_torch, CompositeExplicitAutograd, m) {
  m.impl("record_layout", TORCH_BOX(&record_layout));
}
