#include "vector_avx512.hpp"

#define GRADWIRE_PASSES avx512_passes
#include "passes.inl"
