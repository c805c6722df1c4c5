#include "offload/direct_file.h"

#include "core/format_bytes.h"
#include "tests/error_of.h"
#include "tests/paths.h"

namespace zerorun::testing {
namespace {

uint64_t available() { return std::filesystem::space(test_paths::build()).available; }

std::string refusal(const std::string& folder, uint64_t nbytes, const FilePurpose& purpose = {}) {
  return error_of<ConfigError>([&] { const DirectFile file(folder, "test", nbytes, purpose); });
}

TEST(DirectFile, RefusesWhatTheDiskHasNoRoomForAndNamesTheSettingThatNamedTheFolder) {
  const uint64_t large = available() + (uint64_t{1} << 40);
  const std::string states = refusal(test_paths::build(), large);
  EXPECT_THAT(states, StartsWith("/zero_optimization/offload_optimizer/nvme_path " +
                                 test_paths::build() + ": cannot reserve "));
  EXPECT_THAT(states, HasSubstr("for this rank's offloaded states: "));
  EXPECT_THAT(states, HasSubstr("are free. Free some, name another disk, or offload a smaller"));
  const FilePurpose bench{.folder = "bench:", .content = "a file", .instead = "do less"};
  EXPECT_THAT(refusal("/no/such", 1, bench), StartsWith("bench: /no/such: No such file"));
  const std::string other = refusal(test_paths::build(), large, bench);
  EXPECT_THAT(other, HasSubstr("cannot reserve " + format_bytes(large) + " for a file"));
  EXPECT_THAT(other, HasSubstr("name another disk, or do less"));
}

TEST(DirectFile, RoomForHalfOfTheFilesOfAHostIsNotRoomForAll) {
  const auto error = [](const std::vector<FileRequest>& files, int ranks) {
    return error_of<ConfigError>([&] { check_room(files, ranks); });
  };
  const uint64_t half = available() / 2 + (uint64_t{1} << 30);
  const FileRequest states{test_paths::build(), half, {}};
  const FileRequest parameters{test_paths::build() + "/.", half, {.folder = "/other"}};
  EXPECT_THAT(error({states}, 2),
              HasSubstr("the files of the 2 ranks of this host need " + format_bytes(2 * half)));
  EXPECT_THAT(error({states, parameters}, 1),
              HasSubstr("the files of the rank of this host need " + format_bytes(2 * half)));
  EXPECT_EQ(error({states, {"", 0, {}}}, 1), "");
  EXPECT_EQ(error({{test_paths::build(), uint64_t{1} << 20, {}}}, 2), "");
}

}  // namespace
}  // namespace zerorun::testing
