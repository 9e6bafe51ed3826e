#include "tasks/launches.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace ral::tasks {

namespace {

constexpr size_t kAlignment = 64;
constexpr int64_t kFirstRows = 64;

}  // namespace

void Table::Free::operator()(char* data) const { ::operator delete[](data, std::align_val_t{kAlignment}); }

bool Table::reserve(int64_t count) {
  if (count <= capacity_ && data_) return true;
  const int64_t rows = std::max({count, 2 * capacity_, kFirstRows});
  if (class_->bytes > 0 && rows > INT64_MAX / class_->bytes) return false;
  char* data = static_cast<char*>(::operator new[](static_cast<size_t>(std::max<int64_t>(rows * class_->bytes, 1)), std::align_val_t{kAlignment}, std::nothrow));
  if (!data) return false;
  if (data_) std::memcpy(data, data_.get(), static_cast<size_t>(std::min(used, capacity_) * class_->bytes));
  data_.reset(data);
  capacity_ = rows;
  return true;
}

ral_tensor Table::tensor(std::vector<int64_t>& dims) const {
  dims.assign(1, capacity_);
  dims.insert(dims.end(), class_->dims.begin(), class_->dims.end());
  return {data_.get(), dims.data(), nullptr, static_cast<int32_t>(dims.size()), static_cast<uint16_t>(class_->dtype), RAL_CPU, 0};
}

void Launches::begin(const std::vector<ral_block>& blocks) {
  blocks_ = &blocks;
  launch_count = 0;
  sizes.clear();
  rows_.clear();
  launches_.clear();
  reads_.clear();
  values_.clear();
  pending_.clear();
  failures_.clear();
  consumed_.assign(code_.kinds.size(), 0);
  dims_.resize(tables_.size());
}

int64_t Launches::record(int32_t kind, const std::vector<int64_t>& rows, const std::vector<int64_t>& values) {
  const Kind& about = code_.kinds[static_cast<size_t>(kind)];
  const auto first = static_cast<int64_t>(rows_.size());
  if (about.block < 0) {  // depends on weights alone
    for (size_t i = 0; i < about.results.size(); ++i) rows_.push_back({about.results[i], kGiven, about.constants[i]});
    return first;
  }
  int32_t depth = 0, failed = -1;
  for (const int64_t each : rows) {
    const Row& row = rows_[static_cast<size_t>(each)];
    if (row.launch < 0) continue;
    const Launch& read = launches_[static_cast<size_t>(row.launch)];
    consumed_[static_cast<size_t>(read.kind)] = 1;
    depth = std::max(depth, read.depth + 1);
    failed = std::max(failed, read.failure);
  }
  const auto number = static_cast<int32_t>(launches_.size());
  launches_.push_back({kind, depth, failed, failed >= 0, static_cast<uint32_t>(reads_.size()), static_cast<uint32_t>(values_.size()),
                       static_cast<uint32_t>(first), 0, 0});
  reads_.insert(reads_.end(), rows.begin(), rows.end());
  values_.insert(values_.end(), values.begin(), values.end());
  for (const int32_t each : about.results) rows_.push_back({each, number, -1});
  if (failed < 0) pending_.push_back(static_cast<uint32_t>(number));
  return first;
}

const std::string* Launches::failure(const Row& row) const {
  if (row.launch < 0) return nullptr;
  const int32_t failure = launches_[static_cast<size_t>(row.launch)].failure;
  return failure < 0 ? nullptr : &failures_[static_cast<size_t>(failure)];
}

void Launches::take(const std::vector<int64_t>* needed) {
  chosen_.clear();
  ++marks_;
  if (!needed) {
    chosen_.swap(pending_);
  } else {
    std::vector<uint32_t> waiting;
    const auto add = [&](int64_t number) {
      const Row& row = rows_[static_cast<size_t>(number)];
      if (row.launch < 0) return;
      Launch& launch = launches_[static_cast<size_t>(row.launch)];
      if (launch.done || launch.mark == marks_) return;
      launch.mark = marks_;
      waiting.push_back(static_cast<uint32_t>(row.launch));
    };
    for (const int64_t each : *needed) add(each);
    while (!waiting.empty()) {
      const Launch launch = launches_[waiting.back()];
      waiting.pop_back();
      const size_t count = code_.kinds[static_cast<size_t>(launch.kind)].rows.size();
      for (size_t i = 0; i < count; ++i) add(reads_[launch.first_read + i]);
    }
    size_t kept = 0;
    for (const uint32_t each : pending_) {
      if (launches_[each].mark == marks_)
        chosen_.push_back(each);
      else
        pending_[kept++] = each;
    }
    pending_.resize(kept);
  }
  for (size_t i = 0; i < chosen_.size(); ++i) {
    launches_[chosen_[i]].index = static_cast<uint32_t>(i);
    launches_[chosen_[i]].mark = marks_;
  }
}

