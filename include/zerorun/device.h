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

// The purpose of a block of memory. The ledger counts live and peak bytes per category.
enum class MemoryCategory : uint8_t {
  parameters,
  gradients,
  optimizer,
  buckets,
  activations,
  other,
  kept,    // device memory that was freed and waits for the next allocation of its size
  pinned,  // host memory for offloaded states and gradients, and their staging
  nvme,    // bytes of files
};
inline constexpr int kMemoryCategories = 9;
ZR_API std::string_view name_of(MemoryCategory category);

struct MemoryUse {
  int64_t live_bytes = 0;
  int64_t peak_bytes = 0;
};

// An allocation that a device refuses for want of memory.
struct MemoryShortage {
  size_t nbytes = 0;  // that were asked for
  MemoryCategory category = MemoryCategory::other;
  size_t missing = 0;                                   // of these bytes
  std::array<int64_t, kMemoryCategories> live_bytes{};  // held now, by category
};
// Says what makes room; the text ends the error's message.
using MemoryAdviser = std::function<std::string(const MemoryShortage&)>;

// A point in a stream's order of work. Copies refer to the same point. A default-constructed event
// has already happened.
class ZR_API Event {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual bool ready() const = 0;
    // Blocks; rethrows the first error of the stream the event was recorded on.
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

// Work on one stream happens in the order it was submitted; streams run beside each other.
class ZR_API Stream {
 public:
  virtual ~Stream() = default;
  virtual Event record() = 0;
  // Later work on this stream waits for `event`, which may be of another device's stream; the
  // caller does not, unless the stream is inline on a CPU. An error of what it waits for is this
  // stream's too; it may be thrown at once.
  virtual void wait(const Event& event) = 0;
  // Blocks until all submitted work is done; rethrows its first error.
  virtual void synchronize() = 0;
};

// The formula of one pass over the elements, with its source in device/update_rules.h.
enum class UpdateRule : uint8_t {
  adam,     // Adam and AdamW; states: exp_avg, exp_avg_sq
  sgd,      // states: momentum_buffer, or none without momentum
  adagrad,  // states: sum
  lion,     // states: exp_avg
  // Rules that have to see whole parameters between two passes. A direction pass updates the states
  // and writes the direction to `param`, in fp32; it leaves the master alone.
  lamb_direction,  // states: exp_avg, exp_avg_sq
  lamb,  // lr includes trust ratio and bias corrections; reads the states, not the gradient
  muon_direction,  // states: momentum_buffer; then sgd steps along the orthogonalized direction
};

// Scalars of one fused optimizer step; each rule reads its own.
struct UpdateScalars {
  UpdateRule rule = UpdateRule::adam;
  float lr = 1e-3F;
  // double: 1 - beta2 is rounded to fp32 once, as in PyTorch; from an fp32 0.999 it would be off by
  // 1.3e-5.
  double beta1 = 0.9;  // momentum of sgd and muon
  double beta2 = 0.999;
  float eps = 1e-8F;
  float weight_decay = 0.0F;
  bool decoupled = true;          // true: decay shrinks the weights; false: it is an L2 gradient
  float bias_correction1 = 1.0F;  // 1 - beta1^step, or 1 when off
  float bias_correction2 = 1.0F;  // 1 - beta2^step, or 1 when off
  float grad_scale = 1.0F;        // averaging, unscaling and clipping, folded into one factor
  double dampening = 0.0;         // of sgd
  bool nesterov = false;          // of sgd
  bool eps_inside_sqrt = false;   // of lamb
  uint64_t seed = 0;              // of stochastic rounding
  int64_t step = 1;               // likewise: each step draws anew
};

// Flat tensors, all of the same numel, of which segments are updated.
struct UpdateTensors {
  TensorView master;  // fp32, or the parameter itself; read and written
  TensorView grad;    // fp32, bf16 or fp16, read
  TensorView param;   // written in its dtype; same data as master when that is the parameter
  // fp32, bf16 or fp16, read and written; uint8 (adam only): 8-bit floats, relative to one scale
  // for each kStateBlock of them (device/block8.h).
  std::array<TensorView, 2> states{};
  std::array<TensorView, 2> scales{};  // fp32; for states in uint8
  // What Device::decide wrote, or empty: the factor in the place of every segment's grad_scale.
  // When that step is not taken, nothing is read or written.
  TensorView decision{};
};

// Neighbours in UpdateTensors that take the same step. What is kept in 16 bits between steps and
// has no fp32 copy (master or states) is rounded stochastically, with random bits that depend on
// seed, step, parameter and element only.
struct UpdateSegment {
  int64_t begin = 0;  // in the tensors; a multiple of kStateBlock where states are in uint8
  int64_t numel = 0;
  UpdateScalars scalars{};
  int64_t parameter = 0;  // which elements these are; matters to stochastic rounding
  int64_t element = 0;    // a multiple of kStateBlock
};

// One of the tensors, of floating dtypes, that Device::copy takes.
struct TensorCopy {
  TensorView src;
  TensorView dst;
  bool accumulate = false;  // dst[i] += src[i]
};

// What a step does with its gradient, from its norm (amp/step_rule.h).
struct StepRule {
  double average = 1.0;        // turns the sum that the norm is of into the average of gradients
  double max_norm = 0.0;       // that the average is clipped to; 0: none
  bool check_overflow = true;  // a gradient that is not finite is not applied
};

// What the ranks agreed on about a step, in int64 on the device.
struct StepEvidence {
  TensorView words;  // ExactSum::kWords, of the gradient's sum_of_squares
  // Two: ranks with a gradient, without which there is no step, and ranks with a late one, which
  // has to come in first.
  TensorView votes;
  // Two: the sum, and that of the squares, of a number that has to be the same on all `ranks`.
  TensorView same;
  int64_t ranks = 0;
};

// Neighbours in a tensor whose squares have one sum.
struct SquaresSegment {
  int64_t begin = 0;
  int64_t numel = 0;
  int64_t sum = 0;  // which
};

// Integers of few bits in the place of floats on their way between ranks (device/quantized.h): a
// block has one scale of 4 bytes with 8 bits, eight of 2 bytes with 4.
inline constexpr int64_t kQuantizedBlock = 256;
// Bytes of `numel` elements, a multiple of kQuantizedBlock, in 4 or 8 bits each.
constexpr int64_t quantized_nbytes(int64_t numel, int bits) {
  return numel / kQuantizedBlock * ((bits == 4 ? 16 : 4) + kQuantizedBlock * bits / 8);
}

// How floats become such integers.
struct Quantization {
  int bits = 8;  // or 4
  // The elements are a matrix of so many rows and columns of equal runs of whole blocks, which is
  // transposed on the way.
  int64_t rows = 1;
  int64_t columns = 1;
  // fp32, one for each element; or empty. What was lost earlier is added to what is
  // quantized. Then it becomes `beta` of itself and 1 - beta of what is lost now (Xie et al. 2024,
  // "LoCo: Low-Bit Communication Adaptor for Large-scale Model Training").
  TensorView lost{};
  float beta = 0.0F;
};

// How such integers become floats again.
struct Dequantization {
  int bits = 8;
  int parts = 1;            // equal parts of the source, which are added
  bool accumulate = false;  // to what the destination has
  // fp32, bf16 or fp16, one for each element; or empty. The part of this number is that instead of
  // what its integers say, which are not read.
  TensorView exact{};
  int exact_part = 0;
};

// The one place where CPU and GPU differ. Calls are enqueued on the stream and return at once
// unless the stream is inline; what views point to must live until then. All sizes in elements.
class ZR_API Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;

