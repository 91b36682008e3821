// Memory of records: allocate on a device, queue the copy to the host.
//
// The stable ABI has no Event type and no stream argument: everything happens on the device's
// current stream, and Python tracks completion with torch.Event.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

using torch::stable::Tensor;

namespace {

Tensor new_buffer(int64_t words, torch::stable::Device device) {
  Tensor buffer =
      torch::stable::empty({&words, 1}, torch::headeronly::ScalarType::Int, std::nullopt, device);
  torch::stable::zero_(buffer);
  return buffer;
}

// A CPU-only torch cannot pin memory, and a CPU source needs no queue: it is copied at once.
Tensor copy_to_host(const Tensor& source) {
  const bool on_device = !source.is_cpu();
  Tensor host = torch::stable::empty(source.sizes(), source.scalar_type(), std::nullopt,
                                     torch::stable::Device(torch::headeronly::DeviceType::CPU),
                                     /*pin_memory=*/on_device);
  torch::stable::copy_(host, source, /*non_blocking=*/on_device);
  return host;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(flagprism_torch, CompositeExplicitAutograd, m) {
  m.impl("new_buffer", TORCH_BOX(&new_buffer));
  m.impl("copy_to_host", TORCH_BOX(&copy_to_host));
}
