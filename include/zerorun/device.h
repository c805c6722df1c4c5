#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "zerorun/export.h"
#include "zerorun/tensor.h"
#include "zerorun/work_span.h"

namespace zerorun {

// What a block of memory is used for. A device counts live and peak bytes per category.
enum class MemoryCategory : uint8_t {
  parameters,
  gradients,
  optimizer,
  buckets,
  activations,
  other,
  kept,    // freed device memory that is cached for the next allocation of its size
  pinned,  // host memory for offloaded states and gradients and for staging buffers
  nvme,    // bytes in files
};
inline constexpr int kMemoryCategories = 9;
ZR_API std::string_view name_of(MemoryCategory category);

struct MemoryUse {
  int64_t live_bytes = 0;
  int64_t peak_bytes = 0;
};

// An allocation that failed because a device has too little memory.
struct MemoryShortage {
  size_t nbytes = 0;  // bytes that were requested
  MemoryCategory category = MemoryCategory::other;
  size_t missing = 0;  // bytes of the request that are not available
  std::array<int64_t, kMemoryCategories> live_bytes{};  // bytes in use, by category
};
// Returns advice on how to save memory, which is appended to the error message.
using MemoryAdviser = std::function<std::string(const MemoryShortage&)>;

// A point in a stream's order of work, which has happened when all work before it is done. Copies
// refer to the same point. A default-constructed event has already happened.
class ZR_API Event {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual bool ready() const = 0;
    // Blocks until the event has happened; rethrows the first error of the stream on which it was
    // recorded.
    virtual void synchronize() = 0;
  };

  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  bool ready() const { return !state_ || state_->ready(); }
  void synchronize() const {
    if (state_) state_->synchronize();
  }
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

// Executes work in the order of submission. Different streams run concurrently.
class ZR_API Stream {
 public:
  virtual ~Stream() = default;
  virtual Event record() = 0;
  // Makes later work on this stream wait for `event`, which may be from a stream of another device.
  // The caller does not wait, unless this is the inline stream of a CPU. An error of the work that
  // it waits for becomes an error of this stream, and may be thrown immediately.
  virtual void wait(const Event& event) = 0;
  // Blocks until all submitted work is done; rethrows the first error of that work.
  virtual void synchronize() = 0;
};

// The update rule of a pass over the elements. device/update_rules.h has the formulas and their
// sources.
enum class UpdateRule : uint8_t {
  adam,     // Adam and AdamW; states: exp_avg, exp_avg_sq
  sgd,      // states: momentum_buffer, or none without momentum
  adagrad,  // states: sum
  lion,     // states: exp_avg
  // Rules that need whole parameters between two passes. The first pass (`_direction`) updates the
  // states and writes the update direction to `param`, in fp32; it does not change the master.
  lamb_direction,  // states: exp_avg, exp_avg_sq
  // second pass; lr includes bias corrections; reads the states, not the gradient
  lamb,
  // states: momentum_buffer; the second pass is sgd along the orthogonalized direction
  muon_direction,
};

// Scalars of a fused optimizer step; each rule reads those that it needs.
struct UpdateScalars {
  UpdateRule rule = UpdateRule::adam;
  float lr = 1e-3F;
  // double, so that 1 - beta2 is rounded to fp32 only once, as in PyTorch; computed from an fp32
  // 0.999 its error would be 1.3e-5.
  double beta1 = 0.9;  // sgd and muon: momentum
  double beta2 = 0.999;
  float eps = 1e-8F;
  float weight_decay = 0.0F;
  // true: weight decay scales the weights; false: it is added to the gradient (L2)
  bool decoupled = true;
  float bias_correction1 = 1.0F;  // 1 - beta1^step, or 1 if bias correction is off
  float bias_correction2 = 1.0F;  // 1 - beta2^step, or 1 if bias correction is off
  float grad_scale = 1.0F;        // factor of the gradient: averaging, unscaling and clipping
  double dampening = 0.0;         // sgd
  bool nesterov = false;          // sgd
  bool eps_inside_sqrt = false;   // lamb
  int64_t step = 1;  // for stochastic rounding: number of the step, which selects other random bits
};

// Flat tensors of the same numel, of which Device::update updates segments.
struct UpdateTensors {
  TensorView master;  // read and written; fp32, or the parameter itself
  TensorView grad;    // read; fp32, bf16 or fp16
  TensorView param;   // written, in its dtype; same memory as `master` if that is the parameter
  // Read and written; fp32, bf16 or fp16, or (adam only) uint8: 8-bit floats with one scale per
  // kStateBlock elements (device/block8.h).
  std::array<TensorView, 2> states{};
  std::array<TensorView, 2> scales{};  // fp32 scales of states in uint8
  // Output of Device::decide, or empty. Its factor replaces grad_scale of every segment. If it says
  // that the step is skipped, update changes nothing.
  TensorView decision{};
  // `param` is a buffer that is copied to where the parameters are, whatever the decision. If the
  // step is skipped, update casts `master` to it.
  bool param_is_buffer = false;
  // lamb: output of Device::trust_ratios, or empty. The lr of each segment is multiplied by the
  // ratio of UpdateSegment::parameter.
  TensorView trust_ratios{};
};

// Consecutive elements of UpdateTensors that are updated with the same scalars. 16-bit masters and
// states, which have no fp32 copy, are rounded stochastically, with random bits that depend only on
// step, parameter and element.
struct UpdateSegment {
  int64_t begin = 0;  // first element in the tensors; a multiple of kStateBlock for uint8 states
  int64_t numel = 0;
  UpdateScalars scalars{};
  // For stochastic rounding and trust ratios: the parameter to which the elements belong.
  int64_t parameter = 0;
  // For stochastic rounding: the index of the first element within it, a multiple of kStateBlock.
  int64_t element = 0;
};

// One copy of Device::copy; both tensors have floating dtypes.
struct TensorCopy {
  TensorView src;
  TensorView dst;
  bool accumulate = false;  // dst[i] += src[i]
};

// How a step scales its gradient and when it is skipped, as a function of the gradient's norm
// (amp/step_rule.h).
struct StepRule {
  // factor that turns the summed gradient, of which the norm is taken, into the average
  double average = 1.0;
  double max_norm = 0.0;       // norm to which the average is clipped; 0: no clipping
  bool check_overflow = true;  // skip the step if the gradient is not finite
};

// Results of a step's all_reduce, from which Device::decide decides. The tensors are int64, on the
// device.
struct StepEvidence {
  // The words of the ExactSum of the gradient's squares; if a part of the gradient is on the host,
  // the words of that part's sum follow.
  TensorView words;
  // Two words: number of ranks with a gradient (0: the step is skipped), and number of ranks with a
  // late gradient (not 0: the step has to be decided again after it was reduced).
  TensorView votes;
  // Two words: the sum, and the sum of the squares, of a number that must be equal on all `ranks`.
  TensorView same;
  int64_t ranks = 0;
};

// The limits of Lamb's trust ratio.
struct TrustRatioLimits {
  double smallest = 0.0;
  double largest = 0.0;
};

// Consecutive elements of a tensor whose squares are added to the same sum.
struct SquaresSegment {
  int64_t begin = 0;
  int64_t numel = 0;
  int64_t sum = 0;  // index among the sums
};

// Number of consecutive elements in a block when floats are quantized for communication (format:
// device/quantized.h). A block has one scale of 4 bytes with 8 bits, eight of 2 bytes with 4 bits.
inline constexpr int64_t kQuantizedBlock = 256;
// Bytes of `numel` quantized elements of 4 or 8 bits with their scales. `numel` is a multiple of
// kQuantizedBlock.
constexpr int64_t quantized_nbytes(int64_t numel, int bits) {
  return numel / kQuantizedBlock * ((bits == 4 ? 16 : 4) + kQuantizedBlock * bits / 8);
}

// How Device::quantize encodes floats.
struct Quantization {
  int bits = 8;  // 8 or 4
  // The elements are rows * columns runs of equal length, each of whole blocks; the matrix of these
  // runs is transposed in the output.
  int64_t rows = 1;
  int64_t columns = 1;
  // Quantization errors of earlier calls in fp32, one per element, or empty. The errors are added
  // to the elements before these are quantized. Then each becomes beta * error + (1 - beta) * (new
  // error) (Xie et al. 2024, "LoCo: Low-Bit Communication Adaptor for Large-scale Model Training").
  TensorView lost{};
  float beta = 0.0F;
};

// How quantized values are decoded and summed.
struct Dequantization {
  int bits = 8;
  int parts = 1;            // number of equal parts of the source, which are added
  bool accumulate = false;  // adds to the destination's old values
  // fp32, bf16 or fp16, one per element, or empty: replaces the part of number `exact_part`, whose
  // quantized values are not read.
  TensorView exact{};
  int exact_part = 0;
};

// How a matrix is orthogonalized: with so many Newton-Schulz iterations (device/newton_schulz.h),
// with Polar Express's coefficients or Jordan's.
struct Orthogonalization {
  int steps = 5;
  bool polar_express = false;
};

// Memory, streams and kernels of a CPU or GPU; the rest of zerorun is the same for both. A kernel
// is enqueued on the stream and the call returns immediately, unless the stream is the inline
// stream of a CPU. The memory of views must stay valid until the kernel has run. Sizes are in
// elements unless named nbytes.
class ZR_API Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;

