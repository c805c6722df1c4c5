#include "launcher/control/node_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace zerorun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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
