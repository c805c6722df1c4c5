#include "config/key_check.h"

#include "config/suggest.h"
#include "config/value_check.h"

namespace zerorun {

namespace {

using Kind = JsonNode::Kind;

// DeepSpeed's older form "zero_optimization": true means stage 1.
void expand_boolean_block(JsonNode& node) {
  JsonNode stage;
  stage.kind = Kind::integer;
  stage.where = node.where;
  stage.key = "stage";
  stage.key_where = node.key_where;
  stage.integer = node.boolean ? 1 : 0;
  stage.number = static_cast<double>(stage.integer);
  node.kind = Kind::object;
  node.children.push_back(std::move(stage));
}

class KeyChecker {
 public:
  KeyChecker(const KeyTable& table, ConfigProblems& problems)
      : table_(table), problems_(problems) {}

  // `block` is the table's pointer, `written` the file's.
  void check_block(std::string_view block, const std::string& written, JsonNode& node) {
    for (JsonNode& child : node.children) {
      const std::string pointer = append_pointer(written, child.key);
      const KeySpec* spec = table_.find(append_pointer(block, child.key));
      if (spec == nullptr) {
        report_unknown(block, pointer, child);
      } else {
        check_key(*spec, pointer, child);
      }
    }
  }

  GivenKeys take_keys() { return std::move(keys_); }

 private:
  void report_unknown(std::string_view block, const std::string& pointer, const JsonNode& node) {
    const std::string advice =
        problems_.is_full() ? std::string() : suggest_key(table_, block, node.key);
    problems_.add(pointer, node.key_where, "unknown key; {}", advice);
  }

  void check_key(const KeySpec& spec, const std::string& pointer, JsonNode& node) {
    const auto [known, is_new] =
        keys_.try_emplace(spec.pointer, GivenKey{&spec, &node, pointer, true});
    if (!is_new && known->second.pointer != pointer) {  // the same name twice is reported already
      problems_.add(pointer, node.key_where, "the same setting as {} at {}:{}; keep one of them",
                    known->second.pointer, known->second.node->key_where.line,
                    known->second.node->key_where.column);
    }
    if (const auto problem = check_value(spec, node)) {
      problems_.add(pointer, node.where, "{}", *problem);
      known->second.is_valid = false;
      return;
    }
    if (!spec.is_block()) return;
    if (node.kind == Kind::boolean) {
      known->second.is_boolean_block = true;
      expand_boolean_block(node);
    }
    check_block(spec.pointer, pointer, node);
  }

  const KeyTable& table_;
  ConfigProblems& problems_;
  GivenKeys keys_;
};

}  // namespace

GivenKeys check_keys(const KeyTable& table, JsonNode& root, ConfigProblems& problems) {
  if (root.kind != Kind::object) {
    problems.add("", root.where, "got {}, expected an object", to_short_text(root));
    return {};
  }
  KeyChecker checker(table, problems);
  checker.check_block("", "", root);
  return checker.take_keys();
}

const JsonNode* given_value(const GivenKey& key) {
  const bool is_given =
      key.is_valid && key.node->kind != Kind::null && !is_auto(*key.spec, *key.node);
  return is_given ? key.node : nullptr;
}

const JsonNode* given_value(const GivenKeys& keys, std::string_view pointer) {
  const auto found = keys.find(pointer);
  return found == keys.end() ? nullptr : given_value(found->second);
}

}  // namespace zerorun
