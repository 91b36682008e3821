// The schemas of all operators. Each is implemented and bound in the file of its concept; the only
// caller is records/native.py.

#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(flagprism_torch, m) {
  // record_buffer.cpp
  m.def("new_buffer(int words, Device device) -> Tensor");
  m.def("copy_to_host(Tensor source) -> Tensor");
  // aggregate.cpp
  m.def("fold(Tensor scratch, Tensor(a!) out, int slots, int ops) -> ()");
  m.def("merge(Tensor records, Tensor index, Tensor(a!) totals) -> ()");
  m.def("merge_histograms(Tensor counts, Tensor index, Tensor(a!) totals) -> ()");
  m.def("record_layout() -> Tensor");
}
