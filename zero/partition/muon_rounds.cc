#include "zero/partition/muon_rounds.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "zero/partition/model_spec.h"

namespace zerorun {

namespace {

// The parameters of a bucket: where each begins, and the end of the bucket; what each costs.
struct Matrices {
  std::vector<int64_t> begins;
  std::vector<double> costs;
};

Matrices matrices_of(const Sharding& sharding, const Bucket& bucket) {
  Matrices matrices;
  for (const Placement& place : bucket.layout.placements) {
    const auto [count, rows, cols] = muon_matrices(sharding.spec(place.parameter));
    const auto side = static_cast<double>(std::min(rows, cols));
    const auto length = static_cast<double>(std::max(rows, cols));
    matrices.begins.push_back(matrices.begins.empty() ? 0 : place.offset);
    matrices.costs.push_back(static_cast<double>(count) * side * side *
                             (2 * length + side));  // of an iteration
  }
  matrices.begins.push_back(bucket.layout.padded_numel());
  return matrices;
}

// The least cost of the busiest rank if owners ascend and have `loads` already.
double least_load(const std::vector<double>& costs, const std::vector<double>& loads) {
  const auto suffices = [&](double limit) {
    size_t next = 0;
    for (double load : loads) {
      if (next == costs.size()) break;
      while (next < costs.size() && load + costs[next] <= limit) load += costs[next++];
    }
    return next == costs.size();
  };
  constexpr int kHalvings = 50;
  double low = 0;
  double high =
      std::accumulate(costs.begin(), costs.end(), *std::max_element(loads.begin(), loads.end()));
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (suffices(middle) ? high : low) = middle;
  }
  return high * (1 + 1e-9);  // sums in another order may be larger
}

// Divides the matrices among ranks so that the busiest one has the least to do, and of all such
// ways the one that moves the fewest elements. Returns the first matrix of each rank, then their
// number, and adds to `loads`.
std::vector<size_t> choose_owners(const Matrices& matrices, int64_t shard_numel,
                                  std::vector<double>& loads) {
  const auto& [begins, costs] = matrices;
  const double limit = least_load(costs, loads);
  const size_t count = costs.size();
  // The most elements that stay where they are if the ranks so far own the first matrices.
  constexpr int64_t kImpossible = std::numeric_limits<int64_t>::min() / 2;
  std::vector<int64_t> most(count + 1, kImpossible);
  most[0] = 0;
  std::vector<size_t> firsts(loads.size() * (count + 1));  // by rank, then by end
  for (size_t rank = 0; rank < loads.size(); ++rank) {
    const int64_t shard = static_cast<int64_t>(rank) * shard_numel;
    size_t* const first = firsts.data() + rank * (count + 1);
    for (size_t end = count + 1; end-- > 0;) {  // each from smaller ones of the last rank
      first[end] = end;
      double load = loads[rank];
      for (size_t begin = end; begin-- > 0;) {
        load += costs[begin];
        if (load > limit) break;
        const int64_t stays = std::max<int64_t>(
            0, std::min(begins[end], shard + shard_numel) - std::max(begins[begin], shard));
        if (most[begin] + stays <= most[end]) continue;
        most[end] = most[begin] + stays;
        first[end] = begin;
      }
    }
  }
  std::vector<size_t> owners(loads.size() + 1, count);
  for (size_t rank = loads.size(); rank-- > 0;) {
    owners[rank] = firsts[rank * (count + 1) + owners[rank + 1]];
    for (size_t i = owners[rank]; i < owners[rank + 1]; ++i) loads[rank] += costs[i];
  }
  return owners;
}

// What the ranks of a shard group have to do in a round.
struct Work {
  int64_t numel() const { return stored + *std::max_element(owned.begin(), owned.end()); }

