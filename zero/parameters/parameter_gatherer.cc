#include "zero/parameters/parameter_gatherer.h"

#include <algorithm>
#include <functional>
#include <string>

#include "core/check.h"
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

const GatherOrder::Known* GatherOrder::find(Pair pair) const {
  if (pair.second < 0) return nullptr;
  for (const Known& one : known_.at(static_cast<size_t>(pair.second))) {
    if (one.before == pair.first) return &one;
  }
  return nullptr;
}

GatherOrder::Known& GatherOrder::at(Pair pair) {
  std::vector<Known>& known = known_.at(static_cast<size_t>(pair.second));
  for (Known& one : known) {
    if (one.before == pair.first) return one;
  }
  return known.emplace_back(Known{pair.first});
}

void GatherOrder::record(ModuleId module) {
  if (last_.second >= 0) at(last_).next = module;
  last_ = {last_.second, module};
  Use& use = uses_.at(static_cast<size_t>(module));
  if (use.pair.second >= 0) at(use.pair).distance = used_ - use.end;
  used_ += numels_[static_cast<size_t>(module)];
  use = {last_, used_};
}

std::vector<ModuleId> GatherOrder::predict(int count, bool beyond_end) const {
  std::vector<ModuleId> modules;
  Pair at = last_;
  for (int i = 0; i < count; ++i) {
    const Known* const found = find(at);
    if (found == nullptr || found->next < 0) break;
    const ModuleId next = found->next;
    if (next == end_ && !beyond_end) break;
    if (next != end_) modules.push_back(next);
    at = {at.second, next};
  }
  return modules;
}

std::optional<int64_t> GatherOrder::reuse_distance(ModuleId module) const {
  const Use& use = uses_.at(static_cast<size_t>(module));
  const Known* const found = find(use.pair);
  if (found == nullptr || found->distance < 0) return std::nullopt;
  const int64_t left = found->distance - (used_ - use.end);
  return left < 0 ? std::nullopt : std::optional(left);  // another order than the last time
}

ParameterGatherer::ParameterGatherer(const EngineContext& context, std::span<Bucket> buckets,
                                     int module_count, Stream& stream,
                                     OffloadedParameters* parameters)
    : context_(context),
      buckets_(buckets),
      stream_(stream),
      parameters_(parameters),
      quantized_(context, buckets),
      updates_(context, buckets, quantized_),
      memory_([&device = context.device](int /*bucket*/, size_t nbytes) {
        return device.allocate(nbytes, MemoryCategory::buckets);
      }),
      modules_(static_cast<size_t>(module_count)),
      order_(sharded_numels(buckets, module_count)) {
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.shard_params) continue;
    Module& module = modules_.at(static_cast<size_t>(bucket.plan.module));
    module.buckets.push_back(bucket.index);
    module.numel += bucket.layout.padded_numel();
    numel_ += bucket.layout.padded_numel();
  }
  const bool moves = std::any_of(buckets.begin(), buckets.end(), [&](const Bucket& bucket) {
    return bucket.moves_params ||
           (bucket.plan.shard_params && context.sharding.place.shard_ranks > 1 &&
            !bucket.params.resident);
  });
  const std::string advice =
      moves ? room_advice(context.sharding.zero, sharded_numels(buckets, module_count))
            : std::string();
  if (!advice.empty()) context.log().info("{}", advice);
}

void ParameterGatherer::use_memory(EngineHooks::FullMemory memory) {
  invalidate();
  memory_ = std::move(memory);
}

void ParameterGatherer::gather(ModuleId id, bool step_follows) {
  Module& module = modules_.at(static_cast<size_t>(id));
  if (module.buckets.empty()) return;
  const auto finish_own = [&] {
    for (int index : module.buckets) finish(bucket(index), Next::use);
  };
  const bool is_first = module.use_count++ == 0;  // held, so that what comes ahead leaves its room
  try {
    if (is_first) {
      order_.record(id);
      if (is_sharded(module)) {
        make_room(module.numel, kAny);
        take_memory(module, memory_, &BucketParameters::full_memory);
        start(module);
      }
      if (pinned_ > 0) finish_own();  // before a later module takes the room
      prefetch(step_follows);
    }
    finish_own();
  } catch (...) {
    --module.use_count;
    throw;
  }
}

