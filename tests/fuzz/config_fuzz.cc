#include "config/docs/report.h"
#include "tests/fuzz/config_seeds.h"
#include "tests/fuzz/driver.h"
#include "zerorun/error.h"

namespace zerorun::testing {

// Any bytes either are a configuration, which can then be shown, or give a ConfigError.
void fuzz(std::string_view input) {
  may_throw<ConfigError>([&] {
    show_config(parse_config(input), {.world_size = 2, .hidden_size = 64, .total_steps = 50});
  });
}

std::vector<std::string> fuzz_seeds() { return config_seeds(); }

}  // namespace zerorun::testing
