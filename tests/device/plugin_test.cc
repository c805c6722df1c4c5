#include "device/plugin.h"

#include "tests/common.h"
#include "tests/device/plugin/plugin.h"

namespace zerorun::testing {
namespace {

std::string file_of(const std::string& build) {
  return test_paths::build() + "/tests/plugins/libzerorun_test_plugin_" + build + ".so";
}

const TestPlugin& open(const std::string& file) {
  const SharedLibrary library(std::array<std::string, 1>{file});
  return plugin_entry<TestPlugin>(library, "zerorun_test_plugin");
}

TEST(PluginTest, OneOfThisBuildIsUsed) { EXPECT_EQ(open(file_of("own")).answer(), 42); }

TEST(PluginTest, OneOfAnotherBuildIsRefusedByTheNamesOfBothFiles) {
  EXPECT_ERROR_OF(DeviceError, open(file_of("other")), file_of("other"),
                  "different builds of zerorun",
                  std::filesystem::canonical("/proc/self/exe").string());
}

TEST(PluginTest, AMissingFileIsNamed) {
  EXPECT_ERROR_OF(DeviceError, open_plugin("libzerorun_none.so"),
                  "libzerorun_none.so is missing beside");
}

}  // namespace
}  // namespace zerorun::testing
