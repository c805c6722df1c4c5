#include "offload/disk_speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "device/memory_ledger.h"
#include "offload/direct_file.h"
#include "zerorun/device.h"

namespace zerorun {

namespace {

constexpr uint64_t kProbe = uint64_t{32} << 20;
constexpr double kSlow = 0.4e9;  // bytes per second; an SSD on SATA has 0.5e9
constexpr double kMB = 1e6;

}  // namespace

double transfer_rate(BlockIo& io, Transfer direction, std::span<std::byte> memory, size_t block,
                     uint64_t nbytes) {
  std::vector<Block> blocks;
  for (uint64_t at = 0; at + block <= nbytes; at += block) {
    blocks.push_back({memory.data() + at % (memory.size() / block * block), block, at});
  }
  const auto start = std::chrono::steady_clock::now();
  io.transfer(direction, blocks, [](size_t) {});
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return static_cast<double>(blocks.size() * block) / taken.count();
}

DiskSpeed measure_disk(const std::filesystem::path& folder, const AioConfig& aio, size_t memory) {
  const DirectFile file(folder, "speed of the disk", kProbe);
  const auto device = make_cpu_device();
  const auto block = std::min<size_t>(static_cast<size_t>(aio.block_size), kProbe);
  const Buffer buffer =
      device->allocate_pinned(std::max(block, std::min<size_t>(memory, kProbe) / block * block));
  const std::span<std::byte> all(buffer.data(), buffer.nbytes());
  std::fill(all.begin(), all.end(), std::byte{1});
  const auto io = make_block_io(file.open(), aio, std::vector<std::span<std::byte>>{all});
  const double write = transfer_rate(*io, Transfer::write, all, block, kProbe);
  return {.read = transfer_rate(*io, Transfer::read, all, block, kProbe), .write = write};
}

bool is_slow(const DiskSpeed& speed, int ranks) {
  return std::min(speed.read, speed.write) * ranks < kSlow;
}

std::string slow_disk_advice(const DiskUse& use, const DiskSpeed& speed,
                             const DiskSpeed& by_default) {
  const auto rates = [](const DiskSpeed& one) {
    return fmt::format("{:.0f} MB/s read and {:.0f} MB/s written", one.read / kMB, one.write / kMB);
  };
  const auto nbytes = static_cast<double>(use.nbytes);
  const std::string folder = use.folder.string();
  std::string text = fmt::format(
      "{} is slow: {} by each of {} ranks, so the {} that each has there take about {:.0f} s to "
      "read and write once. ",
      folder, rates(speed), use.ranks, format_bytes(use.nbytes),
      nbytes / speed.read + nbytes / speed.write);
  text += is_slow(by_default, use.ranks)
              ? "Name a faster disk, or offload a smaller part"
              : fmt::format(
                    "The block_size and queue_depth in /aio make it so: their defaults "
                    "give {}",
                    rates(by_default));
  return text + fmt::format("; `zerorun bench nvme {}` measures more", folder);
}

}  // namespace zerorun