ral_status Launches::order() {
  used_.clear();
  kinds_.clear();
  depths_.clear();
  first_read_.assign(1, 0);
  read_.clear();
  for (const uint32_t each : chosen_) {
    const Launch& launch = launches_[each];
    int32_t& number = number_[static_cast<size_t>(launch.kind)];
    if (number < 0) {
      number = static_cast<int32_t>(used_.size());
      used_.push_back(launch.kind);
    }
    kinds_.push_back(number);
    depths_.push_back(launch.depth);
    const size_t count = code_.kinds[static_cast<size_t>(launch.kind)].rows.size();
    for (size_t i = 0; i < count; ++i) {
      const Row& row = rows_[static_cast<size_t>(reads_[launch.first_read + i])];
      if (row.launch < 0) continue;
      const Launch& read = launches_[static_cast<size_t>(row.launch)];
      if (!read.done && read.mark == marks_) read_.push_back(read.index);
    }
    first_read_.push_back(static_cast<int64_t>(read_.size()));
  }
  costs_.clear();
  last_.clear();
  for (const int32_t each : used_) {
    costs_.push_back(code_.kinds[static_cast<size_t>(each)].cost);
    last_.push_back(!consumed_[static_cast<size_t>(each)]);
    number_[static_cast<size_t>(each)] = -1;
  }
  const ral_calls calls{static_cast<int64_t>(chosen_.size()), kinds_.data(), depths_.data(), first_read_.data(), read_.data(),
                        costs_.data(), last_.data(), static_cast<int32_t>(used_.size())};
  order_.resize(chosen_.size());
  ends_.resize(chosen_.size());
  int64_t count = 0;
  const ral_status status = ral_order_calls(&calls, RAL_ORDER_CHEAPEST, order_.data(), ends_.data(), &count);
  ends_.resize(status == RAL_OK ? static_cast<size_t>(count) : 0);
  return status;
}

// One batch: its numbers, and where its results will lie.
void Launches::arrange(size_t begin, size_t end) {
  const Kind& kind = code_.kinds[static_cast<size_t>(launches_[chosen_[static_cast<size_t>(order_[begin])]].kind)];
  const size_t count = end - begin, offset = indices_.size(), rows = kind.rows.size(), values = static_cast<size_t>(kind.values);
  batches_.push_back({kind.block, static_cast<int64_t>(count), static_cast<int64_t>(offset)});
  sizes.emplace_back(static_cast<int32_t>(&kind - code_.kinds.data()), static_cast<int64_t>(count));
  indices_.resize(offset + count * (rows + values));
  int64_t* to = indices_.data() + offset;
  for (size_t i = 0; i < count; ++i) {
    const Launch& launch = launches_[chosen_[static_cast<size_t>(order_[begin + i])]];
    for (size_t j = 0; j < rows; ++j) to[j * count + i] = rows_[static_cast<size_t>(reads_[launch.first_read + j])].place;
    for (size_t j = 0; j < values; ++j) to[(rows + j) * count + i] = values_[launch.first_value + j];
  }
  for (size_t j = 0; j < kind.results.size(); ++j) {
    int64_t& used = tables_[static_cast<size_t>(kind.results[j])].used;
    for (size_t i = 0; i < count; ++i)
      rows_[launches_[chosen_[static_cast<size_t>(order_[begin + i])]].first_result + j].place = used + static_cast<int64_t>(i);
    used += static_cast<int64_t>(count);
  }
}

// The batches with `before` rows of each table in use.
ral_status Launches::run_range(const ral_batch* batches, size_t count, const std::vector<int64_t>& before) {
  tensors_.clear();
  for (size_t i = 0; i < tables_.size(); ++i) tensors_.push_back(tables_[i].tensor(dims_[i]));
  std::vector<int64_t> used = before;
  return ral_run_batches(blocks_->data(), static_cast<int32_t>(blocks_->size()), tensors_.data(), used.data(), static_cast<int32_t>(used.size()),
                         batches, static_cast<int64_t>(count), indices_.data(), static_cast<int64_t>(indices_.size()));
}

