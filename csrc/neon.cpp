#include <type_traits>

#include "codecs.hpp"
#include "entries.hpp"
#include "hash.hpp"
#include "streams.hpp"
#include "vector_neon.hpp"

#define GRADWIRE_PASSES neon_passes
#include "passes.inl"
#define GRADWIRE_CODECS neon_codecs
#include "codecs.inl"
#define GRADWIRE_SPARSE neon_sparse
#include "entries.inl"
#define GRADWIRE_STREAMS neon_streams
#include "streams.inl"
