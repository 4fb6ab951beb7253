// What Horovod 0.28.1 uses without including it, and gets from other headers of the library up to GCC 13; by -include.
#pragma once
#ifdef __cplusplus
#include <cstdint>
#include <stdexcept>
#include <string>
#endif