void ParameterGatherer::release(ModuleId id) {
  Module& module = modules_.at(static_cast<size_t>(id));
  if (module.buckets.empty()) return;
  ZR_CHECK(module.use_count > 0, "module {} released more often than gathered", id);
  if (--module.use_count > 0) return;
  const std::optional<int64_t> distance = order_.reuse_distance(id);
  const bool soon = distance && *distance < context_.sharding.zero.max_reuse_distance;
  if (soon && live_ <= context_.sharding.zero.max_live_parameters) return;
  for (int index : module.buckets) drop(bucket(index));
}

void ParameterGatherer::invalidate() {
  updates_.wait();
  if (context_.device.is_host()) {
    gathered_.synchronize();
  } else {  // what is going to be written, and the memory that goes, are the inline stream's
    context_.device.inline_stream().wait(gathered_);
  }
  for (Module& module : modules_) {
    module.has_secondary = false;
    if (module.use_count > 0) continue;
    for (int index : module.buckets) drop(bucket(index));
  }
}

void ParameterGatherer::take_memory(const Module& module, const EngineHooks::FullMemory& memory,
                                    Buffer BucketParameters::*place) {
  std::vector<std::pair<int, Buffer>> taken;
  for (int index : module.buckets) {
    const Bucket& one = bucket(index);
    if (one.params.resident || one.params.state != State::sharded) continue;
    taken.emplace_back(index, memory(index, static_cast<size_t>(one.full_nbytes())));
  }
  for (auto& [index, block] : taken) {
    Bucket& one = bucket(index);
    one.params.full = view_of(block, one.dtype, one.layout.padded_numel());
    one.params.*place = std::move(block);
  }
  // Work that was given to the inline stream may still use what lay there before.
  if (!taken.empty()) stream_.wait(context_.device.inline_stream().record());
}

bool ParameterGatherer::take_memory_to_prefetch(const Module& module) {
  try {
    // What waits on the host is used before this, and gets the next room on the device.
    if (pinned_ == 0) {
      take_memory(module, memory_, &BucketParameters::full_memory);
      return true;
    }
  } catch (const OutOfMemory&) {
    // There may be room when the module is used. Alone this rank can wait for that; peers that
    // gather with it would be left waiting. Where ranks share a GPU, pinning may wait for a peer.
    if (context_.groups.shards().transport().starts_with("host-staged")) throw;
    const bool alone = std::none_of(module.buckets.begin(), module.buckets.end(),
                                    [this](int index) { return is_collective(bucket(index)); });
    if (alone) return false;
  }
  const auto pinned = [this](int /*bucket*/, size_t nbytes) {
    return context_.device.allocate_pinned(nbytes);
  };
  take_memory(module, pinned, &BucketParameters::pinned);
  for (int index : module.buckets) {
    if (bucket(index).params.pinned) ++pinned_;
  }
  return true;
}

void ParameterGatherer::upload(Bucket& bucket) {
  BucketParameters& params = bucket.params;
  params.full_memory = memory_(bucket.index, params.full.nbytes());
  const TensorView pinned = params.full;
  params.full = view_of(params.full_memory, bucket.dtype, pinned.numel);
  Stream& stream = context_.device.inline_stream();
  context_.device.upload(stream, pinned.data, params.full);
  stream.synchronize();  // `pinned` ends here
  params.pinned = {};
  --pinned_;
}

void ParameterGatherer::start(Module& module) {
  const bool from_secondary = module.has_secondary;
  Communicator& ranks =
      from_secondary ? *context_.groups.secondary_group : context_.groups.gathers();
  Event ready = ranks.coalesced(stream_, [&] {
    for (int index : module.buckets) start(bucket(index), from_secondary);
  });
  if (!from_secondary && complete(module)) ready = stream_.record();
  for (int index : module.buckets) {
    BucketParameters& params = bucket(index).params;
    if (params.state == State::gathering) params.gathered = ready;
  }
  gathered_ = ready;
}

bool ParameterGatherer::complete(Module& module) {
  bool completed = context_.sharding.place.has_secondary();
  for (int index : module.buckets) {
    const Bucket& one = bucket(index);
    const BucketParameters& params = one.params;
    if (params.state != State::gathering) continue;
    if (one.quantized_gather) {
      quantized_.decode(one, params.full, stream_);
      completed = true;
    }
    if (!context_.sharding.place.has_secondary()) continue;
    const int64_t numel = params.secondary.numel;
    const TensorView own =
        params.full.slice(context_.sharding.place.secondary_rank() * numel, numel);
    context_.device.cast(stream_, own, params.secondary);
  }
  module.has_secondary = context_.sharding.place.has_secondary();
  return completed;
}

