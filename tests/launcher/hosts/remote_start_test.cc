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
    EXPECT_THAT(error_of([&] { remote_commands(cluster, kContext); }), HasSubstr("'me@b'"));
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
}  // namespace zerorun
