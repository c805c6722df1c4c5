#pragma once

#include "device/cpu/cpu_stream.h"
#include "tests/common.h"
#include "zerorun/communicator.h"

namespace zerorun::testing {

// Runs `body(rank)` on threads of this process. Rethrows the error of the lowest failing rank.
inline void run_threads(int world_size, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world_size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// The host that a rank is on.
using HostOf = std::function<std::string(int rank)>;

// Hosts of `ranks` neighbours each, the last one with what is left.
inline HostOf hosts_of(int ranks) {
  return [ranks](int rank) { return std::to_string(rank / ranks); };
}
// A letter for the host of each rank.
inline HostOf hosts_of(std::string letters) {
  return [=](int rank) { return letters.substr(static_cast<size_t>(rank), 1); };
}

inline CommunicatorOptions options_of_rank(int rank, int world_size, std::shared_ptr<Store> store,
                                           std::chrono::milliseconds timeout = 30s,
                                           std::shared_ptr<Device> device = nullptr) {
  return {.rank = rank,
          .world_size = world_size,
          .store = std::move(store),
          .timeout = timeout,
          .device = std::move(device)};
}

// Ranks that are threads, on hosts; without `host_of` all are on one.
struct World {
  int ranks = 1;
  HostOf host_of{};
  std::chrono::milliseconds timeout = 30s;
};

// The same with a communicator of all of them.
inline void run_ranks(const World& world, const std::function<void(Communicator&)>& body) {
  const auto store = make_memory_store();
  run_threads(world.ranks, [&](int rank) {
    CommunicatorOptions options = options_of_rank(rank, world.ranks, store, world.timeout);
    if (world.host_of) options.host = world.host_of(rank);
    const auto communicator = make_communicator(options);
    body(*communicator);
  });
}
inline void run_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  run_ranks(World{.ranks = ranks}, body);
}

// Waits on the caller's thread.
inline void barrier(Communicator& communicator, std::string_view label) {
  communicator.barrier(*make_inline_stream(), label).synchronize();
}
inline std::string error_of_barrier(Communicator& communicator, std::string_view label) {
  return error_of<CommError>([&] { barrier(communicator, label); });
}
// Of one word of each rank.
inline int64_t sum_of(Communicator& communicator, int64_t word) {
  const TensorView view = view_of(std::span(&word, 1));
  communicator
      .all_reduce(view, view, ReduceOp::sum, Output::overwrite, *make_inline_stream(), "sum")
      .synchronize();
  return word;
}
// The words of the ranks.
inline std::vector<int64_t> gathered(Communicator& communicator, int64_t word) {
  std::vector<int64_t> all(static_cast<size_t>(communicator.world_size()));
  communicator
      .all_gather(view_of(std::span(&word, 1)), view_of(std::span(all)), Sync::collective,
                  *make_inline_stream(), "words")
      .synchronize();
  return all;
}

// A store that does what another one does, for tests that change a part of that.
class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return store_->get(key, timeout);
  }
  std::optional<std::string> find(const std::string& key) override { return store_->find(key); }

 private:
  const std::shared_ptr<Store> store_;
};

// How many files, threads, ... a folder like /proc/self/fd or /proc/self/task has.
inline int64_t entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

// How many mappings of shared segments this process has: they are files without a name.
inline int64_t mapped_segments() {
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:zerorun") != std::string::npos) ++count;
  }
  return count;
}

}  // namespace zerorun::testing
