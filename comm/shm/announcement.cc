#include "comm/shm/announcement.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <tuple>

namespace zerorun::shm {

namespace {

auto meaning(const Announcement& a) {
  return std::tie(a.sequence, a.operation, a.numel, a.dtype, a.out_dtype, a.reduce, a.output,
                  a.sharing, a.root, a.label_hash);
}

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
  }
  return "?";
}

Operation operation_of(Collective op) {
  switch (op) {
    case Collective::all_reduce:
      return Operation::all_reduce;
    case Collective::reduce_scatter:
      return Operation::reduce_scatter;
    case Collective::all_gather:
      return Operation::all_gather;
    case Collective::all_to_all:
      return Operation::all_to_all;
    case Collective::broadcast:
      return Operation::broadcast;
    case Collective::barrier:
      return Operation::barrier;
  }
  return Operation::barrier;
}

// The operation and what else it was asked to do.
std::string call(const Announcement& a) {
  const std::string_view added = a.output == Output::accumulate ? ", accumulate" : "";
  switch (a.operation) {
    case Operation::join:
      return "the start of the job";
    case Operation::all_reduce:
      return fmt::format("all_reduce({} to {}{})", name_of(a.reduce), zerorun::name_of(a.out_dtype),
                         added);
    case Operation::reduce_scatter:
      return fmt::format("reduce_scatter(to {}{})", zerorun::name_of(a.out_dtype), added);
    case Operation::all_gather:
      return "all_gather";
    case Operation::all_to_all:
      return "all_to_all";
    case Operation::broadcast:
      return fmt::format("broadcast(from rank {})", a.root);
    case Operation::barrier:
      return "barrier";
    case Operation::allocate:
      return a.sharing == Sharing::per_host ? "allocate(per_host)" : "allocate(per_rank)";
  }
  return "?";
}

}  // namespace

Announcement announcement_of(const CollectiveCall& call) {
  Announcement mine;
  mine.operation = operation_of(call.op);
  mine.numel = call.in.numel;
  mine.dtype = call.in.dtype;
  mine.out_dtype = call.out.dtype;
  mine.reduce = call.reduce;
  mine.output = call.output;
  mine.root = call.root;
  mine.number = call.number;
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
  if (a.operation == Operation::join) return call(a);
  std::string text = fmt::format("{} #{}", call(a), a.number != 0 ? a.number : a.sequence);
  if (a.label[0] != '\0') text += fmt::format(" '{}'", a.label.data());
  if (a.operation == Operation::allocate) return text + fmt::format(" of {} bytes", a.numel);
  if (a.operation == Operation::barrier) return text;
  return text + fmt::format(" of {} {}", a.numel, zerorun::name_of(a.dtype));
}

}  // namespace zerorun::shm
