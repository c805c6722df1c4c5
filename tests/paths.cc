#include <string>

namespace zerorun::test_paths {  // tests/common.h

std::string tests() { return ZERORUN_TESTS; }
std::string build() { return ZERORUN_BUILD_DIR; }

}  // namespace zerorun::test_paths
