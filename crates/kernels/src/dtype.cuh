// Types of stored numbers, with the host's values.
#pragma once

enum DType { F32 = 0, F16 = 1, BF16 = 2, I32 = 3 };
