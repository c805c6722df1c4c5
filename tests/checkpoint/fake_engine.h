#pragma once

#include "core/check.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/harness.h"
#include "zerorun/checkpoint.h"

namespace zerorun::testing {

// A model without arithmetic, and which rank holds which elements of it.
struct FakeModel {
  std::vector<ParameterSpec> specs;
  DType dtype = DType::bf16;
  DType master_dtype = DType::fp32;
  std::vector<StateSpec> states = {{"exp_avg"}, {"exp_avg_sq"}};
  std::vector<ParameterGroup> groups = {{"decay", 1e-3F, 0.1F}, {"no_decay", 2e-3F, 0.0F}};

  int64_t numel(size_t parameter) const { return specs[parameter].numel(); }
};

struct Cut {
  ParameterId parameter = 0;
  int64_t begin = 0;
  int64_t numel = 0;
};
using Cuts = std::vector<std::vector<Cut>>;  // per rank

// splitmix64
inline uint64_t scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// Trainable, frozen, tied, empty and scalar parameters, of sizes that nothing divides.
inline FakeModel small_model() {
  FakeModel model;
  model.specs = {{"wte.weight", {13, 7}, "embed", 0, true, ""},
                 {"h.0.ln.weight", {7}, "h.0", 1, true, ""},
                 {"h.0.mlp.weight", {7, 3, 5}, "h.0", 0, true, ""},
                 {"h.0.frozen", {11}, "h.0", 0, false, ""},
                 {"h.0.empty", {0, 4}, "h.0", 0, true, ""},
                 {"scale", {}, "head", 1, true, ""},
                 {"lm_head.weight", {13, 7}, "head", 0, true, "wte.weight"}};
  return model;
}

// Cuts every parameter at random places and deals the chunks to random ranks.
inline Cuts random_cuts(const FakeModel& model, int world_size, uint32_t seed) {
  std::mt19937 random(seed);
  Cuts cuts(static_cast<size_t>(world_size));
  for (size_t i = 0; i < model.specs.size(); ++i) {
    if (!model.specs[i].alias_of.empty()) continue;
    for (int64_t begin = 0; begin < model.numel(i);) {
      const int64_t numel =
          1 + static_cast<int64_t>(random() % static_cast<uint64_t>(model.numel(i) - begin));
      cuts[random() % cuts.size()].push_back({static_cast<ParameterId>(i), begin, numel});
      begin += numel;
    }
  }
  return cuts;
}

// Holds the given parts of a model, filled with bits that depend on nothing but parameter, kind,
// element (see kPeriod) and seed.
class FakeEngine : public EngineStates {
 public:
  FakeEngine(FakeModel model, const std::vector<Cut>& cuts, uint64_t seed)
      : model_(std::move(model)), device_(make_cpu_device()) {
    for (const Cut& cut : cuts) hold(cut);
    fill(seed);
  }
  // Rank `comm.rank()` of as many as there are lists in `cuts`.
  FakeEngine(const FakeModel& model, const Cuts& cuts, const Communicator& comm, uint64_t seed)
      : FakeEngine(model, cuts.at(static_cast<size_t>(comm.rank())), seed) {}

  void fill(uint64_t seed) {
    for (const Held& held : held_) fill(held.interval, seed);
  }
  // All bytes that a checkpoint should bring back, and the step.
  std::string bytes() const {
    std::string all = std::to_string(progress_.step_count);
    for (const ParameterGroup& group : model_.groups) {
      all += fmt::format(" {} {}", group.lr, group.weight_decay);
    }
    const auto add = [&all](const TensorView& view) {
      all.append(reinterpret_cast<const char*>(view.data), view.nbytes());
    };
    for (const Held& held : held_) {
      add(held.interval.param);
      add(held.interval.master);
      for (const TensorView& state : held.interval.states) add(state);
    }
    return all;
  }
  int refreshed() const { return refreshed_; }

  std::span<const ParameterSpec> parameters() const override { return model_.specs; }
  DType param_dtype() const override { return model_.dtype; }
  Device& device() override { return *device_; }
  EngineProgress progress() const override { return progress_; }
  void set_progress(const EngineProgress& progress) override { progress_ = progress; }
  std::span<ParameterGroup> groups() override { return model_.groups; }
  DType master_dtype() const override { return model_.master_dtype; }
  std::span<const StateSpec> state_specs(ParameterId id) const override {
    if (!model_.specs[static_cast<size_t>(id)].trainable) return {};
    return model_.states;
  }
  using EngineStates::state_intervals;
  std::vector<StateInterval> state_intervals(std::optional<ParameterId> parameter) override {
    std::vector<StateInterval> intervals;
    for (const Held& held : held_) {
      if (!parameter || held.interval.parameter == *parameter) intervals.push_back(held.interval);
    }
    return intervals;
  }
  void visit_states(StateAccess, const StateVisit& visit) override {
    for (const StateInterval& interval : state_intervals()) visit(interval);
  }
  void accept_changes() override {}
  void offload_states() override {}
  void reload_states() override {}
  void refresh_from_masters() override {
    ++refreshed_;
    for (const Held& held : held_) cast_master(held.interval);
  }
  uint64_t parameter_hash() override { return 0; }

