#pragma once

#include <string>
#include <vector>

namespace zerorun {

// A possible word of the command line, and its meaning.
struct Candidate {
  std::string word;
  std::string about;
};

// Completes the last of `words`, which are the words after zerorun up to the cursor; the last is
// empty if a new word begins. Candidates come from the definitions of the options. Returns none
// where any word is valid, such as the name of a file, which the shell completes.
std::vector<Candidate> complete(std::vector<std::string> words);

// Returns the candidates as lines "word<tab>meaning", for completion_script.
std::string candidates_text(const std::vector<std::string>& words);

// Returns the script that makes bash, zsh or fish call `zerorun completion --words` for candidates.
std::string completion_script(const std::string& shell);

}  // namespace zerorun
