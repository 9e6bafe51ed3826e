/* A stand-in for NVIDIA's cuBLASLt, libcublasLt.so.13, beside the stand-in driver (fake_driver.c): its products run in the order of their
 * streams, on memory that only running work may touch. It ends the process for what the real library need not notice: tensors that are less
 * aligned than was promised, an algorithm of another problem, a workspace that is too small, wrong sizes of attributes. */
#include "fake_products.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"

enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15, EXECUTION_FAILED = 13 };
enum { REAL32 = 0, REAL16 = 2, BRAIN16 = 14, EXACT = 68, TF32 = 77 };
enum { FIXED_WORDS = 16 };

typedef struct handle {
  void* context;
} handle;

typedef struct description {
  int32_t compute, turn[2]; /* of a and b: 0 = as it lies, 1 = transposed */
  uint32_t epilogue;        /* 1 = none, 4 = a bias */
  uint64_t bias;
} description;

typedef struct layout {
  int32_t type, batch;
  uint64_t rows, columns;
  int64_t ahead, step;
} layout;

typedef struct preference {
  uint64_t workspace;
  uint32_t reductions, alignment[4];
} preference;

typedef struct algorithm {
  uint64_t data[8]; /* what it was found for, its workspace, alignment of a, b, c, d */
} algorithm;

typedef struct found {
  algorithm algorithm;
  size_t workspace;
  int32_t status;
  float waves;
  int32_t reserved[4];
} found;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int64_t fail_at = -1;
static int32_t fail_with;
static fake_products counts;

static void misused(const char* what) {
  fprintf(stderr, "fake products: %s\n", what);
  abort();
}

static int32_t begin(int64_t live) {
  pthread_mutex_lock(&mutex);
  const int32_t failed = counts.calls++ == fail_at ? fail_with : SUCCESS;
  if (!failed) counts.live += live;
  pthread_mutex_unlock(&mutex);
  return failed;
}
static void end(void* made) {
  if (!made) misused("nothing is destroyed");
  pthread_mutex_lock(&mutex);
  counts.live -= 1;
  pthread_mutex_unlock(&mutex);
  free(made);
}
static void count(int64_t* which) {
  pthread_mutex_lock(&mutex);
  *which += 1;
  pthread_mutex_unlock(&mutex);
}

void fake_fail_products(int64_t number, int32_t status) {
  pthread_mutex_lock(&mutex);
  fail_at = number, fail_with = status, counts.calls = 0;
  pthread_mutex_unlock(&mutex);
}
fake_products fake_get_products(void) {
  pthread_mutex_lock(&mutex);
  const fake_products now = counts;
  pthread_mutex_unlock(&mutex);
  return now;
}

/* --- descriptions ---------------------------------------------------------------------------------------------------------------- */

int32_t cublasLtCreate(handle** made) {
  const int32_t failed = begin(0);
  if (failed || !fake_current()) return failed ? failed : NOT_INITIALIZED;
  *made = calloc(1, sizeof **made);
  (*made)->context = fake_current();
  return SUCCESS;
}
const char* cublasLtGetStatusName(int32_t status) {
  return status == NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : status == 3 ? "CUBLAS_STATUS_ALLOC_FAILED" : "CUBLAS_STATUS_OTHER";
}
int32_t cublasLtMatmulDescCreate(description** made, int32_t compute, int32_t scale) {
  const int32_t failed = begin(1);
  if (failed) return failed;
  if ((compute != EXACT && compute != TF32) || scale != REAL32) misused("sums in another type");
  *made = calloc(1, sizeof **made);
  **made = (description){compute, {0, 0}, 1, 0};
  return SUCCESS;
}
int32_t cublasLtMatmulDescDestroy(description* made) {
  end(made);
  return SUCCESS;
}
int32_t cublasLtMatmulDescSetAttribute(description* d, int32_t attribute, const void* value, size_t bytes) {
  const int32_t failed = begin(0);
  if (failed) return failed;
  if (bytes != (attribute == 8 ? 8 : 4)) misused("an attribute of another size");
  if (attribute == 3 || attribute == 4) memcpy(&d->turn[attribute - 3], value, bytes);
  else if (attribute == 7) memcpy(&d->epilogue, value, bytes);
  else if (attribute == 8) memcpy(&d->bias, value, bytes);
  else misused("an attribute of a product that is not known here");
  if (d->turn[0] > 1 || d->turn[1] > 1 || (d->epilogue != 1 && d->epilogue != 4)) misused("a wrong value of an attribute");
  return SUCCESS;
}
int32_t cublasLtMatrixLayoutCreate(layout** made, int32_t type, uint64_t rows, uint64_t columns, int64_t ahead) {
  const int32_t failed = begin(1);
  if (failed) return failed;
  if (type != REAL32 && type != REAL16 && type != BRAIN16) misused("elements of another type");
  if (!rows || !columns || ahead < (int64_t)rows) misused("a matrix that cannot be");
  *made = calloc(1, sizeof **made);
  **made = (layout){type, 1, rows, columns, ahead, 0};
  return SUCCESS;
}
int32_t cublasLtMatrixLayoutDestroy(layout* made) {
  end(made);
  return SUCCESS;
}
int32_t cublasLtMatrixLayoutSetAttribute(layout* l, int32_t attribute, const void* value, size_t bytes) {
  const int32_t failed = begin(0);
  if (failed) return failed;
  if (attribute == 5 && bytes == sizeof l->batch) memcpy(&l->batch, value, bytes);
  else if (attribute == 6 && bytes == sizeof l->step) memcpy(&l->step, value, bytes);
  else misused("an attribute of a layout that is not known here");
  return SUCCESS;
}
int32_t cublasLtMatmulPreferenceCreate(preference** made) {
  const int32_t failed = begin(1);
  if (failed) return failed;
  *made = calloc(1, sizeof **made);
  **made = (preference){0, 7, {256, 256, 256, 256}};
  return SUCCESS;
}
int32_t cublasLtMatmulPreferenceDestroy(preference* made) {
  end(made);
  return SUCCESS;
}
int32_t cublasLtMatmulPreferenceSetAttribute(preference* p, int32_t attribute, const void* value, size_t bytes) {
  const int32_t failed = begin(0);
  if (failed) return failed;
  if (attribute == 1 && bytes == sizeof p->workspace) memcpy(&p->workspace, value, bytes);
  else if (attribute == 3 && bytes == sizeof p->reductions) memcpy(&p->reductions, value, bytes);
  else if (attribute >= 5 && attribute <= 8 && bytes == 4) memcpy(&p->alignment[attribute - 5], value, bytes);
  else misused("an attribute of a preference that is not known here");
  return SUCCESS;
}

