#include "checkpoint/record_runs.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "checkpoint/hash.h"
#include "offload/block_io.h"
#include "os/file_descriptor.h"

namespace zerorun {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Bytes of the file from `offset` on, as far as they can be read past the cache.
size_t read_direct(const File& file, uint64_t offset, std::span<std::byte> out) {
  const FileDescriptor direct(::open(file.path().c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  size_t done = 0;
  while (direct && done < out.size()) {
    const ssize_t count = ::pread(direct.get(), out.data() + done, out.size() - done,
                                  static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

}  // namespace

uint64_t RunInMemory::memory_for(const RecordRun& run) {
  const uint64_t begin = run.begin() / kDirectAlignment * kDirectAlignment;
  return align_direct(run.end()) - begin;
}

RunInMemory::RunInMemory(const CheckpointReader& checkpoint, const RecordRun& run)
    : begin_(run.begin() / kDirectAlignment * kDirectAlignment) {
  const size_t nbytes = memory_for(run);
  const size_t alignment = nbytes < kHugePage ? kDirectAlignment : kHugePage;
  const size_t allocated = (nbytes + alignment - 1) / alignment * alignment;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, allocated)));
  if (!memory_) throw std::bad_alloc();
  ::madvise(memory_.get(), allocated, MADV_HUGEPAGE);
  const File file = checkpoint.open(run.shard());
  const size_t done = read_direct(file, begin_, {memory_.get(), nbytes});
  for (const CheckpointReader::Record* record : run.records) {
    const std::span<std::byte> bytes(memory_.get() + (record->offset - begin_), record->nbytes());
    const size_t end = record->offset - begin_ + record->nbytes();
    if (end > done) checkpoint.read(file, *record, 0, bytes);  // says what the matter is
    checkpoint.check_hash(*record, hash_of(std::span<const std::byte>(bytes)));
  }
}

}  // namespace zerorun
