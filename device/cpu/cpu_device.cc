#include "device/cpu/cpu_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/format_bytes.h"
#include "device/cpu/kernels.h"
#include "device/decide_step.h"
#include "device/device_calls.h"
#include "zerorun/out_of_memory.h"

namespace zerorun {

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = kMappedBlock;

size_t page_size() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

constexpr size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

HostBlock map_huge(size_t nbytes) {
  const size_t size = round_up(nbytes, page_size());
  // One huge page more than needed, so that an aligned block lies inside; the rest is unmapped.
  const size_t mapped = size + kHugePage;
  void* const address =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return {};
  auto* const begin = static_cast<std::byte*>(address);
  const size_t head =
      round_up(reinterpret_cast<uintptr_t>(begin), kHugePage) - reinterpret_cast<uintptr_t>(begin);
  std::byte* const data = begin + head;
  if (head > 0) ::munmap(begin, head);
  if (mapped - head > size) ::munmap(data + size, mapped - head - size);
  // Advice only: without huge pages the block works as well, more slowly.
  ::madvise(data, size, MADV_HUGEPAGE);
  return {data, [data, size] { ::munmap(data, size); }};
}

// Copies the caller's segments, which may be gone when the work runs.
template <typename Segment>
std::vector<Segment> copy_of(std::span<const Segment> segments) {
  return {segments.begin(), segments.end()};
}

// Sets what the tensors say about scalars in all segments; returns false if the step is skipped.
bool complete_scalars(const UpdateTensors& tensors, std::vector<UpdateSegment>& segments) {
  if (const TensorView ratios = tensors.trust_ratios; ratios.data != nullptr) {
    for (UpdateSegment& segment : segments) {
      segment.scalars.lr *= ratios.as<const float>()[segment.parameter];
    }
  }
  if (tensors.decision.data == nullptr) return true;
  const auto* decision = tensors.decision.as<const float>();
  for (UpdateSegment& segment : segments) segment.scalars.grad_scale = decision[0];
  return decision[1] != 0.0F;
}

}  // namespace

CpuDevice::CpuDevice(const CpuDeviceOptions& options)
    : options_(options),
      ledger_(std::make_shared<MemoryLedger>()),
      inline_stream_(make_inline_stream(observers_)) {}

