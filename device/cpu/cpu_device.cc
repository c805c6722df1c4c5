#include "device/cpu/cpu_device.h"

#include <cstring>
#include <utility>

#include "core/check.h"
#include "device/cpu/host_memory.h"
#include "device/cpu/kernels.h"
#include "zerorun/exact_sum.h"

namespace zerorun {

namespace {

bool is_floating(DType dtype) {
  return dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16;
}

void check_same_numel(TensorView a, TensorView b, std::string_view kernel) {
  ZR_CHECK(a.numel == b.numel, "{}: got views of {} and {} elements", kernel, a.numel, b.numel);
}

void check_floating(TensorView view, std::string_view kernel) {
  ZR_CHECK(is_floating(view.dtype), "{}: got {}, expected fp32, bf16 or fp16", kernel,
           name_of(view.dtype));
}

bool is_step(UpdateRule rule) {
  return rule != UpdateRule::lamb_direction && rule != UpdateRule::muon_direction;
}

// At least; sgd may have one.
int states_of(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::sgd:
      return 0;
    case UpdateRule::adagrad:
    case UpdateRule::lion:
    case UpdateRule::muon_direction:
      return 1;
    case UpdateRule::adam:
    case UpdateRule::lamb:
    case UpdateRule::lamb_direction:
      return 2;
  }
  return 0;
}

void check_state(const UpdateScalars& scalars, const UpdateTensors& tensors, size_t index) {
  const TensorView state = tensors.states[index];
  if (state.data == nullptr && state.empty()) return;
  check_same_numel(tensors.master, state, "update");
  if (state.dtype != DType::uint8) return check_floating(state, "update");
  const TensorView scales = tensors.scales[index];
  ZR_CHECK(scalars.rule == UpdateRule::adam, "update: only adam has states in uint8");
  ZR_CHECK(
      scales.dtype == DType::fp32 && scales.numel == (state.numel + kStateBlock - 1) / kStateBlock,
      "update: got {} scales of {} for {} elements", scales.numel, name_of(scales.dtype),
      state.numel);
}

void check_update(const UpdateScalars& scalars, const UpdateTensors& tensors) {
  const bool in_place = tensors.param.data == tensors.master.data;
  check_floating(tensors.master, "update");
  check_floating(tensors.param, "update");
  check_same_numel(tensors.master, tensors.param, "update");
  ZR_CHECK(in_place ? tensors.master.dtype == tensors.param.dtype || tensors.param.empty()
                    : tensors.master.dtype == DType::fp32 || !is_step(scalars.rule),
           "update: got a master in {} and a parameter in {}, expected fp32 or one tensor for both",
           name_of(tensors.master.dtype), name_of(tensors.param.dtype));
  if (scalars.rule != UpdateRule::lamb) {
    check_floating(tensors.grad, "update");
    check_same_numel(tensors.master, tensors.grad, "update");
  }
  const int states = states_of(scalars.rule);
  ZR_CHECK((tensors.states[0].numel == tensors.master.numel || states < 1) &&
               (tensors.states[1].numel == tensors.master.numel || states < 2),
           "update: got states of {} and {} elements, expected {} of {}", tensors.states[0].numel,
           tensors.states[1].numel, states, tensors.master.numel);
  for (size_t i = 0; i < tensors.states.size(); ++i) check_state(scalars, tensors, i);
  ZR_CHECK(tensors.element % kStateBlock == 0, "update: got element {}, expected a multiple of {}",
           tensors.element, kStateBlock);
  ZR_CHECK(is_step(scalars.rule) || (tensors.param.dtype == DType::fp32 && !in_place),
           "update: a direction is written in fp32, beside the master");
}

}  // namespace

CpuDevice::CpuDevice(const CpuDeviceOptions& options)
    : options_(options),
      ledger_(std::make_shared<MemoryLedger>()),
      inline_stream_(make_inline_stream()) {}

