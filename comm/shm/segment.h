#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "os/file_descriptor.h"
#include "os/process_identity.h"

namespace zerorun {

// What a peer needs to map a segment. Trivially copyable.
struct SegmentTicket {
  ProcessIdentity owner;
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t nbytes = 0;
  int32_t fd = -1;
};
// Encodes a ticket as one line of text, for a Store.
std::string encode(const SegmentTicket& ticket);
// Throws CommError for text that encode() did not produce.
SegmentTicket decode_ticket(const std::string& text);

// Memory that several processes map. It is a file without a name (memfd), so it disappears with its
// last user, however that ends, and does not depend on the size of /dev/shm. Zero-filled.
class Segment {
 public:
  // Throws DeviceError that names the size.
  static std::shared_ptr<Segment> create(size_t nbytes);
  // Maps the segment of another process. Throws CommError if that is impossible because the process
  // is on another host, belongs to another user or has ended.
  static std::shared_ptr<Segment> open(const SegmentTicket& ticket);

  ~Segment();

  std::byte* data() const { return data_; }
  const SegmentTicket& ticket() const { return ticket_; }
  // Called by the rank that created the segment: nobody can map it after this; existing mappings
  // stay.
  void close_file() { file_.close(); }

 private:
  Segment(FileDescriptor file, const SegmentTicket& ticket);

  FileDescriptor file_;
  const SegmentTicket ticket_;
  std::byte* data_ = nullptr;
};

// Allocates the pages of [data, data + nbytes) now, on this thread's NUMA node. Otherwise they are
// allocated at the first access, where a lack of memory raises a signal. Throws DeviceError.
void reserve_pages(std::byte* data, size_t nbytes);

// The segments of ranks that are threads of one process. All of them use one mapping at one
// address.
class LocalSegments {
 public:
  void add(const std::shared_ptr<Segment>& segment);
  // Throws CommError if the owner has dropped the segment.
  std::shared_ptr<Segment> find(const SegmentTicket& ticket);

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<Segment>> by_inode_;
};

}  // namespace zerorun
