#include "comm/collective_call.h"

#include <algorithm>
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

// `part` is this rank's part by `cuts`, which go as far as `others`.
void check_cuts(const CollectiveCall& call, TensorView part, const std::vector<int64_t>& cuts,
                const std::vector<int64_t>& others, int rank, int world_size) {
  const auto own = static_cast<size_t>(rank);
  ZR_CHECK(cuts.size() == static_cast<size_t>(world_size) + 1 &&
               std::is_sorted(cuts.begin(), cuts.end()) && cuts.front() == others.front() &&
               cuts.back() == others.back(),
           "{} '{}': got {} cuts for {} ranks, expected one more, ascending, with the same ends",
           name_of(call.op), call.label, cuts.size(), world_size);
  ZR_CHECK(part.numel == cuts[own + 1] - cuts[own],
           "{} '{}': got {} elements, expected those between the cuts {} and {}", name_of(call.op),
           call.label, part.numel, cuts[own], cuts[own + 1]);
}

void check_all_to_all(const CollectiveCall& call, int rank, int world_size) {
  const bool same_size =
      call.cuts || (call.in.numel % world_size == 0 && call.in.numel == call.out.numel);
  ZR_CHECK(call.in.dtype == call.out.dtype && same_size,
           "all_to_all '{}': got {} {} to {} {} for {} ranks", call.label, call.in.numel,
           name_of(call.in.dtype), call.out.numel, name_of(call.out.dtype), world_size);
  if (call.cuts) {
    const auto& [before, after] = *call.cuts;
    ZR_CHECK(!after.empty(), "all_to_all '{}': got no cuts", call.label);
    check_cuts(call, call.in, before, after, rank, world_size);
    check_cuts(call, call.out, after, before, rank, world_size);
  }
  check_apart(call);
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
      return check_all_to_all(call, rank, world_size);
    case Collective::broadcast:
      ZR_CHECK(call.root >= 0 && call.root < world_size, "broadcast '{}': got root {} of {} ranks",
               call.label, call.root, world_size);
      return;
    case Collective::barrier:
      return;
  }
}

int64_t largest_part(const std::vector<int64_t>& cuts) {
  int64_t largest = 0;
  for (size_t i = 1; i < cuts.size(); ++i) largest = std::max(largest, cuts[i] - cuts[i - 1]);
  return largest;
}

Slices::Slice Slices::between(int from, int to) const {
  if (cuts_ == nullptr) return {slice_, to * slice_, from * slice_};
  const auto [source, owner] = std::pair(static_cast<size_t>(from), static_cast<size_t>(to));
  const auto& [before, after] = *cuts_;
  const int64_t end = std::min(before[source + 1], after[owner + 1]);
  return {std::max<int64_t>(0, end - std::max(before[source], after[owner])),
          std::max<int64_t>(0, after[owner] - before[source]),
          std::max<int64_t>(0, before[source] - after[owner])};
}

int64_t Slices::largest() const {
  if (cuts_ == nullptr) return slice_;
  std::vector<int64_t> all = cuts_->before;  // neighbours among them are the ends of a slice
  all.insert(all.end(), cuts_->after.begin(), cuts_->after.end());
  std::sort(all.begin(), all.end());
  return largest_part(all);
}

CollectiveCount count_of(const CollectiveCall& call) {
  if (call.cuts) {
    const auto ranks = static_cast<int64_t>(call.cuts->before.size()) - 1;
    const int64_t whole = call.cuts->before.back() - call.cuts->before.front();
    const int64_t mean = (whole + ranks - 1) / ranks;
    return {1, mean, mean * static_cast<int64_t>(size_of(call.in.dtype))};
  }
  const TensorView& whole = call.op == Collective::all_gather ? call.out : call.in;
  return {1, whole.numel, static_cast<int64_t>(whole.nbytes())};
}

}  // namespace zerorun
