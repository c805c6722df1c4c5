#include "launcher/control/control_connection.h"
#include "launcher/control/coordinator.h"
#include "tests/common.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

TEST(ControlMessage, CarriesAnyBytesAndRepeatedNames) {
  const std::string bytes("a\0\n\xff", 4);
  ControlMessage sent("job");
  sent.add("argument", bytes).add("argument", "").add("count", 7);
  const ControlMessage got = ControlMessage::decode(sent.encode());
  EXPECT_TRUE(got.is("job"));
  EXPECT_THAT(got.all("argument"), ElementsAre(bytes, ""));
  EXPECT_EQ(got.number("count", 0, 10), 7);
  EXPECT_EQ(got.text("absent"), "");
  EXPECT_THAT(got.all("absent"), IsEmpty());
}

TEST(ControlMessage, NumbersAreBounded) {
  ControlMessage message("m");
  message.add("n", 11).add("word", "x").add("tail", "1x");
  EXPECT_EQ(message.number("n", 0, 11), 11);
  EXPECT_THROW(message.number("n", 0, 10), CommError);
  EXPECT_THROW(message.number("word", 0, 10), CommError);
  EXPECT_THROW(message.number("tail", 0, 10), CommError);
  EXPECT_THROW(message.number("absent", 0, 10), CommError);
}

// Every prefix of a message, and each of its bytes turned into another one, is a message or an
// error: nothing is read beyond its end.
TEST(ControlMessage, DamagedBytesAreAnErrorOrAnotherMessage) {
  ControlMessage sent("begin");
  sent.add("host", "a").add("slots", "0,1");
  const std::string whole = sent.encode();
  const auto try_decode = [](const std::string& bytes) {
    try {
      ControlMessage::decode(bytes);
      return true;
    } catch (const CommError&) {
      return false;
    }
  };
  size_t accepted = 0;
  for (size_t length = 0; length < whole.size(); ++length) {
    accepted += try_decode(whole.substr(0, length)) ? 1U : 0U;
  }
  EXPECT_EQ(accepted, 2U);  // the kind alone, and the kind with one field
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x80);
    try_decode(damaged);
  }
}

TEST(MeetingMessage, BringsClusterAndMeetingToANode) {
  Cluster cluster;
  cluster.hosts = {{.host = "a", .slots = {0, 2}}, {.host = "b", .slots = {1}}};
  cluster.endpoint_host = "a";
  cluster.max_restarts = 3;
  Meeting meeting;
  meeting.master_addr = "a";
  meeting.master_port = 29500;
  meeting.secret = "s";
  meeting.run_id = "r";
  meeting.restarts = 2;
  meeting.restart_reason = "rank 1 failed";
  const ControlMessage message = encode_begin(cluster, meeting, 1);
  const Cluster there = decode_cluster(message);
  EXPECT_EQ(there.node_rank, 1);
  EXPECT_EQ(there.first_rank(), 2);
  EXPECT_EQ(there.world_size(), 3);
  EXPECT_THAT(there.hosts[0].slots, ElementsAre(0, 2));
  EXPECT_EQ(there.hosts[1].host, "b");
  EXPECT_EQ(there.max_restarts, 3);
  const Meeting told = decode_meeting(message);
  EXPECT_EQ(told.master_port, 29500);
  EXPECT_EQ(told.secret, "s");
  EXPECT_EQ(told.restarts, 2);
  EXPECT_EQ(told.restart_reason, "rank 1 failed");
}

TEST(MeetingMessage, SlotsAreNumbersAndBounded) {
  EXPECT_THAT(decode_slots(""), IsEmpty());
  EXPECT_THAT(decode_slots("3,0"), ElementsAre(3, 0));
  for (const char* bad : {"x", "1,,2", "-1", "1 2", ","}) {
    EXPECT_THROW(decode_slots(bad), CommError) << bad;
  }
  std::string many = "0";
  for (int i = 0; i < 2000; ++i) many += ",0";
  EXPECT_THROW(decode_slots(many), CommError);
}

// Its number is free in no other place, but nobody has it either.
TEST(NodeTable, AHostThatIsGoneIsNoSecondLauncher) {
  for (const Node::State away : {Node::State::gone, Node::State::lost}) {
    std::vector<Node> nodes(2);
    nodes[0] = {.place = {.host = "a"}, .state = Node::State::running};
    nodes[1] = {.place = {.host = "b"}, .state = away};
    ControlMessage join("join");
    join.add("host", "b").add("program", "true").add("node_rank", 1);
    EXPECT_THAT(why_no_place(join, nodes),
                AllOf(HasSubstr("no place for another launcher on b: it goes on without node 1"),
                      HasSubstr("a (node 0), b (node 1)"), Not(HasSubstr("two launchers"))));
  }
}

}  // namespace
}  // namespace zerorun
