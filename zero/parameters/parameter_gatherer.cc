#include "zero/parameters/parameter_gatherer.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "zerorun/out_of_memory.h"

namespace zerorun {

namespace {

constexpr int kPrefetchModules = 16;
constexpr int64_t kAny = -1;  // of make_room

std::vector<int64_t> sharded_numels(std::span<const Bucket> buckets, int module_count) {
  std::vector<int64_t> numels(static_cast<size_t>(module_count), 0);
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.shard_params) continue;
    numels.at(static_cast<size_t>(bucket.plan.module)) += bucket.layout.padded_numel();
  }
  return numels;
}

// Tells the user if no module can be gathered during the computation of another; empty otherwise.
std::string room_advice(const ZeroConfig& zero, std::vector<int64_t> numels) {
  std::sort(numels.begin(), numels.end(), std::greater());
  const int64_t two = numels.front() + (numels.size() > 1 ? numels[1] : 0);
  if (zero.prefetch_bucket_size == 0 || zero.max_live_parameters >= two) return {};
  return fmt::format(
      "gathers do not overlap with computation: /zero_optimization/stage3_max_live_parameters is "
      "{}, and the two largest modules, one in use and one gathered ahead, have {} elements",
      zero.max_live_parameters, two);
}

}  // namespace

ParameterGatherer::ParameterGatherer(const EngineContext& context, std::span<const Bucket> buckets,
                                     BucketMemory& memory, int module_count, Stream& stream,
                                     OffloadedParameters* parameters)
    : context_(context),
      buckets_(buckets),
      bucket_memory_(memory),
      stream_(stream),
      parameters_(parameters),
      quantized_(context, buckets),
      updates_(context, buckets, memory),
      memory_([&device = context.device](int /*bucket*/, size_t nbytes) {
        return device.allocate(nbytes, MemoryCategory::buckets);
      }),
      modules_(static_cast<size_t>(module_count)),
      order_(sharded_numels(buckets, module_count)),
      residences_(buckets.size()) {
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.shard_params) continue;
    Module& module = modules_.at(static_cast<size_t>(bucket.plan.module));
    module.buckets.push_back(bucket.index);
    module.numel += bucket.layout.padded_numel();
  }
  const bool moves = std::any_of(buckets.begin(), buckets.end(), [&](const Bucket& bucket) {
    return bucket.moves_params || (bucket.plan.shard_params && context.shard_ranks > 1 &&
                                   !memory.parameters(bucket).resident);
  });
  const std::string advice =
      moves ? room_advice(context.zero, sharded_numels(buckets, module_count)) : std::string();
  if (!advice.empty()) Logger(context.rank, context.world_size).info("{}", advice);
}

void ParameterGatherer::use_memory(EngineHooks::FullMemory memory) {
  invalidate();
  memory_ = std::move(memory);
}

void ParameterGatherer::gather(ModuleId id, bool step_follows) {
  Module& module = modules_.at(static_cast<size_t>(id));
  if (module.buckets.empty()) return;
  const auto finish_own = [&] {
    for (int bucket : module.buckets) finish(buckets_[static_cast<size_t>(bucket)], Next::use);
  };
  const bool is_first = module.holders++ == 0;  // held, so that what comes ahead leaves its room
  try {
    if (is_first) {
      order_.record(id);
      if (is_sharded(module)) {
        make_room(module.numel, kAny);
        take_memory(module, memory_, &Residence::full);
        start(module);
      }
      if (parked_ > 0) finish_own();  // before a later module takes the room
      prefetch(step_follows);
    }
    finish_own();
  } catch (...) {
    --module.holders;
    throw;
  }
}

void ParameterGatherer::release(ModuleId id) {
  Module& module = modules_.at(static_cast<size_t>(id));
  if (module.buckets.empty()) return;
  ZR_CHECK(module.holders > 0, "module {} released more often than gathered", id);
  if (--module.holders > 0) return;
  const std::optional<int64_t> distance = order_.reuse_distance(id);
  const bool soon = distance && *distance < context_.zero.max_reuse_distance;
  if (soon && live_ <= context_.zero.max_live_parameters) return;
  for (int bucket : module.buckets) drop(buckets_[static_cast<size_t>(bucket)]);
}

void ParameterGatherer::invalidate() {
  updates_.wait();
  if (context_.device.is_host()) {
    gathered_.synchronize();
  } else {  // what is going to be written, and the memory that goes, are the inline stream's
    context_.device.inline_stream().wait(gathered_);
  }
  for (Module& module : modules_) {
    module.has_second_copy = false;
    if (module.holders > 0) continue;
    for (int bucket : module.buckets) drop(buckets_[static_cast<size_t>(bucket)]);
  }
}

