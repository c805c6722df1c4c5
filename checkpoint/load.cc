#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/host_buffer.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/model_match.h"
#include "checkpoint/node_local.h"
#include "checkpoint/workers.h"
#include "comm/agreement.h"
#include "core/check.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

namespace {

using Record = CheckpointReader::Record;

constexpr size_t kCopyNbytes = size_t{1} << 20;  // that one thread copies at a time

// A part of one record and where it goes on this rank.
struct Transfer {
  const Record* record = nullptr;
  uint64_t offset = 0;  // within the record
  size_t tensor = 0;    // of those that are visited
  int64_t begin = 0;    // within the tensor
  int64_t numel = 0;
};

// In the order in which the bytes lie on disk.
auto place_of(const Transfer& transfer) {
  return std::tuple(transfer.record->shard, transfer.record->offset, transfer.offset);
}

// One load, on one rank.
class Load {
 public:
  Load(EngineStates& engine, std::filesystem::path folder)
      : engine_(engine), checkpoint_(std::move(folder)), buffer_(engine.device()) {}

  const CheckpointReader& checkpoint() const { return checkpoint_; }
  // Finds what this rank needs. Throws CheckpointError when the model is another.
  void plan(bool strict);
  // By file: whether this rank reads of it.
  std::vector<bool> needed_files() const;
  // Checks the hashes of all that apply() will read.
  void verify();
  // Overwrites this rank's part of the engine's states.
  void apply();

 private:
  // Calls use(parameter, kind, begin, tensor) for each tensor of this rank that is saved.
  template <typename Use>
  void visit(StateAccess access, const Use& use);
  void add(int parameter, int kind, int64_t begin, TensorView destination);
  const File& file_of(const Transfer& transfer);
  void copy(const Transfer& transfer, TensorView to);

  EngineStates& engine_;
  CheckpointReader checkpoint_;
  std::unordered_map<std::string, int> parameters_;  // in the manifest
  std::vector<Transfer> transfers_;                  // in the order of visits
  size_t tensors_ = 0;
  std::optional<File> file_;
  int shard_ = -1;
  HostBuffer buffer_;
  Workers workers_{kReadingThreads};
};

template <typename Use>
void Load::visit(StateAccess access, const Use& use) {
  const Manifest& saved = checkpoint_.manifest();
  const auto specs = engine_.parameters();
  engine_.visit_states(access, [&](const StateInterval& interval) {
    const ParameterSpec& spec = specs[static_cast<size_t>(interval.parameter)];
    const auto found = parameters_.find(spec.name);
    if (found == parameters_.end()) return;  // not strict
    const int parameter = found->second;
    // Frozen parameters that were left out stay as the program made them.
    if (!saved.parameters[static_cast<size_t>(parameter)].saved) return;
    if (!spec.trainable) {
      use(parameter, CheckpointReader::kParam, interval.begin, interval.param);
      return;
    }
    // The models match: what is saved is what the engine has, in the same order.
    const std::vector<int>& states = saved.parameters[static_cast<size_t>(parameter)].states;
    ZR_CHECK(interval.states.size() + 1 == states.size(), "{} has {} states", spec.name,
             interval.states.size());
    use(parameter, 1 + states[0], interval.begin, interval.master);
    for (size_t i = 0; i < interval.states.size(); ++i) {
      const int state = states[i + 1];
      const int64_t block = saved.states[static_cast<size_t>(state)].block;
      use(parameter, 1 + state, interval.begin / block, interval.states[i]);
    }
  });
}

void Load::plan(bool strict) {
  const Manifest& saved = checkpoint_.manifest();
  check_same_model(saved, describe_engine(engine_), checkpoint_.folder().string(), strict);
  for (const Manifest::Parameter& parameter : saved.parameters) {
    parameters_.emplace(parameter.name, static_cast<int>(parameters_.size()));
  }
  visit(StateAccess::shape, [&](int parameter, int kind, int64_t begin, TensorView destination) {
    add(parameter, kind, begin, destination);
    ++tensors_;
  });
}

void Load::add(int parameter, int kind, int64_t begin, TensorView destination) {
  const int64_t end = begin + destination.numel;
  for (const Record& record : checkpoint_.records_of(parameter, kind, begin, end)) {
    ZR_CHECK(record.dtype == destination.dtype, "{} goes to {}", checkpoint_.describe(record),
             name_of(destination.dtype));
    const int64_t from = std::max(begin, record.begin);
    const int64_t to = std::min(end, record.end());
    const uint64_t offset = static_cast<uint64_t>(from - record.begin) * size_of(record.dtype);
    transfers_.push_back({&record, offset, tensors_, from - begin, to - from});
  }
}

std::vector<bool> Load::needed_files() const {
  std::vector<bool> needed(checkpoint_.manifest().shards.size());
  for (const Transfer& transfer : transfers_) {
    needed[static_cast<size_t>(transfer.record->shard)] = true;
  }
  return needed;
}

const File& Load::file_of(const Transfer& transfer) {
  if (transfer.record->shard != shard_) {
    shard_ = transfer.record->shard;
    file_ = checkpoint_.open(shard_);
  }
  return *file_;
}

void Load::verify() {
  std::vector<Transfer> by_place = transfers_;
  std::sort(by_place.begin(), by_place.end(),
            [](const Transfer& a, const Transfer& b) { return place_of(a) < place_of(b); });
  std::vector<const Record*> records;
  for (const Transfer& transfer : by_place) {
    if (records.empty() || records.back() != transfer.record) records.push_back(transfer.record);
  }
  checkpoint_.verify(records, workers_);
}

void Load::copy(const Transfer& transfer, TensorView to) {
  const File& file = file_of(transfer);
  const auto read = [&](uint64_t offset, std::span<std::byte> out) {
    checkpoint_.read(file, *transfer.record, transfer.offset + offset, out);
  };
  if (!engine_.device().is_host()) return buffer_.upload(to, read);
  const std::span<std::byte> all(to.data, to.nbytes());
  workers_.each((all.size() + kCopyNbytes - 1) / kCopyNbytes, [&](size_t piece) {
    const size_t offset = piece * kCopyNbytes;
    read(offset, all.subspan(offset, std::min(kCopyNbytes, all.size() - offset)));
  });
}

void Load::apply() {
  auto transfer = transfers_.begin();
  size_t tensor = 0;
  visit(StateAccess::write, [&](int, int, int64_t, TensorView destination) {
    for (; transfer != transfers_.end() && transfer->tensor == tensor; ++transfer) {
      copy(*transfer, destination.slice(transfer->begin, transfer->numel));
    }
    ++tensor;
  });
  const Manifest& saved = checkpoint_.manifest();
  engine_.set_progress(saved.progress);
  const auto groups = engine_.groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string name = groups[i].name;
    groups[i] = saved.groups[i];
    groups[i].name = name;
  }
}

