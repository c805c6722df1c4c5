// Commands for DeepSpeed's launcher and torchrun, started by zerorun as they are.

#include <ostream>

#include "tests/common.h"
#include "tests/launcher/launcher_process.h"
#include "tests/scratch.h"

namespace zerorun {
namespace {

using testing::LauncherProcess;
using testing::zerorun_command;

using Words = std::vector<std::string>;

struct ForeignCase {
  std::string label;
  Words options;
  std::string error;  // a part of standard error; empty: it is empty
};

void PrintTo(const ForeignCase& row, std::ostream* out) { *out << row.label; }

class ForeignCommand : public ::testing::TestWithParam<ForeignCase> {};

TEST_P(ForeignCommand, RunsOnThisHost) {
  const ForeignCase& row = GetParam();
  const testing::Scratch folder;
  folder.write("hosts", "localhost slots=2\n");
  Words words = {"--accelerator", "cpu", "--no_python"};
  for (std::string word : row.options) {
    if (word == "HOSTS") word = folder.path() / "hosts";
    if (word == "LOGS") word = folder.path() / "logs";
    words.push_back(word);
  }
  words.insert(words.end(), {"sh", "-c", "test $RANK = 0 || exit 0; echo $WORLD_SIZE"});
  LauncherProcess job(zerorun_command(words), {{"TMPDIR", folder.path()}});
  EXPECT_EQ(job.wait(), 0) << job.errors();
  EXPECT_EQ(job.output(), row.label.ends_with("silent") ? "" : "2\n");
  if (row.error.empty()) {
    EXPECT_EQ(job.errors(), "");
  } else {
    EXPECT_THAT(job.errors(), HasSubstr(row.error));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, ForeignCommand,
    ::testing::Values(
        ForeignCase{"hostfile that names this host", {"--hostfile", "HOSTS"}, ""},
        ForeignCase{"hostfile that is missing",
                    {"--hostfile", "/no/such", "--num_gpus=2"},
                    "/no/such does not exist: ranks run on this host alone"},
        ForeignCase{"pdsh", {"--launcher=pdsh", "--num_gpus=2", "--master_port=0"}, ""},
        ForeignCase{"torchrun's c10d",
                    {"--nproc_per_node=2", "--nnodes=1", "--rdzv_backend=c10d",
                     "--rdzv_endpoint=localhost:0", "--rdzv_id=7", "--max_restarts=0"},
                    ""},
        ForeignCase{
            "torchrun's standalone", {"--standalone", "--nproc-per-node=2", "--role=x"}, ""},
        ForeignCase{"tee", {"--nproc_per_node=2", "--tee=3"}, "output is in "},
        ForeignCase{
            "tee with a folder", {"--nproc_per_node=2", "-t", "3", "--log_dir", "LOGS"}, ""},
        ForeignCase{"redirects, silent", {"--num_gpus=2", "-r", "3", "--log_dir", "LOGS"}, ""},
        ForeignCase{
            "log of each rank, silent", {"--num_gpus=2", "--enable_each_rank_log", "LOGS"}, ""},
        ForeignCase{"monitor", {"--num_gpus=2", "--monitor_interval=1"}, "has no meaning here"},
        ForeignCase{"quiet", {"--num_gpus=2", "--monitor_interval=1", "-q"}, ""},
        ForeignCase{
            "DeepSpeed's binding", {"--num_gpus=2", "--bind_cores_to_rank", "--save_pid"}, ""},
        ForeignCase{"a restart that is not needed", {"--num_gpus=2", "--max_restarts=1"}, ""}));

TEST(ForeignVariables, OfTorchrunAndDeepSpeedAreThere) {
  LauncherProcess job(zerorun_command(
      {"--accelerator", "cpu", "--num_gpus=2", "--rdzv_id=run7", "--max_restarts=3", "--role=actor",
       "sh", "-c",
       "test $RANK = 1 || exit 0; echo $LOCAL_RANK $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK "
       "$ROLE_WORLD_SIZE $ROLE_NAME $LOCAL_SIZE $CROSS_RANK $CROSS_SIZE "
       "$TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID "
       "$TORCHELASTIC_USE_AGENT_STORE; test -d $(dirname $TORCHELASTIC_ERROR_FILE) && echo "
       "$TORCHELASTIC_ERROR_FILE"}));
  EXPECT_EQ(job.read_line(), "1 0 1 1 2 actor 2 0 1 0 3 run7 False");
  const std::string file = job.read_line();
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(file, EndsWith("/error_1.json"));
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(file).parent_path())) << "removed";
}

TEST(ForeignVariables, ASlotThatACpuHostHasNotIsAnError) {
  LauncherProcess job(zerorun_command({"--include", "localhost:9999", "true"}));
  EXPECT_EQ(job.wait(), 2);
  EXPECT_THAT(job.errors(), HasSubstr("names slot 9999, but this host has"));
}

}  // namespace
}  // namespace zerorun
