#include "os/shared_library.h"

#include <dlfcn.h>

#include "tests/common.h"

namespace zerorun::testing {
namespace {

// Two files of each soname, which return 1 and 2.
std::string file_of(const std::string& soname, int copy) {
  return test_paths::build() + "/tests/copies/" + std::to_string(copy) + "/" + soname;
}
int call(const SharedLibrary& library) { return library.function<int()>("zerorun_test_copy")(); }

TEST(SharedLibraryTest, TheCopyThatTheProcessHasComesFirstUnderAnyName) {
  const std::string soname = "libzerorun_test_loaded.so.1";
  ASSERT_NE(dlopen(file_of(soname, 1).c_str(), RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
  const std::string other = file_of("libzerorun_test_other.so.1", 1);  // which could be opened
  for (const auto& names : {std::array{soname, file_of(soname, 2), other},
                            std::array{std::string("libnone.so.1"), other, soname}}) {
    const SharedLibrary library(names);
    EXPECT_EQ(library.path(), file_of(soname, 1));
    EXPECT_EQ(call(library), 1);
  }
}

TEST(SharedLibraryTest, WithoutOneTheFileOfTheBuildServes) {
  const std::string soname = "libzerorun_test_fresh.so.1";
  const SharedLibrary library(std::array<std::string, 2>{soname, file_of(soname, 2)});
  EXPECT_EQ(library.path(), file_of(soname, 2));
  EXPECT_EQ(call(library), 2);
}

TEST(SharedLibraryTest, TheErrorHasTheLoadersReasonForEachFile) {
  const std::array<std::string, 3> names = {"libnone.so.1", "", "/no/libnone.so"};
  EXPECT_ERROR_OF(DeviceError, SharedLibrary{names}, "cannot open libnone.so.1",
                  "/no/libnone.so: cannot open", "LD_LIBRARY_PATH");
}

TEST(SharedLibraryTest, AMissingFunctionIsNamed) {
  const std::string file = file_of("libzerorun_test_fresh.so.1", 2);
  const SharedLibrary library(std::array<std::string, 1>{file});
  EXPECT_EQ(error_of<DeviceError>([&] { library.function<int()>("zerorun_no_function"); }),
            file + " has no function zerorun_no_function: too old");
}

TEST(DescribeLibrary, IsVersionAndFileOrWhatToDo) {
  const std::string file = file_of("libzerorun_test_fresh.so.1", 2);
  const auto version = [](const SharedLibrary& library) { return std::to_string(call(library)); };
  const auto describe = [&](const std::string& name) {
    return describe_library("Copy", std::array<std::string, 1>{name}, version, "Install it");
  };
  EXPECT_EQ(describe(file), "Copy 2 (" + file + ")");
  EXPECT_THAT(describe("libnone.so.1"),
              HasAll("Copy: missing: cannot open libnone.so.1", ". Install it"));
}

}  // namespace
}  // namespace zerorun::testing
