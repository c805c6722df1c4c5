#include <algorithm>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/files/file.h"
#include "checkpoint/files/layout.h"
#include "checkpoint/folder/node_local.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/loading/checkpoint_reader.h"
#include "checkpoint/loading/device_copies.h"
#include "checkpoint/loading/record_runs.h"
#include "checkpoint/loading/undo_log.h"
#include "comm/agreement.h"
#include "core/check.h"
#include "os/host_limits.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

namespace {

using Record = CheckpointReader::Record;

// A part of one record and where it goes on this rank.
struct RecordCopy {
  const Record* record = nullptr;
  uint64_t offset = 0;  // within the record
  size_t tensor = 0;    // of those that are visited
  int64_t begin = 0;    // within the tensor
  int64_t numel = 0;
  bool on_host = false;  // the tensor is offloaded
  TensorView to{};       // the elements, if they are written by read()
  bool done = false;     // all of them are written

  uint64_t end() const { return offset + static_cast<uint64_t>(numel) * size_of(record->dtype); }
};

// Bytes that go to host memory.
struct Piece {
  const SecondReads::Source* source = nullptr;
  uint64_t offset = 0;
  std::span<std::byte> out;
};

class Load {
 public:
  Load(EngineStates& engine, std::filesystem::path folder)
      : engine_(engine),
        checkpoint_(std::move(folder)),
        second_reads_(checkpoint_, engine.device()),
        copies_(engine.device()) {}

  const CheckpointReader& checkpoint() const { return checkpoint_; }
  // Finds what this rank needs. Throws CheckpointError when the model is another.
  void plan(bool strict) {
    const Manifest& saved = checkpoint_.manifest();
    check_same_model(saved, describe_engine(engine_), checkpoint_.folder().string(), strict);
    for (const Manifest::Parameter& parameter : saved.parameters) {
      parameters_.emplace(parameter.name, static_cast<int>(parameters_.size()));
    }
    const auto add = [&](const Place& place) {
      const int64_t begin = place.begin;
      const int64_t end = begin + place.tensor.numel;
      for (const Record& record : checkpoint_.records_of(place.parameter, place.kind, begin, end)) {
        ZR_CHECK(record.dtype == place.tensor.dtype, "{} goes to {}", checkpoint_.describe(record),
                 name_of(place.tensor.dtype));
        const int64_t from = std::max(begin, record.begin);
        const int64_t to = std::min(end, record.end());
        const uint64_t offset = static_cast<uint64_t>(from - record.begin) * size_of(record.dtype);
        transfers_.push_back({&record, offset, tensors_, from - begin, to - from, place.on_host});
      }
      ++tensors_;
    };
    visit(StateAccess::shape, add, [] {});
  }

  // By file: whether this rank reads of it.
  std::vector<bool> needed_files() const {
    std::vector<bool> needed(checkpoint_.manifest().shards.size());
    for (const RecordCopy& transfer : transfers_) {
      needed[static_cast<size_t>(transfer.record->shard)] = true;
    }
    return needed;
  }

  // True if other ranks read all that this one does, or some of it.
  bool is_shared() const { return is_shared_; }
  // Reads and verifies this rank's part of the checkpoint, and writes it to the engine's states
  // where it can be undone. `ranks`: that load on this host. Offloaded tensors are in memory only
  // while they are visited, so finish() writes them. Their bytes then come from the page cache, if
  // memory has space for all of them.
  void read(ReadPath path, int ranks) {
    const uint64_t room = host_limits().available_bytes() / static_cast<size_t>(2 * ranks);
    std::vector<const Record*> needed;
    for (const RecordCopy& transfer : transfers_) needed.push_back(transfer.record);
    sort_by_place(needed);
    needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
    const std::vector<RecordRun> runs = runs_of(needed);
    const bool is_offloaded = std::ranges::any_of(transfers_, &RecordCopy::on_host);
    RunReader::Visitor visitor;
    ReadPath used = path;
    if (is_offloaded) {
      uint64_t total = 0;
      for (const RecordRun& run : runs) total += run.nbytes();
      if (total <= room) used = ReadPath::cached;
    } else {
      find_places();
      spare_memory_.emplace(engine_.device().host(), room);
      undo_.emplace(engine_.device(), [&](size_t nbytes) { return spare_memory_->take(nbytes); });
      if (engine_.device().is_host()) {
        visitor.place = [&](const Record& record, uint64_t offset, size_t nbytes) {
          return place(record, offset, nbytes);
        };
      }
      visitor.use = [&](const Record& record, uint64_t offset, std::span<const std::byte> bytes) {
        write(record, offset, bytes);
      };
    }
    second_reads_.use(used, used != path);
    RunReader(checkpoint_, engine_.device(), workers_, used).read(runs, visitor);
  }

