// Horovod 0.28.1 includes this path; since TensorFlow 2.16 the header lives elsewhere.
#pragma once
#include "xla/hlo/builder/xla_builder.h"
