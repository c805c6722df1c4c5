#include "device/device_calls.h"

#include "core/check.h"
#include "device/convert.h"
#include "zerorun/exact_sum.h"

namespace zerorun {

namespace {

bool is_floating(DType dtype) {
  return dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16;
}

void check_same_numel(TensorView a, TensorView b, std::string_view kernel) {
  ZR_CHECK(a.numel == b.numel, "{}: got views of {} and {} elements", kernel, a.numel, b.numel);
}

void check_floating(TensorView view, std::string_view kernel) {
  ZR_CHECK(is_floating(view.dtype), "{}: got {}, expected fp32, bf16 or fp16", kernel,
           name_of(view.dtype));
}

bool is_step(UpdateRule rule) {
  return rule != UpdateRule::lamb_direction && rule != UpdateRule::muon_direction;
}

// Returns the minimum number of states of a rule; sgd may have one more.
int states_of(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::sgd:
      return 0;
    case UpdateRule::adagrad:
    case UpdateRule::lion:
    case UpdateRule::muon_direction:
      return 1;
    case UpdateRule::adam:
    case UpdateRule::lamb:
    case UpdateRule::lamb_direction:
      return 2;
  }
  return 0;
}

void check_state(UpdateRule rule, const UpdateTensors& tensors, size_t index) {
  const TensorView state = tensors.states[index];
  if (state.data == nullptr && state.empty()) return;
  check_same_numel(tensors.master, state, "update");
  if (state.dtype != DType::uint8) return check_floating(state, "update");
  const TensorView scales = tensors.scales[index];
  ZR_CHECK(rule == UpdateRule::adam, "update: only adam has states in uint8");
  ZR_CHECK(
      scales.dtype == DType::fp32 && scales.numel == (state.numel + kStateBlock - 1) / kStateBlock,
      "update: got {} scales of {} for {} elements", scales.numel, name_of(scales.dtype),
      state.numel);
}

void check_tensors(UpdateRule rule, const UpdateTensors& tensors) {
  const bool in_place = tensors.param.data == tensors.master.data;
  check_floating(tensors.master, "update");
  check_floating(tensors.param, "update");
  check_same_numel(tensors.master, tensors.param, "update");
  ZR_CHECK(in_place ? tensors.master.dtype == tensors.param.dtype || tensors.param.empty()
                    : tensors.master.dtype == DType::fp32 || !is_step(rule),
           "update: got a master in {} and a parameter in {}, expected fp32 or one tensor for both",
           name_of(tensors.master.dtype), name_of(tensors.param.dtype));
  if (rule != UpdateRule::lamb) {
    check_floating(tensors.grad, "update");
    check_same_numel(tensors.master, tensors.grad, "update");
  }
  const int states = states_of(rule);
  ZR_CHECK((tensors.states[0].numel == tensors.master.numel || states < 1) &&
               (tensors.states[1].numel == tensors.master.numel || states < 2),
           "update: got states of {} and {} elements, expected {} of {}", tensors.states[0].numel,
           tensors.states[1].numel, states, tensors.master.numel);
  for (size_t i = 0; i < tensors.states.size(); ++i) check_state(rule, tensors, i);
  ZR_CHECK(is_step(rule) || (tensors.param.dtype == DType::fp32 && !in_place),
           "update: a direction is written in fp32, beside the master");
  const TensorView ratios = tensors.trust_ratios;
  ZR_CHECK(ratios.data == nullptr || (rule == UpdateRule::lamb && ratios.dtype == DType::fp32),
           "update: got trust ratios in {} for rule {}, expected fp32 and only for lamb",
           name_of(ratios.dtype), static_cast<int>(rule));
}

void check_quantized(TensorView view, int64_t numel, int bits, int parts, std::string_view kernel) {
  ZR_CHECK((bits == 4 || bits == 8) && parts > 0 && numel % kQuantizedBlock == 0 &&
               view.dtype == DType::uint8 && view.numel == parts * quantized_nbytes(numel, bits),
           "{}: got {} {} for {} x {} elements in {} bits each, expected 4 or 8 bits and {} bytes",
           kernel, view.numel, name_of(view.dtype), parts, numel, bits,
           parts * quantized_nbytes(numel, bits));
}

template <typename Segment>
void check_order(std::span<const Segment> segments, int64_t numel, std::string_view kernel) {
  int64_t end = 0;
  for (const Segment& segment : segments) {
    ZR_CHECK(segment.begin >= end && segment.numel >= 0 && segment.begin + segment.numel <= numel,
             "{}: got a segment of {} elements at {} behind {}, expected ascending ones in {}",
             kernel, segment.numel, segment.begin, end, numel);
    end = segment.begin + segment.numel;
  }
}

}  // namespace

void fail_not_floating(DType dtype) {
  fail<InternalError>("got {}, expected fp32, bf16 or fp16", name_of(dtype));
}

void check_update(const UpdateTensors& tensors, std::span<const UpdateSegment> segments) {
  if (segments.empty()) return;
  const UpdateScalars& first = segments.front().scalars;
  check_tensors(first.rule, tensors);
  check_order(segments, tensors.master.numel, "update");
  const TensorView ratios = tensors.trust_ratios;
  const bool in_blocks =
      tensors.states[0].dtype == DType::uint8 || tensors.states[1].dtype == DType::uint8;
  for (const UpdateSegment& segment : segments) {
    const UpdateScalars& scalars = segment.scalars;
    ZR_CHECK(scalars.rule == first.rule && scalars.step == first.step,
             "update: got a segment of rule {} and step {}, expected {} and {} as before",
             static_cast<int>(scalars.rule), scalars.step, static_cast<int>(first.rule),
             first.step);
    ZR_CHECK(ratios.data == nullptr || segment.parameter < ratios.numel,
             "update: got parameter {} and {} trust ratios", segment.parameter, ratios.numel);
    ZR_CHECK(segment.element % kStateBlock == 0 && (!in_blocks || segment.begin % kStateBlock == 0),
             "update: got element {} at {}, expected multiples of {}", segment.element,
             segment.begin, kStateBlock);
  }
}