  // Allocates uninitialised memory with 64-byte alignment. Throws DeviceError, listing the bytes of
  // each category, if there is too little memory.
  virtual Buffer allocate(size_t nbytes, MemoryCategory category) = 0;
  // Allocates uninitialised, page-aligned host memory that is pinned for fast copies to and from
  // this device; counted as MemoryCategory::pinned. Throws DeviceError.
  virtual Buffer allocate_pinned(size_t nbytes) = 0;
  // Returns the device that computes on host memory; a CPU device returns itself.
  virtual Device& host() = 0;
  // True if host code may read and write this device's memory.
  bool is_host() { return &host() == this; }
  // Counts memory that was allocated elsewhere (shared memory, a framework) until the returned
  // handle is released.
  virtual std::shared_ptr<void> account(size_t nbytes, MemoryCategory category) = 0;
  virtual MemoryUse memory_use(MemoryCategory category) const = 0;

  // Creates a stream that runs concurrently with the caller.
  virtual std::unique_ptr<Stream> make_stream(std::string_view name) = 0;
  // Returns the stream that runs on the caller's thread (CPU), or that is the framework's current
  // stream (GPU).
  virtual Stream& inline_stream() = 0;

  // Calls `observer` for each kernel and copy on a CPU's streams. Returns null on a GPU; observe
  // host() for the work of its host.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): those who override it keep the observer
  virtual Subscription observe(WorkObserver /*observer*/) { return nullptr; }

