#include "launcher/hosts/remote_start.h"
#include "launcher/job.h"
#include "tests/launcher/cluster_choice.h"

namespace zerorun::testing {
namespace {

struct WithHostfile : ::testing::Test {
  Words hosts(const std::string& lines, Words more = {}) const {
    more.insert(more.begin(), {"-H", folder_.write("hosts", lines)});
    return more;
  }
  const Scratch folder_;
};

TEST_F(WithHostfile, KnowsItsPlaceAndWhereTheLaunchersMeet) {
  const Cluster cluster =
      choose(hosts("198.51.100.1 slots=2\nworker-1 slots=3\n",
                   {"--max_restarts=2", "--ssh_port=2222", "--launcher_args=-v '-o A b'"}),
             worker(4))
          .cluster;
  EXPECT_EQ(cluster.node_rank, 1);
  EXPECT_EQ(cluster.first_rank(), 2);
  EXPECT_EQ(cluster.world_size(), 5);
  EXPECT_EQ(cluster.endpoint_host, "198.51.100.1");
  EXPECT_EQ(cluster.endpoint_port, 29500);
  EXPECT_EQ(cluster.max_restarts, 2);
  EXPECT_EQ(cluster.ssh_port, 2222);
  EXPECT_THAT(cluster.start_arguments, ElementsAre("-v", "-o A b"));
}

TEST(ChooseCluster, AnAddressAtWhichOtherHostsDoNotReachTheFirstIsSaid) {
  const auto note = [](const char* node_rank, const char* address) {
    return choose({"--nnodes=2", "--node_rank", node_rank, "--master_addr", address}, worker(1))
        .note;
  };
  EXPECT_THAT(note("0", "127.0.0.1"), HasSubstr("which every machine has for itself"));
  EXPECT_THAT(note("0", "198.51.100.1"), HasSubstr("no address of this host, the first"));
  EXPECT_EQ(note("1", "198.51.100.1"), "");
}

const std::string kAnother = "worker-1 slots=1\n198.51.100.2 slots=1\n";

TEST_F(WithHostfile, AnAddressThatIsNotTheFirstHostsIsAnError) {
  const auto endpoint = [&](const char* address) {
    return choose(hosts(kAnother, {"--master_addr", address}), worker(0));
  };
  for (const char* address : {"127.0.0.1", "localhost", "::1"}) {
    EXPECT_ERROR(endpoint(address), "an address that every host has for itself");
  }
  EXPECT_ERROR(endpoint("198.51.100.2"), "expected an address of the first host, worker-1");
  EXPECT_THAT(endpoint("198.51.100.7").note, HasSubstr("which is no address of this host"));
}

TEST_F(WithHostfile, NumbersOfTheEnvironmentAreCheckedBeforeTheyAreTaken) {
  const auto error = [&](const std::string& environment, const Words& words) {
    return error_of([&] { choose(words, worker(0, variables(environment))); });
  };
  for (const char* port : {"99999", "-1", "29500x"}) {
    EXPECT_THAT(error(fmt::format("MASTER_ADDR=worker-1 MASTER_PORT={}", port), hosts(kAnother)),
                HasSubstr(fmt::format("MASTER_PORT='{}': expected an integer from 0", port)));
  }
  EXPECT_THAT(error("OMPI_COMM_WORLD_SIZE=two", {}),
              HasSubstr("OMPI_COMM_WORLD_SIZE='two': expected an integer from 1"));
  EXPECT_THAT(error("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=2", {}),
              HasSubstr("OMPI_COMM_WORLD_RANK='2': expected an integer from 0 to 1"));
}

TEST(ChooseCluster, KubernetesSaysItInTorchrunsVariables) {
  const Environment pod = variables(
      "PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=2 PET_MASTER_ADDR=job-master-0 "
      "PET_MASTER_PORT=23456");
  const Cluster cluster = choose({}, worker(4, pod)).cluster;
  EXPECT_EQ(text_of(cluster), "job-master-0: worker-1:0,1 by hand");
  EXPECT_EQ(cluster.endpoint_port, 23456);
  EXPECT_EQ(chosen({"--nnodes=1", "--node_rank=0"}, worker(2, pod)), "worker-1:0,1");
}

// srun -N2 zerorun ...
Environment task_of_srun() {
  return variables(
      "SLURM_JOB_ID=77 SLURM_JOB_NODELIST=worker-[1-3] SLURM_STEP_ID=0 SLURM_PROCID=1 "
      "SLURM_STEP_NODELIST=worker-[1-2] SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) "
      "SLURM_NODEID=1");
}

TEST(ChooseCluster, ATaskOfSrunIsTheLauncherOfItsHost) {
  const Cluster cluster = choose({}, worker(2, task_of_srun())).cluster;
  EXPECT_EQ(text_of(cluster), "worker-1: worker-2:0,1 by hand");
  EXPECT_EQ(cluster.node_rank, 1);
  EXPECT_EQ(cluster.endpoint_host, "worker-1");
  EXPECT_EQ(cluster.endpoint_port, 15077);
}

TEST_F(WithHostfile, SeveralTasksOfSrunOnAHostOrWithAHostfileAreAnError) {
  Environment environment = task_of_srun();
  EXPECT_ERROR(choose(hosts(kAnother), worker(2, environment)), "srun has started 2 launchers");
  environment["SLURM_STEP_NUM_TASKS"] = "8";
  environment["SLURM_STEP_TASKS_PER_NODE"] = "4(x2)";
  EXPECT_ERROR(choose({}, worker(2, environment)), "srun has started 8 launchers",
               "srun --ntasks-per-node=1 zerorun");
}

TEST(ChooseCluster, AnAllocationsHostsAreStartedBySrun) {
  Environment batch = variables(
      "SLURM_JOB_ID=77 SLURM_JOB_NODELIST=worker-[1-2] SLURM_TASKS_PER_NODE=1(x2) SLURM_PROCID=0 "
      "SLURM_NTASKS=2");
  EXPECT_EQ(chosen({}, worker(2, batch)), "worker-1:0,1 worker-2: by slurm");
  EXPECT_EQ(chosen({"--num_gpus=1"}, worker(2, batch)), "worker-1:0 worker-2:0 by slurm");
  EXPECT_EQ(chosen({"--num_nodes=1"}, worker(2, batch)), "worker-1:0,1");
  batch["SLURM_TASKS_PER_NODE"] = "3,2";
  EXPECT_EQ(chosen({}, worker(0, batch)), "worker-1:0,1,2 worker-2:0,1 by slurm");
  batch["RANK"] = "0";  // what a rank starts is a job of its own
  EXPECT_EQ(chosen({}, worker(2, batch)), "worker-1:0,1");
}

TEST(ChooseCluster, AProcessOfMpirunIsTheLauncherOfItsHost) {
  Environment process = variables(
      "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 "
      "MASTER_ADDR=worker-1");
  EXPECT_EQ(chosen({}, worker(2, process)), "worker-1:0,1 : by hand");
  process["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  EXPECT_THROW(choose({}, worker(2, process)), ConfigError);
}

std::string port_error(const std::string& host, uint16_t port) {
  return error_of<ConfigError>([&] { reserve_master_port(host, port); });
}

TEST(MasterPort, IsHeldForRank0) {
  std::vector<Listener> held;
  std::set<uint16_t> ports;
  for (int job = 0; job < 50; ++job) {
    held.push_back(reserve_master_port("127.0.0.1", 0));
    ports.insert(held.back().port);
  }
  EXPECT_EQ(ports.size(), held.size());
  EXPECT_FALSE(ports.contains(0));
  // Rank 0 takes over the descriptor that it was given, once.
  const int inherited = dup(held[0].socket.get());
  EXPECT_FALSE(inherit_listener(inherited, held[1].port));
  const auto taken = inherit_listener(inherited, held[0].port);
  ASSERT_TRUE(taken);
  listen_on(*taken);
  EXPECT_FALSE(inherit_listener(inherited, held[0].port));
  EXPECT_FALSE(inherit_listener(-1, held[0].port));
  EXPECT_THAT(port_error("127.0.0.1", held[0].port),
              HasAll(fmt::format("--master_port {}", held[0].port), "in use"));
}

// A program whose rank 0 meets its peers by other means, as PyTorch does, listens there itself.
TEST(MasterPort, AProgramThatDoesNotTakeTheSocketMayListenThere) {
  const Listener held = reserve_master_port("127.0.0.1", 0);
  const Listener own = reserve_port("127.0.0.1", held.port);
  EXPECT_NO_THROW(listen_on(own));
  EXPECT_THROW(listen_on(held), CommError);
}

TEST(MasterPort, HasAnAddressOfThisHost) {
  // 192.0.2.0/24 is reserved for documentation (RFC 5737).
  EXPECT_THAT(port_error("192.0.2.1", 0), HasSubstr("not an address of this host"));
  EXPECT_THAT(port_error("no such host", 0),
              HasSubstr("--master_addr: cannot find the address of host 'no such host'"));
}

// The commands that start launchers on other hosts, as data.
Cluster three_hosts(RemoteStart start) {
  Cluster cluster;
  cluster.hosts = {
      {.host = "a", .slots = {0}}, {.host = "b", .slots = {0}}, {.host = "c", .slots = {0}}};
  cluster.start = start;
  cluster.start_arguments = {"--extra"};
  cluster.ssh_port = 2222;
  return cluster;
}

const RemoteContext kContext = {.launcher = "/opt/zero run/zerorun",
                                .directory = "/home/me/it's",
                                .venv_script = "",
                                .endpoint_host = "a",
                                .endpoint_port = 4000};

TEST(RemoteStart, SshStartsOneLauncherOnEachOtherHost) {
  Cluster cluster = three_hosts(RemoteStart::ssh);
  const auto commands = remote_commands(cluster, kContext);
  ASSERT_THAT(commands, SizeIs(2));
  EXPECT_THAT(commands[1].nodes, ElementsAre(2));
  EXPECT_TRUE(commands[1].lifeline);
  const std::vector<std::string>& words = commands[1].words;
  EXPECT_EQ(words[0], "ssh");
  EXPECT_EQ(words[1], "--extra");  // the user's options win
  EXPECT_THAT(words, Contains("2222"));
  EXPECT_EQ(words[words.size() - 2], "c");
  EXPECT_THAT(words.back(), HasSubstr("--node_launcher a 4000 1 0 lifeline"));
  cluster.node_rank = -1;  // the command was typed elsewhere
  EXPECT_THAT(remote_commands(cluster, kContext), SizeIs(3));
}

TEST(RemoteStart, OneCommandOfASchedulerStartsAll) {
  const auto command_of = [](RemoteStart start, const std::string& end) {
    auto commands = remote_commands(three_hosts(start), kContext);
    EXPECT_THAT(commands, SizeIs(1));
    EXPECT_THAT(commands[0].words, Contains("--extra"));
    EXPECT_THAT(commands[0].words.back(), HasSubstr("--node_launcher a 4000 0 " + end));
    return std::move(commands[0]);
  };
  EXPECT_THAT(command_of(RemoteStart::slurm, "slurm free").words,
              IsSupersetOf({"--nodelist=b,c", "--ntasks=2"}));
  EXPECT_THAT(command_of(RemoteStart::openmpi, "openmpi free").words, Contains("b,c"));
  EXPECT_THAT(command_of(RemoteStart::pdsh, "%n free").variables.at("PDSH_SSH_ARGS_APPEND"),
              HasSubstr("-p 2222"));
  RemoteContext context = kContext;
  context.directory = "/data/50%users";  // pdsh puts the user's name in the place of %u
  EXPECT_THAT(remote_commands(three_hosts(RemoteStart::pdsh), context)[0].words.back(),
              HasSubstr("cd /data/50%%users || exit"));
}

TEST(RemoteStart, AHostsUserLogsIn) {
  Cluster cluster = three_hosts(RemoteStart::ssh);
  cluster.hosts[1].user = "me";
  const std::vector<std::string> words = remote_commands(cluster, kContext).front().words;
  EXPECT_EQ(words[words.size() - 2], "me@b");
  cluster.start = RemoteStart::pdsh;
  EXPECT_THAT(remote_commands(cluster, kContext).front().words, Contains("me@b,c"));
  // To pdsh "fd00::2" is host ":2" by way of "fd00".
  Cluster ipv6 = cluster;
  ipv6.hosts[1].host = "fd00::2";
  EXPECT_THAT(remote_commands(ipv6, kContext).front().words, Contains("ssh:me@fd00::2,c"));
  for (const RemoteStart start : {RemoteStart::slurm, RemoteStart::openmpi}) {
    cluster.start = start;
    EXPECT_ERROR(remote_commands(cluster, kContext), "'me@b'");
  }
}

TEST(RemoteStart, ANodesArgumentsAreChecked) {
  EXPECT_EQ(NodeArguments::parse({"--node_launcher", "::1", "65535", "7", "slurm", "free"}).index,
            "slurm");
  for (const char* port : {"0", "1x", "65536"}) {
    EXPECT_THROW(NodeArguments::parse({"--node_launcher", "a", port, "0", "0", "free"}),
                 ConfigError);
  }
  EXPECT_THROW(NodeArguments::parse({"--node_launcher"}), ConfigError);
}

}  // namespace
}  // namespace zerorun::testing