Buffer CpuDevice::allocate(size_t nbytes, MemoryCategory category) {
  HostBlock block = allocate_host(nbytes);
  if (block.data == nullptr) {
    fail<OutOfMemory>(
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

Subscription CpuDevice::observe(WorkObserver observer) {
  return observers_->add(std::move(observer));
}

std::unique_ptr<Stream> CpuDevice::make_stream(std::string_view name) {
  if (options_.synchronous_streams) return make_inline_stream(observers_);
  return make_worker_stream(name, observers_);
}

void CpuDevice::upload(Stream& stream, const void* src, TensorView dst) {
  cpu_stream(stream).submit_work("upload", dst.nbytes(), [=] {
    // the pointer of an empty view may be null
    if (!dst.empty()) std::memcpy(dst.data, src, dst.nbytes());
  });
}

void CpuDevice::download(Stream& stream, TensorView src, void* dst) {
  cpu_stream(stream).submit_work("download", src.nbytes(), [=] {
    if (!src.empty()) std::memcpy(dst, src.data, src.nbytes());
  });
}

void CpuDevice::fill(Stream& stream, TensorView dst, float value) {
  cpu_stream(stream).submit_work("fill", dst.nbytes(), [=] { kernels::fill(dst, value); });
}

void CpuDevice::cast(Stream& stream, TensorView src, TensorView dst) {
  check_cast(src, dst);
  cpu_stream(stream).submit_work("cast", dst.nbytes(), [=] { kernels::cast(src, dst); });
}

void CpuDevice::add(Stream& stream, TensorView src, TensorView dst) {
  check_add(src, dst);
  cpu_stream(stream).submit_work("add", dst.nbytes(), [=] { kernels::add(src, dst); });
}

void CpuDevice::scale(Stream& stream, TensorView dst, float factor) {
  check_scale(dst);
  cpu_stream(stream).submit_work("scale", dst.nbytes(), [=] { kernels::scale(dst, factor); });
}

void CpuDevice::sum_of_squares(Stream& stream, TensorView src,
                               std::span<const SquaresSegment> segments, TensorView sums) {
  check_sum_of_squares(src, segments, sums);
  cpu_stream(stream).submit_work("norm", src.nbytes(), [=, all = copy_of(segments)] {
    kernels::sum_of_squares(src, all, sums);
  });
}

void CpuDevice::decide(Stream& stream, const StepEvidence& evidence, const StepRule& rule,
                       TensorView decision) {
  check_decide(evidence, decision);
  cpu_stream(stream).submit_work("decide", decision.nbytes(), [=] {
    decide_step(evidence.words.as<const int64_t>(), host_words_of(evidence),
                evidence.votes.as<const int64_t>(), evidence.same.as<const int64_t>(),
                evidence.ranks, rule, decision.as<float>());
  });
}

void CpuDevice::trust_ratios(Stream& stream, TensorView sums, const TrustRatioLimits& limits,
                             TensorView ratios) {
  check_trust_ratios(sums, ratios);
  if (ratios.empty()) return;
  const bool has_host = has_host_sums(sums, ratios);
  cpu_stream(stream).submit_work("trust ratios", sums.nbytes(), [=] {
    for (int64_t i = 0; i < ratios.numel; ++i) {
      ratios.as<float>()[i] =
          trust_ratio(sums.as<const int64_t>(), has_host, ratios.numel, i, limits);
    }
  });
}

void CpuDevice::quantize(Stream& stream, TensorView src, TensorView dst, const Quantization& how) {
  check_quantize(src, dst, how);
  cpu_stream(stream).submit_work("quantize", src.nbytes(),
                                 [=] { kernels::quantize(src, dst, how); });
}

void CpuDevice::dequantize(Stream& stream, TensorView src, TensorView dst,
                           const Dequantization& how) {
  check_dequantize(src, dst, how);
  cpu_stream(stream).submit_work("dequantize", dst.nbytes(),
                                 [=] { kernels::dequantize(src, dst, how); });
}

void CpuDevice::update(Stream& stream, const UpdateTensors& tensors,
                       std::span<const UpdateSegment> segments) {
  check_update(tensors, segments);
  cpu_stream(stream).submit_work("update", tensors.master.nbytes(),
                                 [=, all = copy_of(segments)]() mutable {
                                   if (complete_scalars(tensors, all)) {
                                     kernels::update(tensors, all);
                                   } else if (tensors.param_is_buffer) {
                                     kernels::cast(tensors.master, tensors.param);
                                   }
                                 });
}

void CpuDevice::orthogonalize(Stream& stream, TensorView matrix, int64_t rows, int64_t cols,
                              const Orthogonalization& how, TensorView work) {
  check_orthogonalize(matrix, rows, cols, work);
  cpu_stream(stream).submit_work("orthogonalize", matrix.nbytes(),
                                 [=] { kernels::orthogonalize(matrix, rows, cols, how, work); });
}

std::shared_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  return std::make_shared<CpuDevice>(options);
}

HostBlock allocate_host(size_t nbytes) {
  if (nbytes > static_cast<size_t>(std::numeric_limits<ptrdiff_t>::max()) - 2 * kHugePage) {
    return {};
  }
  if (nbytes >= kMappedBlock) return map_huge(nbytes);
  const size_t alignment = nbytes < page_size() ? kAlignment : page_size();
  void* const data =
      std::aligned_alloc(alignment, round_up(std::max<size_t>(nbytes, 1), alignment));
  if (data == nullptr) return {};
  return {data, [data] { std::free(data); }};
}

}  // namespace zerorun
