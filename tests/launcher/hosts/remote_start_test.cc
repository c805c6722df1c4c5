// The commands that start launchers on other hosts, as data.
#include "launcher/hosts/remote_start.h"

#include "tests/common.h"
#include "tests/error_of.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

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
  const auto commands = remote_commands(three_hosts(RemoteStart::ssh), kContext);
  ASSERT_THAT(commands, SizeIs(2));
  EXPECT_THAT(commands[1].nodes, ElementsAre(2));
  EXPECT_TRUE(commands[1].lifeline);
  const std::vector<std::string>& words = commands[1].words;
  EXPECT_EQ(words[0], "ssh");
  EXPECT_EQ(words[1], "--extra");  // the user's options win
  EXPECT_THAT(words, Contains("2222"));
  EXPECT_EQ(words[words.size() - 2], "c");
  EXPECT_THAT(words.back(), HasSubstr("--node_launcher a 4000 1 0 lifeline"));
}

TEST(RemoteStart, AHostThatIsNotThisOneIsStartedToo) {
  Cluster cluster = three_hosts(RemoteStart::ssh);
  cluster.node_rank = -1;  // the command was typed elsewhere
  EXPECT_THAT(remote_commands(cluster, kContext), SizeIs(3));
}

TEST(RemoteStart, OneCommandOfASchedulerStartsAll) {
  const auto srun = remote_commands(three_hosts(RemoteStart::slurm), kContext);
  ASSERT_THAT(srun, SizeIs(1));
  EXPECT_THAT(srun[0].words, Contains("--nodelist=b,c"));
  EXPECT_THAT(srun[0].words, Contains("--ntasks=2"));
  EXPECT_THAT(srun[0].words.back(), EndsWith("--node_launcher a 4000 0 slurm free"));
  const auto mpirun = remote_commands(three_hosts(RemoteStart::openmpi), kContext);
  ASSERT_THAT(mpirun, SizeIs(1));
  EXPECT_THAT(mpirun[0].words, Contains("b,c"));
  EXPECT_THAT(mpirun[0].words.back(), EndsWith("--node_launcher a 4000 0 openmpi free"));
  const auto pdsh = remote_commands(three_hosts(RemoteStart::pdsh), kContext);
  ASSERT_THAT(pdsh, SizeIs(1));
  EXPECT_THAT(pdsh[0].words.back(), HasSubstr("--node_launcher a 4000 0 %n free"));
  EXPECT_THAT(pdsh[0].variables.at("PDSH_SSH_ARGS_APPEND"), HasSubstr("-p 2222"));
  for (const auto& commands : {srun, mpirun, pdsh}) {
    EXPECT_THAT(commands[0].words, Contains("--extra"));
  }
}

TEST(RemoteStart, AHostsUserLogsIn) {
  Cluster cluster = three_hosts(RemoteStart::ssh);
  cluster.hosts[1].user = "me";
  const std::vector<std::string> words = remote_commands(cluster, kContext).front().words;
  EXPECT_EQ(words[words.size() - 2], "me@b");
  cluster.start = RemoteStart::pdsh;
  EXPECT_THAT(remote_commands(cluster, kContext).front().words, Contains("me@b,c"));
  for (const RemoteStart start : {RemoteStart::slurm, RemoteStart::openmpi}) {
    cluster.start = start;
    EXPECT_THAT(error_of([&] { remote_commands(cluster, kContext); }), HasSubstr("'me@b'"));
  }
}

// To pdsh "fd00::2" is host ":2" by way of "fd00".
TEST(RemoteStart, PdshIsToldTheWayToAnAddressOfIpv6) {
  Cluster cluster = three_hosts(RemoteStart::pdsh);
  cluster.hosts[1] = {.host = "fd00::2", .slots = {0}, .user = "me"};
  EXPECT_THAT(remote_commands(cluster, kContext).front().words, Contains("ssh:me@fd00::2,c"));
}

TEST(RemoteStart, NothingIsStartedByHand) {
  EXPECT_THAT(remote_commands(three_hosts(RemoteStart::by_hand), kContext), IsEmpty());
}

TEST(RemoteStart, TheNodesArgumentsComeBack) {
  const NodeArguments sent = {.endpoint_host = "::1",
                              .endpoint_port = 65535,
                              .command = 7,
                              .index = "slurm",
                              .lifeline = true};
  const NodeArguments got = NodeArguments::parse(sent.words());
  EXPECT_EQ(got.endpoint_host, "::1");
  EXPECT_EQ(got.endpoint_port, 65535);
  EXPECT_EQ(got.command, 7);
  EXPECT_EQ(got.index, "slurm");
  EXPECT_TRUE(got.lifeline);
  EXPECT_THROW(NodeArguments::parse({"--node_launcher"}), ConfigError);
  EXPECT_THROW(NodeArguments::parse({"--node_launcher", "a", "0", "0", "0", "free"}), ConfigError);
  EXPECT_THROW(NodeArguments::parse({"--node_launcher", "a", "1x", "0", "0", "free"}), ConfigError);
}

}  // namespace
}  // namespace zerorun
