#pragma once

#include <string>

namespace zerorun::test_paths {

// Absolute paths, without a slash at the end. Functions, so that only tests/paths.cc depends on
// where a clone lies, and ccache serves the other tests to every clone.
std::string tests();  // this folder
std::string build();  // the build's

}  // namespace zerorun::test_paths