/* --- products -------------------------------------------------------------------------------------------------------------------- */

static size_t size_of(int32_t type) { return type == REAL32 ? 4 : 2; }

/* What fits together: sizes, batches, elements; a hash of it. */
static uint64_t problem(const description* d, const layout* const* l) {
  const uint64_t rows = d->turn[0] ? l[0]->columns : l[0]->rows, k = d->turn[0] ? l[0]->rows : l[0]->columns;
  const uint64_t columns = d->turn[1] ? l[1]->rows : l[1]->columns;
  if (k != (d->turn[1] ? l[1]->columns : l[1]->rows) || rows != l[3]->rows || columns != l[3]->columns) misused("sizes that differ");
  if (l[0]->type != l[1]->type || (l[3]->type != l[0]->type && l[3]->type != REAL32)) misused("elements that do not go together");
  if (memcmp(l[2], l[3], sizeof *l[2])) misused("c and d lie in different ways");
  uint64_t hash = 14695981039346656037u;
  for (int32_t i = 0; i < 4; ++i) {
    if (l[i]->batch != l[0]->batch) misused("batches that differ");
    const uint64_t each[] = {(uint64_t)l[i]->type, (uint64_t)l[i]->batch, l[i]->rows, l[i]->columns, (uint64_t)l[i]->ahead, (uint64_t)l[i]->step};
    for (size_t j = 0; j < sizeof each / sizeof *each; ++j) hash = (hash ^ each[j]) * 1099511628211u;
  }
  return (hash ^ (uint64_t)(d->turn[0] + 2 * d->turn[1] + 4 * d->compute) ^ ((uint64_t)d->epilogue << 32)) * 1099511628211u;
}

int32_t cublasLtMatmulAlgoGetHeuristic(const handle* h, const description* d, const layout* a, const layout* b, const layout* c, const layout* e,
                                       const preference* p, int32_t wanted, found* results, int32_t* number) {
  const int32_t failed = begin(0);
  *number = 0;
  if (failed) return failed;
  count(&counts.searches);
  if (wanted < 1 || h->context != fake_current()) misused("a search that finds nothing");
  if (p->reductions != 2) misused("parts of k are added in another type than f32");
  if (d->epilogue == 4 && d->bias % p->alignment[3]) misused("a bias that is less aligned than a result");
  const uint64_t hash = problem(d, (const layout* const[]){a, b, c, e});
  if (d->compute == TF32 && a->type != REAL32) return NOT_SUPPORTED;
  const uint64_t bytes = a->rows % 3 ? 512 + hash % 1000 : 0;
  if (bytes > p->workspace) return NOT_SUPPORTED;
  *results = (found){{{hash, bytes, p->alignment[0], p->alignment[1], p->alignment[2], p->alignment[3]}}, bytes, SUCCESS, 1, {0}};
  *number = 1;
  return SUCCESS;
}

