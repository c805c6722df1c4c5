#include "offload/disk_speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "device/memory_ledger.h"
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

DiskSpeed measure_disk(const std::filesystem::path& folder, const AioConfig& aio,
                       const FilePurpose& purpose) {
  const DirectFile file(folder, "speed of the disk", kProbe, purpose);
  const auto device = make_cpu_device();
  const Buffer buffer = device->allocate_pinned(kProbe);
  const std::span<std::byte> memory(buffer.data(), kProbe);
  std::fill(memory.begin(), memory.end(), std::byte{1});
  const auto block = std::min<size_t>(static_cast<size_t>(aio.block_size), kProbe);
  const auto io = make_block_io(file.open(), aio, std::vector<std::span<std::byte>>{memory});
  const double write = transfer_rate(*io, Transfer::write, memory, block, kProbe);
  return {.read = transfer_rate(*io, Transfer::read, memory, block, kProbe), .write = write};
}

std::string slow_disk_advice(const std::filesystem::path& folder, const DiskSpeed& speed,
                             uint64_t nbytes, int ranks) {
  if (std::min(speed.read, speed.write) * ranks >= kSlow) return {};
  const auto moved = static_cast<double>(nbytes);
  return fmt::format(
      "{} is slow: {:.0f} MB/s read and {:.0f} MB/s written by each of {} ranks, so the {} that "
      "each "
      "has there take about {:.0f} s to read and write once. `zerorun bench nvme {}` measures "
      "more; "
      "name a faster disk, or offload a smaller part",
      folder.string(), speed.read / kMB, speed.write / kMB, ranks, format_bytes(nbytes),
      moved / speed.read + moved / speed.write, folder.string());
}

}  // namespace zerorun
