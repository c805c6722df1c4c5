#include "device/cpu/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <charconv>
#include <cstdint>
#include <fstream>
#include <string>

namespace zerorun::host_memory {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What the kernel knows of the mapping that has this address.
std::string flags_at(const void* data) {
  std::ifstream maps("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    const char* const last = line.data() + line.size();
    const auto dash = std::from_chars(line.data(), last, begin, 16).ptr;
    if (dash != last && *dash == '-') {
      std::from_chars(dash + 1, last, end, 16);
      const auto address = reinterpret_cast<uintptr_t>(data);
      found = begin <= address && address < end;
    } else if (found && line.starts_with("VmFlags:")) {
      return line;
    }
  }
  return "";
}

TEST(HostMemoryTest, AsksForHugePagesInMemoryOfOthers) {
  constexpr size_t kSize = size_t{8} << 20;
  void* const mapped =
      ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const data = static_cast<std::byte*>(mapped);
  data[100] = std::byte{7};
  EXPECT_THAT(flags_at(data + kSize / 2), Not(HasSubstr(" hg")));
  use_huge_pages(data + 100, kSize - 4096);
  EXPECT_THAT(flags_at(data + kSize / 2), HasSubstr(" hg"));
  EXPECT_EQ(data[100], std::byte{7});
  EXPECT_THAT(flags_at(data + kSize - 1), Not(HasSubstr(" hg")));  // not beyond
  use_huge_pages(data + 1, 10);                                    // no whole page
  ::munmap(mapped, kSize);
}

}  // namespace
}  // namespace zerorun::host_memory
