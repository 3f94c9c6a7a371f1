#include "vector_avx2.hpp"

#define GRADWIRE_PASSES avx2_passes
#include "passes.inl"
