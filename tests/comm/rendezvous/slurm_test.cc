#include "comm/rendezvous/slurm.h"

#include "tests/common.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

TEST(SlurmHostList, Expands) {
  EXPECT_THAT(expand_host_list("login"), ElementsAre("login"));
  EXPECT_THAT(expand_host_list("a,b.cluster"), ElementsAre("a", "b.cluster"));
  EXPECT_THAT(expand_host_list("n[1-3,5]"), ElementsAre("n1", "n2", "n3", "n5"));
  EXPECT_THAT(expand_host_list("n[08-11]-ib,x"),
              ElementsAre("n08-ib", "n09-ib", "n10-ib", "n11-ib", "x"));
  EXPECT_THAT(expand_host_list("r[1-2]n[1,3]"), ElementsAre("r1n1", "r1n3", "r2n1", "r2n3"));
  EXPECT_THAT(expand_host_list("n[1-1000]"), SizeIs(1000));
  EXPECT_THAT(expand_host_list("n[4294967294-4294967295]"),
              ElementsAre("n4294967294", "n4294967295"));
}

TEST(SlurmHostList, OtherTextIsAnError) {
  for (const char* list : {"", "a,", ",a", "n[", "n[]", "n[1", "n[2-1]", "n[a-b]", "n[1-99999999]",
                           "n[1-60000]m[1-60000]", "n[1-60000,1-60000]", "n[1-99999999999999]"}) {
    EXPECT_THROW(expand_host_list(list), ConfigError) << list;
  }
}

TEST(SlurmTaskCounts, Expand) {
  EXPECT_THAT(expand_task_counts("4"), ElementsAre(4));
  EXPECT_THAT(expand_task_counts("4(x2),3"), ElementsAre(4, 4, 3));
  for (const char* counts : {"", "x", "4(x)", "4(x0)", "4,", "4(x99999999)"}) {
    EXPECT_THROW(expand_task_counts(counts), ConfigError) << counts;
  }
}

}  // namespace
}  // namespace zerorun
