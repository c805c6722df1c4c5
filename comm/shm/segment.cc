#include "comm/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include "core/check.h"
#include "core/format_bytes.h"
#include "os/page_pool.h"

namespace zerorun {

namespace {

std::string error_text() { return std::strerror(errno); }

}  // namespace

std::string encode(const SegmentTicket& ticket) {
  return fmt::format("{} {} {} {} {} {} {} {}", ticket.owner.boot_id.data(),
                     ticket.owner.pid_namespace, ticket.owner.pid, ticket.owner.start_time,
                     ticket.fd, ticket.device, ticket.inode, ticket.nbytes);
}

SegmentTicket decode_ticket(const std::string& text) {
  std::istringstream fields(text);
  SegmentTicket ticket;
  std::string boot_id;
  fields >> boot_id >> ticket.owner.pid_namespace >> ticket.owner.pid >> ticket.owner.start_time >>
      ticket.fd >> ticket.device >> ticket.inode >> ticket.nbytes;
  if (!fields || boot_id.size() >= ticket.owner.boot_id.size() || ticket.owner.pid <= 0 ||
      ticket.fd < 0) {
    fail<CommError>("the store's entry for shared memory is '{:.80}': expected a segment's ticket",
                    text);
  }
  boot_id.copy(ticket.owner.boot_id.data(), boot_id.size());
  return ticket;
}

std::shared_ptr<Segment> Segment::create(size_t nbytes) {
  FileDescriptor file(memfd_create("zerorun", MFD_CLOEXEC));
  if (!file || ftruncate(file.get(), static_cast<off_t>(nbytes)) != 0) {
    const int error = errno;
    fail<DeviceError>("cannot make {} of shared memory: {}{}", format_bytes(nbytes),
                      std::strerror(error), remedy_of_limit(error));
  }
  struct stat status {};
  ZR_CHECK(fstat(file.get(), &status) == 0, "fstat of a new memfd: {}", error_text());
  const SegmentTicket ticket{this_process(), status.st_dev, status.st_ino, nbytes, file.get()};
  return std::shared_ptr<Segment>(new Segment(std::move(file), ticket));
}

std::shared_ptr<Segment> Segment::open(const SegmentTicket& ticket) {
  const ProcessIdentity& owner = ticket.owner;
  if (!this_process().can_see(owner)) {
    fail<CommError>(
        "the rank that made the shared memory (pid {}) runs on another host or in another "
        "container than this one ({}): shared memory needs all ranks in one",
        owner.pid, host_name());
  }
  const std::string path = fmt::format("/proc/{}/fd/{}", owner.pid, ticket.fd);
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) {
    fail<CommError>(
        "cannot open the shared memory of process {} ({}: {}): {}", owner.pid, path, error_text(),
        errno == EACCES || errno == EPERM ? "all ranks must run as one user" : "it has ended");
  }
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || status.st_dev != ticket.device ||
      status.st_ino != ticket.inode || static_cast<uint64_t>(status.st_size) != ticket.nbytes) {
    fail<CommError>("{} is not the shared memory that process {} announced: the process has ended",
                    path, owner.pid);
  }
  std::shared_ptr<Segment> segment(new Segment(std::move(file), ticket));
  segment->close_file();
  return segment;
}

Segment::Segment(FileDescriptor file, const SegmentTicket& ticket)
    : file_(std::move(file)), ticket_(ticket) {
  void* data = mmap(nullptr, ticket.nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (data == MAP_FAILED) {
    fail<DeviceError>("cannot map {} of shared memory: {}", format_bytes(ticket.nbytes),
                      error_text());
  }
  data_ = static_cast<std::byte*>(data);
  // Most hosts do not give huge pages to shared memory: where they do, it is faster.
  madvise(data, ticket.nbytes, MADV_HUGEPAGE);
}

Segment::~Segment() { munmap(data_, ticket_.nbytes); }

void reserve_pages(std::byte* data, size_t nbytes) {
  const int error = nbytes == 0 ? 0 : populate_pages(data, nbytes);
  if (error == 0 || error == EINVAL) return;  // Linux before 5.14: pages come at the first touch
  fail<DeviceError>("cannot reserve {} of shared memory: {}", format_bytes(nbytes),
                    std::strerror(error));
}

void LocalSegments::add(const std::shared_ptr<Segment>& segment) {
  const std::lock_guard lock(mutex_);
  std::erase_if(by_inode_, [](const auto& entry) { return entry.second.expired(); });
  by_inode_[segment->ticket().inode] = segment;
}

std::shared_ptr<Segment> LocalSegments::find(const SegmentTicket& ticket) {
  const std::lock_guard lock(mutex_);
  const auto found = by_inode_.find(ticket.inode);
  std::shared_ptr<Segment> segment = found == by_inode_.end() ? nullptr : found->second.lock();
  if (!segment) fail<CommError>("the rank that made the shared memory has dropped it");
  return segment;
}

}  // namespace zerorun
