#include "zero/gradients/quantized_reduction.h"

#include <algorithm>

#include "zero/storage/padding.h"

namespace zerorun {

namespace {

// The dtype in which the second hop's input is, and what it lost.
DType partial_dtype(const Sharding& sharding) {
  return sharding.host_ranks > 1 ? DType::fp32 : sharding.comm_dtype;
}

// Elements of what the second hop takes.
int64_t partial_numel_of(const Sharding& sharding, const Bucket& bucket) {
  return bucket.layout.padded_numel() / sharding.host_ranks;
}

bool exchanges_within(const Sharding& sharding) {
  return sharding.host_ranks > 1 && !sharding.computes_on_host;
}

int64_t bytes_for(int64_t numel, DType dtype) {
  return numel * static_cast<int64_t>(size_of(dtype));
}

// Bytes of what the hops of a bucket lose.
struct LostBytes {
  int64_t within = 0;
  int64_t across = 0;
};
LostBytes lost_bytes(const Sharding& sharding, const Bucket& bucket) {
  if (!sharding.zero.loco || !bucket.plan.trainable) return {};
  return {
      exchanges_within(sharding) ? bytes_for(bucket.layout.padded_numel(), sharding.comm_dtype) : 0,
      bytes_for(partial_numel_of(sharding, bucket), partial_dtype(sharding))};
}

int64_t largest_numel(std::span<const Bucket> buckets) {
  int64_t numel = 0;
  for (const Bucket& bucket : buckets) {
    if (bucket.plan.trainable) numel = std::max(numel, bucket.layout.padded_numel());
  }
  return numel;
}

// One direction of the larger hop.
int64_t hop_nbytes(const Sharding& sharding, int64_t numel) {
  const int64_t across =
      quantized_nbytes(numel / sharding.host_ranks, QuantizedReduction::kBitsAcross);
  if (!exchanges_within(sharding)) return across;
  return std::max(across, quantized_nbytes(numel, QuantizedReduction::kBitsWithin));
}

int64_t partial_nbytes(const Sharding& sharding, int64_t numel) {
  return sharding.host_ranks > 1 ? bytes_for(numel / sharding.host_ranks, DType::fp32) : 0;
}

}  // namespace

QuantizedReduction::Sizes QuantizedReduction::sizes(const Sharding& sharding,
                                                    std::span<const Bucket> buckets) {
  Sizes sizes;
  if (!sharding.zero.quantized_gradients) return sizes;
  const int64_t numel = largest_numel(buckets);
  sizes.buffers = partial_nbytes(sharding, numel) + 2 * hop_nbytes(sharding, numel);
  for (const Bucket& bucket : buckets) {
    const LostBytes lost = lost_bytes(sharding, bucket);
    sizes.lost += lost.within + lost.across;
  }
  return sizes;
}

QuantizedReduction::QuantizedReduction(const EngineContext& context,
                                       std::span<const Bucket> buckets)
    : context_(context), lost_(buckets.size()) {
  const Sizes needed = sizes(context, buckets);
  if (needed.buffers == 0) return;
  const int64_t numel = largest_numel(buckets);
  const auto allocate = [&](int64_t nbytes, MemoryCategory category) {
    return nbytes > 0 ? context.device.allocate(static_cast<size_t>(nbytes), category) : Buffer();
  };
  partial_ = allocate(partial_nbytes(context, numel), MemoryCategory::buckets);
  wire_ = allocate(2 * hop_nbytes(context, numel), MemoryCategory::buckets);
  if (needed.lost == 0) return;
  lost_memory_ = allocate(needed.lost, MemoryCategory::gradients);
  int64_t cursor = 0;
  const auto take = [&](int64_t nbytes, DType dtype) {
    const TensorView view =
        view_of(lost_memory_, dtype, nbytes / static_cast<int64_t>(size_of(dtype)),
                static_cast<size_t>(cursor));
    cursor += nbytes;
    return view;
  };
  for (const Bucket& bucket : buckets) {
    const LostBytes bytes = lost_bytes(context, bucket);
    Lost& lost = lost_[static_cast<size_t>(bucket.index)];
    if (bytes.within > 0) lost.within = take(bytes.within, context.comm_dtype);
    if (bytes.across > 0) lost.across = take(bytes.across, partial_dtype(context));
  }
  Stream& stream = context.device.inline_stream();
  context.device.fill(stream, view_of(lost_memory_, DType::uint8, needed.lost), 0.0F);
  stream.synchronize();
}

Event QuantizedReduction::run(const Bucket& bucket, TensorView outgoing, TensorView reduced,
                              Output output, Stream& stream) {
  clear_padding(bucket, 0, outgoing, context_.device, stream);
  const TensorView partial = add_within_host(bucket, outgoing, stream);
  const Wire bytes = wire(partial.numel, kBitsAcross);
  context_.device.quantize(stream, partial, bytes.sent,
                           how(kBitsAcross, lost_[static_cast<size_t>(bucket.index)].across));
  context_.cross_group->all_to_all(bytes.sent, bytes.received, stream, bucket.label);
  context_.device.dequantize(stream, bytes.received, reduced, kBitsAcross,
                             context_.cross_group->world_size(), output == Output::accumulate);
  return stream.record();
}

TensorView QuantizedReduction::add_within_host(const Bucket& bucket, TensorView outgoing,
                                               Stream& stream) {
  const int ranks = context_.host_ranks;
  if (ranks == 1) return outgoing;
  Communicator& here = *context_.host_group;
  const int64_t hosts = context_.shard_ranks / ranks;
  const TensorView partial = view_of(partial_, DType::fp32, outgoing.numel / ranks);
  if (!exchanges_within(context_)) {
    const int64_t of_host = outgoing.numel / hosts;
    const int64_t shard = partial.numel / hosts;
    here.coalesced(stream, [&] {
      for (int64_t host = 0; host < hosts; ++host) {
        here.reduce_scatter(outgoing.slice(host * of_host, of_host),
                            partial.slice(host * shard, shard), Output::overwrite, stream,
                            bucket.label);
      }
    });
    return partial;
  }
  const Wire bytes = wire(outgoing.numel, kBitsWithin);
  Quantization quantization = how(kBitsWithin, lost_[static_cast<size_t>(bucket.index)].within);
  quantization.rows = hosts;
  quantization.columns = ranks;
  context_.device.quantize(stream, outgoing, bytes.sent, quantization);
  here.all_to_all(bytes.sent, bytes.received, stream, bucket.label);
  context_.device.dequantize(stream, bytes.received, partial, kBitsWithin, ranks,
                             /*accumulate=*/false);
  return partial;
}

void QuantizedReduction::end_batch(Stream& stream) {
  if (!lost_memory_ || ++batches_ % context_.zero.loco->reset_T != 0) return;
  context_.device.fill(
      stream, view_of(lost_memory_, DType::uint8, static_cast<int64_t>(lost_memory_.nbytes())),
      0.0F);
}

QuantizedReduction::Wire QuantizedReduction::wire(int64_t numel, int bits) const {
  const int64_t nbytes = quantized_nbytes(numel, bits);
  return {view_of(wire_, DType::uint8, nbytes),
          view_of(wire_, DType::uint8, nbytes, wire_.nbytes() / 2)};
}

Quantization QuantizedReduction::how(int bits, TensorView lost) const {
  Quantization quantization{.bits = bits, .lost = lost};
  if (lost.data != nullptr) quantization.beta = static_cast<float>(context_.zero.loco->err_beta);
  return quantization;
}

}  // namespace zerorun
