#include "tools/bench_nvme.h"

#include <fmt/format.h>

#include <vector>

#include "offload/block_io.h"
#include "offload/direct_file.h"
#include "zerorun/device.h"

namespace zerorun {

namespace {

constexpr uint64_t kMemory = uint64_t{64} << 20;  // memory of the blocks
constexpr double kGB = 1e9;

// Transfers the whole file once in blocks of `block` bytes, `depth` at a time. Returns bytes per
// second.
double measure(const DirectFile& file, std::span<std::byte> memory, Direction direction,
               int64_t block, int depth, std::string& way) {
  const std::vector<std::span<std::byte>> all = {memory};
  const auto io = make_block_io(file.open(), {.block_size = block, .queue_depth = depth}, all);
  way = io->name();
  return transfer_rate(*io, direction, memory, static_cast<size_t>(block), file.nbytes());
}

}  // namespace

void bench_nvme(const std::string& folder, uint64_t nbytes,
                const std::function<void(const std::string&)>& print) {
  const DirectFile file(folder, "benchmark", nbytes,
                        {.folder = "bench nvme:",
                         .content = "the file to measure with",
                         .instead = "measure with less (--gib)"});
  const auto device = make_cpu_device();
  const Buffer buffer = device->allocate_pinned(kMemory);
  device->fill(device->inline_stream(), view_of(buffer, DType::fp32, kMemory / sizeof(float)),
               1.0F);
  const std::span<std::byte> memory(buffer.data(), kMemory);
  std::string way;
  // Writes the file first, because blocks that were never written are faster to read and slower to
  // write.
  measure(file, memory, Direction::write, 1 << 20, 8, way);
  print(fmt::format("{}: {:.1f} GB, direct I/O through {}", folder,
                    static_cast<double>(nbytes) / kGB, way));
  print(fmt::format("{:>10}{:>8}{:>12}{:>12}", "block", "depth", "read GB/s", "write GB/s"));
  double best_read = 0;
  double best_write = 0;
  double best_both = 0;
  int64_t best_block = 0;
  int best_depth = 0;
  for (const int64_t block : {int64_t{128} << 10, int64_t{1} << 20, int64_t{8} << 20}) {
    for (const int depth : {1, 8, 32}) {
      const double read = measure(file, memory, Direction::read, block, depth, way);
      const double write = measure(file, memory, Direction::write, block, depth, way);
      print(fmt::format("{:>6} KiB{:>8}{:>12.2f}{:>12.2f}", block >> 10, depth, read / kGB,
                        write / kGB));
      const double both = 1 / (1 / read + 1 / write);
      if (both <= best_both) continue;
      best_both = both;
      best_read = read;
      best_write = write;
      best_block = block;
      best_depth = depth;
    }
  }
  // Adam: master and two moments in fp32, each read and written once.
  constexpr double kStateBytes = 12e9;
  print(fmt::format("best: \"aio\": {{\"block_size\": {}, \"queue_depth\": {}}}", best_block,
                    best_depth));
  print(
      fmt::format("a step of Adam takes about {:.1f} s per billion parameters that this host "
                  "offloads (12 GB read in {:.1f} s, 12 GB written in {:.1f} s)",
                  kStateBytes / best_both, kStateBytes / best_read, kStateBytes / best_write));
}

}  // namespace zerorun
