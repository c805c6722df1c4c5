#pragma once

#include <string>

namespace zerorun {

// Reads every byte of the checkpoint in `directory` or, if it holds several, of each, and checks
// `latest`. Returns one line per checkpoint. Throws CheckpointError with the lines of all of them
// when one is damaged, and when there is none.
std::string verify_checkpoint(const std::string& directory);

}  // namespace zerorun