 private:
  struct Held {
    std::vector<Buffer> buffers;
    StateInterval interval;
  };

  void hold(const Cut& cut) {
    Held& held = held_.emplace_back();
    held.interval = {.parameter = cut.parameter, .begin = cut.begin, .numel = cut.numel};
    const auto make = [&](DType dtype, int64_t numel) {
      held.buffers.push_back(
          device_->allocate(static_cast<size_t>(numel) * size_of(dtype), MemoryCategory::other));
      return view_of(held.buffers.back(), dtype, numel);
    };
    held.interval.param = make(model_.dtype, cut.numel);
    if (!model_.specs[static_cast<size_t>(cut.parameter)].trainable) return;
    held.interval.master = model_.dtype == model_.master_dtype
                               ? held.interval.param
                               : make(model_.master_dtype, cut.numel);
    for (const StateSpec& spec : model_.states) {
      held.interval.states.push_back(make(spec.dtype, spec.numel(cut.numel)));
    }
  }

  // Bits repeat after a prime number of elements, which no block of a file is a multiple of: what
  // is done an element at a time takes minutes under a sanitizer.
  static constexpr uint64_t kPeriod = 4099;

  void fill(const StateInterval& interval, uint64_t seed) {
    const auto set = [&](const TensorView& view, uint64_t kind, int64_t block = 1) {
      const uint64_t tensor =
          seed ^ (kind << 60) ^ (static_cast<uint64_t>(interval.parameter) << 40);
      const auto first = static_cast<uint64_t>(interval.begin / block);
      const size_t size = size_of(view.dtype);
      const auto numel = static_cast<uint64_t>(view.numel);
      for (uint64_t i = 0; i < std::min(numel, kPeriod); ++i) {
        const uint64_t bits = scramble(tensor ^ ((first + i) % kPeriod));
        std::memcpy(view.data + i * size, &bits, size);
      }
      for (uint64_t done = kPeriod; done < numel; done *= 2) {
        std::memcpy(view.data + done * size, view.data, std::min(done, numel - done) * size);
      }
    };
    set(interval.param, 1);
    set(interval.master, 2);
    for (size_t i = 0; i < interval.states.size(); ++i) {
      set(interval.states[i], 3 + i, model_.states[i].block);
    }
    cast_master(interval);
  }

  void cast_master(const StateInterval& interval) {
    if (interval.master.data == interval.param.data || interval.master.empty()) return;
    device_->cast(device_->inline_stream(), interval.master, interval.param);
  }

  FakeModel model_;
  std::shared_ptr<Device> device_;
  std::deque<Held> held_;
  EngineProgress progress_;
  int refreshed_ = 0;
};

// A model, and which rank has which elements of it: its saves and its loads.
struct Sharded {
  FakeModel model = small_model();
  Cuts cuts;

  FakeEngine engine(const Communicator& comm, uint64_t seed) const {
    return {model, cuts, comm, seed};
  }
  // Calls body(engine, comm) on every rank.
  template <typename Body>
  void run(uint64_t seed, const Body& body) const {
    run_ranks(static_cast<int>(cuts.size()), [&](Communicator& comm) {
      FakeEngine own = engine(comm, seed);
      body(own, comm);
    });
  }
  void save(const SaveOptions& options, uint64_t seed = 1) const {
    run(seed, [&](FakeEngine& own, Communicator& comm) { save_checkpoint(own, comm, options); });
  }
  // What the engines of this seed had is there, on this rank.
  void expect_loads(Communicator& comm, const std::string& directory, const std::string& tag,
                    uint64_t seed, bool by_latest = false) const {
    FakeEngine loaded = engine(comm, 99);
    EXPECT_EQ(load_checkpoint(loaded, comm, directory, by_latest ? "" : tag).tag, tag);
    EXPECT_TRUE(loaded.bytes() == engine(comm, seed).bytes()) << tag;
  }
};

// Whole on one rank.
inline Sharded on_one_rank(const FakeModel& model = small_model()) {
  return {model, random_cuts(model, 1, 1)};
}

}  // namespace zerorun::testing
