#pragma once

// Everything a training program needs.
#include "zerorun/checkpoint.h"
#include "zerorun/communicator.h"
#include "zerorun/config.h"
#include "zerorun/device.h"
#include "zerorun/engine.h"
#include "zerorun/error.h"
#include "zerorun/loss_scaler.h"
#include "zerorun/lr_schedule.h"
#include "zerorun/timeline.h"
#include "zerorun/version.h"