// Copies the files that ranks need and do not see, where hosts keep files for themselves.
void bring_missing(Communicator& comm, Stream& stream, const Load& load,
                   const std::string& directory) {
  Agreement agreement(comm, stream);
  const std::vector<bool> needed = load.needed_files();
  const Manifest& saved = load.checkpoint().manifest();
  bool is_missing = false;
  for (size_t i = 0; i < needed.size(); ++i) {
    const std::filesystem::path path = load.checkpoint().folder() / saved.shards[i].name;
    is_missing = is_missing || (needed[i] && !path_exists(path));
  }
  if (agreement.reduce(is_missing ? 1 : 0, ReduceOp::max) == 0) return;
  bring_files(agreement, Disks(comm, stream, directory), saved, load.checkpoint().folder(), needed);
}

}  // namespace

LoadedCheckpoint load_checkpoint(EngineStates& engine, Communicator& comm,
                                 const std::string& directory, const std::string& tag,
                                 bool strict) {
  Agreement agreement(comm, engine.device().inline_stream());
  std::optional<Load> load;
  int64_t id = 0;
  agreement.run("load: open", [&] {
    load.emplace(engine, find_checkpoint(directory, tag));
    id = static_cast<int64_t>(load->checkpoint().id());
  });
  const bool same_for_all =
      agreement.reduce(id, ReduceOp::min) == agreement.reduce(id, ReduceOp::max);
  agreement.run("load: plan", [&] {
    if (!same_for_all) {
      fail<CheckpointError>(
          "the ranks see different checkpoints in {}: all ranks must load from "
          "one file system",
          directory);
    }
    load->plan(strict);
  });
  bring_missing(comm, engine.device().inline_stream(), *load, directory);
  agreement.run("load: verify", [&] { load->verify(); });
  // Every rank has verified what it needs; only now the engine changes.
  agreement.run("load: apply", [&] { load->apply(); });
  engine.refresh_from_masters();

  const CheckpointReader& checkpoint = load->checkpoint();
  return {.tag = checkpoint.folder().filename().string(),
          .client_state = checkpoint.manifest().client_state,
          .step = checkpoint.manifest().progress.step_count};
}

}  // namespace zerorun
