#include <type_traits>

#include "codecs.hpp"
#include "entries.hpp"
#include "hash.hpp"
#include "streams.hpp"
#include "vector_avx2.hpp"

#define GRADWIRE_PASSES avx2_passes
#include "passes.inl"
#define GRADWIRE_CODECS avx2_codecs
#include "codecs.inl"
#define GRADWIRE_SPARSE avx2_sparse
#include "entries.inl"
#define GRADWIRE_STREAMS avx2_streams
#include "streams.inl"
