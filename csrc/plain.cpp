#include "vector_plain.hpp"

#define GRADWIRE_PASSES plain_passes
#include "passes.inl"
