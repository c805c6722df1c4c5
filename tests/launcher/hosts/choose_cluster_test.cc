#include "launcher/hosts/host_filter.h"
#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/launcher/cluster_choice.h"
#include "tests/scratch.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

using testing::choose;
using testing::error_of;
using testing::Scratch;
using testing::text_of;
using testing::Words;
using testing::worker;

TEST(ChooseCluster, AMissingHostfileMeansThisHost) {
  const ClusterChoice choice = choose({"--hostfile", "/no/such/file"}, worker(2, std::nullopt, {}));
  EXPECT_EQ(text_of(choice.cluster), "worker-1:0,1");
  EXPECT_THAT(choice.note, HasSubstr("/no/such/file does not exist"));
}

// DeepSpeed's users write it to ignore /job/hostfile.
TEST(ChooseCluster, AnEmptyHostfileMeansThisHost) {
  for (const Words& words : {Words{"--hostfile="}, Words{"--hostfile", ""}}) {
    const ClusterChoice choice = choose(words, worker(2, std::nullopt, {}));
    EXPECT_EQ(text_of(choice.cluster), "worker-1:0,1");
    EXPECT_EQ(choice.note, "");
  }
}

TEST(ChooseCluster, KnowsItsPlaceAndWhereTheLaunchersMeet) {
  const Scratch folder;
  const std::string path = folder.write("hosts", "198.51.100.1 slots=2\nworker-1 slots=3\n");
  const Cluster cluster =
      choose({"-H", path, "--max_restarts=2", "--ssh_port=2222", "--launcher_args=-v '-o A b'"},
             worker(4, std::nullopt, {}))
          .cluster;
  EXPECT_EQ(cluster.node_rank, 1);
  EXPECT_EQ(cluster.first_rank(), 2);
  EXPECT_EQ(cluster.world_size(), 5);
  EXPECT_NE(cluster.start, RemoteStart::by_hand);
  EXPECT_EQ(cluster.endpoint_host, "198.51.100.1");
  EXPECT_EQ(cluster.endpoint_port, 29500);
  EXPECT_EQ(cluster.max_restarts, 2);
  EXPECT_EQ(cluster.ssh_port, 2222);
  EXPECT_THAT(cluster.start_arguments, ElementsAre("-v", "-o A b"));
}

TEST(ChooseCluster, OfOtherHostsItRunsNoRanks) {
  const Scratch folder;
  const std::string path = folder.write("hosts", "198.51.100.1 slots=2\n198.51.100.2 slots=2\n");
  const Cluster cluster = choose({"-H", path}, worker(4, std::nullopt, {})).cluster;
  EXPECT_EQ(cluster.node_rank, -1);
  EXPECT_NE(cluster.start, RemoteStart::by_hand);
}

TEST(ChooseCluster, ARangeOfHostsIsKept) {
  const Cluster cluster = choose({"--nnodes=1:4", "--rdzv_endpoint=198.51.100.1", "--node_rank=3"},
                                 worker(1, std::nullopt, {}))
                              .cluster;
  EXPECT_EQ(cluster.min_hosts, 1);
  EXPECT_EQ(cluster.hosts.size(), 4U);
  EXPECT_EQ(cluster.node_rank, 3);
}

TEST(ChooseCluster, AnAddressAtWhichOtherHostsDoNotReachTheFirstIsSaid) {
  const auto note = [](const char* node_rank, const char* address) {
    return choose({"--nnodes=2", "--node_rank", node_rank, "--master_addr", address},
                  worker(1, std::nullopt, {}))
        .note;
  };
  EXPECT_THAT(note("0", "127.0.0.1"), HasSubstr("which every machine has for itself"));
  EXPECT_THAT(note("0", "198.51.100.1"), HasSubstr("no address of this host, the first"));
  EXPECT_EQ(note("1", "198.51.100.1"), "");
}

TEST(ChooseCluster, AnAddressThatIsNotTheFirstHostsIsAnError) {
  const Scratch folder;
  const std::string path = folder.write("hosts", "worker-1 slots=1\n198.51.100.2 slots=1\n");
  const auto endpoint = [&](const char* address) {
    return choose({"-H", path, "--master_addr", address}, worker(0, std::nullopt, {}));
  };
  for (const char* address : {"127.0.0.1", "localhost", "::1"}) {
    EXPECT_THAT(error_of([&] { endpoint(address); }),
                HasSubstr("an address that every host has for itself"));
  }
  EXPECT_THAT(error_of([&] { endpoint("198.51.100.2"); }),
              HasSubstr("expected an address of the first host, worker-1"));
  EXPECT_THAT(endpoint("198.51.100.7").note, HasSubstr("which is no address of this host"));
}

TEST(ChooseCluster, NumbersOfTheEnvironmentAreCheckedBeforeTheyAreTaken) {
  const Scratch folder;
  const std::string path = folder.write("hosts", "worker-1 slots=1\n198.51.100.2 slots=1\n");
  const auto error = [&](const Environment& environment, const Words& words) {
    return error_of([&] { choose(words, worker(0, std::nullopt, environment)); });
  };
  for (const char* port : {"99999", "-1", "abc", "29500x"}) {
    EXPECT_EQ(error({{"MASTER_ADDR", "worker-1"}, {"MASTER_PORT", port}}, {"-H", path}),
              fmt::format("environment variable MASTER_PORT='{}': expected an integer from 0 to "
                          "65535",
                          port));
  }
  EXPECT_THAT(error({{"OMPI_COMM_WORLD_SIZE", "two"}}, {}),
              HasSubstr("OMPI_COMM_WORLD_SIZE='two': expected an integer from 1"));
  EXPECT_THAT(error({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "2"}}, {}),
              HasSubstr("OMPI_COMM_WORLD_RANK='2': expected an integer from 0 to 1"));
}