void check_cast(TensorView src, TensorView dst) {
  check_same_numel(src, dst, "cast");
  ZR_CHECK(src.dtype == dst.dtype || (is_floating(src.dtype) && is_floating(dst.dtype)),
           "cast: got {} to {}, expected one dtype or two floating ones", name_of(src.dtype),
           name_of(dst.dtype));
}

void check_add(TensorView src, TensorView dst) {
  check_same_numel(src, dst, "add");
  check_floating(src, "add");
  check_floating(dst, "add");
}

void check_copy(std::span<const TensorCopy> copies) {
  for (const TensorCopy& one : copies) check_add(one.src, one.dst);  // also valid for a cast
}

void check_decide(const StepEvidence& evidence, TensorView decision) {
  const auto check_words = [](TensorView view, int64_t expected, const char* what) {
    ZR_CHECK(view.dtype == DType::int64 && view.numel == expected,
             "decide: got {} of {} {} elements, expected {} int64", what, view.numel,
             name_of(view.dtype), expected);
  };
  const bool has_host = evidence.words.numel > ExactSum::kWords;
  check_words(evidence.words, (has_host ? int64_t{2} : 1) * ExactSum::kWords, "words");
  check_words(evidence.votes, 2, "votes");
  check_words(evidence.same, 2, "numbers");
  ZR_CHECK(decision.dtype == DType::fp32 && decision.numel == 2,
           "decide: got a decision of {} {} elements, expected 2 fp32", decision.numel,
           name_of(decision.dtype));
}

void check_trust_ratios(TensorView sums, TensorView ratios) {
  const int64_t part = 2 * ratios.numel * ExactSum::kWords;
  ZR_CHECK(sums.dtype == DType::int64 && ratios.dtype == DType::fp32 &&
               (sums.numel == part || sums.numel == 2 * part),
           "trust_ratios: got sums of {} {} elements for {} ratios in {}, expected {} int64, or "
           "twice as many, and fp32",
           sums.numel, name_of(sums.dtype), ratios.numel, name_of(ratios.dtype), part);
}

void check_scale(TensorView dst) { check_floating(dst, "scale"); }

void check_sum_of_squares(TensorView src, std::span<const SquaresSegment> segments,
                          TensorView sums) {
  check_floating(src, "sum_of_squares");
  check_order(segments, src.numel, "sum_of_squares");
  ZR_CHECK(sums.dtype == DType::int64 && sums.numel % ExactSum::kWords == 0,
           "sum_of_squares: got sums of {} {} elements, expected {} int64 each", sums.numel,
           name_of(sums.dtype), ExactSum::kWords);
  for (const SquaresSegment& segment : segments) {
    ZR_CHECK(segment.sum >= 0 && segment.sum < sums.numel / ExactSum::kWords,
             "sum_of_squares: got sum {}, expected one of {}", segment.sum,
             sums.numel / ExactSum::kWords);
  }
}

void check_quantize(TensorView src, TensorView dst, const Quantization& how) {
  check_floating(src, "quantize");
  check_quantized(dst, src.numel, how.bits, 1, "quantize");
  ZR_CHECK(how.rows > 0 && how.columns > 0 &&
               src.numel % (how.rows * how.columns * kQuantizedBlock) == 0,
           "quantize: got {} elements, expected {} x {} runs of blocks of {}", src.numel, how.rows,
           how.columns, kQuantizedBlock);
  if (how.lost.data == nullptr) return;
  ZR_CHECK(how.lost.dtype == DType::fp32, "quantize: got what was lost in {}, expected fp32",
           name_of(how.lost.dtype));
  check_same_numel(src, how.lost, "quantize");
}

void check_dequantize(TensorView src, TensorView dst, const Dequantization& how) {
  check_floating(dst, "dequantize");
  check_quantized(src, dst.numel, how.bits, how.parts, "dequantize");
  if (how.exact.data == nullptr) return;
  check_floating(how.exact, "dequantize");
  check_same_numel(dst, how.exact, "dequantize");
  ZR_CHECK(how.exact_part >= 0 && how.exact_part < how.parts,
           "dequantize: got part {} of {} as it was", how.exact_part, how.parts);
}

void check_orthogonalize(TensorView matrix, int64_t rows, int64_t cols, TensorView work) {
  ZR_CHECK(matrix.dtype == DType::fp32 && matrix.numel == rows * cols,
           "orthogonalize: got {} elements of {}, expected {} x {} of fp32", matrix.numel,
           name_of(matrix.dtype), rows, cols);
  ZR_CHECK(work.dtype == DType::fp32 && work.numel >= orthogonalize_work(rows, cols),
           "orthogonalize: got {} elements of {} to work in, expected {} of fp32", work.numel,
           name_of(work.dtype), orthogonalize_work(rows, cols));
}

// Where a device has no kernel for many at once.
void Device::copy(Stream& stream, std::span<const TensorCopy> copies) {
  for (const TensorCopy& one : copies) {
    if (one.accumulate) {
      add(stream, one.src, one.dst);
    } else {
      cast(stream, one.src, one.dst);
    }
  }
}

}  // namespace zerorun