  // Index of the device among the visible GPUs; not set for a CPU.
  virtual std::optional<int> gpu() const { return std::nullopt; }
  // GPU only: makes `handle` (a cudaStream_t of the framework) the inline stream. It first waits
  // for the work of the previous inline stream, and must live as long as this device.
  virtual void use_inline_stream(void* /*handle*/) {}
  // GPU only: sets a function that is called when device memory is exhausted, before an allocation
  // fails, to make another allocator of this process release its cached memory. It must not throw.
  virtual void use_reclaimer(const std::function<void()>& /*reclaim*/) {}
  // GPU only: sets a function that is called when an allocation fails. It knows the configuration,
  // which the device does not.
  virtual void use_memory_adviser(const MemoryAdviser& /*adviser*/) {}
  // To be called once per step. GPU only: returns cached memory to the driver that was not reused
  // since the previous call.
  virtual void trim_unused() {}
  // GPU only: returns all cached memory to the driver, so that another allocator can use it. Waits
  // for the inline stream. Returns false if there was none.
  virtual bool release_kept() { return false; }

  // Copy between host memory and memory of this device. The host memory must stay valid until the
  // copy has run. Pinned memory (allocate_pinned) is read when the stream executes the copy; other
  // memory may already be read during the call.
  virtual void upload(Stream& stream, const void* src, TensorView dst) = 0;
  virtual void download(Stream& stream, TensorView src, void* dst) = 0;