// One call of a batch that starts at `used` rows of each table, alone: noted in the launch where it fails. Its results lie where they do in
// the whole batch; several in one table are a run of rows, so that they are computed behind all others and copied.
ral_status Launches::run_alone(const ral_batch& batch, int64_t number, Launch& launch, const std::vector<int64_t>& used) {
  const Kind& kind = code_.kinds[static_cast<size_t>(launch.kind)];
  const size_t vectors = kind.rows.size() + static_cast<size_t>(kind.values), offset = indices_.size();
  for (size_t j = 0; j < vectors; ++j)
    indices_.push_back(indices_[static_cast<size_t>(batch.offset + static_cast<int64_t>(j) * batch.count + number)]);
  std::vector<int64_t> own = used, results(tables_.size(), 0);
  for (const int32_t each : kind.results) ++results[static_cast<size_t>(each)];
  const bool several = std::any_of(results.begin(), results.end(), [](int64_t each) { return each > 1; });
  for (size_t t = 0; t < tables_.size(); ++t) {
    if (several) own[t] = tables_[t].used;
    if (!several && results[t] == 1) own[t] += number;
    if (!tables_[t].reserve(own[t] + results[t])) return RAL_ERROR_MEMORY;
  }
  const ral_batch single{batch.block, 1, static_cast<int64_t>(offset)};
  if (run_range(&single, 1, own) != RAL_OK) {
    launch.failure = static_cast<int32_t>(failures_.size());
    failures_.emplace_back(ral_last_error());
  } else if (several) {
    for (size_t j = 0; j < kind.results.size(); ++j) {
      const auto table = static_cast<size_t>(kind.results[j]);
      std::memcpy(tables_[table].row(rows_[launch.first_result + j].place), tables_[table].row(own[table]++),
                  static_cast<size_t>(tables_[table].row_class().bytes));
    }
  }
  indices_.resize(offset);
  return RAL_OK;
}

// Finds out whose fault an error is: batches one by one, and the calls of one that fails.
ral_status Launches::isolate(const std::vector<int64_t>& before) {
  std::vector<int64_t> used = before;
  for (size_t b = 0, at = 0; b < batches_.size(); at = static_cast<size_t>(ends_[b++])) {
    const ral_batch batch = batches_[b];
    bool clean = true;
    for (size_t i = at; i < static_cast<size_t>(ends_[b]); ++i) {
      Launch& launch = launches_[chosen_[static_cast<size_t>(order_[i])]];
      fail_dependents(launch);
      clean = clean && launch.failure < 0;
    }
    if (!clean || run_range(&batch, 1, used) != RAL_OK) {
      for (size_t i = at; i < static_cast<size_t>(ends_[b]); ++i) {
        Launch& launch = launches_[chosen_[static_cast<size_t>(order_[i])]];
        if (launch.failure >= 0) continue;
        if (const ral_status status = run_alone(batch, static_cast<int64_t>(i - at), launch, used); status != RAL_OK) return status;
      }
    }
    const int32_t kind = launches_[chosen_[static_cast<size_t>(order_[at])]].kind;
    for (const int32_t each : code_.kinds[static_cast<size_t>(kind)].results) used[static_cast<size_t>(each)] += batch.count;
  }
  return RAL_OK;
}

void Launches::fail_dependents(Launch& launch) const {
  const size_t count = code_.kinds[static_cast<size_t>(launch.kind)].rows.size();
  for (size_t i = 0; i < count && launch.failure < 0; ++i) {
    const Row& row = rows_[static_cast<size_t>(reads_[launch.first_read + i])];
    if (row.launch >= 0) launch.failure = launches_[static_cast<size_t>(row.launch)].failure;
  }
}

ral_status Launches::run() {
  std::vector<int64_t> before;
  for (const Table& each : tables_) before.push_back(each.used);
  batches_.clear();
  indices_.clear();
  size_t at = 0;
  for (const int64_t end : ends_) {
    arrange(at, static_cast<size_t>(end));
    at = static_cast<size_t>(end);
  }
  launch_count += static_cast<int64_t>(batches_.size());
  for (Table& each : tables_) {
    if (!each.reserve(each.used)) return RAL_ERROR_MEMORY;
  }
  const ral_status status = run_range(batches_.data(), batches_.size(), before);
  if (status == RAL_OK) return status;
  if (status == RAL_ERROR_CANCELLED || status == RAL_ERROR_MEMORY || status == RAL_ERROR_INTERNAL) return status;
  return isolate(before);
}

ral_status Launches::flush(const std::vector<int64_t>* needed) {
  take(needed);
  if (chosen_.empty()) return RAL_OK;
  ral_status status = order();
  if (status == RAL_OK) status = run();
  for (const uint32_t each : chosen_) launches_[each].done = true;
  return status;
}

}  // namespace ral::tasks
