// Many calls of programs as one: see ral_run_batches, ral_linearize and ral_find_kinds in ral.h.
#pragma once

#include "core/status.h"
#include "ral.h"

namespace ral {

Status run_batches(const ral_block* blocks, int32_t block_count, const ral_tensor* tables, int64_t* used, int32_t table_count,
                   const ral_batch* batches, int64_t batch_count, const int64_t* indices, int64_t index_count);

Status linearize(const ral_structure& structure, const ral_block* blocks, int32_t block_count, int64_t* used, int32_t table_count,
                 ral_batch* batches, int64_t* batch_count, int64_t* indices, int64_t* rows);

Status find_kinds(const ral_structure& structure, const ral_node_question* questions, int32_t question_count,
                  const char* const* column_names, int64_t* kinds);

}  // namespace ral
