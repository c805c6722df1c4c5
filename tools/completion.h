#pragma once

#include <string>
#include <vector>

namespace zerorun {

// A word that may stand on the command line, and what it means.
struct Candidate {
  std::string word;
  std::string about;
};

// Completes the last of `words`, which are those after zerorun up to the cursor, with an
// empty one where a word is to begin. They come from the definitions of the options. Nothing where
// any word may stand, such as a file's name, which is the shell's to complete.
std::vector<Candidate> complete(std::vector<std::string> words);

// The same in lines, word and meaning with a tab between them: for completion_script.
std::string candidates_text(const std::vector<std::string>& words);

}  // namespace zerorun
