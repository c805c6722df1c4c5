#include "comm/collective_call.h"

#include <functional>

#include "core/check.h"

namespace zerorun {

namespace {

void check_view(const CollectiveCall& call, TensorView view) {
  ZR_CHECK(view.numel >= 0 && (view.data != nullptr || view.empty()),
           "{} '{}': got a view of {} elements at {}", name_of(call.op), call.label, view.numel,
           static_cast<const void*>(view.data));
}

void check_numel(const CollectiveCall& call, int64_t whole, int64_t part, int world_size) {
  ZR_CHECK(whole == part * world_size, "{} '{}': got {} and {} elements for {} ranks",
           name_of(call.op), call.label, call.in.numel, call.out.numel, world_size);
}

bool are_apart(TensorView a, TensorView b) {
  const std::less<const std::byte*> before;
  return a.empty() || b.empty() || !before(a.data, b.data + b.nbytes()) ||
         !before(b.data, a.data + a.nbytes());
}

void check_apart(const CollectiveCall& call) {
  ZR_CHECK(are_apart(call.in, call.out), "{} '{}': input and output overlap", name_of(call.op),
           call.label);
}

// The views are apart, or `part` is exactly [offset, offset + part.numel) of `whole`.
void check_overlap(const CollectiveCall& call, TensorView whole, TensorView part, int64_t offset) {
  if (whole.empty() || part.empty()) return;
  const bool apart = are_apart(whole, part);
  const bool own_slice =
      whole.dtype == part.dtype && part.data == whole.slice(offset, part.numel).data;
  ZR_CHECK(apart || own_slice,
           "{} '{}': input and output overlap, but neither is this rank's part of the other",
           name_of(call.op), call.label);
}

void check_reducible(const CollectiveCall& call) {
  const DType in = call.in.dtype;
  const DType out = call.out.dtype;
  const auto is_float = [](DType dtype) { return dtype != DType::int64 && dtype != DType::uint8; };
  const bool exact = in == out && (in == DType::fp32 || in == DType::int64);
  const bool converts = is_float(in) && is_float(out) && call.reduce == ReduceOp::sum;
  ZR_CHECK(
      exact || converts,
      "{} '{}': cannot reduce {} to {}; sums take fp32, bf16 and fp16 to any of these and int64 to "
      "int64, max and min take fp32 and int64 to the same",
      name_of(call.op), call.label, name_of(in), name_of(out));
}

}  // namespace

void check_call(const CollectiveCall& call, int rank, int world_size) {
  check_view(call, call.in);
  check_view(call, call.out);
  switch (call.op) {
    case Collective::all_reduce:
      check_reducible(call);
      check_numel(call, call.in.numel, call.out.numel, 1);
      return check_overlap(call, call.in, call.out, 0);
    case Collective::reduce_scatter:
      check_reducible(call);
      check_numel(call, call.in.numel, call.out.numel, world_size);
      return check_overlap(call, call.in, call.out, rank * call.out.numel);
    case Collective::all_gather:
      ZR_CHECK(call.in.dtype == call.out.dtype, "all_gather '{}': got {} to {}", call.label,
               name_of(call.in.dtype), name_of(call.out.dtype));
      check_numel(call, call.out.numel, call.in.numel, world_size);
      return check_overlap(call, call.out, call.in, rank * call.in.numel);
    case Collective::all_to_all:
      ZR_CHECK(call.in.dtype == call.out.dtype && call.in.numel % world_size == 0,
               "all_to_all '{}': got {} {} to {} for {} ranks", call.label, call.in.numel,
               name_of(call.in.dtype), name_of(call.out.dtype), world_size);
      check_numel(call, call.in.numel, call.out.numel, 1);
      return check_apart(call);
    case Collective::broadcast:
      ZR_CHECK(call.root >= 0 && call.root < world_size, "broadcast '{}': got root {} of {} ranks",
               call.label, call.root, world_size);
      return;
    case Collective::barrier:
      return;
  }
}

CollectiveCount count_of(const CollectiveCall& call) {
  const TensorView& whole = call.op == Collective::all_gather ? call.out : call.in;
  return {1, whole.numel, static_cast<int64_t>(whole.nbytes())};
}

}  // namespace zerorun