  // After an error of read() on some rank: brings back the states.
  void undo() {
    if (undo_) undo_->undo();
  }

  // Writes the rest of the states.
  void finish() {
    undo_.reset();
    spare_memory_.reset();
    if (!std::ranges::all_of(transfers_, &RecordCopy::done)) {
      const auto take = [&](const RecordCopy& transfer, const Place& place) {
        if (!transfer.done) copy(transfer, place);
      };
      visit_transfers(take, [&] { copy_pieces(); });
      copies_.finish();
      second_reads_.clear();
    }
    const Manifest& saved = checkpoint_.manifest();
    engine_.set_progress(saved.progress);
    const auto groups = engine_.groups();
    for (size_t i = 0; i < groups.size(); ++i) {
      const std::string name = groups[i].name;
      groups[i] = saved.groups[i];
      groups[i].name = name;
    }
  }

 private:
  // A tensor of this rank, and which elements it is of what is saved.
  struct Place {
    int parameter = 0;
    int kind = 0;
    int64_t begin = 0;
    bool on_host = false;
    TensorView tensor;
  };
  // Calls use(place) for each tensor of this rank that is saved, and done() after those of an
  // interval, which live as long.
  template <typename Use, typename Done>
  void visit(StateAccess access, const Use& use, const Done& done) {
    const Manifest& saved = checkpoint_.manifest();
    const auto specs = engine_.parameters();
    engine_.visit_states(access, [&](const StateInterval& interval) {
      const ParameterSpec& spec = specs[static_cast<size_t>(interval.parameter)];
      const auto found = parameters_.find(spec.name);
      if (found == parameters_.end()) return;  // not strict
      const int parameter = found->second;
      // Frozen parameters that were left out stay as the program made them.
      if (!saved.parameters[static_cast<size_t>(parameter)].saved) return;
      is_shared_ = is_shared_ || !interval.owned;
      if (!spec.trainable) {
        use(Place{parameter, CheckpointReader::kParam, interval.begin, interval.param_on_host,
                  interval.param});
        return done();
      }
      // The models match: what is saved is what the engine has, in the same order.
      const std::vector<int>& states = saved.parameters[static_cast<size_t>(parameter)].states;
      ZR_CHECK(interval.states.size() + 1 == states.size(), "{} has {} states", spec.name,
               interval.states.size());
      use(Place{parameter, 1 + states[0], interval.begin, interval.on_host, interval.master});
      for (size_t i = 0; i < interval.states.size(); ++i) {
        const int state = states[i + 1];
        const int64_t block = saved.states[static_cast<size_t>(state)].block;
        use(Place{parameter, 1 + state, interval.begin / block, interval.on_host,
                  interval.states[i]});
      }
      done();
    });
  }

  // Calls use(transfer, place) for each transfer while its tensor may be written, and done() after
  // those of an interval.
  template <typename Use, typename Done>
  void visit_transfers(const Use& use, const Done& done) {
    auto transfer = transfers_.begin();
    size_t tensor = 0;
    const auto take = [&](const Place& place) {
      for (; transfer != transfers_.end() && transfer->tensor == tensor; ++transfer) {
        use(*transfer, place);
      }
      ++tensor;
    };
    visit(StateAccess::write, take, done);
  }

  void find_places() {
    const auto take = [&](RecordCopy& transfer, const Place& place) {
      transfer.to = place.tensor.slice(transfer.begin, transfer.numel);
      transfer.done = true;  // until there is no room to undo it
      by_record_.push_back(&transfer);
    };
    visit_transfers(take, [] {});
    std::ranges::sort(by_record_, {}, &RecordCopy::record);
  }

