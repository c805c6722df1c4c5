#pragma once

#include "core/build_id.h"

namespace zerorun::testing {

struct TestPlugin {
  BuildId build;
  int (*answer)();
};

}  // namespace zerorun::testing
