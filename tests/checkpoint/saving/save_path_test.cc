// Few functions are between a save and the states that it reads, and ARCHITECTURE.md names them.
#include "tests/call_path.h"
#include "tests/checkpoint/fake_engine.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/harness.h"
#include "zerorun/checkpoint.h"

namespace zerorun::call_path {
namespace {

// Remembers the stack of the last visit that reads.
class WatchedEngine final : public testing::FakeEngine {
 public:
  using FakeEngine::FakeEngine;

  void visit_states(StateAccess access, const StateVisit& visit) override {
    if (access == StateAccess::read) frames = stack();
    FakeEngine::visit_states(access, visit);
  }

  Frames frames;
};

TEST(SavePathTest, OfACheckpoint) {
  const testing::TemporaryDirectory directory;
  const testing::FakeModel model = testing::small_model();
  const testing::Cuts cuts = testing::random_cuts(model, 2, 1);
  testing::run_ranks(2, [&](Communicator& comm) {
    WatchedEngine engine(model, cuts, comm, 1);
    const size_t caller = stack().size();
    save_checkpoint(engine, comm, {.directory = directory.path().string(), .tag = "a"});
    expect_path(engine.frames, caller, 7, "The path of a checkpoint");
  });
}

}  // namespace
}  // namespace zerorun::call_path
