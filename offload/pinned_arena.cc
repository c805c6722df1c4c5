#include "offload/pinned_arena.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/check.h"
#include "core/format_bytes.h"
#include "core/parallel.h"
#include "device/cpu/cpu_device.h"
#include "os/open_file.h"

namespace zerorun {

PinnedArena::PinnedArena(Device& device, size_t nbytes, size_t largest_block)
    : device_(device), nbytes_(nbytes), largest_block_(largest_block) {
  if (nbytes > 0) add_block(std::min(nbytes, largest_block));
}

// Views that are whole pages of the arena are so of every block.
void PinnedArena::add_block(size_t most) {
  taken_of_last_ = taken_ % kDirectAlignment;
  const size_t nbytes = taken_of_last_ + most;
  std::byte* const data = blocks_.emplace_back(device_.allocate_pinned(nbytes)).data();
  // What is moved to a mapping of the host's own, which is zero, needs the memory until then.
  if (device_.is_host() && nbytes >= kMappedBlock) return;
  constexpr int64_t kGrain = int64_t{4} << 20;
  parallel_for(static_cast<int64_t>(nbytes), kGrain, [data](int64_t begin, int64_t end) {
    std::memset(data + begin, 0, static_cast<size_t>(end - begin));
  });
}

TensorView PinnedArena::take(int64_t numel, DType dtype) {
  const size_t nbytes = nbytes_of(numel, dtype);
  ZR_CHECK(taken_ + nbytes <= nbytes_, "{} bytes more than the {} of the arena are taken",
           taken_ + nbytes - nbytes_, nbytes_);
  if (blocks_.empty()) return {nullptr, numel, dtype};
  if (taken_of_last_ + nbytes > blocks_.back().nbytes()) {
    add_block(std::max(nbytes, std::min(nbytes_ - taken_, largest_block_)));
  }
  const TensorView view = view_of(blocks_.back(), dtype, numel, taken_of_last_);
  taken_ += nbytes;
  taken_of_last_ += nbytes;
  return view;
}

void check_host_memory(const HostLimits& limits, size_t nbytes, int ranks,
                       std::string_view purpose) {
  const size_t needed = nbytes * static_cast<size_t>(ranks);
  const auto check = [&](const std::optional<int64_t>& available, std::string_view where) {
    if (!available || needed <= static_cast<size_t>(*available)) return;
    fail<ConfigError>(
        "{} needs {} of host memory for each of {} ranks, {} in all; {} has {} left. Use a higher "
        "ZeRO stage, fewer ranks per host, offload a smaller part (offload_optimizer.ratio), "
        "offload to \"nvme\", or give the job more memory",
        purpose, format_bytes(nbytes), ranks, format_bytes(needed), where,
        format_bytes(static_cast<size_t>(*available)));
  };
  check(limits.group_available, "the control group");
  check(limits.available, "the machine");
}

std::string locking_advice(const HostLimits& limits, size_t nbytes, int ranks) {
  const size_t needed = nbytes * static_cast<size_t>(ranks);
  if (!limits.lockable || needed <= static_cast<size_t>(*limits.lockable)) return {};
  return fmt::format(
      "io_uring would lock {} of buffers on this host, and `ulimit -l` allows {}: each transfer "
      "pins its pages anew, which costs time. Raise it (`ulimit -l unlimited`, docker run --ulimit "
      "memlock=-1)",
      format_bytes(needed), format_bytes(static_cast<size_t>(*limits.lockable)));
}

}  // namespace zerorun
