// Of which kind the nodes of flat arrays are: the questions that decide it for objects, asked of numbers.
#include <algorithm>
#include <string>

#include "core/schedule.h"

namespace ral {

namespace {

Status check_questions(const ral_structure& structure, const ral_node_question* questions, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    for (const int32_t next : {questions[i].yes, questions[i].no}) {  // forward alone, so that they end
      if (next >= 0 ? next <= i || next >= count : ~next >= structure.kind_count)
        return error(RAL_ERROR_INTERNAL, "ral_find_kinds: a question that leads to no kind");
    }
    if (questions[i].array < 0) return error(RAL_ERROR_INTERNAL, "ral_find_kinds: a question about no array");
  }
  return {};
}

// Sends the nodes that a question is asked of to the next one; `at` has the question of each. Without branches that depend on nodes.
void ask(const ral_structure& structure, const ral_node_question* questions, int32_t number, int64_t* at) {
  const ral_node_question& question = questions[number];
  const bool child = question.array < structure.field_count;
  const int64_t* values = child ? structure.children[question.array] : structure.columns[question.array - structure.field_count];
  const int64_t no_number = child ? -1 : 0;  // 0 is a child, but a number that is false
  const int64_t yes = question.is_none ? question.no : question.yes, no = question.is_none ? question.yes : question.no;
  for (int64_t i = 0; i < structure.node_count; ++i) {
    const bool there = (values[i] != -1) & (question.is_none || values[i] != no_number);
    at[i] = at[i] == number ? (there ? yes : no) : at[i];
  }
}

// Whether all nodes of a kind have a number in a column.
Status check_column(const ral_structure& structure, int32_t kind, int32_t column, const char* const* names, const int64_t* kinds) {
  const int64_t* numbers = structure.columns[column];
  int64_t lacking = 0;
  for (int64_t i = 0; i < structure.node_count; ++i) lacking += (kinds[i] == kind) & (numbers[i] == -1);
  if (lacking == 0) return {};
  int64_t node = 0;
  while (kinds[node] != kind || numbers[node] != -1) ++node;
  return error(RAL_ERROR_MISSING, "node " + std::to_string(node) + ", " + names[column] + ": a node of this kind needs a number there");
}

}  // namespace

Status find_kinds(const ral_structure& structure, const ral_node_question* questions, int32_t question_count,
                  const char* const* column_names, int64_t* kinds) {
  if (Status status = check_questions(structure, questions, question_count); !status.ok()) return status;
  std::fill_n(kinds, structure.node_count, question_count == 0 ? ~int64_t{0} : 0);
  for (int32_t number = 0; number < question_count; ++number) ask(structure, questions, number, kinds);
  for (int64_t i = 0; i < structure.node_count; ++i) kinds[i] = ~kinds[i];
  for (int32_t kind = 0; kind < structure.kind_count; ++kind) {
    const ral_node_kind& own = structure.kinds_of[kind];
    for (int32_t j = 0; j < own.value_count; ++j) {
      if (Status status = check_column(structure, kind, own.columns[j], column_names, kinds); !status.ok()) return status;
    }
  }
  return {};
}

}  // namespace ral
