#include "config/json/json_tree.h"

#include "tests/config/support.h"
#include "tests/fuzz/config_seeds.h"

namespace zerorun {
namespace {

std::string problems_in(std::string_view text) {
  ConfigProblems problems("t");
  const std::optional<JsonNode> root = read_json(text, problems);
  EXPECT_EQ(root.has_value(), problems.empty());
  return error_of<ConfigError>([&] { problems.throw_if_any(); });
}

JsonNode parse(std::string_view text) {
  ConfigProblems problems("t");
  std::optional<JsonNode> root = read_json(text, problems);
  problems.throw_if_any();
  return root.value();
}

std::pair<int, int> place(const JsonNode& node) { return {node.where.line, node.where.column}; }

TEST(ReadJson, RemembersWhereValuesAndKeysStand) {
  const JsonNode root = parse("{\n  \"a\": [1,  -2.5e1, \"x\\\"]y\"],\n\t\"b\" :true }");
  EXPECT_EQ(place(root), std::pair(1, 1));
  const JsonNode& a = root.children[0];
  EXPECT_EQ(std::pair(a.key_where.line, a.key_where.column), std::pair(2, 3));
  EXPECT_EQ(place(a), std::pair(2, 8));
  EXPECT_EQ(place(a.children[0]), std::pair(2, 9));
  EXPECT_EQ(place(a.children[1]), std::pair(2, 13));
  EXPECT_EQ(place(a.children[2]), std::pair(2, 21));
  EXPECT_EQ(a.children[2].text, "x\"]y");
  EXPECT_EQ(place(root.children[1]), std::pair(3, 7));
  // Columns count characters; a byte order mark is none.
  const JsonNode other = parse("\xef\xbb\xbf{\"\xc3\xa4\xe2\x82\xac\": /* \xc3\xa4 */ 1}");
  EXPECT_EQ(place(other), std::pair(1, 1));
  EXPECT_EQ(place(other.children[0]), std::pair(1, 16));
}

std::string hjson_to_json(std::string_view text) {
  ConfigProblems problems("t");
  const std::optional<JsonNode> root = read_json(text, problems, JsonDialect::hjson);
  return root && problems.empty() ? to_text(*root) : "refused";
}

// The right sides are what DeepSpeed's reader, the Python package hjson 3.1.0, makes of the left.
TEST(ReadHjson, GivesWhatTheHjsonPackageGives) {
  const std::vector<std::pair<std::string_view, std::string_view>> texts = {
      {"a: 1", R"({"a":1})"},
      {"a: 1\nb: 2,\nc: true", R"({"a":1,"b":2,"c":true})"},
      {"{\n  a: 1 # one\n  b: x y // z\n}", R"({"a":1,"b":"x y // z"})"},
      {"{a: 1, b: [1, 2\n3], c: {d: null}}", R"({"a":1,"b":[1,2,3],"c":{"d":null}})"},
      {"{a: 1 2\n b: 5e8, c: -1.5 }", R"({"a":"1 2","b":500000000,"c":-1.5})"},
      {"dir: /tmp/x\nurl: http://h/p", R"({"dir":"/tmp/x","url":"http://h/p"})"},
      {"'a b': 'c d'\n\"e\": \"f\"", R"({"a b":"c d","e":"f"})"},
      {"{device: cpu\n}", R"({"device":"cpu"})"},
      {"{device: cpu}\n}", R"({"device":"cpu}"})"},
      {"a: True", R"({"a":"True"})"},
  };
  for (const auto& [text, expected] : texts) EXPECT_EQ(hjson_to_json(text), expected) << text;
}

TEST(ReadHjson, RefusesWhatHasNoMeaningAndKeepsPlaces) {
  for (const char* text : {"", "# nothing", "a", "a b: 1", "{a: 1", "a: ", "a: ]", "[1", "{: 1}",
                           "a: 'b", "a: \xff"}) {
    EXPECT_EQ(hjson_to_json(text), "refused") << text;
  }
  ConfigProblems problems("t");
  const auto root = read_json("# x\na: b\nc: {d: 1}", problems, JsonDialect::hjson);
  ASSERT_TRUE(root);
  EXPECT_EQ(place(root->children[1].children[0]), std::pair(3, 8));
}

TEST(ReadJson, AllowsCommentsAndTrailingCommas) {
  const JsonNode root = parse(R"(# first
{ // second
  "url": "http://x/*y*/#z", /* third
  over lines */ "list": [1, 2, /* last */ ], // "no": 1
  "object": {"a": 1,},
}
# end)");
  EXPECT_EQ(to_text(root), R"({"url":"http://x/*y*/#z","list":[1,2],"object":{"a":1}})");
  EXPECT_EQ(place(root.children[1]), std::pair(4, 25));
}

TEST(ReadJson, ReadsNonFiniteNumbersAsPythonWritesThem) {
  const JsonNode root = parse(R"([Infinity, -Infinity, NaN, "Infinity"])");
  EXPECT_EQ(root.children[0].number, INFINITY);
  EXPECT_EQ(root.children[1].number, -INFINITY);
  EXPECT_TRUE(std::isnan(root.children[2].number));
  EXPECT_EQ(root.children[3].kind, JsonNode::Kind::string);
}

TEST(ReadJson, TellsIntegersFromNumbers) {
  EXPECT_EQ(as_integer(parse("1e9")), 1'000'000'000);
  EXPECT_EQ(as_integer(parse("5.0")), 5);
  EXPECT_EQ(as_integer(parse("-9223372036854775808")), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(as_integer(parse("9223372036854775807")), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(as_integer(parse("9223372036854775808")), std::nullopt);
  EXPECT_EQ(as_integer(parse("-1e300")), std::nullopt);
  EXPECT_EQ(as_integer(parse("0.5")), std::nullopt);
  EXPECT_EQ(as_integer(parse("\"1\"")), std::nullopt);
  // Equal values have equal texts.
  EXPECT_EQ(to_text(parse("1e9")), "1000000000");
  EXPECT_EQ(to_text(parse("1.0")), "1");
  EXPECT_EQ(to_text(parse("0.10")), "0.1");
  EXPECT_EQ(to_text(parse("[ {\"a\\u0041\" : null} , false ]")), R"([{"aA":null},false])");
}

TEST(ReadJson, SaysWhereAndHowTextIsBroken) {
  using std::string_view_literals::operator""sv;
  for (const auto& [text, message] : std::vector<std::pair<std::string_view, const char*>>{
           {"", "top level (1:1): broken JSON: got the end of the text; expected a value"},
           {"{\n \"a\": 1\n \"b\": 2}", "(3:2): broken JSON: got \"b\"; expected ',' or '}'"},
           {"{\"a\": [1 2]}", "/a (1:10): broken JSON: got 2; expected ',' or ']'"},
           {"{\"a\" 1}", "(1:6): broken JSON: got 1; expected ':'"},
           {"{\"a\": tru}", "/a (1:7): broken JSON: got tru; invalid literal; expected a value"},
           {"{'a': 1}", "got 'a'; expected a key in double quotes"},
           {"[1] 2", "(1:5): broken JSON: got 2; expected nothing after the first value"},
           {"[1", "(1:3): broken JSON: got the end of the text; expected ',' or ']'"},
           {"[\"a\nb\"]", "(1:2): broken JSON: got \"a; invalid string: control character"},
           {"[\"\xff\"]",
            "(1:2): broken JSON: got \"\\xff\"; invalid string: ill-formed UTF-8 byte"},
           {"{\"x\": [01]}", "/x/0 (1:8): broken JSON: got 01; invalid number; expected a value"},
           {"[-1.5e+3-2]", "(1:2): broken JSON: got -1.5e+3-2; invalid number"},
           {"[nullnull]", "(1:2): broken JSON: got nullnull; invalid literal; expected a value"},
           {"[1.]", "(1:2): broken JSON: got 1.; invalid number"},
           {"[-]", "(1:2): broken JSON: got -; invalid number"},
           {"{\"x\": 1e999}", "/x (1:7): got 1e999, expected a number below 1.8e308"},
           {"{\"x\": -1e999}", "/x (1:7): got -1e999"},
           {"[,]", "broken JSON"},
           {"{,}", "broken JSON"},
           {"[1,,]", "broken JSON"},
           {"{\"a\":,}", "broken JSON"},
           {"[1] /* on", "(1:5): "},
           {"[1] /* on", "a comment that never ends"},
           {"{Infinity: 1}", "got Infinity; expected a key in double quotes"},
           {"[Infinityx]", "broken JSON: got Infinityx"},
           {"{}\n \0{"sv, "(2:2): broken JSON: got \\x00; expected nothing"}}) {
    EXPECT_THAT(problems_in(text), HasSubstr(message)) << text;
  }
}

TEST(ReadJson, BoundsDepthSizeAndCount) {
  const auto deep = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(problems_in(deep(kMaxJsonDepth)), "");
  EXPECT_THAT(problems_in(deep(kMaxJsonDepth + 1)), HasSubstr("(1:65): nested deeper than 64"));
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(problems_in(objects), HasSubstr("nested deeper than 64"));
  EXPECT_THAT(problems_in("[\"" + std::string(20'000'000, 'x') + "\"]"),
              HasSubstr("got 20000004 bytes, expected a configuration"));
  EXPECT_EQ(problems_in("[\"" + std::string(15'000'000, 'x') + "\"]"), "");
  std::string values = "[0";
  for (size_t i = 0; i < kMaxJsonValues; ++i) values += ",0";
  EXPECT_THAT(problems_in(values + "]"), HasSubstr("more than 100000 values"));
  EXPECT_EQ(append_pointer("/a", "b/c~d"), "/a/b~1c~0d");  // RFC 6901
}

// What tests/fuzz/config_fuzz.cc does not reach.
TEST(Junk, PrefixesAndHugeInputsAreRefusedQuickly) {
  const auto is_accepted = [](std::string_view text) { return problems_of(text).empty(); };
  const std::string seed = testing::config_seeds().front();
  EXPECT_TRUE(is_accepted(seed));
  for (size_t length = 0; length < seed.size(); ++length) {
    EXPECT_FALSE(is_accepted(seed.substr(0, length))) << length;
  }
  EXPECT_FALSE(is_accepted(std::string(100'000'000, '[')));
  EXPECT_FALSE(is_accepted("{\"" + std::string(15'000'000, 'x') + "\": 1}"));
  EXPECT_FALSE(is_accepted(std::string(10'000'000, ' ')));
  EXPECT_FALSE(is_accepted(std::string(1'000'000, '#')));
  std::string comments;
  for (int i = 0; i < 5'000'000; ++i) comments += "/* ";  // none of them ends
  EXPECT_FALSE(is_accepted(comments));
  std::string unknown = "{";
  for (int i = 0; i < 90'000; ++i) unknown += fmt::format("\"key_{}\":0,", i);
  EXPECT_THAT(problems_of(unknown + "}"), HasSubstr("90000 problems"));
}

}  // namespace
}  // namespace zerorun
