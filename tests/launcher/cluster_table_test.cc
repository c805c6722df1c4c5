// The hosts and slots that a job gets: hostfile, --include, --exclude, --num_nodes, --num_gpus and
// CUDA_VISIBLE_DEVICES.

#include <ostream>

#include "tests/launcher/cluster_choice.h"

namespace zerorun::testing {
namespace {

// The hosts, what is asked for, and the hosts with their slots or, after "error: ", a part of it.
struct ClusterCase {
  std::string label;
  std::optional<std::string> hostfile;
  std::string options;
  std::string expected;
  std::optional<std::string> visible = std::nullopt;  // CUDA_VISIBLE_DEVICES
  int gpus = 4;                                       // in this machine
};

void PrintTo(const ClusterCase& row, std::ostream* out) { *out << row.label; }

class ClusterTable : public ::testing::TestWithParam<ClusterCase> {};

TEST_P(ClusterTable, FollowsDeepSpeedsGrammar) {
  const ClusterCase& row = GetParam();
  const Scratch folder;
  Words words = words_of(row.options);
  if (row.hostfile) {
    const std::string path = folder.write("hosts", *row.hostfile);
    words.insert(words.begin(), {"--hostfile", path});
  }
  const ThisHost here = worker(row.gpus, {}, row.visible);
  if (row.expected.starts_with("error: ")) {
    EXPECT_ERROR_OF(ConfigError, choose(words, here), row.expected.substr(7));
  } else {
    EXPECT_EQ(chosen(words, here), row.expected);
  }
}

const auto kNoFile = std::nullopt;
const std::string kTwo = "worker-1 slots=4\nworker-2 slots=4\n";
const std::string kMe = "worker-1:2\nme@worker-2:2\n";
const std::string kUnknown = "worker-1\nworker-2\n";
const std::string kFirsts = "worker-1:0 worker-2:0 by ssh";
const std::string kThree = "worker-1 slots=2\nworker-2 slots=4\nworker-3 slots=3\n";

// Rows whose results are those of DeepSpeed 0.19 (its grammar: HOST[:SLOT[,SLOT...]][@HOST...]).
INSTANTIATE_TEST_SUITE_P(
    AsDeepSpeed, ClusterTable,
    ::testing::ValuesIn(std::to_array<ClusterCase>(
        {{"no file: all GPUs here", kNoFile, "", "worker-1:0,1,2,3"},
         {"no file, one node", kNoFile, "--num_nodes 1", "worker-1:0,1,2,3"},
         {"no file, default words", kNoFile, "--num_nodes -1 --num_gpus -1", "worker-1:0,1,2,3"},
         {"no file, two nodes", kNoFile, "--num_nodes 2", "error: no host but this one is known"},
         {"missing file, two nodes", kNoFile, "--hostfile /no/file --num_nodes 2",
          "error: --num_nodes 2: hostfile /no/file does not exist"},
         {"two hosts", kTwo, "", "worker-1:0,1,2,3 worker-2:0,1,2,3 by ssh"},
         {"order of the file", "worker-2 slots=1\nworker-1 slots=1\n", "",
          "worker-2:0 worker-1:0 by ssh"},
         {"comments and blank lines", "# hosts\n\nworker-1 slots=1 # me\n  \nworker-2:1\n", "",
          kFirsts},
         {"tabs and returns", "worker-1\tslots=1\r\nworker-2  slots=1\r\n", "", kFirsts},
         {"no end of line", "worker-1 slots=1\nworker-2 slots=1", "", kFirsts},
         {"only this host", "worker-1 slots=2\n", "", "worker-1:0,1"},
         {"first node of two", kTwo, "--num_nodes 1", "worker-1:0,1,2,3"},
         {"an empty hostfile is none", kNoFile, "--hostfile=", "worker-1:0,1,2,3"},
         {"more nodes than there are", kTwo, "--num_nodes 3", "error: there are 2 hosts"},
         {"GPUs per node", kTwo, "--num_gpus 2", "worker-1:0,1 worker-2:0,1 by ssh"},
         {"nodes and GPUs", kThree, "--num_nodes 2 --num_gpus 1", kFirsts},
         {"include a host", kTwo, "-i worker-1", "worker-1:0,1,2,3"},
         {"include another", kTwo, "-i worker-2", "worker-2:0,1,2,3 by ssh"},
         {"host and slots", kTwo, "-i worker-1@worker-2:2", "worker-1:0,1,2,3 worker-2:2 by ssh"},
         {"include slots", kTwo, "-i worker-1:3@worker-2:1", "worker-1:3 worker-2:1 by ssh"},
         {"another order", kTwo, "-i worker-2:0@worker-1:0", kFirsts},
         {"include slots twice", kTwo, "-i worker-2:1,0,1", "worker-2:0,1 by ssh"},
         {"include unknown host", kTwo, "-i worker-9", "error: not among the job's 2: worker-1"},
         {"include unknown slot", kTwo, "-i worker-2:4", "error: slot 4 of host 'worker-2'"},
         {"exclude a host", kTwo, "-e worker-2", "worker-1:0,1,2,3"},
         {"exclude slots", kTwo, "-e worker-1:0@worker-2:0,2",
          "worker-1:1,2,3 worker-2:1,3 by ssh"},
         {"exclude all slots drops the host", kTwo, "-e worker-2:0,1,2,3", "worker-1:0,1,2,3"},
         {"exclude unknown host", kTwo, "-e worker-9", "error: not among the job's 2"},
         {"exclude everything", kTwo, "-e worker-1@worker-2", "error: leaves no host"},
         {"both filters", kTwo, "-i worker-1 -e worker-2", "error: mutually exclusive"},
         {"filter and GPUs", kTwo, "-e worker-1 --num_gpus 1", "error: --num_gpus cannot be"},
         {"filter and nodes", kTwo, "-i worker-1 --num_nodes 1", "error: --num_nodes cannot be"},
         {"a host twice", "a slots=1\na slots=2\n", "", "error: :2: host 'a' is there already"},
         {"no host", "# nothing\n\n", "", "error: names no host"},
         {"slots no number", "a slots=x\n", "", "error: :1: 'slots=x' is not a number"},
         {"pdsh", kTwo, "--launcher pdsh --num_gpus=1", "worker-1:0 worker-2:0 by pdsh"},
         {"in capitals", kTwo, "--launcher PDSH --num_gpus=1", "worker-1:0 worker-2:0 by pdsh"},
         {"pdsh on this host alone", kNoFile, "--launcher pdsh", "worker-1:0,1,2,3"},
         {"forced", "worker-1 slots=1\n", "--force_multi", "worker-1:0 by ssh"},
         {"visible becomes the base", kNoFile, "", "worker-1:0,1", "2,3"},
         {"elastic range", kThree,
          "--elastic_training --min_elastic_nodes 1 --max_elastic_nodes 2 --num_gpus 1",
          kFirsts}})));

// Rows that DeepSpeed refuses or reads otherwise, with the reason for zerorun's answer.
INSTANTIATE_TEST_SUITE_P(
    BeyondDeepSpeed, ClusterTable,
    ::testing::ValuesIn(std::to_array<ClusterCase>(
        {{"a user", "worker-1:1\nme@worker-2:2\n", "", "worker-1:0 me@worker-2:0,1 by ssh"},
         {"IPv6", "worker-1:1\nme@[fd00::2]:1\n", "", "worker-1:0 me@fd00::2:0 by ssh"},
         {"me twice", "me@a slots=1\na slots=2\n", "", "error: :2: host 'a' is there already"},
         {"no user", "@a slots=1\n", "", "error: '' is not the name of a user"},
         {"an option as a user", "-oX@a\n", "", "error: '-oX' is not the name of a user"},
         {"include without user", kMe, "-i worker-2:1@worker-1",
          "worker-1:0,1 me@worker-2:1 by ssh"},
         {"include a user", kMe, "-i worker-1:0@me@worker-2:1", "worker-1:0 me@worker-2:1 by ssh"},
         {"exclude user and host", kMe, "-e me@worker-2", "worker-1:0,1"},
         {"include another user", kMe, "-i you@worker-2", "error: names host 'you'"},
         // DeepSpeed asks for slots= in every line. MPI's forms mean the same here.
         {"max_slots", "worker-1 slots=1 max_slots=8\nworker-2:1\n", "", kFirsts},
         {"host:n", "worker-1:2\nworker-2:1\n", "", "worker-1:0,1 worker-2:0 by ssh"},
         {"slots unknown", kUnknown, "", "worker-1:0,1,2,3 worker-2: by ssh"},
         {"slots unknown, count", kUnknown, "--num_gpus=2", "worker-1:0,1 worker-2:0,1 by ssh"},
         {"slots unknown, include", kUnknown, "-i worker-2:3", "worker-2:3 by ssh"},
         {"slots unknown, exclude", kUnknown, "-e worker-2:3", "error: not even their number"},
         // DeepSpeed starts ranks on GPUs that are not there (range(num_gpus), unchecked).
         {"more GPUs than slots", kTwo, "--num_gpus 8", "error: gives host 'worker-1' 4"},
         {"fewer slots on one", kThree, "--num_gpus 3", "error: gives host 'worker-1' 2 slots"},
         // DeepSpeed knows hosts by the very name in the file.
         {"localhost is this host", kTwo, "-i localhost:1", "worker-1:1"},
         {"127.0.0.1 is this host", "127.0.0.1 slots=2\n", "", "worker-1:0,1"},
         // With a hostfile DeepSpeed forgets CUDA_VISIBLE_DEVICES; here slots count what it shows.
         {"visible and a file", "worker-1 slots=2\n", "", "worker-1:0,1", "2,3"},
         {"hidden GPUs: CPU ranks", kNoFile, "", "worker-1:0", ""},
         // DeepSpeed wants an accelerator. A slot of a CPU host is a rank on one of its CPUs.
         {"CPU host", kNoFile, "", "worker-1:0", kNoFile, 0},
         {"CPU hosts", kTwo, "--num_gpus 2", "worker-1:0,1 worker-2:0,1 by ssh", kNoFile, 0},
         {"host after -", "-oProxyCommand=x slots=1\n", "", "error: is neither the name nor the"},
         {"two colons, no address", "worker-1:2:3\n", "", "error: 'worker-1:2:3' is neither"},
         {"a byte order mark", "\xEF\xBB\xBFworker-1 slots=2\n", "", "worker-1:0,1"},
         {"unknown word", "worker-1 slot=2\n", "", "error: unknown word 'slot=2'"},
         {"include a word of ssh", kTwo, "-i -x", "error: expected HOST"},
         {"mpich", kTwo, "--launcher mpich", "error: --launcher mpich: zerorun starts"},
         {"standalone", kTwo, "--standalone", "worker-1:0,1,2,3"},
         {"a range", kThree, "--num_nodes 1:2", "worker-1:0,1 worker-2:0,1,2,3 by ssh"},
         {"a range beyond", kThree, "--num_nodes 4:8", "error: there are 3 hosts"},
         {"IPv6", "[::1]:2\n", "", "worker-1:0,1"}})));

// Rows of torchrun's and of --no_ssh: somebody starts the command on every host.
INSTANTIATE_TEST_SUITE_P(
    ByHand, ClusterTable,
    ::testing::ValuesIn(std::to_array<ClusterCase>(
        {{"first of two", kNoFile, "--nnodes=2 --node_rank=0 --master_addr=worker-1",
          "worker-1:0,1,2,3 : by hand"},
         {"second of two", kNoFile,
          "--nnodes=2 --node_rank=1 --master_addr=198.51.100.1 --nproc_per_node=2",
          "198.51.100.1: worker-1:0,1 by hand"},
         {"c10d, elsewhere", kNoFile,
          "--nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=198.51.100.1:29400",
          "198.51.100.1: worker-1:0,1,2,3 by hand"},
         {"c10d, here", kNoFile, "--nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:29400",
          "127.0.0.1:0,1,2,3 : by hand"},
         {"one host", kNoFile, "--nnodes=1 --rdzv_backend=c10d --rdzv_endpoint=localhost:0",
          "worker-1:0,1,2,3"},
         {"no address", kNoFile, "--nnodes=2 --node_rank=0", "error: 2 hosts need an address"},
         {"number too high", kNoFile, "--nnodes=2 --node_rank=2 --master_addr=worker-1",
          "error: numbered from 0 to 1"},
         {"number of one host", kNoFile, "--node_rank=1", "error: the job has one host"},
         {"no_ssh with a file", kThree, "--no_ssh --node_rank=2 --master_addr=worker-1",
          "worker-1:0,1 worker-2:0,1,2,3 worker-3:0,1,2 by hand"},
         {"a range", kNoFile, "--nnodes=1:4 --rdzv_endpoint=198.51.100.1 --node_rank=3",
          "198.51.100.1: : : worker-1:0,1,2,3 by hand"},
         {"no number of hosts", kNoFile, "--nnodes=0", "error: expected a number of hosts"},
         {"range upside down", kNoFile, "--nnodes=3:2", "error: is above the greatest"}})));

}  // namespace
}  // namespace zerorun::testing
