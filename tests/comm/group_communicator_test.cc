// What a communicator asks of its transport.
#include "comm/group_communicator.h"

#include "device/cpu/cpu_stream.h"
#include "tests/common.h"
#include "zerorun/error.h"

namespace zerorun::group_communicator_test {
namespace {

class RecordingTransport final : public Transport {
 public:
  explicit RecordingTransport(bool overlaps) : overlaps_(overlaps) {}

  TransportTraits traits() const override { return {.name = "recording", .overlaps = overlaps_}; }
  Event start(std::span<CollectiveCall> calls, Stream& /*stream*/) override {
    std::string labels;
    for (const CollectiveCall& call : calls) labels += "[" + call.label + "]";
    asked.push_back(labels);
    return {};
  }
  std::optional<Buffer> allocate(size_t /*nbytes*/, Sharing /*sharing*/) override { return {}; }
  std::shared_ptr<Transport> make_group(GroupOptions& /*options*/) override { return nullptr; }
  void abort(std::string_view reason) noexcept override { asked.emplace_back(reason); }
  void set_error(std::string_view error) noexcept override { asked.emplace_back(error); }
  std::string error() override { return ""; }
  void leave() noexcept override { asked.emplace_back("leave"); }

  std::vector<std::string> asked;

 private:
  const bool overlaps_;
};

class GroupCommunicatorTest : public ::testing::Test {
 protected:
  GroupCommunicatorTest() { options_.group = "experts"; }

  std::vector<std::string> asked_by_two_barriers(bool overlaps) {
    const auto transport = std::make_shared<RecordingTransport>(overlaps);
    GroupCommunicator communicator(options_, transport);
    communicator.coalesced(*stream_, [&] {
      communicator.barrier(*stream_, "a");
      communicator.barrier(*stream_, "b");
    });
    EXPECT_EQ(communicator.stats()[Collective::barrier].calls, 2);
    return transport->asked;
  }

  GroupOptions options_{CommunicatorOptions{}};
  const std::unique_ptr<CpuStream> stream_ = make_inline_stream();
};

TEST_F(GroupCommunicatorTest, CoalescedCallsAreOneOperationWhereThatCostsLess) {
  EXPECT_THAT(asked_by_two_barriers(true), ElementsAre("[experts: a][experts: b]"));
  EXPECT_THAT(asked_by_two_barriers(false), ElementsAre("[experts: a]", "[experts: b]"));
}

TEST_F(GroupCommunicatorTest, ACallWithWrongArgumentsDoesNotReachTheTransport) {
  const auto transport = std::make_shared<RecordingTransport>(false);
  GroupCommunicator communicator(options_, transport);
  EXPECT_THROW(communicator.broadcast({}, 1, *stream_, "x"), InternalError);
  EXPECT_THAT(transport->asked, IsEmpty());
}

TEST_F(GroupCommunicatorTest, HasTheErrorsOfItsRanksOtherCommunicatorsUntilItLeaves) {
  const auto transport = std::make_shared<RecordingTransport>(false);
  auto communicator = std::make_unique<GroupCommunicator>(options_, transport);
  options_.job->fail("another group failed");
  communicator.reset();
  EXPECT_THAT(transport->asked, ElementsAre("another group failed", "leave"));
  EXPECT_EQ(transport.use_count(), 1);
}

}  // namespace
}  // namespace zerorun::group_communicator_test
