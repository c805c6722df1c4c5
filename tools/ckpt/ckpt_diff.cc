#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/printable.h"
#include "tools/ckpt/ckpt_report.h"
#include "tools/terminal/tool.h"

namespace zerorun {

namespace {

using Json = nlohmann::ordered_json;

// The difference between the values of a parameter in two checkpoints.
struct Difference {
  std::string name;
  std::string kind;      // why values cannot be compared: "only in ...", shapes
  int64_t elements = 0;  // number of elements that differ
  int64_t numel = 0;
  double largest = 0;   // largest absolute difference; not finite if a value is not
  double relative = 0;  // norm of the difference divided by that of the first
};

std::map<std::string, size_t> index_by_name(const SavedModel& model) {
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < model.parameters().size(); ++i) index[model.parameters()[i].name] = i;
  return index;
}

Difference compare_values(const SavedValues& one, const SavedValues& other) {
  Difference difference{.name = {}, .kind = {}, .numel = one.numel()};
  double squares = 0;
  for (int64_t i = 0; i < one.numel(); ++i) {
    const double distance = one.distance(other, i);
    if (distance == 0) continue;
    ++difference.elements;
    difference.largest = std::isnan(distance) ? distance : std::max(difference.largest, distance);
    squares += distance * distance;
  }
  if (difference.elements > 0) difference.relative = std::sqrt(squares) / one.norm();
  return difference;
}

std::string shape_text(const SavedModel::Parameter& parameter) {
  return parameter.alias_of.empty() ? fmt::format("[{}]", fmt::join(parameter.shape, ", "))
                                    : "tied to " + printable(parameter.alias_of);
}

// Compares a parameter. The values are equal if `kind` is empty and `elements` is 0.
Difference compare_parameter(const SavedModel& one, size_t a, const SavedModel& other, size_t b) {
  const SavedModel::Parameter& first = one.parameters()[a];
  const SavedModel::Parameter& second = other.parameters()[b];
  Difference difference;
  if (first.shape != second.shape || first.alias_of != second.alias_of) {
    difference.kind = fmt::format("{} and {}", shape_text(first), shape_text(second));
  } else if (first.saved != second.saved) {
    difference.kind = "saved in one of them only";
  } else if (has_values(first)) {
    difference = compare_values(SavedValues(one, a), SavedValues(other, b));
  }
  difference.name = first.name;
  return difference;
}

std::vector<Difference> differences_of(const SavedModel& one, const SavedModel& other) {
  const auto others = index_by_name(other);
  uint64_t total = 0;
  for (const SavedModel::Parameter& parameter : one.parameters()) total += nbytes_of(parameter);
  ProgressBar bar("comparing", total);
  std::vector<Difference> all;
  std::set<std::string> seen;
  for (size_t i = 0; i < one.parameters().size(); ++i) {
    const SavedModel::Parameter& parameter = one.parameters()[i];
    seen.insert(parameter.name);
    const auto found = others.find(parameter.name);
    Difference difference{.name = parameter.name, .kind = "only in the first"};
    if (found != others.end()) difference = compare_parameter(one, i, other, found->second);
    if (!difference.kind.empty() || difference.elements > 0) all.push_back(difference);
    bar.add(nbytes_of(parameter));
  }
  for (const SavedModel::Parameter& parameter : other.parameters()) {
    if (!seen.contains(parameter.name)) {
      all.push_back({.name = parameter.name, .kind = "only in the second"});
    }
  }
  return all;
}

Json to_json(const Difference& difference) {
  if (!difference.kind.empty()) return {{"name", difference.name}, {"kind", difference.kind}};
  const auto number = [](double value) {
    return std::isfinite(value) ? Json(value) : Json(nullptr);
  };
  return {{"name", difference.name},
          {"elements", difference.elements},
          {"of", difference.numel},
          {"largest", number(difference.largest)},
          {"relative", number(difference.relative)}};
}

}  // namespace

