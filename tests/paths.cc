#include "tests/common.h"

namespace zerorun::test_paths {

std::string tests() { return ZERORUN_TESTS; }
std::string build() { return ZERORUN_BUILD_DIR; }

}  // namespace zerorun::test_paths