  std::span<RecordCopy* const> transfers_of(const Record& record) const {
    return {std::ranges::lower_bound(by_record_, &record, {}, &RecordCopy::record),
            std::ranges::upper_bound(by_record_, &record, {}, &RecordCopy::record)};
  }

  // The memory of these bytes if they are all of one tensor, disks can write there, and what is
  // there is kept. Called by the one thread that reads the record, as write() is.
  std::byte* place(const Record& record, uint64_t offset, size_t nbytes) {
    for (RecordCopy* const transfer : transfers_of(record)) {
      const bool is_within = offset >= transfer->offset && offset + nbytes <= transfer->end();
      if (!is_within || !transfer->done) continue;
      std::byte* const to = transfer->to.data + (offset - transfer->offset);
      if (reinterpret_cast<uintptr_t>(to) % kMemoryAlignment != 0) return nullptr;
      transfer->done = undo_->keep(to, nbytes);
      return transfer->done ? to : nullptr;
    }
    return nullptr;
  }

  void write(const Record& record, uint64_t offset, std::span<const std::byte> bytes) {
    for (RecordCopy* const transfer : transfers_of(record)) {
      const uint64_t from = std::max(offset, transfer->offset);
      const uint64_t to = std::min(offset + bytes.size(), transfer->end());
      if (from >= to || !transfer->done) continue;
      transfer->done = undo_->write(transfer->to.data + (from - transfer->offset),
                                    bytes.subspan(from - offset, to - from));
    }
  }

  void copy(const RecordCopy& transfer, const Place& place) {
    const TensorView to = place.tensor.slice(transfer.begin, transfer.numel);
    const SecondReads::Source& source =
        sources_.emplace_back(second_reads_.source(*transfer.record));
    copies_.upload(to, place.on_host, [&](uint64_t at, std::span<std::byte> all) {
      while (!all.empty()) {
        const uint64_t offset = transfer.offset + at;
        // Up to a page of the file, so that whole pages can be read into place.
        const uint64_t end = (transfer.record->offset + offset) % kReadNbytes;
        const auto out = all.first(std::min<size_t>(all.size(), kReadNbytes - end));
        pieces_.push_back({&source, offset, out});
        at += out.size();
        all = all.subspan(out.size());
      }
      if (!place.on_host && !engine_.device().is_host()) copy_pieces();
    });
  }

  void copy_pieces() {
    workers_.each(pieces_.size(), [&](size_t i) {
      const Piece& piece = pieces_[i];
      (*piece.source)(piece.offset, piece.out);
    });
    pieces_.clear();
  }

  EngineStates& engine_;
  CheckpointReader checkpoint_;
  std::unordered_map<std::string, int> parameters_;  // in the manifest
  std::vector<RecordCopy> transfers_;                // in the order of visits
  size_t tensors_ = 0;
  bool is_shared_ = false;
  std::vector<RecordCopy*> by_record_;  // sorted by `record`
  std::optional<SpareMemory> spare_memory_;
  std::optional<UndoLog> undo_;  // its old bytes are in it
  SecondReads second_reads_;
  DeviceCopies copies_;
  std::deque<SecondReads::Source> sources_;
  std::vector<Piece> pieces_;  // of the interval that is copied
  Workers workers_{kReadingThreads};
};

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
  bring_files(agreement, Disks(comm, stream, directory), saved.shards, load.checkpoint().folder(),
              needed);
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
  const bool same_for_all = agreement.is_same(id);
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
  const bool is_shared = agreement.reduce(load->is_shared() ? 1 : 0, ReduceOp::max) != 0;
  try {
    agreement.run("load: read", [&] {
      load->read(is_shared ? ReadPath::cached : ReadPath::direct, comm.local_world_size());
    });
  } catch (...) {
    load->undo();
    throw;
  }
  // Every rank has verified what it needs, so there is nothing left to undo.
  agreement.run("load: finish", [&] { load->finish(); });
  engine.refresh_from_masters();

  const CheckpointReader& checkpoint = load->checkpoint();
  return {.tag = checkpoint.folder().filename().string(),
          .client_state = checkpoint.manifest().client_state,
          .step = checkpoint.manifest().progress.step_count};
}

}  // namespace zerorun