TEST(ChooseCluster, AMissingHostfileIsNamedWhereSeveralHostsAreWanted) {
  EXPECT_THAT(
      error_of([] {
        choose({"--hostfile", "/no/such/file", "--num_nodes", "2"}, worker(0, std::nullopt, {}));
      }),
      HasSubstr("--num_nodes 2: hostfile /no/such/file does not exist"));
}

TEST(ChooseCluster, KubernetesSaysItInTorchrunsVariables) {
  const Environment pod = {{"PET_NNODES", "2"},
                           {"PET_NODE_RANK", "1"},
                           {"PET_NPROC_PER_NODE", "2"},
                           {"PET_MASTER_ADDR", "job-master-0"},
                           {"PET_MASTER_PORT", "23456"}};
  const Cluster cluster = choose({}, worker(4, std::nullopt, pod)).cluster;
  EXPECT_EQ(text_of(cluster), "job-master-0: worker-1:0,1 by hand");
  EXPECT_EQ(cluster.endpoint_port, 23456);
  EXPECT_EQ(text_of(choose({"--nnodes=1", "--node_rank=0"}, worker(2, std::nullopt, pod)).cluster),
            "worker-1:0,1")
      << "options win";
}

// srun -N2 zerorun ...
Environment task_of_srun() {
  return {{"SLURM_JOB_ID", "77"},        {"SLURM_JOB_NODELIST", "worker-[1-3]"},
          {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NODELIST", "worker-[1-2]"},
          {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
          {"SLURM_PROCID", "1"},         {"SLURM_NODEID", "1"}};
}

TEST(ChooseCluster, ATaskOfSrunIsTheLauncherOfItsHost) {
  const Cluster cluster = choose({}, worker(2, std::nullopt, task_of_srun())).cluster;
  EXPECT_EQ(text_of(cluster), "worker-1: worker-2:0,1 by hand");
  EXPECT_EQ(cluster.node_rank, 1);
  EXPECT_EQ(cluster.start, RemoteStart::by_hand);
  EXPECT_EQ(cluster.endpoint_host, "worker-1");
  EXPECT_EQ(cluster.endpoint_port, 15077);
}

TEST(ChooseCluster, SeveralTasksOnAHostAreAnError) {
  Environment environment = task_of_srun();
  environment["SLURM_STEP_NUM_TASKS"] = "8";
  environment["SLURM_STEP_TASKS_PER_NODE"] = "4(x2)";
  EXPECT_THAT(error_of([&] { choose({}, worker(2, std::nullopt, environment)); }),
              AllOf(HasSubstr("srun has started 8 launchers"),
                    HasSubstr("srun --ntasks-per-node=1 zerorun")));
}

TEST(ChooseCluster, AHostfileUnderSrunWouldStartTheJobSeveralTimes) {
  const Scratch folder;
  const std::string path = folder.write("hosts", "worker-1 slots=1\nworker-2 slots=1\n");
  EXPECT_THAT(error_of([&] {
                choose({"--hostfile", path}, worker(2, std::nullopt, task_of_srun()));
              }),
              HasSubstr("srun has started 2 launchers"));
}

TEST(ChooseCluster, AnAllocationsHostsAreStartedBySrun) {
  const Environment batch = {{"SLURM_JOB_ID", "77"},
                             {"SLURM_JOB_NODELIST", "worker-[1-2]"},
                             {"SLURM_TASKS_PER_NODE", "1(x2)"},
                             {"SLURM_PROCID", "0"},
                             {"SLURM_NTASKS", "2"}};
  EXPECT_EQ(text_of(choose({}, worker(2, std::nullopt, batch)).cluster),
            "worker-1:0,1 worker-2: by slurm");
  EXPECT_EQ(text_of(choose({"--num_gpus=1"}, worker(2, std::nullopt, batch)).cluster),
            "worker-1:0 worker-2:0 by slurm");
  EXPECT_EQ(text_of(choose({"--num_nodes=1"}, worker(2, std::nullopt, batch)).cluster),
            "worker-1:0,1");
  Environment tasks = batch;
  tasks["SLURM_TASKS_PER_NODE"] = "3,2";
  EXPECT_EQ(text_of(choose({}, worker(0, std::nullopt, tasks)).cluster),
            "worker-1:0,1,2 worker-2:0,1 by slurm");
  Environment rank = batch;
  rank["RANK"] = "0";
  EXPECT_EQ(text_of(choose({}, worker(2, std::nullopt, rank)).cluster), "worker-1:0,1")
      << "what a rank starts is a job of its own";
}

TEST(ChooseCluster, AProcessOfMpirunIsTheLauncherOfItsHost) {
  const Environment process = {{"OMPI_COMM_WORLD_SIZE", "2"},
                               {"OMPI_COMM_WORLD_RANK", "0"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                               {"MASTER_ADDR", "worker-1"}};
  EXPECT_EQ(text_of(choose({}, worker(2, std::nullopt, process)).cluster),
            "worker-1:0,1 : by hand");
  Environment crowded = process;
  crowded["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  EXPECT_THROW(choose({}, worker(2, std::nullopt, crowded)), ConfigError);
}

}  // namespace
}  // namespace zerorun
