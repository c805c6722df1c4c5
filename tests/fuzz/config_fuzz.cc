#include <cstddef>
#include <cstdint>
#include <string_view>

#include "config/docs/report.h"
#include "tests/fuzz/config_seeds.h"
#include "tests/fuzz/driver.h"
#include "zerorun/config.h"
#include "zerorun/error.h"

// Any bytes either are a configuration, which can then be shown, or give a ConfigError.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace zerorun;  // NOLINT(google-build-using-namespace)
  try {
    const ParsedConfig parsed =
        parse_config(std::string_view(reinterpret_cast<const char*>(data), size));
    show_config(parsed, {.world_size = 2, .hidden_size = 64, .total_steps = 50});
  } catch (const ConfigError&) {
    return 0;
  }
  return 0;
}

std::vector<std::string> zerorun::testing::fuzz_seeds() { return config_seeds(); }
