#include "os/page_pool.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/format_bytes.h"

namespace zerorun {

namespace {

constexpr size_t kPageTable = size_t{2} << 20;  // the system moves the pages of a whole one at once

size_t rounded_up(size_t nbytes, size_t unit) { return (nbytes + unit - 1) / unit * unit; }

// Addresses that begin with a page table; nullptr: there are none.
std::byte* map(size_t nbytes, int protection) {
  const size_t all = nbytes + kPageTable;
  void* const mapped =
      ::mmap(nullptr, all, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapped);
  const size_t before = rounded_up(reinterpret_cast<uintptr_t>(mapped), kPageTable) -
                        reinterpret_cast<uintptr_t>(mapped);
  if (before > 0) ::munmap(begin, before);
  if (before < kPageTable) ::munmap(begin + before + nbytes, kPageTable - before);
  return begin + before;
}

// Both keep their addresses, and `from` is then without memory.
bool move_pages(void* from, size_t nbytes, void* to) {
  return ::mremap(from, nbytes, nbytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) == to;
}

[[noreturn]] void refuse(size_t nbytes, int error) {
  fail<DeviceError>(
      "cannot get {} of host memory for gathered parameters: {}. Free memory, lower "
      "/zero_optimization/stage3_max_live_parameters, or raise vm.max_map_count",
      format_bytes(nbytes), std::strerror(error));
}

}  // namespace

PagePool::~PagePool() {
  for (const auto& [range, pages] : ranges_) ::munmap(pages.at, pages.nbytes);
  for (const Pages& pages : spare_) ::munmap(pages.at, pages.nbytes);
  for (const Pages& pages : empty_) ::munmap(pages.at, pages.nbytes);
}

std::byte* PagePool::reserve(int range, size_t nbytes) {
  const std::lock_guard lock(mutex_);
  ZR_CHECK(ranges_.count(range) == 0, "range {} is reserved twice", range);
  const size_t all = rounded_up(std::max<size_t>(nbytes, 1), static_cast<size_t>(::getpagesize()));
  std::byte* const at = map(all, PROT_NONE);
  if (at == nullptr) refuse(all, errno);
  ranges_[range] = {at, all};
  // Room for all that can ever be spare, so that give() allocates nothing.
  spare_.reserve(ranges_.size());
  empty_.reserve(ranges_.size());
  return at;
}

std::byte* PagePool::take(int range, size_t nbytes) {
  const std::lock_guard lock(mutex_);
  ZR_CHECK(ranges_.count(range) == 1, "range {} is not reserved", range);
  const Pages to = ranges_.at(range);
  ZR_CHECK(nbytes <= to.nbytes, "range {} has {} bytes, {} are asked for", range, to.nbytes,
           nbytes);
  const Pages pages = pick(spare_, to.nbytes);
  if (pages.at != nullptr) spare_bytes_ -= pages.nbytes;
  const bool moved = pages.at != nullptr && move_pages(pages.at, pages.nbytes, to.at);
  if (moved) {
    empty_.push_back(pages);
  } else {
    if (pages.at != nullptr) ::munmap(pages.at, pages.nbytes);
    if (::mprotect(to.at, to.nbytes, PROT_READ | PROT_WRITE) != 0) refuse(to.nbytes, errno);
  }
  taken_bytes_ += to.nbytes;
  most_taken_bytes_ = std::max(most_taken_bytes_, taken_bytes_);
  while (taken_bytes_ + spare_bytes_ > most_taken_bytes_) {
    const Pages oldest = spare_.front();
    spare_.erase(spare_.begin());
    spare_bytes_ -= oldest.nbytes;
    ::munmap(oldest.at, oldest.nbytes);
  }
  return to.at;
}

void PagePool::give(int range) noexcept {
  const std::lock_guard lock(mutex_);
  const Pages pages = ranges_.at(range);
  taken_bytes_ -= pages.nbytes;
  if (!keep(pages)) ::madvise(pages.at, pages.nbytes, MADV_DONTNEED);
  ::mprotect(pages.at, pages.nbytes, PROT_NONE);
}

PagePool::Pages PagePool::pick(std::vector<Pages>& from, size_t nbytes) {
  const auto found = std::find_if(from.begin(), from.end(),
                                  [&](const Pages& pages) { return pages.nbytes == nbytes; });
  if (found == from.end()) return {};
  const Pages pages = *found;
  from.erase(found);
  return pages;
}

bool PagePool::keep(const Pages& range) {
  Pages at = pick(empty_, range.nbytes);
  if (at.at == nullptr) at = {map(range.nbytes, PROT_READ | PROT_WRITE), range.nbytes};
  if (at.at == nullptr) return false;
  if (!move_pages(range.at, range.nbytes, at.at)) {
    ::munmap(at.at, at.nbytes);
    return false;
  }
  spare_.push_back(at);
  spare_bytes_ += at.nbytes;
  return true;
}

}  // namespace zerorun
