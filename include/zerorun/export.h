#pragma once

// Symbols marked ZR_API are the stable surface of libzerorun; everything else is hidden.
#define ZR_API __attribute__((visibility("default")))
