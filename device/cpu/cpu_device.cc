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

void CpuDevice::adam(Stream& stream, const AdamScalars& scalars, const AdamTensors& tensors) {
  for (const TensorView& view : {tensors.master, tensors.exp_avg, tensors.exp_avg_sq}) {
    check_same_numel(tensors.grad, view, "adam");
    ZR_CHECK(view.dtype == DType::fp32, "adam: got a state in {}, expected fp32",
             name_of(view.dtype));
  }
  check_same_numel(tensors.grad, tensors.param, "adam");
  check_floating(tensors.grad, "adam");
  check_floating(tensors.param, "adam");
  ZR_CHECK(tensors.param.dtype == DType::fp32 || tensors.param.empty() ||
               tensors.param.data != tensors.master.data,
           "adam: got a {} parameter in the memory of its master copy, expected fp32",
           name_of(tensors.param.dtype));
  cpu_stream(stream).submit([=] { kernels::adam(scalars, tensors); });
}

std::shared_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  return std::make_shared<CpuDevice>(options);
}

}  // namespace zerorun