  // 64-byte aligned, uninitialised. Throws DeviceError listing what each category holds.
  virtual Buffer allocate(size_t nbytes, MemoryCategory category) = 0;
  // Host memory, page-aligned and uninitialised, that copies to and from this device reach at full
  // speed; counted as `pinned`. Throws DeviceError.
  virtual Buffer allocate_pinned(size_t nbytes) = 0;
  // The device that computes on host memory; a CPU device itself.
  virtual Device& host() = 0;
  // True when host code may read and write this device's memory.
  bool is_host() { return &host() == this; }
  // Counts memory that somebody else allocated (shared memory, a framework); the ledger entry ends
  // with the returned handle.
  virtual std::shared_ptr<void> account(size_t nbytes, MemoryCategory category) = 0;
  virtual MemoryUse memory_use(MemoryCategory category) const = 0;

  // Runs beside the caller.
  virtual std::unique_ptr<Stream> make_stream(std::string_view name) = 0;
  // Runs on the caller's thread (CPU) or on the framework's current stream (GPU).
  virtual Stream& inline_stream() = 0;

  // Learns of each kernel and copy on a CPU's streams. Null on a GPU: host() tells of its host's.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): those who override it keep the observer
  virtual Subscription observe(WorkObserver /*observer*/) { return nullptr; }

  // The device's number among the visible GPUs; not set for the CPU.
  virtual std::optional<int> gpu() const { return std::nullopt; }
  // On a GPU: from now on the inline stream is the framework's one of that handle (a cudaStream_t),
  // after what was submitted to the one before. It must live as long as this device.
  virtual void use_inline_stream(void* /*handle*/) {}
  // On a GPU: called where its memory is used up, before an allocation fails, so that another
  // allocator of this process gives back what it keeps for later. Must not throw.
  virtual void use_reclaimer(const std::function<void()>& /*reclaim*/) {}
  // On a GPU: called when an allocation fails; it knows settings, of which a device knows nothing.
  virtual void use_memory_adviser(const MemoryAdviser& /*adviser*/) {}
  // Called once a step. On a GPU: memory that was freed and that nobody has asked for again since
  // the call before goes back to the driver.
  virtual void trim_unused() {}
  // On a GPU: all memory that was freed and is kept goes back to the driver, for another allocator
  // that has none left. Waits for the inline stream. False if there was none.
  virtual bool release_kept() { return false; }