void ParameterGatherer::take_memory(const Module& module, const EngineHooks::FullMemory& memory,
                                    Buffer Residence::*place) {
  std::vector<std::pair<int, Buffer>> taken;
  for (int index : module.buckets) {
    const Bucket& bucket = buckets_[static_cast<size_t>(index)];
    const bool sharded = residences_[static_cast<size_t>(index)].state == State::sharded;
    if (bucket_memory_.parameters(bucket).resident || !sharded) continue;
    const TensorView shape{nullptr, bucket.layout.padded_numel(), bucket.dtype};
    taken.emplace_back(index, memory(index, shape.nbytes()));
  }
  for (auto& [index, block] : taken) {
    const Bucket& bucket = buckets_[static_cast<size_t>(index)];
    bucket_memory_.parameters(bucket).full =
        view_of(block, bucket.dtype, bucket.layout.padded_numel());
    residences_[static_cast<size_t>(index)].*place = std::move(block);
  }
  // Work that was given to the inline stream may still use what lay there before.
  if (!taken.empty()) stream_.wait(context_.device.inline_stream().record());
}

bool ParameterGatherer::take_memory_ahead(const Module& module) {
  try {
    // What waits on the host is used before this, and gets the next room on the device.
    if (parked_ == 0) {
      take_memory(module, memory_, &Residence::full);
      return true;
    }
  } catch (const OutOfMemory&) {
    // There may be room when the module is used. Alone this rank can wait for that; peers that
    // gather with it would be left waiting. Where ranks share a GPU, pinning may wait for a peer.
    if (context_.shards().transport().starts_with("host-staged")) throw;
    const bool alone = std::none_of(
        module.buckets.begin(), module.buckets.end(),
        [this](int index) { return is_collective(buckets_[static_cast<size_t>(index)]); });
    if (alone) return false;
  }
  const auto pinned = [this](int /*bucket*/, size_t nbytes) {
    return context_.device.allocate_pinned(nbytes);
  };
  take_memory(module, pinned, &Residence::parked);
  for (int index : module.buckets) {
    if (residences_[static_cast<size_t>(index)].parked) ++parked_;
  }
  return true;
}

void ParameterGatherer::unpark(const Bucket& bucket) {
  Residence& residence = residences_[static_cast<size_t>(bucket.index)];
  TensorView& full = bucket_memory_.parameters(bucket).full;
  residence.full = memory_(bucket.index, full.nbytes());
  const TensorView parked = full;
  full = view_of(residence.full, bucket.dtype, parked.numel);
  Stream& stream = context_.device.inline_stream();
  context_.device.upload(stream, parked.data, full);
  stream.synchronize();  // `parked` ends here
  residence.parked = {};
  --parked_;
}

void ParameterGatherer::start(Module& module) {
  const bool near = module.has_second_copy;
  Communicator& ranks = near ? *context_.secondary_group : context_.gathers();
  Event ready = ranks.coalesced(stream_, [&] {
    for (int bucket : module.buckets) start(buckets_[static_cast<size_t>(bucket)], near);
  });
  if (!near && complete(module)) ready = stream_.record();
  for (int bucket : module.buckets) {
    Residence& residence = residences_[static_cast<size_t>(bucket)];
    if (residence.state == State::gathering) residence.ready = ready;
  }
  gathered_ = ready;
}

bool ParameterGatherer::complete(Module& module) {
  bool completed = context_.has_second_copy();
  for (int index : module.buckets) {
    const Bucket& bucket = buckets_[static_cast<size_t>(index)];
    if (residences_[static_cast<size_t>(index)].state != State::gathering) continue;
    const BucketParameters& memory = bucket_memory_.parameters(bucket);
    if (QuantizedGather::takes(context_, bucket)) {
      quantized_.decode(bucket, memory.full, stream_);
      completed = true;
    }
    if (!context_.has_second_copy()) continue;
    const int64_t numel = memory.secondary.numel;
    const TensorView own = memory.full.slice(context_.secondary_rank() * numel, numel);
    context_.device.cast(stream_, own, memory.secondary);
  }
  module.has_second_copy = context_.has_second_copy();
  return completed;
}

