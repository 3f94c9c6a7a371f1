// The instruction sets that have kernels of their own, and their tables.
#pragma once

#include <span>

#include "codecs.hpp"
#include "entries.hpp"
#include "kernels.hpp"
#include "streams.hpp"

namespace gradwire {

struct InstructionSet {
    const char* name;  // as Python knows it
    const Passes& passes;
    const Codecs& codecs;
    const Sparse& sparse;
    const Streams& streams;
};

// Those of this build that this processor has, slowest first. Python numbers them in this order.
std::span<const InstructionSet> instruction_sets();

// Throws std::invalid_argument if this machine does not have it.
const InstructionSet& set_of(int number);

}  // namespace gradwire
