// A plugin of this build, or of another one: see plugin_test.cc.
#include "tests/device/plugin/plugin.h"

namespace zerorun::testing {

extern "C" __attribute__((visibility("default"))) const TestPlugin* zerorun_test_plugin() {
  static const TestPlugin plugin = {ZERORUN_TEST_BUILD, [] { return 42; }};
  return &plugin;
}

}  // namespace zerorun::testing
