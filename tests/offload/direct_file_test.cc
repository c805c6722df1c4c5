#include "offload/direct_file.h"

#include <gmock/gmock.h>
#include <sys/statvfs.h>

#include <functional>
#include <string>
#include <vector>

#include "device/memory_ledger.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

uint64_t available(const char* folder) {
  struct statvfs space {};
  EXPECT_EQ(::statvfs(folder, &space), 0);
  return uint64_t{space.f_bavail} * space.f_frsize;
}

std::string config_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of(const char* folder, uint64_t nbytes, const FilePurpose& purpose = {}) {
  return config_error([&] { const DirectFile file(folder, "test", nbytes, purpose); });
}

TEST(DirectFile, RefusesWhatTheDiskHasNoRoomForBeforeItReservesAny) {
  const uint64_t before = available(ZERORUN_BUILD_DIR);
  const std::string message = error_of(ZERORUN_BUILD_DIR, before + (uint64_t{1} << 30));
  EXPECT_THAT(message,
              StartsWith("/zero_optimization/offload_optimizer/nvme_path " ZERORUN_BUILD_DIR
                         ": cannot reserve "));
  EXPECT_THAT(message, HasSubstr("for this rank's offloaded states: "));
  EXPECT_THAT(message, HasSubstr("are free. Free some, name another disk, or offload a "
                                 "smaller part (offload_optimizer.ratio)"));
}

std::string room_error(const std::vector<FileRequest>& files, int ranks) {
  return config_error([&] { check_room(files, ranks); });
}

TEST(DirectFile, RoomForOneRankIsNotRoomForTwo) {
  const uint64_t half = available(ZERORUN_BUILD_DIR) / 2 + (uint64_t{1} << 30);
  EXPECT_THAT(room_error({{ZERORUN_BUILD_DIR, half, {}}}, 2),
              HasSubstr("the files of the 2 ranks of this host need " + format_bytes(2 * half)));
  EXPECT_EQ(room_error({{ZERORUN_BUILD_DIR, uint64_t{1} << 20, {}}}, 2), "no error");
}

TEST(DirectFile, RoomForOneOfTwoFilesOnADiskIsNotRoomForBoth) {
  const uint64_t half = available(ZERORUN_BUILD_DIR) / 2 + (uint64_t{1} << 30);
  const FileRequest states{ZERORUN_BUILD_DIR, half, {}};
  const FileRequest parameters{ZERORUN_BUILD_DIR "/.", half, {.folder = "/other"}};
  EXPECT_THAT(room_error({states, parameters}, 1),
              HasSubstr("the files of the rank of this host need " + format_bytes(2 * half)));
  EXPECT_EQ(room_error({states, {"", 0, {}}}, 1), "no error");
}

TEST(DirectFile, NamesTheSettingThatNamedTheFolder) {
  EXPECT_THAT(error_of("/no/such", 1),
              StartsWith("/zero_optimization/offload_optimizer/nvme_path /no/such: No such file"));
  const FilePurpose bench{.folder = "bench:", .content = "a file", .instead = "do less"};
  EXPECT_THAT(error_of("/no/such", 1, bench), StartsWith("bench: /no/such: No such file"));
  const std::string large = error_of(ZERORUN_BUILD_DIR, uint64_t{1} << 60, bench);
  EXPECT_THAT(large,
              HasSubstr("cannot reserve " + format_bytes(uint64_t{1} << 60) + " for a file"));
  EXPECT_THAT(large, HasSubstr("name another disk, or do less"));
}

}  // namespace
}  // namespace zerorun
