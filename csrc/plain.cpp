#include <type_traits>

#include "codecs.hpp"
#include "entries.hpp"
#include "hash.hpp"
#include "streams.hpp"
#include "vector_plain.hpp"

#define GRADWIRE_PASSES plain_passes
#include "passes.inl"
#define GRADWIRE_CODECS plain_codecs
#include "codecs.inl"
#define GRADWIRE_SPARSE plain_sparse
#include "entries.inl"
#define GRADWIRE_STREAMS plain_streams
#include "streams.inl"