std::string compare_checkpoints(const std::string& one, const std::string& other, Format format) {
  const SavedModel first(one);
  const SavedModel second(other);
  const std::vector<Difference> differences = differences_of(first, second);
  if (format == Format::json) {
    Json json = {{"first", {{"tag", first.tag()}, {"step", first.step()}}},
                 {"second", {{"tag", second.tag()}, {"step", second.step()}}},
                 {"equal", differences.empty()},
                 {"differences", Json::array()}};
    for (const Difference& difference : differences) {
      json["differences"].push_back(to_json(difference));
    }
    return json.dump(2, ' ', false, Json::error_handler_t::replace);
  }
  std::string text = fmt::format("first:  {}, step {}\nsecond: {}, step {}\n", one, first.step(),
                                 other, second.step());
  if (differences.empty()) return text + "all values of all parameters are equal\n";
  size_t width = 9;
  for (const Difference& difference : differences) {
    width = std::max(width, printable(difference.name).size());
  }
  text += fmt::format("\n{:<{}}  {:>12} {:>12} {:>10}\n", "parameter", width, "elements", "largest",
                      "relative");
  for (const Difference& difference : differences) {
    const std::string name = fmt::format("{:<{}}", printable(difference.name), width);
    text += difference.kind.empty()
                ? fmt::format("{}  {:>12} {:>12.4g} {:>10.2e}\n", name, difference.elements,
                              difference.largest, difference.relative)
                : fmt::format("{}  {}\n", name, difference.kind);
  }
  return text + fmt::format("{} of {} parameters differ\n", differences.size(),
                            std::max(first.parameters().size(), second.parameters().size()));
}

namespace {

int64_t numel_of(const SavedModel::Parameter& parameter) {
  int64_t numel = 1;
  for (const int64_t size : parameter.shape) numel *= size;
  return numel;
}

}  // namespace

bool has_values(const SavedModel::Parameter& parameter) {
  return parameter.saved && parameter.alias_of.empty();
}

uint64_t nbytes_of(const SavedModel::Parameter& parameter) {
  return static_cast<uint64_t>(numel_of(parameter)) * size_of(parameter.dtype);
}

SavedValues::SavedValues(const SavedModel& model, size_t parameter) {
  const SavedModel::Parameter& saved = model.parameters().at(parameter);
  dtype_ = saved.dtype;
  numel_ = numel_of(saved);
  bytes_.resize(nbytes_of(saved));
  model.read(parameter, {bytes_.data(), numel_, dtype_});
}

template <typename T>
T SavedValues::read(int64_t element) const {
  T value;
  std::memcpy(&value, bytes_.data() + static_cast<size_t>(element) * sizeof value, sizeof value);
  return value;
}

double SavedValues::value(int64_t element) const {
  switch (dtype_) {
    case DType::fp32:
      return read<float>(element);
    case DType::bf16:
      return to_float(read<Bf16>(element));
    case DType::fp16:
      return to_float(read<Fp16>(element));
    case DType::int64:
      return static_cast<double>(read<int64_t>(element));
    case DType::uint8:
      return read<uint8_t>(element);
  }
  return 0;
}

double SavedValues::distance(const SavedValues& other, int64_t element) const {
  if (dtype_ == DType::int64 && other.dtype_ == DType::int64) {
    // A double holds integers up to 2^53 only.
    const auto [low, high] = std::minmax({read<int64_t>(element), other.read<int64_t>(element)});
    return static_cast<double>(static_cast<uint64_t>(high) - static_cast<uint64_t>(low));
  }
  const double a = value(element);
  const double b = other.value(element);
  return a == b || (std::isnan(a) && std::isnan(b)) ? 0 : std::abs(a - b);
}

double SavedValues::norm() const {
  double squares = 0;
  for (int64_t i = 0; i < numel_; ++i) squares += value(i) * value(i);
  return std::sqrt(squares);
}

}  // namespace zerorun
