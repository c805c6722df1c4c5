#include "config/keys/key_table.h"

#include "config/checks/check.h"
#include "tests/config/support.h"

namespace zerorun {
namespace {

using std::string_view_literals::operator""sv;

// Its block as a whole is not supported.
bool is_in_unsupported_block(const KeySpec& spec) {
  const KeySpec* parent = key_table().find(spec.parent());
  return parent != nullptr && parent->is_unsupported();
}

bool is_unsupported(const KeySpec& spec) {
  if (spec.status == KeyStatus::pytorch && spec.gate.empty()) return true;
  return is_in_unsupported_block(spec) || key_table().current(spec).is_unsupported();
}

void expect_valid(const KeySpec& spec, std::string_view value) {
  ConfigProblems problems("value");
  std::optional<JsonNode> node = read_json(value, problems);
  ASSERT_TRUE(node) << value;
  EXPECT_EQ(to_text(*node), value);
  EXPECT_EQ(check_value(spec, *node), std::nullopt);
}

TEST(EveryKey, StandsInABlockAndHasADefaultInCanonicalTextThatSuitsIt) {
  const Config defaults;
  for (const KeySpec* spec : key_table().keys()) {
    SCOPED_TRACE(spec->pointer);
    const KeySpec* parent = key_table().find(spec->parent());
    EXPECT_TRUE(spec->parent().empty() || (parent != nullptr && parent->is_block()));
    if (spec->is_block()) continue;
    expect_valid(*spec, spec->fallback);
    if (spec->binding.get == nullptr || spec->name() == "overlap_comm") continue;
    EXPECT_EQ(spec->binding.get(defaults), spec->fallback);
  }
}

TEST(EveryKey, TreatsAnotherValueByItsStatus) {
  for (const KeySpec* spec : leaf_keys()) {
    SCOPED_TRACE(spec->pointer);
    const std::string other = other_value(*spec);
    const std::string text = document(spec->pointer, other);
    if (is_unsupported(*spec)) {
      EXPECT_THAT(problems_of(text), AnyOf(HasSubstr("not supported yet by zerorun"),
                                           HasSubstr("supported neither here nor by DeepSpeed"),
                                           HasSubstr("which is for PyTorch models")));
      continue;
    }
    const ParsedConfig parsed = parse_config(text);
    const ConfigValue* value = find_value(parsed, spec->pointer);
    ASSERT_NE(value, nullptr);
    EXPECT_EQ(value->value, other);
    EXPECT_FALSE(value->is_default);
    const bool warns = spec->status == KeyStatus::no_effect ||
                       spec->status == KeyStatus::deprecated ||
                       (spec->status == KeyStatus::always_on && other == "false");
    ASSERT_EQ(parsed.warnings.size(), warns ? 1U : 0U);
    if (warns) {
      EXPECT_THAT(parsed.warnings[0], HasSubstr(std::string(spec->pointer)));
    }
  }
}

TEST(EveryKey, RejectsAWrongTypeWithItsPlace) {
  for (const KeySpec* spec : leaf_keys()) {
    const bool takes_object = (spec->type & KeyType::free_form) != 0;
    const std::string wrong = takes_object ? "7" : R"({"an": "object"})";
    const std::string message = problems_of(nested(spec->pointer, wrong));
    const auto depth = std::count(spec->pointer.begin(), spec->pointer.end(), '/');
    const auto column = 2 * depth + static_cast<long>(spec->name().size()) + 5;
    EXPECT_THAT(message, HasAll(fmt::format("{} ({}:{}): got ", spec->pointer, depth + 1, column),
                                "expected " + expected_value(*spec)));
  }
}

TEST(EveryKey, IsSuggestedForAMisspeltName) {
  for (const KeySpec* spec : key_table().keys()) {
    std::string misspelt(spec->pointer);
    const size_t middle = misspelt.size() - spec->name().size() / 2 - 1;
    misspelt.insert(middle, 1, misspelt[middle]);
    const std::string message = problems_of(nested(misspelt, "null"));
    EXPECT_THAT(message, HasAll(misspelt + " (",
                                fmt::format("unknown key; did you mean \"{}\"", spec->name())));
  }
}

TEST(EveryKey, IsNotGivenIfItIsItsDefaultOrAutoOrNull) {
  for (const KeySpec* spec : leaf_keys()) {
    SCOPED_TRACE(spec->pointer);
    for (const std::string_view value : split_choices(spec->idle)) {  // asks for nothing
      EXPECT_EQ(problems_of(document(spec->pointer, value)), "");
    }
    if (is_in_unsupported_block(*spec)) continue;
    for (const std::string_view value : {default_of(*spec), R"("auto")"sv, "null"sv}) {
      const std::string text = document(spec->pointer, value);
      const bool is_auto = value == R"("auto")";
      if (spec->refuses_null && value == "null") {
        expect_problem(text, "got null, expected");
      } else if (!spec->is_required || (is_auto && spec->auto_waits)) {
        const ParsedConfig parsed = parse_config(text);
        EXPECT_TRUE(find_value(parsed, spec->pointer)->is_default);
        EXPECT_TRUE(is_auto || value == "null" ||
                    parsed.warnings.empty() == (spec->status != KeyStatus::deprecated));
      } else if (is_auto) {
        expect_problem(text, "missing");
      }
    }
  }
}

TEST(EveryKey, TakesZeroAndOneForBooleans) {
  for (const KeySpec* spec : leaf_keys()) {
    if (spec->type != KeyType::boolean || is_in_unsupported_block(*spec)) continue;
    for (const auto& [number, boolean] : {std::pair("0", "false"), std::pair("1", "true")}) {
      SCOPED_TRACE(fmt::format("{} {}", spec->pointer, number));
      const std::string with_boolean = document(spec->pointer, boolean);
      const std::string with_number = document(spec->pointer, number);
      const bool is_refused = !problems_of(with_boolean).empty();
      EXPECT_EQ(!problems_of(with_number).empty(), is_refused);
      if (is_refused) continue;
      EXPECT_EQ(find_value(parse_config(with_number), spec->pointer)->value,
                find_value(parse_config(with_boolean), spec->pointer)->value);
    }
  }
}

// Of a block with a type: parameters exist for types of the table, have valid defaults for each,
// and are refused with others.
TEST(KeyTable, ParametersAreOfTheirTypes) {
  for (const KeySpec* spec : leaf_keys()) {
    if (spec->used_by.empty() && spec->type_fallbacks.empty()) continue;
    SCOPED_TRACE(spec->pointer);
    const std::string_view block = spec->parent().substr(0, spec->parent().rfind('/'));
    const std::string type_pointer = fmt::format("{}/type", block);
    ASSERT_NE(key_table().find(type_pointer), nullptr);
    const auto types = split_choices(key_table().find(type_pointer)->choices);
    for (const std::string_view type : split_choices(spec->used_by)) {
      EXPECT_THAT(types, Contains(type));
    }
    for (const std::string_view entry : split_choices(spec->type_fallbacks)) {
      const std::string_view type = entry.substr(0, entry.find('='));
      EXPECT_THAT(types, Contains(type));
      EXPECT_TRUE(spec->is_used_by(type)) << type;
    }
    for (const std::string_view type : types) {
      expect_valid(*spec, spec->fallback_for(type));
      if (spec->used_by.empty()) continue;
      auto json = nlohmann::json::parse(document(spec->pointer, other_value(*spec)));
      json[nlohmann::json::json_pointer(type_pointer)] = type;
      const std::string refusal = fmt::format("{} has no such parameter", type);
      const bool is_refused = problems_of(json.dump()).find(refusal) != std::string::npos;
      EXPECT_NE(is_refused, spec->is_used_by(type)) << type;
    }
  }
}

TEST(KeyTable, GatesAndReplacementsAreKeys) {
  for (const KeySpec* spec : key_table().keys()) {
    for (const std::string_view pointer : split_choices(spec->gate)) {
      const KeySpec* gate = key_table().find(pointer);
      ASSERT_NE(gate, nullptr) << spec->pointer;
      EXPECT_TRUE(gate->gate.empty()) << spec->pointer;
      EXPECT_TRUE(gate->status != KeyStatus::works || spec->status == KeyStatus::works)
          << spec->pointer << ": would be dropped silently";
    }
    if (spec->status == KeyStatus::deprecated) {
      EXPECT_NE(key_table().find(spec->note), nullptr) << spec->pointer;
    }
    EXPECT_FALSE(spec->doc.empty()) << spec->pointer;
    EXPECT_FALSE(spec->status == KeyStatus::no_effect && spec->note.empty()) << spec->pointer;
  }
}

// JSON text in the table's spelling: 1e9 and 1000000000 are the same.
std::string canonical(const nlohmann::json& value) {
  ConfigProblems problems("value");
  const std::optional<JsonNode> node = read_json(value.dump(), problems);
  return node ? to_text(*node) : "unreadable";
}

// make_deepspeed_keys.py reads the keys out of DeepSpeed.
TEST(DeepSpeedKeys, AreAllInTheTableWithTheirDefaults) {
  std::ifstream file(test_paths::tests() + "/config/data/deepspeed_keys.json");
  const nlohmann::json keys = nlohmann::json::parse(file).at("keys");
  ASSERT_GT(keys.size(), 150U);
  for (const auto& [pointer, fallback] : keys.items()) {
    const KeySpec* spec = key_table().find(pointer);
    EXPECT_NE(spec, nullptr) << pointer << " is not in the table";
    if (spec == nullptr) continue;
    // A deprecated key that is not given asks for nothing, and neither does false.
    if (spec->is_block() || spec->status == KeyStatus::deprecated) continue;
    EXPECT_EQ(spec->fallback, canonical(fallback)) << pointer;
  }
}

}  // namespace
}  // namespace zerorun
