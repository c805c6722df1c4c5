#include "launcher/environment.h"
#include "tests/common.h"
#include "tests/scratch.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

TEST(Exports, PassOnWhatSteersLibrariesAndWhatIsNamed) {
  const Environment environment = {{"NCCL_DEBUG", "INFO"},
                                   {"PYTHONPATH", "/lib"},
                                   {"UCX_TLS", "tcp"},
                                   {"PATH", "/bin"},
                                   {"HF_HOME", "/hf"},
                                   {"HF_TOKEN", "secret"},
                                   {"ZERORUN_JOB_SECRET", "s"},
                                   {"ZERORUN_STORE_FD", "7"},
                                   {"CUDA_VISIBLE_DEVICES", "1"},
                                   {"TORCHELASTIC_RUN_ID", "x"},
                                   {"MINE", "a b"},
                                   {"OTHER", "c"}};
  const Environment expected = {{"NCCL_DEBUG", "INFO"}, {"PYTHONPATH", "/lib"}, {"UCX_TLS", "tcp"},
                                {"PATH", "/bin"},       {"HF_HOME", "/hf"},     {"MINE", "a b"}};
  EXPECT_EQ(exported_variables(environment, {"MINE"}), expected);
  EXPECT_EQ(exported_variables(environment, {"HF_TOKEN"}).at("HF_TOKEN"), "secret");
  EXPECT_THROW(exported_variables(environment, {"NOT_SET"}), ConfigError);
}

TEST(Exports, ReadTheFileOfTheUser) {
  const testing::Scratch home;
  home.write(".deepspeed_env", "A=1\n");
  home.write("mine", "A=2\n");
  const std::string path = home.path();
  EXPECT_EQ(exported_variables({{"HOME", path}}, {}), (Environment{{"A", "1"}}));
  EXPECT_EQ(exported_variables({{"HOME", path}, {"DS_ENV_FILE", "mine"}}, {}),
            (Environment{{"A", "2"}}));
}

TEST(EnvironmentFile, TakesAssignmentsAsAShellDoes) {
  const Environment expected = {{"A", "1"}, {"B", "x y"}, {"C", ""}, {"D_2", "p=q"}, {"E", "'"}};
  EXPECT_EQ(parse_environment_file("# comment\nA=1\n\nexport B=\"x y\"\r\nC=\n  D_2=p=q\nE='", "f"),
            expected);
  for (const char* text : {"A=1\nB", "A=1\n2B=3", "A=1\n=3", "A=1\nB C=3"}) {
    try {
      parse_environment_file(text, "file");
      ADD_FAILURE() << text;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("file:2: expected NAME=VALUE"));
    }
  }
}

}  // namespace
}  // namespace zerorun