static float as_tf32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bits = (bits + 0x1000) & ~0x1fffu;
  memcpy(&value, &bits, 4);
  return value;
}
static float read_element(uint64_t at, int32_t type) {
  float value = 0;
  if (type == REAL32) {
    memcpy(&value, (const void*)at, 4);
  } else if (type == REAL16) {
    _Float16 half;
    memcpy(&half, (const void*)at, 2);
    value = (float)half;
  } else {
    memcpy((char*)&value + 2, (const void*)at, 2);
  }
  return value;
}
static void write_element(uint64_t at, int32_t type, float value) {
  if (type == REAL32) {
    memcpy((void*)at, &value, 4);
  } else if (type == REAL16) {
    const _Float16 half = (_Float16)value;
    memcpy((void*)at, &half, 2);
  } else {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    const uint16_t rounded = value != value ? 0x7fc0 : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    memcpy((void*)at, &rounded, 2);
  }
}

static uint64_t element(const layout* l, uint64_t base, int64_t batch, uint64_t row, uint64_t column) {
  return base + (uint64_t)(batch * l->step + (int64_t)column * l->ahead + (int64_t)row) * size_of(l->type);
}

/* words: five ranges (a, b, d, bias, workspace), then the description and three layouts. */
static void run(const uint64_t* words) {
  description d;
  layout l[3];
  const uint64_t *place = words + 1, *rest = words + 1 + 2 * words[0];
  memcpy(&d, rest, sizeof d);
  memcpy(l, (const char*)rest + sizeof d, sizeof l);
  if (words[0] == 5) memset((void*)place[8], 0xa5, place[9]);
  const uint64_t k = d.turn[0] ? l[0].rows : l[0].columns;
  for (int64_t batch = 0; batch < l[2].batch; ++batch) {
    for (uint64_t column = 0; column < l[2].columns; ++column) {
      for (uint64_t row = 0; row < l[2].rows; ++row) {
        double sum = 0;
        for (uint64_t i = 0; i < k; ++i) {
          float a = read_element(element(&l[0], place[0], batch, d.turn[0] ? i : row, d.turn[0] ? row : i), l[0].type);
          float b = read_element(element(&l[1], place[2], batch, d.turn[1] ? column : i, d.turn[1] ? i : column), l[1].type);
          if (d.compute == TF32) a = as_tf32(a), b = as_tf32(b);
          sum += (double)a * (double)b;
        }
        if (d.epilogue == 4) sum += (double)read_element(place[6] + row * size_of(l[2].type), l[2].type);
        write_element(element(&l[2], place[4], batch, row, column), l[2].type, (float)sum);
      }
    }
  }
}

static uint64_t bytes_of(const layout* l) {
  return ((l->columns - 1) * (uint64_t)l->ahead + l->rows + (uint64_t)(l->batch - 1) * (uint64_t)l->step) * size_of(l->type);
}

int32_t cublasLtMatmul(const handle* h, const description* d, const float* alpha, uint64_t a, const layout* a_layout, uint64_t b,
                       const layout* b_layout, const float* beta, uint64_t c, const layout* c_layout, uint64_t e, const layout* d_layout,
                       const algorithm* chosen, uint64_t workspace, size_t bytes, void* stream) {
  const int32_t failed = begin(0);
  if (failed) return failed;
  if (*alpha != 1 || *beta != 0 || c != e) misused("another product than is asked for here");
  if (h->context != fake_current()) misused("a handle of another context");
  if (chosen->data[0] != problem(d, (const layout* const[]){a_layout, b_layout, c_layout, d_layout})) misused("an algorithm of another problem");
  if (bytes < chosen->data[1] || (bytes && (!workspace || workspace % 256))) misused("a workspace that will not do");
  if (a % chosen->data[2] || b % chosen->data[3] || e % chosen->data[5] || (d->epilogue == 4 && d->bias % chosen->data[5])) {
    misused("tensors that are less aligned than was said");
  }
  const uint64_t bias_bytes = d->epilogue == 4 ? d_layout->rows * size_of(d_layout->type) : 0;
  uint64_t words[FIXED_WORDS + (sizeof(description) + 3 * sizeof(layout)) / 8] = {
      bytes ? 5 : 4, a, bytes_of(a_layout), b, bytes_of(b_layout), e, bytes_of(d_layout), bias_bytes ? d->bias : a, bias_bytes, workspace, bytes};
  char* rest = (char*)(words + 1 + 2 * words[0]);
  memcpy(rest, d, sizeof *d);
  memcpy(rest + sizeof *d, a_layout, sizeof *a_layout);
  memcpy(rest + sizeof *d + sizeof *a_layout, b_layout, sizeof *b_layout);
  memcpy(rest + sizeof *d + 2 * sizeof *a_layout, d_layout, sizeof *d_layout);
  count(&counts.products);
  return fake_enqueue(stream, run, words, (int64_t)(sizeof words / sizeof *words)) ? EXECUTION_FAILED : SUCCESS;
}
