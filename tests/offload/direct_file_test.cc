#include "offload/direct_file.h"

#include <sys/statvfs.h>

#include "core/format_bytes.h"
#include "tests/error_of.h"
#include "tests/paths.h"

namespace zerorun::testing {
namespace {

uint64_t available(const std::string& folder) {
  struct statvfs space {};
  EXPECT_EQ(::statvfs(folder.c_str(), &space), 0);
  return uint64_t{space.f_bavail} * space.f_frsize;
}

std::string refusal(const std::string& folder, uint64_t nbytes, const FilePurpose& purpose = {}) {
  return error_of<ConfigError>([&] { const DirectFile file(folder, "test", nbytes, purpose); });
}

TEST(DirectFile, RefusesWhatTheDiskHasNoRoomForBeforeItReservesAny) {
  const uint64_t before = available(test_paths::build());
  const std::string message = refusal(test_paths::build(), before + (uint64_t{1} << 30));
  EXPECT_THAT(message, StartsWith("/zero_optimization/offload_optimizer/nvme_path " +
                                  test_paths::build() + ": cannot reserve "));
  EXPECT_THAT(message, HasSubstr("for this rank's offloaded states: "));
  EXPECT_THAT(message, HasSubstr("are free. Free some, name another disk, or offload a "
                                 "smaller part (offload_optimizer.ratio)"));
}

std::string room_error(const std::vector<FileRequest>& files, int ranks) {
  return error_of<ConfigError>([&] { check_room(files, ranks); });
}

TEST(DirectFile, RoomForOneRankIsNotRoomForTwo) {
  const uint64_t half = available(test_paths::build()) / 2 + (uint64_t{1} << 30);
  EXPECT_THAT(room_error({{test_paths::build(), half, {}}}, 2),
              HasSubstr("the files of the 2 ranks of this host need " + format_bytes(2 * half)));
  EXPECT_EQ(room_error({{test_paths::build(), uint64_t{1} << 20, {}}}, 2), "");
}

TEST(DirectFile, RoomForOneOfTwoFilesOnADiskIsNotRoomForBoth) {
  const uint64_t half = available(test_paths::build()) / 2 + (uint64_t{1} << 30);
  const FileRequest states{test_paths::build(), half, {}};
  const FileRequest parameters{test_paths::build() + "/.", half, {.folder = "/other"}};
  EXPECT_THAT(room_error({states, parameters}, 1),
              HasSubstr("the files of the rank of this host need " + format_bytes(2 * half)));
  EXPECT_EQ(room_error({states, {"", 0, {}}}, 1), "");
}

TEST(DirectFile, NamesTheSettingThatNamedTheFolder) {
  EXPECT_THAT(refusal("/no/such", 1),
              StartsWith("/zero_optimization/offload_optimizer/nvme_path /no/such: No such file"));
  const FilePurpose bench{.folder = "bench:", .content = "a file", .instead = "do less"};
  EXPECT_THAT(refusal("/no/such", 1, bench), StartsWith("bench: /no/such: No such file"));
  const std::string large = refusal(test_paths::build(), uint64_t{1} << 60, bench);
  EXPECT_THAT(large,
              HasSubstr("cannot reserve " + format_bytes(uint64_t{1} << 60) + " for a file"));
  EXPECT_THAT(large, HasSubstr("name another disk, or do less"));
}

}  // namespace
}  // namespace zerorun::testing