  std::vector<double> costs;   // by rank
  std::vector<int64_t> owned;  // elements, by rank
  int64_t stored = 0;          // elements, of each rank
};

// Makes the rounds of the buckets of one shard group.
class Rounds {
 public:
  Rounds(const Sharding& sharding, std::span<const Bucket* const> buckets,
         std::vector<MuonRound>& rounds)
      : sharding_(sharding),
        ranks_(sharding.policy.shard_state ? static_cast<size_t>(buckets[0]->layout.shards) : 1),
        rounds_(rounds) {
    // Enough for the largest bucket, or for one matrix of each rank.
    for (const Bucket* bucket : buckets) {
      const int64_t padding = bucket->layout.shards * kNormBlock;
      room_ = std::max(room_, bucket->layout.padded_numel());
      for (const Placement& place : bucket->layout.placements) {
        room_ = std::max(room_, 2 * (place.numel + padding));
      }
    }
    if (!exchanges()) room_ = 0;  // one bucket at a time
    for (const Bucket* bucket : buckets) add(*bucket);
    end();
  }

 private:
  bool exchanges() const { return ranks_ > 1; }

  // Gives the matrices to owners, and returns where they begin in the bucket.
  std::vector<int64_t> divide(const Bucket& bucket, Work& work) const {
    work.costs.resize(ranks_);
    work.owned.resize(ranks_);
    work.stored += bucket.stored.numel;
    if (!exchanges()) return {0, bucket.layout.padded_numel()};
    const Matrices matrices = matrices_of(sharding_, bucket);
    std::vector<int64_t> cuts;
    for (const size_t first : choose_owners(matrices, bucket.layout.shard_numel, work.costs)) {
      cuts.push_back(matrices.begins[first]);
    }
    cuts.front() = 0;  // also if nobody owns anything
    for (size_t i = 0; i < ranks_; ++i) work.owned[i] += cuts[i + 1] - cuts[i];
    return cuts;
  }

  void add(const Bucket& bucket) {
    Work next = work_;
    std::vector<int64_t> cuts = divide(bucket, next);
    if (next.numel() > room_ && !round_.shares.empty()) {
      end();
      next = {};
      cuts = divide(bucket, next);
    }
    const auto own =
        exchanges() ? static_cast<size_t>(bucket.owned_begin / bucket.layout.shard_numel) : 0;
    MuonShare share{.bucket = bucket.index,
                    .stored = work_.stored,
                    .owned = work_.stored,
                    .begin = cuts[own],
                    .numel = cuts[own + 1] - cuts[own]};
    if (exchanges()) {
      share.owned = work_.owned.empty() ? 0 : work_.owned[own];  // behind all that is stored: end()
      std::vector<int64_t> shards;
      for (size_t i = 0; i <= ranks_; ++i) {
        shards.push_back(static_cast<int64_t>(i) * bucket.layout.shard_numel);
      }
      share.to_owners = std::make_shared<const Cuts>(Cuts{shards, cuts});
      share.to_shards = std::make_shared<const Cuts>(Cuts{cuts, shards});
    }
    round_.shares.push_back(std::move(share));
    work_ = std::move(next);
  }

  void end() {
    for (MuonShare& share : round_.shares) {
      if (exchanges()) share.owned += work_.stored;
    }
    round_.numel = work_.numel();
    rounds_.push_back(std::move(round_));
    round_ = {};
    work_ = {};
  }

  const Sharding& sharding_;
  const size_t ranks_;  // among which a bucket's matrices are divided
  std::vector<MuonRound>& rounds_;
  int64_t room_ = 0;  // elements of a round
  MuonRound round_;
  Work work_;  // of round_
};

}  // namespace

std::vector<MuonRound> muon_rounds(const Sharding& sharding, std::span<const Bucket> buckets) {
  // By ranks that share them, in the order of the first, which is the same on all ranks.
  std::vector<std::pair<int, std::vector<const Bucket*>>> groups;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const Bucket& bucket = buckets[sharding.updates_last_first() ? buckets.size() - 1 - i : i];
    if (!bucket.plan.trainable || !bucket.plan.use_muon) continue;
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& other) {
      return other.first == bucket.plan.ranks;
    });
    auto& members =
        group != groups.end()
            ? group->second
            : groups.emplace_back(bucket.plan.ranks, std::vector<const Bucket*>()).second;
    members.push_back(&bucket);
  }
  std::vector<MuonRound> rounds;
  for (const auto& [ranks, members] : groups) Rounds(sharding, members, rounds);
  return rounds;
}

}  // namespace zerorun
