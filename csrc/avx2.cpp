#include <type_traits>

#include "codecs.hpp"
#include "vector_avx2.hpp"

#define GRADWIRE_PASSES avx2_passes
#include "passes.inl"
#define GRADWIRE_CODECS avx2_codecs
#include "codecs.inl"