void ParameterGatherer::start(Bucket& bucket, bool from_secondary) {
  BucketParameters& params = bucket.params;
  if (params.state != State::sharded) return;
  const TensorView& full = params.full;
  if (from_secondary) {
    params.gathered = context_.groups.secondary_group->all_gather(
        params.secondary, full, Sync::collective, stream_, bucket.label);
  } else {
    TensorView shard = params.shard;
    if (bucket.moves_params) {
      shard = full.slice(bucket.owned_begin, bucket.layout.shard_numel);
      stream_.wait(parameters_->fetch(bucket, shard));
    }
    if (bucket.quantized_gather) {
      quantized_.start(bucket, shard, stream_);
    } else {
      // Peers cannot look into a file, or into another host memory than theirs.
      const Sync sync = bucket.moves_params ? Sync::collective : Sync::one_sided;
      Communicator& ranks = context_.groups.gathers(bucket.plan.ranks);
      params.gathered = ranks.all_gather(shard, full, sync, stream_, bucket.label);
    }
  }
  if (context_.groups.compares_gathers && is_collective(bucket)) {
    constexpr int64_t kPrime = 16777619;
    order_hash_ = (order_hash_ * kPrime + bucket.index + 1) % kMaxOrderHash;
  }
  params.state = State::gathering;
  live_ += bucket.layout.padded_numel();
}

void ParameterGatherer::finish(Bucket& bucket, Next next) {
  BucketParameters& params = bucket.params;
  if (params.state != State::gathering) return;
  context_.device.inline_stream().wait(params.gathered);
  if (params.pinned && next == Next::use) upload(bucket);
  params.state = State::full;
}

void ParameterGatherer::drop(Bucket& bucket) {
  BucketParameters& params = bucket.params;
  if (params.state == State::sharded) return;
  // Whoever has the memory next must not meet the gather there; the host's is free at once.
  if (params.pinned) params.gathered.synchronize();
  finish(bucket, Next::drop);
  params.state = State::sharded;
  live_ -= bucket.layout.padded_numel();
  if (!params.resident) {
    params.full = {};
    params.full_memory = {};
    if (std::exchange(params.pinned, {})) --pinned_;
  }
}

void ParameterGatherer::prefetch(bool step_follows) {
  const int64_t limit = context_.sharding.zero.prefetch_bucket_size;
  if (limit == 0 || live_ == numel_) return;
  int64_t prefetched = 0;
  for (ModuleId id : order_.predict(kPrefetchModules, !step_follows)) {
    Module& next = modules_[static_cast<size_t>(id)];
    // One module comes early whatever its size: else a block that is larger than the limit would
    // wait for its gather each time.
    if (prefetched > 0 && prefetched + next.numel > limit) return;
    prefetched += next.numel;
    if (!is_sharded(next)) continue;
    if (!make_room(next.numel, prefetched)) return;
    if (!take_memory_to_prefetch(next)) return;
    start(next);
  }
}

bool ParameterGatherer::is_collective(const Bucket& bucket) const {
  return bucket.moves_params || !context_.groups.shards(bucket.plan.ranks).reads_peers();
}

bool ParameterGatherer::make_room(int64_t numel, int64_t distance) {
  int64_t excess = live_ + numel - context_.sharding.zero.max_live_parameters;
  if (excess <= 0) return true;
  std::vector<std::pair<int64_t, const Module*>> others;  // and how far away their next use is
  int64_t room = 0;
  for (size_t id = 0; id < modules_.size(); ++id) {
    const Module& module = modules_[id];
    const int64_t full = full_numel(module);
    if (module.use_count > 0 || full == 0) continue;
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
    for (int index : module->buckets) drop(bucket(index));
  }
  return excess <= 0;
}

bool ParameterGatherer::is_sharded(const Module& module) const {
  return std::any_of(module.buckets.begin(), module.buckets.end(),
                     [this](int index) { return bucket(index).params.state == State::sharded; });
}

int64_t ParameterGatherer::full_numel(const Module& module) const {
  int64_t numel = 0;
  for (int index : module.buckets) {
    const Bucket& one = bucket(index);
    if (one.params.state != State::sharded) numel += one.layout.padded_numel();
  }
  return numel;
}

}  // namespace zerorun
