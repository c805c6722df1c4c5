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

// Tells a peer how to map a segment. Trivially copyable.
struct SegmentTicket {
  ProcessIdentity owner;
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t nbytes = 0;
  int32_t fd = -1;
};
// One line of text, for a Store.
std::string encode(const SegmentTicket& ticket);
// Throws CommError for text that encode() did not make.
SegmentTicket decode_ticket(const std::string& text);

// Memory that several processes map: a file without a name (memfd), so that nothing is left behind
// however its users end, and the size of /dev/shm does not matter. Zero-filled.
class Segment {
 public:
  // Throws DeviceError naming the size and what is available.
  static std::shared_ptr<Segment> create(size_t nbytes);
  // Maps the segment of another process. Throws CommError when that is impossible: other host,
  // other user, gone.
  static std::shared_ptr<Segment> open(const SegmentTicket& ticket);

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  std::byte* data() const { return data_; }
  const SegmentTicket& ticket() const { return ticket_; }
  // Ends the use of the ticket, by the rank that made the segment; mappings stay.
  void close_file() { file_.close(); }

 private:
  Segment(FileDescriptor file, const SegmentTicket& ticket);

  FileDescriptor file_;
  const SegmentTicket ticket_;
  std::byte* data_ = nullptr;
};

// Gives the pages of `nbytes` bytes at `data` memory now, on this thread's NUMA node, instead of at
// the first touch, where a lack of memory is a signal. Throws DeviceError.
void reserve_pages(std::byte* data, size_t nbytes);

// The segments of ranks that are threads of one process: all use one mapping, at one address.
class LocalSegments {
 public:
  void add(const std::shared_ptr<Segment>& segment);
  // Throws CommError when its owner has dropped the segment.
  std::shared_ptr<Segment> find(const SegmentTicket& ticket);

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<Segment>> by_inode_;
};

}  // namespace zerorun
