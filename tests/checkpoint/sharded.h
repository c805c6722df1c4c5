#pragma once

#include "tests/checkpoint/fake_engine.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/harness.h"
#include "zerorun/checkpoint.h"
#include "zerorun/error.h"

namespace zerorun::testing {

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

namespace zerorun {

using testing::Sharded;

}  // namespace zerorun
