#include "comm/shm/announcement.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <tuple>

namespace zerorun::shm {

namespace {

auto meaning(const Announcement& a) {
  return std::tie(a.sequence, a.step, a.op, a.numel, a.dtype, a.out_dtype, a.reduce, a.output,
                  a.sharing, a.root, a.label_hash, a.cuts_hash);
}

std::string_view name_of(ReduceOp op) {
  static constexpr std::array<std::string_view, 3> kNames = {"sum", "max", "min"};
  const auto index = static_cast<size_t>(op);
  return index < kNames.size() ? kNames[index] : "?";  // what a peer announced
}

// What it does, without the tensors.
std::string call(const Announcement& a) {
  if (a.step == Step::join) return "the start of the job";
  if (a.step == Step::allocate) {
    return a.sharing == Sharing::per_host ? "allocate(per_host)" : "allocate(per_rank)";
  }
  const std::string_view added = a.output == Output::accumulate ? ", accumulate" : "";
  const std::string_view op = zerorun::name_of(a.op);
  const std::string_view to = zerorun::name_of(a.out_dtype);
  switch (a.op) {
    case Collective::all_reduce:
      return fmt::format("{}({} to {}{})", op, name_of(a.reduce), to, added);
    case Collective::reduce_scatter:
      return fmt::format("{}(to {}{})", op, to, added);
    case Collective::broadcast:
      return fmt::format("{}(from rank {})", op, a.root);
    default:
      return std::string(op);
  }
}

}  // namespace

Announcement announcement_of(const CollectiveCall& call) {
  Announcement mine;
  mine.step = Step::collective;
  mine.op = call.op;
  mine.numel = call.in.numel;
  mine.dtype = call.in.dtype;
  mine.out_dtype = call.out.dtype;
  mine.reduce = call.reduce;
  mine.output = call.output;
  mine.root = call.root;
  mine.number = call.number;
  if (!call.cuts) return mine;
  const auto hash = [](const std::vector<int64_t>& cuts, uint64_t seed) {
    return XXH3_64bits_withSeed(cuts.data(), cuts.size() * sizeof(int64_t), seed);
  };
  mine.numel = call.cuts->before.back() - call.cuts->before.front();
  mine.cuts_hash = hash(call.cuts->after, hash(call.cuts->before, 0));
  return mine;
}

void set_label(Announcement& announcement, std::string_view label) {
  announcement.label_hash = XXH3_64bits(label.data(), label.size());
  copy_cut(label, announcement.label);
}

bool same_operation(const Announcement& a, const Announcement& b) {
  return meaning(a) == meaning(b);
}

std::string describe(const Announcement& a) {
  if (a.step == Step::join) return call(a);
  std::string text = fmt::format("{} #{}", call(a), a.number != 0 ? a.number : a.sequence);
  if (a.label[0] != '\0') text += fmt::format(" '{}'", a.label.data());
  if (a.step == Step::allocate) return text + fmt::format(" of {} bytes", a.numel);
  if (a.op == Collective::barrier) return text;
  return text + fmt::format(" of {} {}", a.numel, zerorun::name_of(a.dtype));
}

}  // namespace zerorun::shm