void ParameterGatherer::start(const Bucket& bucket, bool from_second_copy) {
  Residence& residence = residences_[static_cast<size_t>(bucket.index)];
  if (residence.state != State::sharded) return;
  const BucketParameters& memory = bucket_memory_.parameters(bucket);
  const TensorView& full = memory.full;
  if (from_second_copy) {
    residence.ready = context_.secondary_group->all_gather(memory.secondary, full, Sync::collective,
                                                           stream_, bucket.label);
  } else {
    TensorView shard = memory.shard;
    if (bucket.moves_params) {
      shard = full.slice(bucket.owned_begin, bucket.layout.shard_numel);
      stream_.wait(parameters_->fetch(bucket, shard));
    }
    if (QuantizedGather::takes(context_, bucket)) {
      quantized_.start(bucket, shard, stream_);
    } else {
      // Peers cannot look into a file, or into another host memory than theirs.
      const Sync sync = bucket.moves_params ? Sync::collective : Sync::one_sided;
      Communicator& ranks = context_.gathers(bucket.plan.ranks);
      residence.ready = ranks.all_gather(shard, full, sync, stream_, bucket.label);
    }
  }
  if (context_.compares_gathers && is_collective(bucket)) {
    constexpr int64_t kPrime = 16777619;
    order_hash_ = (order_hash_ * kPrime + bucket.index + 1) % kMaxOrderHash;
  }
  residence.state = State::gathering;
  live_ += bucket.layout.padded_numel();
}

void ParameterGatherer::finish(const Bucket& bucket, Next next) {
  Residence& residence = residences_[static_cast<size_t>(bucket.index)];
  if (residence.state != State::gathering) return;
  context_.device.inline_stream().wait(residence.ready);
  if (residence.parked && next == Next::use) unpark(bucket);
  residence.state = State::full;
}

void ParameterGatherer::drop(const Bucket& bucket) {
  Residence& residence = residences_[static_cast<size_t>(bucket.index)];
  if (residence.state == State::sharded) return;
  // Whoever has the memory next must not meet the gather there; the host's is free at once.
  if (residence.parked) residence.ready.synchronize();
  finish(bucket, Next::drop);
  residence.state = State::sharded;
  live_ -= bucket.layout.padded_numel();
  if (!bucket_memory_.parameters(bucket).resident) {
    bucket_memory_.parameters(bucket).full = {};
    residence.full = {};
    if (std::exchange(residence.parked, {})) --parked_;
  }
}

void ParameterGatherer::prefetch(bool step_follows) {
  const int64_t limit = context_.zero.prefetch_bucket_size;
  if (limit == 0) return;
  int64_t ahead = 0;
  for (ModuleId id : order_.predict(kPrefetchModules, !step_follows)) {
    Module& next = modules_[static_cast<size_t>(id)];
    // One module comes early whatever its size: else a block that is larger than the limit would
    // wait for its gather each time.
    if (ahead > 0 && ahead + next.numel > limit) return;
    ahead += next.numel;
    if (!is_sharded(next)) continue;
    if (!make_room(next.numel, ahead)) return;
    if (!take_memory_ahead(next)) return;
    start(next);
  }
}

bool ParameterGatherer::is_collective(const Bucket& bucket) const {
  return bucket.moves_params || !context_.shards(bucket.plan.ranks).reads_peers();
}

bool ParameterGatherer::make_room(int64_t numel, int64_t distance) {
  int64_t excess = live_ + numel - context_.zero.max_live_parameters;
  if (excess <= 0) return true;
  std::vector<std::pair<int64_t, const Module*>> others;  // and how far away their next use is
  int64_t room = 0;
  for (size_t id = 0; id < modules_.size(); ++id) {
    const Module& module = modules_[id];
    const int64_t full = full_numel(module);
    if (module.holders > 0 || full == 0) continue;
    const int64_t next = order_.reuse_distance(static_cast<ModuleId>(id)).value_or(INT64_MAX);
    if (next <= distance) continue;
    others.emplace_back(next, &module);
    room += full;
  }
  if (room < excess && distance != kAny) return false;
  std::stable_sort(others.begin(), others.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [next, module] : others) {
    if (excess <= 0) break;
    excess -= full_numel(*module);
    for (int bucket : module->buckets) drop(buckets_[static_cast<size_t>(bucket)]);
  }
  return excess <= 0;
}

bool ParameterGatherer::is_sharded(const Module& module) const {
  for (int bucket : module.buckets) {
    if (residences_[static_cast<size_t>(bucket)].state == State::sharded) return true;
  }
  return false;
}

int64_t ParameterGatherer::full_numel(const Module& module) const {
  int64_t numel = 0;
  for (int index : module.buckets) {
    const bool full = residences_[static_cast<size_t>(index)].state != State::sharded;
    if (full) numel += buckets_[static_cast<size_t>(index)].layout.padded_numel();
  }
  return numel;
}

}  // namespace zerorun
