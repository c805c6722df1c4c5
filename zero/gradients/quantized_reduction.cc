#include "zero/gradients/quantized_reduction.h"

#include <algorithm>

namespace zerorun {

namespace {

bool is_quantized(const Bucket& bucket) { return bucket.plan.trainable && bucket.plan.quantized; }

// Elements of what the second hop takes.
int64_t partial_numel_of(const Sharding& sharding, const Bucket& bucket) {
  return bucket.layout.padded_numel() / sharding.place.host_ranks;
}

bool exchanges_within(const Sharding& sharding) {
  return sharding.place.host_ranks > 1 && !sharding.computes_on_host;
}

// Elements of what the hops of a bucket lose.
struct LostNumel {
  int64_t within = 0;
  int64_t across = 0;
};
LostNumel lost_numel(const Sharding& sharding, const Bucket& bucket) {
  if (!sharding.zero.loco || !is_quantized(bucket)) return {};
  return {exchanges_within(sharding) ? bucket.layout.padded_numel() : 0,
          partial_numel_of(sharding, bucket)};
}

int64_t largest_numel(std::span<const Bucket> buckets) {
  int64_t numel = 0;
  for (const Bucket& bucket : buckets) {
    if (is_quantized(bucket)) numel = std::max(numel, bucket.layout.padded_numel());
  }
  return numel;
}

// One direction of the larger hop.
int64_t hop_nbytes(const Sharding& sharding, int64_t numel) {
  const int64_t across = quantized_nbytes(numel / sharding.place.host_ranks,
                                          QuantizedReduction::bits_across(sharding));
  if (!exchanges_within(sharding)) return across;
  return std::max(across, quantized_nbytes(numel, QuantizedReduction::kBitsWithin));
}

int64_t partial_nbytes(const Sharding& sharding, int64_t numel) {
  return sharding.place.host_ranks > 1 ? nbytes_of(numel / sharding.place.host_ranks, DType::fp32)
                                       : 0;
}

}  // namespace

QuantizedReduction::Sizes QuantizedReduction::sizes(const Sharding& sharding,
                                                    std::span<const Bucket> buckets) {
  Sizes sizes;
  if (!sharding.zero.quantized_gradients) return sizes;
  const int64_t numel = largest_numel(buckets);
  sizes.buffers = partial_nbytes(sharding, numel) + 2 * hop_nbytes(sharding, numel);
  for (const Bucket& bucket : buckets) {
    const LostNumel lost = lost_numel(sharding, bucket);
    sizes.lost += nbytes_of(lost.within + lost.across, DType::fp32);
  }
  return sizes;
}

QuantizedReduction::QuantizedReduction(const EngineContext& context, std::span<Bucket> buckets)
    : context_(context) {
  const Sizes needed = sizes(context.sharding, buckets);
  if (needed.buffers == 0) return;
  const int64_t numel = largest_numel(buckets);
  const auto allocate = [&](int64_t nbytes, MemoryCategory category) {
    return nbytes > 0 ? context.device.allocate(static_cast<size_t>(nbytes), category) : Buffer();
  };
  partial_ = allocate(partial_nbytes(context.sharding, numel), MemoryCategory::buckets);
  wire_ = allocate(2 * hop_nbytes(context.sharding, numel), MemoryCategory::buckets);
  if (needed.lost == 0) return;
  lost_memory_ = allocate(needed.lost, MemoryCategory::gradients);
  TensorView rest = view_of(lost_memory_, DType::fp32, needed.lost / 4);
  const auto take = [&](int64_t count) {
    const TensorView view = rest.slice(0, count);
    rest = rest.slice(count, rest.numel - count);
    return view;
  };
  for (Bucket& bucket : buckets) {
    const LostNumel lost = lost_numel(context.sharding, bucket);
    if (lost.within > 0) bucket.grads.lost_within = take(lost.within);
    if (lost.across > 0) bucket.grads.lost_across = take(lost.across);
  }
  Stream& stream = context.device.inline_stream();
  context.device.fill(stream, view_of(lost_memory_, DType::uint8, needed.lost), 0.0F);
  stream.synchronize();
}

Event QuantizedReduction::run(const Bucket& bucket, TensorView outgoing, TensorView reduced,
                              Output output, Stream& stream) {
  bucket.clear_padding(0, outgoing, context_.device, stream);
  const TensorView partial = add_within_host(bucket, outgoing, stream);
  Communicator& across = *context_.groups.cross_group;
  const int bits = bits_across(context_.sharding);
  const Wire bytes = wire(partial.numel, bits);
  const TensorView lost = bucket.grads.lost_across;
  // What stays on this host is added as it is.
  const int64_t slice = partial.numel / across.world_size();
  const int64_t own = across.rank() * slice;
  quantize_for_hosts(partial, lost, bytes.sent, 0, own, stream);
  quantize_for_hosts(partial, lost, bytes.sent, own + slice, partial.numel, stream);
  across.all_to_all(bytes.sent, bytes.received, stream, bucket.label);
  context_.device.dequantize(stream, bytes.received, reduced,
                             {.bits = bits,
                              .parts = across.world_size(),
                              .accumulate = output == Output::accumulate,
                              .exact = partial.slice(own, slice),
                              .exact_part = across.rank()});
  return stream.record();
}

void QuantizedReduction::quantize_for_hosts(TensorView partial, TensorView lost, TensorView sent,
                                            int64_t begin, int64_t end, Stream& stream) {
  if (begin == end) return;
  const int64_t numel = end - begin;
  const int bits = bits_across(context_.sharding);
  if (lost.data != nullptr) lost = lost.slice(begin, numel);
  context_.device.quantize(stream, partial.slice(begin, numel),
                           sent.slice(quantized_nbytes(begin, bits), quantized_nbytes(numel, bits)),
                           how(bits, lost));
}

TensorView QuantizedReduction::add_within_host(const Bucket& bucket, TensorView outgoing,
                                               Stream& stream) {
  const int ranks = context_.sharding.place.host_ranks;
  if (ranks == 1) return outgoing;
  Communicator& here = *context_.groups.host_group;
  const int64_t hosts = context_.sharding.place.shard_ranks / ranks;
  const TensorView partial = view_of(partial_, DType::fp32, outgoing.numel / ranks);
  if (!exchanges_within(context_.sharding)) {
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
  Quantization quantization = how(kBitsWithin, bucket.grads.lost_within);
  quantization.rows = hosts;
  quantization.columns = ranks;
  context_.device.quantize(stream, outgoing, bytes.sent, quantization);
  here.all_to_all(bytes.sent, bytes.received, stream, bucket.label);
  context_.device.dequantize(stream, bytes.received, partial,
                             {.bits = kBitsWithin, .parts = ranks});
  return partial;
}

void QuantizedReduction::end_batch(Stream& stream) {
  if (!lost_memory_ || ++batches_ % context_.sharding.zero.loco->reset_T != 0) return;
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
  if (lost.data != nullptr)
    quantization.beta = static_cast<float>(context_.sharding.zero.loco->err_beta);
  return quantization;
}

}  // namespace zerorun