  // dst[i] = value
  virtual void fill(Stream& stream, TensorView dst, float value) = 0;
  // dst[i] = src[i]; conversions between floating dtypes round to nearest, ties to even.
  virtual void cast(Stream& stream, TensorView src, TensorView dst) = 0;
  // dst[i] += src[i], computed in fp32.
  virtual void add(Stream& stream, TensorView src, TensorView dst) = 0;
  // Performs each copy like cast or add; a GPU uses one kernel for dozens of copies. No two `dst`
  // overlap.
  virtual void copy(Stream& stream, std::span<const TensorCopy> copies);
  // dst[i] *= factor, computed in fp32.
  virtual void scale(Stream& stream, TensorView dst, float factor) = 0;
  // Adds the squares of each segment of `src` to the segment's sum in `sums`, an array of ExactSums
  // (ExactSum::kWords int64 words each, on this device). Segments are in ascending order and do not
  // overlap. The sum does not depend on how a tensor is cut into segments, provided that it is cut
  // at multiples of kNormBlock elements from its start.
  virtual void sum_of_squares(Stream& stream, TensorView src,
                              std::span<const SquaresSegment> segments, TensorView sums) = 0;
  // Decides about a step on the device, for `update` to read. Writes two fp32 numbers to
  // `decision`: the factor of the gradient and 1, or 0 and 0 if the step is skipped.
  virtual void decide(Stream& stream, const StepEvidence& evidence, const StepRule& rule,
                      TensorView decision) = 0;
  // Computes Lamb's trust ratio of each parameter, for `update` to read: the norm of the parameter
  // divided by that of its update direction, within the limits; 1 if one of them is 0. `sums` has
  // the ExactSums of the squares of all parameters, then of all directions; if parts of them are on
  // the host, as many sums of those parts follow. `ratios` is fp32, one per parameter.
  virtual void trust_ratios(Stream& stream, TensorView sums, const TrustRatioLimits& limits,
                            TensorView ratios) = 0;
  // Writes `src`, quantized, to `dst`, which is uint8 and has quantized_nbytes(src.numel, bits)
  // bytes.
  virtual void quantize(Stream& stream, TensorView src, TensorView dst,
                        const Quantization& how) = 0;
  // Decodes `src`, which consists of equal parts written by quantize, and sums the parts: dst[i],
  // or dst[i] += with `accumulate`, is the sum of the i-th elements of all parts, added in fp32 in
  // their order and rounded once.
  virtual void dequantize(Stream& stream, TensorView src, TensorView dst,
                          const Dequantization& how) = 0;
  // Fused optimizer step in one pass over all segments: scales the gradient, updates states and
  // masters, casts to the parameter's dtype. Segments are in ascending order, do not overlap, and
  // have the same rule and step. Elements between segments are not changed.
  virtual void update(Stream& stream, const UpdateTensors& tensors,
                      std::span<const UpdateSegment> segments) = 0;
  // Replaces a row-major fp32 matrix [rows, cols] by an approximation of the nearest
  // semi-orthogonal matrix. `work` is scratch memory of orthogonalize_work(rows, cols) fp32
  // elements.
  virtual void orthogonalize(Stream& stream, TensorView matrix, int64_t rows, int64_t cols,
                             const Orthogonalization& how, TensorView work) = 0;
};

// Number of elements whose squares are added in a fixed order (see Device::sum_of_squares).
inline constexpr int64_t kNormBlock = 256;
// Number of elements of an 8-bit state that share a scale.
inline constexpr int64_t kStateBlock = 256;

// Number of elements of scratch memory that orthogonalize needs: a copy of the matrix, and two
// square matrices of its shorter side.
constexpr int64_t orthogonalize_work(int64_t rows, int64_t cols) {
  const int64_t side = rows < cols ? rows : cols;
  return rows * cols + 2 * side * side;
}

struct CpuDeviceOptions {
  // Runs the work of make_stream() streams on the caller's thread, too: no threads, deterministic
  // order.
  bool synchronous_streams = false;
};
ZR_API std::shared_ptr<Device> make_cpu_device(const CpuDeviceOptions& options = {});

struct CudaDeviceOptions {
  // Index among the GPUs that CUDA_VISIBLE_DEVICES allows; not set: LOCAL_RANK.
  std::optional<int> index{};
  // Limit in bytes of all categories together; 0: the memory of the GPU.
  size_t memory_limit = 0;
};
// Throws DeviceError that says what is missing: the CUDA backend of this build, the driver, a
// visible GPU, or the requested GPU.
ZR_API std::shared_ptr<Device> make_cuda_device(const CudaDeviceOptions& options = {});
// True if make_cuda_device would find a GPU.
ZR_API bool cuda_is_available();

enum class Accelerator : uint8_t { automatic, cpu, cuda };
// Creates a device. automatic: a GPU if CUDA is available, else the CPU. (The launcher hides all
// GPUs from CPU ranks.) Throws DeviceError if the driver fails, unless CUDA_VISIBLE_DEVICES hides
// all GPUs.
ZR_API std::shared_ptr<Device> make_device(Accelerator accelerator);

}  // namespace zerorun
