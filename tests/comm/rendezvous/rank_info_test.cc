#include <stdlib.h>

#include "comm/rendezvous/slurm.h"
#include "comm/rendezvous/tcp_store.h"
#include "config/env.h"
#include "os/socket.h"
#include "tests/common.h"

namespace zerorun::testing {
namespace {

// The environment holds just these of the variables that matter.
RankInfo rank_with(const std::string& text) {
  // Unsets a launcher's and schedulers' variables, which the machine that runs the tests may have.
  for (const EnvironmentVariable& variable : environment_variables()) {
    const std::string name(variable.name);
    if (name != "PATH" && name != "HOME") unsetenv(name.c_str());
  }
  for (const auto& [name, value] : variables(text)) setenv(name.c_str(), value.c_str(), 1);
  return rank_from_environment();
}

// "rank of world_size, local_rank of local_world_size, at master", or the error.
std::string place_with(const std::string& text) {
  try {
    const RankInfo info = rank_with(text);
    return fmt::format("{} of {}, {} of {}, at {}:{}", info.rank, info.world_size, info.local_rank,
                       info.local_world_size, info.master_addr, info.master_port);
  } catch (const ConfigError& error) {
    return error.what();
  }
}

constexpr const char* kAlone = "0 of 1, 0 of 1, at 127.0.0.1:29500";

TEST(RankInfoTest, ReadsWhatALauncherSets) {
  EXPECT_EQ(place_with(""), kAlone);
  EXPECT_EQ(connect(rank_with(""))->transport(), "self");
  EXPECT_EQ(place_with("RANK=1 WORLD_SIZE=2"), "1 of 2, 1 of 2, at 127.0.0.1:29500");
  const std::string launcher =
      "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node0 MASTER_PORT=1234 "
      "ZERORUN_JOB_SECRET=s";
  EXPECT_EQ(place_with(launcher), "5 of 8, 1 of 4, at node0:1234");
  EXPECT_EQ(rank_with(launcher).secret, "s");
}

TEST(RankInfoTest, ContradictionsAreErrorsThatNameTheVariables) {
  const std::string base = "RANK=1 WORLD_SIZE=4 ";
  for (const auto& [text, named] : {std::pair<std::string, const char*>{"RANK=1", "WORLD_SIZE"},
                                    {"WORLD_SIZE=2", "RANK"},
                                    {base + "RANK=4", "RANK=4"},
                                    {base + "RANK=-1", "RANK='-1'"},
                                    {base + "RANK=zero", "RANK='zero'"},
                                    {base + "MASTER_PORT=70000", "MASTER_PORT='70000'"},
                                    {base + "LOCAL_WORLD_SIZE=5", "LOCAL_WORLD_SIZE=5"},
                                    {base + "LOCAL_WORLD_SIZE=2", "LOCAL_RANK"},
                                    {base + "LOCAL_RANK=0", "LOCAL_WORLD_SIZE"},
                                    {base + "LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "LOCAL_RANK=2"},
                                    {base + "LOCAL_RANK=3 LOCAL_WORLD_SIZE=4", "LOCAL_RANK=3"},
                                    {"OMP_NUM_THREADS=100000", "OMP_NUM_THREADS='100000'"},
                                    {"OMP_NUM_THREADS=abc", "OMP_NUM_THREADS='abc'"}}) {
    EXPECT_THAT(place_with(text), HasSubstr(named));
  }
  EXPECT_EQ(place_with("OMP_NUM_THREADS=4,2"), kAlone);
  unsetenv("OMP_NUM_THREADS");
}

const std::string kJob =
    "SLURM_JOB_ID=123 SLURM_STEP_NODELIST=gpu[07-08] SLURM_STEP_NUM_TASKS=5 "
    "SLURM_STEP_TASKS_PER_NODE=3,2 SLURM_NTASKS=5 SLURM_PROCID=4 SLURM_LOCALID=1 SLURM_NODEID=1 ";
const std::string kStep = kJob + "SLURM_STEP_ID=0 ";

TEST(RankInfoTest, TasksOfSrunAreTheRanksOfOneJob) {
  EXPECT_EQ(place_with(kStep), "4 of 5, 1 of 2, at gpu07:15123");
  EXPECT_EQ(place_with(kStep + "MASTER_ADDR=ib0 MASTER_PORT=9"), "4 of 5, 1 of 2, at ib0:9");
  EXPECT_EQ(place_with(kStep + "WORLD_SIZE=5"), "4 of 5, 1 of 2, at gpu07:15123");
  EXPECT_THAT(place_with(kStep + "WORLD_SIZE=4"),
              HasSubstr("WORLD_SIZE=4, but the scheduler has started 5"));
  EXPECT_THAT(place_with(kStep + "SLURM_PROCID=5"), HasSubstr("SLURM_PROCID=5"));
  EXPECT_EQ(place_with(kStep + "RANK=0 WORLD_SIZE=1"), kAlone) << "what a launcher says goes first";
}

TEST(RankInfoTest, ABatchScriptAndTheShellOfSallocAreOneRank) {
  EXPECT_EQ(place_with(kJob), kAlone);
  EXPECT_EQ(place_with(kStep + "SLURM_STEP_ID=4294967290"), kAlone);
  EXPECT_EQ(place_with(kStep + "SLURM_STEP_ID=batch"), kAlone);
  EXPECT_EQ(place_with(kStep + "SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0"), kAlone);
}

TEST(RankInfoTest, ProcessesOfMpirunAreTheRanksOfOneJob) {
  const std::string open_mpi =
      "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
      "OMPI_COMM_WORLD_LOCAL_SIZE=2 ";
  EXPECT_EQ(place_with(open_mpi), "1 of 2, 1 of 2, at 127.0.0.1:29500");
  const std::string other = place_with(open_mpi + "PMIX_NAMESPACE=77@1");
  EXPECT_NE(other, place_with(open_mpi + "PMIX_NAMESPACE=78@1")) << "jobs side by side";
  const std::string far = open_mpi + "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 ";
  EXPECT_THAT(place_with(far), HasSubstr("mpirun -x MASTER_ADDR"));
  EXPECT_EQ(place_with(far + "MASTER_ADDR=a"), "3 of 4, 1 of 2, at a:29500");
  EXPECT_EQ(place_with("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2"),
            "1 of 2, 1 of 2, at 127.0.0.1:29500");
  EXPECT_THAT(place_with("PMI_RANK=1 PMI_SIZE=2"),
              HasSubstr("PMI_RANK=1 of PMI_SIZE=2 processes, but"));
  EXPECT_EQ(place_with("PMI_RANK=0 PMI_SIZE=1"), kAlone);
}

TEST(RankInfoTest, OtherLaunchersSayHowManyRanksAreHere) {
  const std::string rank = "RANK=3 WORLD_SIZE=4 MASTER_ADDR=198.51.100.1 ";
  // DeepSpeed's launcher
  EXPECT_EQ(place_with(rank + "LOCAL_RANK=1 LOCAL_SIZE=2"),
            "3 of 4, 1 of 2, at 198.51.100.1:29500");
  // Kubernetes' PyTorchJob
  EXPECT_EQ(place_with(rank + "PET_NPROC_PER_NODE=1"), "3 of 4, 0 of 1, at 198.51.100.1:29500");
  // Nobody, and rank 0 is elsewhere.
  EXPECT_THAT(place_with(rank), HasSubstr("MASTER_ADDR=198.51.100.1 is another host"));
  // torchrun, which listens on MASTER_PORT itself
  EXPECT_EQ(place_with("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_PORT=29400 "
                       "TORCHELASTIC_USE_AGENT_STORE=True"),
            "0 of 2, 0 of 2, at 127.0.0.1:29401");
}

// Rank 0 serves on the socket that the launcher left to it: the port is bound, yet not busy.
TEST(RankInfoTest, Rank0TakesTheSocketOfTheLauncher) {
  Listener held = reserve_port("127.0.0.1", 0);
  RankInfo info;
  info.world_size = info.local_world_size = 2;
  info.master_port = held.port;
  setenv("ZERORUN_STORE_FD", std::to_string(held.socket.get()).c_str(), 1);
  held.socket.release();
  std::shared_ptr<Store> server = rendezvous(info, 30s);
  info.rank = 1;
  const std::shared_ptr<Store> client = rendezvous(info, 30s);
  client->set("key", "value");
  EXPECT_EQ(server->get("key", 30s), "value");
  // The number means nothing any more: a second job of this process makes a socket of its own.
  info.rank = 0;
  server.reset();
  server = rendezvous(info, 30s);
  EXPECT_EQ(bound_port(*server), info.master_port);
  unsetenv("ZERORUN_STORE_FD");
}

TEST(RankInfoTest, TheTimeoutOfTheEnvironmentReplacesTheConfigured) {
  const auto timeout_with = [](const char* value) {
    setenv("ZERORUN_COMM_TIMEOUT", value, 1);
    const auto timeout = comm_timeout(7s);
    unsetenv("ZERORUN_COMM_TIMEOUT");
    return timeout.count();
  };
  EXPECT_EQ(timeout_with(""), 7000);
  EXPECT_EQ(timeout_with("0.5"), 500);
  EXPECT_EQ(timeout_with("90"), 90000);
  for (const char* wrong : {"0", "-1", "1e9", "ten", "5s", "nan"}) {
    EXPECT_THROW(timeout_with(wrong), ConfigError) << wrong;
    unsetenv("ZERORUN_COMM_TIMEOUT");
  }
}

// Or at an address that only resolves to it, as Debian's name of a host does there: rank 0's host
// is found by it, from other hosts it is not.
TEST(RankInfoTest, SeveralHostsDoNotMeetAtALoopback) {
  RankInfo info;
  info.world_size = 4;
  info.local_world_size = 2;
  EXPECT_ERROR_OF(CommError, connect(info), "MASTER_ADDR=127.0.0.1 is the loopback",
                  "2 of 4 ranks");
  info.master_addr = "0x7f000001";
  info.master_port = reserve_port("127.0.0.1", 0).port;  // where nobody listens
  const auto error_of_rank = [&](int rank) {
    info.rank = rank;
    info.local_rank = rank % 2;
    return error_of<CommError>([&] { rendezvous(info, 100ms); });
  };
  EXPECT_THAT(error_of_rank(1), HasSubstr("for rank 0 (MASTER_ADDR, MASTER_PORT)"));
  EXPECT_THAT(error_of_rank(3), HasSubstr("MASTER_ADDR=0x7f000001 is the loopback address"));
}

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
}  // namespace zerorun::testing