Buffer CpuDevice::allocate(size_t nbytes, MemoryCategory category) {
  HostBlock block = allocate_host(nbytes);
  if (block.data == nullptr) {
    fail<DeviceError>(
        "cpu: cannot allocate {} for {}; held now: {}. Use a higher ZeRO stage, more ranks, "
        "smaller "
        "buckets or a smaller micro-batch",
        format_bytes(nbytes), name_of(category), ledger_->summary());
  }
  ledger_->add(nbytes, category);
  return {block.data, nbytes, [free = std::move(block.free), ledger = ledger_, nbytes, category] {
            free();
            ledger->remove(nbytes, category);
          }};
}

std::shared_ptr<void> CpuDevice::account(size_t nbytes, MemoryCategory category) {
  ledger_->add(nbytes, category);
  return {ledger_.get(),
          [ledger = ledger_, nbytes, category](void*) { ledger->remove(nbytes, category); }};
}

MemoryUse CpuDevice::memory_use(MemoryCategory category) const { return ledger_->use(category); }

std::unique_ptr<Stream> CpuDevice::make_stream(std::string_view name) {
  if (options_.synchronous_streams) return make_inline_stream();
  return make_worker_stream(name);
}

void CpuDevice::upload(Stream& stream, const void* src, TensorView dst) {
  cpu_stream(stream).submit([=] {
    if (!dst.empty()) std::memcpy(dst.data, src, dst.nbytes());  // null when empty
  });
}

void CpuDevice::download(Stream& stream, TensorView src, void* dst) {
  cpu_stream(stream).submit([=] {
    if (!src.empty()) std::memcpy(dst, src.data, src.nbytes());
  });
}

void CpuDevice::fill(Stream& stream, TensorView dst, float value) {
  cpu_stream(stream).submit([=] { kernels::fill(dst, value); });
}

void CpuDevice::cast(Stream& stream, TensorView src, TensorView dst) {
  check_same_numel(src, dst, "cast");
  ZR_CHECK(src.dtype == dst.dtype || (is_floating(src.dtype) && is_floating(dst.dtype)),
           "cast: got {} to {}, expected one dtype or two floating ones", name_of(src.dtype),
           name_of(dst.dtype));
  cpu_stream(stream).submit([=] { kernels::cast(src, dst); });
}

void CpuDevice::add(Stream& stream, TensorView src, TensorView dst) {
  check_same_numel(src, dst, "add");
  check_floating(src, "add");
  check_floating(dst, "add");
  cpu_stream(stream).submit([=] { kernels::add(src, dst); });
}

void CpuDevice::scale(Stream& stream, TensorView dst, float factor) {
  check_floating(dst, "scale");
  cpu_stream(stream).submit([=] { kernels::scale(dst, factor); });
}

void CpuDevice::sum_of_squares(Stream& stream, TensorView src, TensorView sum) {
  check_floating(src, "sum_of_squares");
  ZR_CHECK(sum.dtype == DType::int64 && sum.numel == ExactSum::kWords,
           "sum_of_squares: got a sum of {} {} elements, expected {} int64", sum.numel,
           name_of(sum.dtype), ExactSum::kWords);
  cpu_stream(stream).submit([=] { kernels::sum_of_squares(src, sum); });
}

void CpuDevice::update(Stream& stream, const UpdateScalars& scalars, const UpdateTensors& tensors) {
  check_update(scalars, tensors);
  cpu_stream(stream).submit([=] { kernels::update(scalars, tensors); });
}

void CpuDevice::orthogonalize(Stream& stream, TensorView matrix, int64_t rows, int64_t cols,
                              int steps, TensorView work) {
  ZR_CHECK(matrix.dtype == DType::fp32 && matrix.numel == rows * cols,
           "orthogonalize: got {} elements of {}, expected {} x {} of fp32", matrix.numel,
           name_of(matrix.dtype), rows, cols);
  ZR_CHECK(work.dtype == DType::fp32 && work.numel >= orthogonalize_work(rows, cols),
           "orthogonalize: got {} elements of {} to work in, expected {} of fp32", work.numel,
           name_of(work.dtype), orthogonalize_work(rows, cols));
  cpu_stream(stream).submit([=] { kernels::orthogonalize(matrix, rows, cols, steps, work); });
}

std::shared_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  return std::make_shared<CpuDevice>(options);
}

}  // namespace zerorun
