// The library functions, each for the op of its name (disc/ir/op_table.py); the numbers are the attributes that the op's record lists.
#pragma once

#include "core/library.h"

namespace ral {

// (x) → (values, indices i64) of its shape; numbers: dim, descending.
void sort(LibraryCall& call);

}  // namespace ral
