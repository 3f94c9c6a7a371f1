#include <type_traits>

#include "codecs.hpp"
#include "entries.hpp"
#include "hash.hpp"
#include "streams.hpp"
#include "vector_avx512.hpp"

#define GRADWIRE_PASSES avx512_passes
#include "passes.inl"
#define GRADWIRE_CODECS avx512_codecs
#include "codecs.inl"
#define GRADWIRE_SPARSE avx512_sparse
#include "entries.inl"
#define GRADWIRE_STREAMS avx512_streams
#include "streams.inl"
