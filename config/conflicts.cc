#include "config/conflicts.h"

#include "core/check.h"
#include "zerorun/dtype.h"
#include "zerorun/version.h"

namespace zerorun {

namespace {

constexpr std::string_view kBf16 = "/bf16/enabled";
constexpr std::string_view kTrainDtype = "/zerorun/train/dtype";

bool is_true(const JsonNode* value) { return value != nullptr && value->boolean; }

// The dtype of the parameters, by the keys that decide it.
DType model_dtype(const GivenKeys& keys) {
  if (const JsonNode* enabled = given_value(keys, kBf16)) {
    return enabled->boolean ? DType::bf16 : DType::fp32;
  }
  const JsonNode* dtype = given_value(keys, kTrainDtype);
  return dtype == nullptr ? DType::fp32 : parse_dtype(dtype->text);
}

void check_precision(const GivenKeys& keys, ConfigProblems& problems) {
  const JsonNode* bf16 = given_value(keys, kBf16);
  const JsonNode* fp16 = given_value(keys, "/fp16/enabled");
  if (is_true(bf16) && is_true(fp16)) {
    problems.add("/fp16/enabled", fp16->where,
                 "true contradicts {} at {}:{}, also true; enable one of them", kBf16,
                 bf16->where.line, bf16->where.column);
  }
  const JsonNode* dtype = given_value(keys, kTrainDtype);
  if (bf16 != nullptr && dtype != nullptr && bf16->boolean != (dtype->text == "bf16")) {
    problems.add(kTrainDtype, dtype->where, "\"{}\" contradicts {} {} at {}:{}; remove one of them",
                 dtype->text, kBf16, bf16->boolean, bf16->where.line, bf16->where.column);
  }
}

void check_dtypes(const GivenKeys& keys, ConfigProblems& problems) {
  const DType model = model_dtype(keys);
  constexpr std::string_view kParamDtype = "/data_types/param_dtype";
  const JsonNode* param = given_value(keys, kParamDtype);
  if (param != nullptr && parse_dtype(param->text) != model) {
    problems.add(kParamDtype, param->where,
                 "\"{}\" contradicts {}, by which parameters are {}; remove this key", param->text,
                 kBf16, name_of(model));
  }
  constexpr std::string_view kWire = "/communication_data_type";
  const JsonNode* wire = given_value(keys, kWire);
  if (wire != nullptr && parse_dtype(wire->text) != model) {
    problems.add(kWire, wire->where,
                 "got \"{}\" with {} parameters, not supported yet by zerorun {}; expected \"{}\"",
                 wire->text, name_of(model), ZERORUN_VERSION, name_of(model));
  }
}

void check_micro_batch(const GivenKeys& keys, ConfigProblems& problems) {
  constexpr std::string_view kOption = "/zerorun/train/micro_batch";
  constexpr std::string_view kKey = "/train_micro_batch_size_per_gpu";
  const JsonNode* option = given_value(keys, kOption);
  const JsonNode* key = given_value(keys, kKey);
  if (option != nullptr && key != nullptr && as_integer(*option) != as_integer(*key)) {
    problems.add(kOption, option->where, "{} contradicts {} {} at {}:{}; remove one of them",
                 to_text(*option), kKey, to_text(*key), key->where.line, key->where.column);
  }
}

}  // namespace

void check_conflicts(const GivenKeys& keys, ConfigProblems& problems) {
  check_precision(keys, problems);
  check_dtypes(keys, problems);
  check_micro_batch(keys, problems);
}

}  // namespace zerorun