  // Between host memory and this device's; the host block must live until the stream got there.
  // Only memory of allocate_pinned is read as it is then: other memory may be read at once.
  virtual void upload(Stream& stream, const void* src, TensorView dst) = 0;
  virtual void download(Stream& stream, TensorView src, void* dst) = 0;

  // dst[i] = value
  virtual void fill(Stream& stream, TensorView dst, float value) = 0;
  // dst[i] = src[i]; between floating dtypes rounds to nearest even.
  virtual void cast(Stream& stream, TensorView src, TensorView dst) = 0;
  // dst[i] += src[i], computed in fp32.
  virtual void add(Stream& stream, TensorView src, TensorView dst) = 0;
  // Each of them as cast or add, on a GPU with one kernel for dozens. No `dst` overlaps another's.
  virtual void copy(Stream& stream, std::span<const TensorCopy> copies);
  // dst[i] *= factor, computed in fp32.
  virtual void scale(Stream& stream, TensorView dst, float factor) = 0;
  // Adds the squares of each segment of `src` to its sum among `sums` (ExactSum::kWords int64 words
  // each, on this device). Segments ascend and do not overlap. The sum does not depend on how a
  // tensor is cut, as long as cuts lie at multiples of kNormBlock elements from its start.
  virtual void sum_of_squares(Stream& stream, TensorView src,
                              std::span<const SquaresSegment> segments, TensorView sums) = 0;
  // Decides about a step, for `update` to read: `decision`, two fp32, becomes the gradient's factor
  // and 1, or 0 and 0 where the step is not taken.
  virtual void decide(Stream& stream, const StepEvidence& evidence, const StepRule& rule,
                      TensorView decision) = 0;
  // dst, of uint8 and quantized_nbytes(src.numel, bits), = src in few bits.
  virtual void quantize(Stream& stream, TensorView src, TensorView dst,
                        const Quantization& how) = 0;
  // dst[i] (or, with `accumulate`, dst[i] + that) = the sum of the i-th elements of the parts of
  // src, which quantize wrote: added in fp32, in their order, and rounded once.
  virtual void dequantize(Stream& stream, TensorView src, TensorView dst,
                          const Dequantization& how) = 0;
  // One pass over the segments, as a whole: scale, states, update, cast. Segments ascend, do not
  // overlap, and have one rule, seed and step; what is between them stays as it is.
  virtual void update(Stream& stream, const UpdateTensors& tensors,
                      std::span<const UpdateSegment> segments) = 0;
  // Brings a row-major fp32 matrix [rows, cols] close to the nearest orthogonal one, by `steps` of
  // Newton and Schulz's iteration (device/cpu/newton_schulz.cc). `work` holds
  // orthogonalize_work(rows, cols) fp32 elements.
  virtual void orthogonalize(Stream& stream, TensorView matrix, int64_t rows, int64_t cols,
                             int steps, TensorView work) = 0;
};

// Elements whose squares are added in one fixed order (see Device::sum_of_squares).
inline constexpr int64_t kNormBlock = 256;
// Elements of a state in 8 bits that share a scale.
inline constexpr int64_t kStateBlock = 256;

// Elements of scratch memory that orthogonalize needs: a copy of the matrix, and two squares of
// its shorter side.
constexpr int64_t orthogonalize_work(int64_t rows, int64_t cols) {
  const int64_t side = rows < cols ? rows : cols;
  return rows * cols + 2 * side * side;
}

struct CpuDeviceOptions {
  // Work of make_stream() streams runs inline too: deterministic timing, no extra threads.
  bool synchronous_streams = false;
};
ZR_API std::shared_ptr<Device> make_cpu_device(const CpuDeviceOptions& options = {});

struct CudaDeviceOptions {
  // Among the GPUs that CUDA_VISIBLE_DEVICES leaves; not set: LOCAL_RANK.
  std::optional<int> index{};
  // Bytes that all categories together may hold; 0: what the GPU has.
  size_t memory_limit = 0;
};
// Throws DeviceError that says what is missing: the backend in this build, the driver, a visible
// GPU, or the one asked for.
ZR_API std::shared_ptr<Device> make_cuda_device(const CudaDeviceOptions& options = {});
// True when make_cuda_device would find a GPU.
ZR_API bool cuda_is_available();

enum class Accelerator : uint8_t { automatic, cpu, cuda };
// automatic: CUDA where it is available, else the CPU. (The launcher hides all GPUs from CPU
// ranks.) Throws DeviceError where the driver fails, unless CUDA_VISIBLE_DEVICES hides all GPUs.
ZR_API std::shared_ptr<Device> make_device(Accelerator accelerator);

}  // namespace zerorun
