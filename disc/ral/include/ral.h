/* The runtime abstraction layer: loads a compiled artifact and runs it. A C11 header; the library is libral.so.
 *
 * Threads: every function may be called from any thread at any time, except that `ral_unload` must come after the last call.
 * Several threads may run `ral_call` on one context at once. Nothing here throws, aborts or writes to a file.
 */
#ifndef DISC_RAL_H
#define DISC_RAL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RAL_ABI_VERSION 2 /* code sections made for ABI 1 run as they are: what they see has only grown at its end */
#define RAL_API __attribute__((visibility("default")))

typedef enum ral_dtype {
  RAL_I1 = 0, /* one byte, 0 or 1 */
  RAL_I8,
  RAL_I16,
  RAL_I32,
  RAL_I64,
  RAL_UI8,
  RAL_UI16,
  RAL_UI32,
  RAL_UI64,
  RAL_F16,
  RAL_BF16,
  RAL_F32,
  RAL_F64,
  RAL_C64, /* complex: of inputs and outputs. The code sees two floats, as one more dim of size 2 */
  RAL_C128
} ral_dtype;

typedef enum ral_status {
  RAL_OK = 0,
  RAL_ERROR_RANK,     /* wrong number of inputs, or an input of the wrong rank */
  RAL_ERROR_DTYPE,    /* an input or given output of the wrong dtype */
  RAL_ERROR_DEVICE,   /* a tensor on another device than the one that the loaded code is for, or a device that failed */
  RAL_ERROR_SHAPE,    /* a dim or relation that the compiled model does not accept */
  RAL_ERROR_ALIAS,    /* a given output or an input that is written to overlaps an input or another output, or is not contiguous */
  RAL_ERROR_MEMORY,   /* a buffer could not be allocated */
  RAL_ERROR_ARTIFACT, /* the artifact is damaged, of another version, or not an artifact */
  RAL_ERROR_TARGET,   /* the CPU lacks what the artifact needs */
  RAL_ERROR_INTERNAL, /* our mistake, or misuse of this interface */
  RAL_ERROR_CANCELLED, /* what ral_set_stop was given asked for an end of the call */
  RAL_ERROR_VALUE,    /* numbers in the inputs that the program cannot compute with */
  RAL_ERROR_SINGULAR, /* of these, a matrix that has no inverse or factors */
  RAL_ERROR_FUNCTION, /* a custom function failed */
  RAL_ERROR_STRUCTURE, /* a tree or graph that cannot be computed; the four below say why */
  RAL_ERROR_CYCLE,     /* a node that is below itself */
  RAL_ERROR_MISSING,   /* a node lacks a child or a number that its kind needs */
  RAL_ERROR_NODE_INDEX, /* a child that is no node of the structure */
  RAL_ERROR_NODE_KIND, /* a node is of no known kind, or has what its kind has not */
  RAL_ERROR_WRITTEN    /* a call failed when inputs that it spoils may have been written over: it cannot be made again */
} ral_status;

#define RAL_CPU 0    /* the device whose memory is this process's; ral_register_device gives the numbers of others */
#define RAL_CUDA 255 /* NVIDIA GPUs: device "cuda" */

/* A tensor in the memory of a device. Strides count elements and may be 0 or negative; NULL means row-major. Dims and strides are always
 * in memory of this process. */
typedef struct ral_tensor {
  void* data;
  const int64_t* dims;
  const int64_t* strides;
  int32_t rank;
  uint16_t dtype;    /* ral_dtype */
  uint8_t device;    /* RAL_CPU or another device's number */
  uint8_t device_id; /* which of several devices of that number */
} ral_tensor;

/* ---- What generated code sees ---------------------------------------------------------------------------------------------- */

typedef struct ral_exec ral_exec; /* one call in progress */

/* Work on tasks [begin, end). `scratch` is this thread's own, 64-byte aligned; NULL when the launch asked for none. */
typedef void (*ral_kernel)(const int64_t* args, int64_t begin, int64_t end, void* scratch);

/* Costs are given in units of 1/16 nanosecond of one core. */
#define RAL_COST_PER_NANOSECOND 16

/* What `choose` decides by: places in its array of features. */
typedef enum ral_feature {
  RAL_FEATURE_M = 0,
  RAL_FEATURE_N,
  RAL_FEATURE_K,
  RAL_FEATURE_BATCH,
  RAL_FEATURE_THREADS,
  RAL_FEATURE_COUNT
} ral_feature;
/* A tree for GPUs may ask, with this in the place of a feature, whether the GPU's device has a library of products (ral_gpu_product): 1, else 0.
 * `features` has no place for it. */
#define RAL_FEATURE_PRODUCTS RAL_FEATURE_COUNT

/* The table handed to generated host code, which runs on the CPU and asks the device of its code section for memory and launches. What it
 * asks for happens in that order, on other devices than the CPU at some later time. The order is fixed; new entries come at the end.
 * Where a function fails, it records the error of the call and returns NULL, or a number other than 0; the entry then returns nonzero. */
typedef struct ral_host_api {
  /* Memory of the device, 64-byte aligned, valid until `free` or the end of the call, however it ends; any number of times. Memory that
   * was freed, in this call or one before, goes to the next that it is large enough for. */
  void* (*alloc)(ral_exec* exec, int64_t bytes);
  /* Makes output `index`, row-major with these dims, and returns its data (never NULL for size 0). */
  void* (*output)(ral_exec* exec, int64_t index, const int64_t* dims);
  /* Runs `kernel` over [0, tasks), on the CPU split over threads when tasks * cost_per_task is worth it, and all tasks done on return.
   * `kernel_id` is the index in the manifest's kernels. On another device `kernel` is what ral_launch says. */
  int32_t (*launch)(ral_exec* exec, int64_t kernel_id, ral_kernel kernel, const int64_t* args, int64_t tasks, int64_t cost_per_task,
                    int64_t scratch_bytes);
  /* Records that run-time check `check_id` (index in the manifest's checks) failed. Returns nonzero. */
  int32_t (*fail)(ral_exec* exec, int64_t check_id, int64_t actual, int64_t expected);
  /* Walks a decision tree: nodes of four numbers (feature, threshold, left, right), node 0 first; left when features[feature] <= threshold;
   * the feature of a leaf is -1 and its threshold the answer, in [0, count). features: one for each ral_feature, of which the number of
   * threads is filled in here. ral_force_choice overrides the answer. Never fails. */
  int64_t (*choose)(ral_exec* exec, const int64_t* nodes, int64_t* features, int64_t count);
  /* Bytes of the CPU's last-level cache: results that are larger are worth writing past it. */
  int64_t cache_bytes;

  /* Since ABI 2. */

  /* Gives back what `alloc` gave in this call. */
  int32_t (*free)(ral_exec* exec, void* pointer);
  /* Copies between memory of the device, which does not overlap; `from` may be memory of this process, and is read on return then. */
  int32_t (*copy)(ral_exec* exec, void* to, const void* from, int64_t bytes);
  /* Sets each byte to `value`, 0 to 255. */
  int32_t (*fill)(ral_exec* exec, void* to, int64_t bytes, int32_t value);
  /* Waits until a number that a kernel writes to memory of the device is there, and reads it. */
  int32_t (*read)(ral_exec* exec, const void* from, int64_t* value);
  /* Runs the library function with this number in the signature as a launch of kernel `kernel_id`, done on return. layout: how many tensors
   * it reads, how many it makes, how many numbers it gets; then dtype and rank of each tensor. args: the addresses of the tensors, 0 for
   * one that is not wanted; the dims of all; the numbers. Where it fails, the message begins with that of check `check_id`. */
  int32_t (*library)(ral_exec* exec, int64_t kernel_id, int64_t check_id, int64_t function, const int64_t* layout, const int64_t* args);
  /* Called right before the launch of a kernel that checks indices, for a GPU: what that launch finds is reported as run-time check
   * `check_id`, with the index as {actual} and the size as {expected}, by this call where it waits for its results, else by a later one or by
   * ral_synchronize. */
  int32_t (*watch)(ral_exec* exec, int64_t check_id);
} ral_host_api;

/* The function `disc_entry` of each code section. Inputs are checked against the signature, contiguous (strides row-major), and on the
 * device; so are `weights`, in the order of the manifest; `counters` start at 0 in every call and are added to the context's totals.
 * Returns 0 when every output has been made. */
typedef int32_t (*ral_entry)(ral_exec* exec, const ral_host_api* api, const ral_tensor* inputs, const void* const* weights,
                             int64_t* counters);

/* ---- Kernels for NVIDIA GPUs ------------------------------------------------------------------------------------------------ */

/* The code of kernels for one kind of GPU. */
typedef struct ral_gpu_image {
  int32_t architecture; /* 90 = compute capability 9.0; 80 for portable PTX */
  int32_t ptx;          /* 1: NUL-terminated PTX text, 0: a cubin */
  const void* data;
  int64_t size;
} ral_gpu_image;

/* One version of a kernel, in the constant data of a code section of the device "cuda": `launch` gets its address as `kernel`. The arguments
 * of the launch are one slot of 8 bytes for each parameter in order (pointers, numbers; at the place of faults 0), then the blocks of the grid
 * along x (there in whole clusters), y and z. Behind the parameters the runtime hands over two pointers, as Triton's kernels take them: scratch
 * memory, and null. */
typedef struct ral_gpu_kernel {
  int32_t abi;     /* 2 */
  int32_t threads; /* of a block */
  int32_t shared;  /* bytes of dynamic shared memory */
  int32_t cluster; /* blocks of a cluster; the grid has as many times more blocks along x */
  int32_t scratch; /* bytes of global scratch memory for each block; mostly 0 */
  int32_t fault;   /* number of the parameter that points at the place of faults, three i64: flag, index, size; -1 = none */
  int32_t image_count;
  int32_t parameter_count;
  const char* function;           /* its name in the image */
  const ral_gpu_image* images;    /* best first; equal addresses of data are loaded once */
  const uint8_t* parameter_sizes; /* 8, or 4: the low half of the slot; of an address of memory 8 + RAL_GPU_ADDRESS */
} ral_gpu_kernel;

#define RAL_GPU_ADDRESS 128

/* A product that the GPU's library of products (cuBLASLt) computes where the process can load it: `launch` takes it in the place of a
 * ral_gpu_kernel. result[batch, m, n] = sum over k of left[batch, m, k] * right[batch, k, n], plus bias[n], summed in f32. Tensors begin at
 * multiples of 16 bytes. Behind the slots of the parameters lie, instead of a grid: m, n, batch; a slot that is not read; k; how many elements
 * a row of the left and of the right factor and of the result lies ahead of the next (where values of k lie apart: a value of k); and how
 * many a matrix of the batch of each. */
typedef struct ral_gpu_product {
  int32_t abi;             /* 3, which no ral_gpu_kernel has */
  int32_t parameter_count; /* slots, as of a kernel */
  int32_t left;            /* numbers of the parameters that are the addresses */
  int32_t right;
  int32_t bias; /* -1 = none */
  int32_t result;
  int32_t factor_dtype; /* ral_dtype: RAL_F32, RAL_F16 or RAL_BF16 */
  int32_t result_dtype; /* also of the bias: that of the factors, or RAL_F32 */
  int32_t left_apart;   /* 1: rows of the left factor lie next to each other, values of k apart; 0: the other way around */
  int32_t right_apart;  /* 1: columns of the right factor lie next to each other, values of k apart; 0: the other way around */
  int32_t tf32;         /* 1: factors of f32 are rounded to tf32 */
} ral_gpu_product;

/* ---- Devices --------------------------------------------------------------------------------------------------------------- */

/* One launch, as a device gets it. */
typedef struct ral_launch {
  const char* name;     /* of the kernel, in the signature */
  ral_kernel kernel;    /* what the code section handed over: a function of this process, or what its emitter and the device agree on */
  const int64_t* args;  /* likewise; valid until `launch` of the device returns */
  int64_t tasks;        /* at least 1 */
  int64_t scratch_bytes; /* for each thread of the device, or the like */
} ral_launch;

/* A device beside the CPU. Its functions are called by any thread, several at once, with `state`. What one thread asks for takes effect in
 * that order, at some time; `synchronize` waits for all of it, as does a copy to memory of this process. Every call of a program ends with
 * it. Functions return 0, and something else (allocate: NULL) where they fail; they then need not have any effect. */
typedef struct ral_device {
  int32_t abi; /* RAL_ABI_VERSION */
  const char* name; /* lower-case letters, digits, '-', '_' and '.'; code for it is named "NAME:isa", the ISA being that of its host code */
  void* state;
  void* (*allocate)(void* state, int64_t bytes); /* 64-byte aligned; bytes > 0 */
  void (*free)(void* state, void* pointer);      /* takes effect after what the thread asked for before */
  int32_t (*copy)(void* state, void* to, const void* from, int64_t bytes); /* one of both may be memory of this process */
  int32_t (*fill)(void* state, void* to, int64_t bytes, int32_t value);    /* value: 0 to 255 */
  int32_t (*launch)(void* state, const ral_launch* launch);
  int32_t (*synchronize)(void* state);
} ral_device;

/* Makes a device known to this process, for the rest of its life; the description is copied. *number: for ral_tensor.device. */
RAL_API ral_status ral_register_device(const ral_device* device, int32_t* number);

/* ---- Custom functions ------------------------------------------------------------------------------------------------------ */

/* One call of a function that a program names and this library does not have: of a custom op. All of it is valid until the function returns,
 * and is used by the calling thread alone, which is that of `ral_call`.
 *
 * operands: the op's tensors, in the order of its arguments, row-major; only to be read. results: of arguments that the op writes the new
 * values, which hold the old ones already, in the order of the arguments; then what the op returns. Row-major, of the sizes that the program
 * expects; data is never NULL where there are elements. numbers: the op's other arguments in their order: integers, sizes and bools as they
 * are, floats as the bits of an f64, of a list of integers first how many there are. */
typedef struct ral_function_call {
  int32_t abi; /* RAL_ABI_VERSION */
  int32_t operand_count;
  int32_t result_count;
  int32_t number_count;
  const ral_tensor* operands;
  const ral_tensor* results;
  const int64_t* numbers;
  void* state;     /* of a ral_host_function */
  int32_t threads; /* how many `parallel` may use */
  /* Makes the program's call fail with RAL_ERROR_FUNCTION: the message is the op, the user's line and `reason`. The function then returns. */
  void (*fail)(const struct ral_function_call* call, const char* reason);
  /* 64-byte aligned memory until the function returns; NULL where there is none: the call has failed then, and the function returns. */
  void* (*memory)(const struct ral_function_call* call, int64_t bytes);
  /* As `launch` of ral_host_api: runs `body` over [0, tasks), all of it done on return; `args` is handed to it as it is. */
  int32_t (*parallel)(const struct ral_function_call* call, ral_kernel body, const int64_t* args, int64_t tasks, int64_t cost_per_task,
                      int64_t scratch_bytes);
  void* own; /* the runtime's */
} ral_function_call;

/* Threads: any, several at once. What it computes should not depend on `threads`. */
typedef void (*ral_function)(const ral_function_call* call);

#define RAL_DIGEST_TEXT 65 /* SHA-256 in lower-case hexadecimal digits, and the NUL */

/* Binds a custom op ("mylib::scale") to a function of a shared library, for programs that are loaded afterwards. A program names the op, the
 * symbol, and the SHA-256 of the library that it was compiled for, and is refused where no such function is registered. The library's
 * bytes are read once, hashed and loaded from a copy in memory, for the rest of the process's life; libraries beside it are found by the
 * system's search path alone. digest: RAL_DIGEST_TEXT bytes, is filled in; may be NULL. */
RAL_API ral_status ral_register_function(const char* op, const char* library, const char* symbol, char* digest);

/* A function that the host's language provides for one program. release: called once, when the program is gone. */
typedef struct ral_host_function {
  ral_function run;
  void* state;
  void (*release)(void* state);
} ral_host_function;

/* Finds a function that a program names, and that nothing was registered for. Where it returns something else than RAL_OK, loading fails with
 * that status and `reason`, a text of less than `reason_size` bytes that it has written. */
typedef ral_status (*ral_find_function)(const char* name, ral_host_function* found, char* reason, size_t reason_size);

/* From now on programs that are loaded ask `find`; NULL: nobody. */
RAL_API void ral_set_finder(ral_find_function find);

/* ---- Loading --------------------------------------------------------------------------------------------------------------- */

typedef struct ral_context ral_context; /* a loaded artifact */

typedef struct ral_options {
  int32_t abi;     /* RAL_ABI_VERSION */
  int32_t threads; /* threads per call; 0 = as many as ral_get_cores says */
  const char* isa; /* load this code section, or the best one of this device ("cpu", "cuda"); NULL = the best one this CPU can run, or a GPU
                    * where there is none. "@1" behind it: for the second GPU */
} ral_options;

typedef struct ral_code {
  const char* isa; /* a level and further features, as "x86-64-v4+avx512bf16"; before them, with a colon, the device unless it is the CPU */
  const void* data;
  size_t size;
} ral_code;

/* A program in memory. Everything is copied but the weights, which the caller keeps alive and unchanged until `ral_unload`. */
typedef struct ral_program {
  const void* manifest; /* JSON, only handed back by ral_manifest */
  size_t manifest_size;
  const void* signature; /* docs/artifact.md, "Signature" */
  size_t signature_size;
  const ral_code* code; /* best last */
  int32_t code_count;
  const void* const* weights;
  int32_t weight_count;
} ral_program;

/* `options` may be NULL. On failure *context is NULL and ral_last_error says why. */
RAL_API ral_status ral_load_file(const char* path, const ral_options* options, ral_context** context);
/* As ral_load_file, but of a file whose header hash (the 32 bytes after the section table, which cover the hashes of all sections) is
 * `digest` alone: whoever has checked a signature of the header then loads what was signed, whatever has become of the path since. */
RAL_API ral_status ral_load_expected(const char* path, const uint8_t* digest, const ral_options* options, ral_context** context);
RAL_API ral_status ral_load_memory(const ral_program* program, const ral_options* options, ral_context** context);
/* The number of the code that would be loaded of these ISAs (best last): the last that this CPU and its devices can run, or the one that is
 * `wanted` (NULL = any). For programs in memory whose code for each ISA has a signature and weights of its own. */
RAL_API ral_status ral_choose_code(const char* const* isas, int32_t count, const char* wanted, int32_t* chosen);
RAL_API void ral_unload(ral_context* context); /* NULL is ignored; outputs stay valid */

/* Maps the file `descriptor`, which holds the same bytes, in the place of the one that was loaded, after `ral_verify`: before somebody
 * writes to that. Calls may run meanwhile. The caller may close the descriptor, and sees to it that nobody changes its file. */
RAL_API ral_status ral_remap_file(ral_context* context, int32_t descriptor);

/* Waits until the weights of an artifact from a file have been checked against their hashes (ral_call does so by itself). */
RAL_API ral_status ral_verify(ral_context* context);

/* The message of this thread's last failed call of this library; "" if none failed. Valid until its next failure. */
RAL_API const char* ral_last_error(void);

/* ---- Calling --------------------------------------------------------------------------------------------------------------- */

/* Runs the program on inputs that lie on its device. On the CPU any strides are accepted (not row-major: copied and counted).
 * On a GPU all tensors may lie in this process's memory instead, as its results do then, and numbers (rank 0) may in any case; else the call
 * returns when it has asked for everything: it reads and writes in the order of the default stream, and ral_synchronize waits.
 * given_outputs == NULL: fills `outputs` with fresh tensors; free each with ral_release.
 * given_outputs != NULL: results go to these `output_count` buffers (right dtype, dims, row-major, no overlap with an input or each
 * other); `outputs` is not used. On failure nothing in `outputs` is to be released; given buffers may hold part of a result. */
RAL_API ral_status ral_call(ral_context* context, const ral_tensor* inputs, int32_t input_count, const ral_tensor* given_outputs,
                            ral_tensor* outputs, int32_t output_count);
/* From now on, calls of this thread ask `stop` from time to time (some 20 ms) while they run loops whose end depends on data; an answer other
 * than 0 ends the call with RAL_ERROR_CANCELLED, and what it held is freed. NULL: nobody is asked. `stop` is called by this thread. */
RAL_API void ral_set_stop(int32_t (*stop)(void* state), void* state);
/* From now on, calls of this thread tell `observer` right before each launch of a kernel, by its name and its number in the program, and behind
 * it (name == NULL), also when the launch fails. On a GPU that is when it was asked for. NULL: nobody is told. `observer` is called by this thread. For profilers. */
RAL_API void ral_set_observer(void (*observer)(void* state, const char* name, int64_t kernel), void* state);
RAL_API void ral_release(ral_tensor* output); /* frees a tensor made by ral_call and clears it */
/* As ral_call with fresh tensors, but a result that may replace an input (by the signature) is computed in the memory of that, where this is
 * row-major and overlaps no other input: it comes as an empty tensor (dims == NULL), which need not be released. A call that fails has written
 * nothing there: what could fail comes before. On other devices than the CPU all results are fresh. */
RAL_API ral_status ral_call_replacing(ral_context* context, const ral_tensor* inputs, int32_t input_count, ral_tensor* outputs,
                                      int32_t output_count);
/* As ral_call, in the order of `stream`, a CUstream of the GPU where the tensors lie; it lives as long as the results. */
RAL_API ral_status ral_call_on(ral_context* context, const ral_tensor* inputs, int32_t input_count, const ral_tensor* given_outputs,
                               ral_tensor* outputs, int32_t output_count, void* stream);

/* Memory of a GPU that somebody else has. release: called once, by any thread, when the result that lies there is released; what was asked of
 * the call's stream by then may still use it. */
typedef struct ral_lent {
  void* data;
  void* owner;
  void (*release)(void* owner);
} ral_lent;
/* From now on, the first `count` fresh results of calls of this thread on tensors of a GPU lie in memory that `lend` gives, for use in the order
 * of the call's stream; others, and with NULL all of them, in the runtime's own. wanted: dims, rank, dtype, device, row-major. It returns 0, or
 * something else where there is none: it is called once more when the runtime has given back what it keeps, and then the call says so. `lend` is
 * called by this thread. */
RAL_API void ral_set_lender(int32_t (*lend)(void* state, const ral_tensor* wanted, ral_lent* lent), void* state, int32_t count);
/* Waits until the device has done what calls asked for. Fails with what their launches reported. */
RAL_API ral_status ral_synchronize(ral_context* context);

/* Of a program on a GPU: a tensor there for calls on any stream, with the numbers of a row-major one that lies there or in this process's
 * memory. Free it with ral_release, which waits for the GPU. */
RAL_API ral_status ral_keep_tensor(ral_context* context, const ral_tensor* from, ral_tensor* made);
/* Copies the numbers of a row-major tensor to another of the same size and dtype; each lies on the program's GPU or in this process's memory.
 * In the order of `stream`, but where one lies in this process's memory: then at once, after what `ral_synchronize` waits for. */
RAL_API ral_status ral_copy_numbers(ral_context* context, const ral_tensor* from, const ral_tensor* to, void* stream);

/* ---- Many calls as one ----------------------------------------------------------------------------------------------------- */

/* A program in a schedule, which reads rows of tables and writes rows behind the used ones. Its inputs are, in this order: `table_count`
 * tables [rows, ...], the used part of each; `row_count` vectors of numbers of rows, i64 [count]; `value_count` vectors of other numbers,
 * i64 [count]. Its results are [count, ...] each. */
typedef struct ral_block {
  ral_context* program;
  const int32_t* tables;  /* which tables it reads */
  const int32_t* rows;    /* the table that each vector of rows is about */
  const int32_t* results; /* the table that each result is added to */
  int32_t table_count;
  int32_t row_count;
  int32_t value_count;
  int32_t result_count;
} ral_block;

/* One call: a block for `count` instances, at least 1. Its vectors lie one behind the other, in order, in the numbers of the schedule. */
typedef struct ral_batch {
  int64_t block;
  int64_t count;
  int64_t offset;
} ral_batch;

/* Runs the batches in order. tables: row-major, in memory of this process; used: how many rows of each hold something, and do in the end:
 * each result of a batch, in order, takes the next `count` rows of its table. That rows lie in the used part is checked once for each
 * batch: the code of a block may rely on it. What tables hold after a failure is undefined. */
RAL_API ral_status ral_run_batches(const ral_block* blocks, int32_t block_count, const ral_tensor* tables, int64_t* used,
                                   int32_t table_count, const ral_batch* batches, int64_t batch_count, const int64_t* indices,
                                   int64_t index_count);

/* Where a value of a block in a sweep lies. */
enum {
  RAL_SWEEP_TABLE,   /* an input: the rows of a table that are in use; all of one of rank 0 */
  RAL_SWEEP_NUMBERS, /* an input: vector `place` of the launch, i64 [count]; numbers of rows of `table`, unless that is -1 */
  RAL_SWEEP_ROWS,    /* [count, ...]: rows of a table one behind the other, from start `place` of the launch on */
  RAL_SWEEP_ADDED    /* a result: f32 or f64, written to table `room` and then added to the rows of `table` that vector `place` numbers,
                      * whose flags (table `flags`, i1 [rows]) are set */
};

typedef struct ral_sweep_value {
  int32_t what;
  int32_t table;
  int32_t place;
  int32_t room;
  int32_t flags;
} ral_sweep_value;

/* A program with weights as inputs, or that of its gradient. needed: rows of flags: an instance is needed where one of its own is set; with
 * none of them, all are. */
typedef struct ral_sweep_block {
  ral_context* program;
  const ral_sweep_value* inputs;
  const ral_sweep_value* results;
  const ral_sweep_value* needed;
  int32_t input_count;
  int32_t result_count;
  int32_t needed_count;
  int32_t vector_count; /* of each of its launches */
} ral_sweep_block;

/* tables: row-major, in memory of this process. used: how many rows of each hold something, which are those that vectors may number; rows
 * that a launch writes are. launches: [launch_count][3 + start_count]: block, or -1 for one that the caller runs; count >= 1; where its
 * vectors begin in `indices`, one behind the other; starts. */
typedef struct ral_sweep {
  const ral_sweep_block* blocks;
  const ral_tensor* tables;
  int64_t* used;
  const int64_t* launches;
  const int64_t* indices;
  int64_t launch_count;
  int64_t index_count;
  int32_t block_count;
  int32_t table_count;
  int32_t start_count;
} ral_sweep;

/* Runs launches in order from *next on, or backwards those in front of *next, and notes in `ran` [launch_count] which ran. One of which no
 * instance is needed is left out. Ends at one of which some are, or that is the caller's: then launch *next, or backwards *next - 1, is to be
 * run by the caller, who goes on behind it; at the end *next is launch_count, or 0. That rows are there, and numbered ones in use, is checked
 * for each launch: the code of a block may rely on it. What tables hold after a failure is undefined. */
RAL_API ral_status ral_run_sweep(const ral_sweep* sweep, int32_t backwards, int64_t* next, uint8_t* ran);

/* A vector of rows of a block: result `result` of the children in field `field`. */
typedef struct ral_node_row {
  int32_t field;
  int32_t result;
} ral_node_row;

/* What is computed for nodes of one kind. */
typedef struct ral_node_kind {
  int64_t block;
  const ral_node_row* rows;
  const int32_t* columns; /* the column that each vector of other numbers is taken from */
  int32_t row_count;
  int32_t value_count;
} ral_node_kind;

/* A structure: trees, or graphs without cycles, as flat arrays with an element for each node, in any order. */
typedef struct ral_structure {
  int64_t node_count;
  const int64_t* kinds;                /* the kind of each node */
  const int64_t* const* children;      /* for each field: the number of the child there; -1 = none */
  const int64_t* const* columns;       /* other numbers */
  const ral_node_kind* kinds_of;       /* the kinds */
  const uint8_t* present;              /* [kind_count][field_count]: 1 where nodes of the kind have a child in the field */
  const char* const* field_names;      /* for messages */
  int32_t kind_count;
  int32_t field_count;
  int32_t result_count; /* of the block of every kind */
} ral_structure;

/* The schedule of a structure: children before their parents, all nodes of a height and a kind in one batch. batches: room for as many as
 * there are nodes; indices: room for a number for each node and vector of its kind; rows: [node_count][result_count], where the results of
 * each node will be; used: as of ral_run_batches, before and after. RAL_ERROR_CYCLE, RAL_ERROR_NODE_INDEX, RAL_ERROR_MISSING and
 * RAL_ERROR_NODE_KIND for structures that cannot be computed. */
RAL_API ral_status ral_linearize(const ral_structure* structure, const ral_block* blocks, int32_t block_count, int64_t* used,
                                 int32_t table_count, ral_batch* batches, int64_t* batch_count, int64_t* indices, int64_t* rows);

/* Calls of blocks that wait to be run, in the order in which they were made. */
typedef struct ral_calls {
  int64_t call_count;
  const int32_t* kinds;      /* of each call: what may run as one launch */
  const int32_t* depths;     /* of each call: more than that of every call that it reads */
  const int64_t* first_read; /* [call_count + 1]: where the calls that each one reads begin in `reads` */
  const int64_t* reads;      /* numbers of earlier calls; a number may come twice */
  const double* costs;       /* of each kind: what a launch costs, however many calls it runs */
  const uint8_t* last;       /* of each kind: 1 where no call reads its results, so that all of its calls run at the end */
  int32_t kind_count;
} ral_calls;

/* How calls are ordered: as it costs least; by depth; from an agenda, first the kind with the lowest mean depth; or with most calls ready. */
enum { RAL_ORDER_CHEAPEST = 0, RAL_ORDER_DEPTH = 1, RAL_ORDER_AGENDA = 2, RAL_ORDER_MOST = 3 };

/* Orders the calls into batches of one kind: batch i is order[ends[i - 1]] to order[ends[i] - 1]. A call comes behind those that it reads,
 * in a later batch. order, ends: room for call_count numbers. */
RAL_API ral_status ral_order_calls(const ral_calls* calls, int32_t policy, int64_t* order, int64_t* ends, int64_t* batch_count);

/* A question about a node of flat arrays. array: a field, or `field_count` and the number of a column. is_none: whether the array has -1
 * there; else whether it has a child, or a number that is neither -1 nor 0. yes, no: the next question, or ~kind. */
typedef struct ral_node_question {
  int32_t array;
  int32_t is_none;
  int32_t yes;
  int32_t no;
} ral_node_question;

/* The kind of each node, of which `kinds` has room for `node_count`; of the structure all but `kinds` is read. The first question is asked
 * first; without any all nodes are of kind 0. RAL_ERROR_MISSING for a node without a number that its kind reads (-1), RAL_ERROR_INTERNAL
 * for questions that do not lead to a kind. */
RAL_API ral_status ral_find_kinds(const ral_structure* structure, const ral_node_question* questions, int32_t question_count,
                                  const char* const* column_names, int64_t* kinds);

/* ---- What is inside -------------------------------------------------------------------------------------------------------- */

typedef struct ral_value_info {
  const char* name;
  const int64_t* dims; /* -1 = dynamic; NULL for an output (its dims are known after a call) */
  int32_t rank;
  int32_t dtype;
  int32_t written; /* of an input: 1 where a call may write to its memory, which nothing else may use meanwhile */
} ral_value_info;

RAL_API int32_t ral_input_count(const ral_context* context);
RAL_API int32_t ral_output_count(const ral_context* context);
RAL_API int32_t ral_kernel_count(const ral_context* context);
RAL_API int32_t ral_counter_count(const ral_context* context);
/* An index out of range gives a NULL name. */
RAL_API ral_value_info ral_input_info(const ral_context* context, int32_t index);
RAL_API ral_value_info ral_output_info(const ral_context* context, int32_t index);
RAL_API const char* ral_kernel_name(const ral_context* context, int32_t index);
RAL_API const char* ral_counter_name(const ral_context* context, int32_t index);
RAL_API const char* ral_isa(const ral_context* context);
RAL_API int32_t ral_device_number(const ral_context* context); /* of ral_tensor.device: where inputs and outputs lie */
RAL_API int32_t ral_device_id(const ral_context* context);     /* of ral_tensor.device_id */
RAL_API const void* ral_manifest(const ral_context* context, size_t* size);
/* The bytes of the loaded file; NULL for a program from memory. */
RAL_API const void* ral_file_bytes(const ral_context* context, size_t* size);
RAL_API int64_t ral_dtype_size(int32_t dtype); /* bytes; 0 for an unknown dtype */
RAL_API const char* ral_dtype_name(int32_t dtype);

/* ---- Counting -------------------------------------------------------------------------------------------------------------- */

typedef struct ral_stats {
  int64_t calls; /* that ended well */
  int64_t copied_inputs;
  int64_t copied_bytes;
  int64_t arena_bytes; /* held for calls, over all that were in progress at once; what only old calls needed is given back (64 to 512 calls) */
} ral_stats;

RAL_API void ral_get_stats(ral_context* context, ral_stats* stats);
RAL_API void ral_get_counters(ral_context* context, int64_t* values);                        /* ral_counter_count values */
RAL_API void ral_get_kernels(ral_context* context, int64_t* launches, int64_t* nanoseconds); /* ral_kernel_count values each */
RAL_API void ral_set_profile(ral_context* context, int32_t on); /* kernel times are taken while on; 2: events, too (ral_take_trace) */

/* A part of a launch that one thread did: tasks [begin, end), from `start` to `stop` nanoseconds of the monotonic clock. */
typedef struct ral_trace_event {
  int64_t kernel; /* its number */
  int64_t thread; /* the system's number of it */
  int64_t start, stop;
  int64_t begin, end; /* -1, -1: a call of a library function */
} ral_trace_event;

/* Moves up to `capacity` of the oldest events out, and returns how many there were; a million is kept. On CPUs. */
RAL_API int64_t ral_take_trace(ral_context* context, ral_trace_event* events, int64_t capacity);

typedef struct ral_graph_stats {
  int64_t records;   /* calls that were recorded as a graph */
  int64_t replays;   /* calls that were one launch of a graph */
  int64_t evictions; /* graphs that were given up for others */
  int64_t refusals;  /* calls that could not be recorded: they read numbers from the GPU, or the driver refused */
} ral_graph_stats;

/* From now on calls of a GPU are recorded as CUDA graphs when they come with the same sizes for the second time; later ones then are one
 * launch. At most `most` graphs are kept, those that were used last; 0: none, as at first. A graph keeps the memory that its call needs
 * beside inputs and results. Giving one up waits for the GPU. */
RAL_API void ral_set_graphs(ral_context* context, int32_t most);
/* Of a program on the CPU, before its first call: the memory that calls need while they run is of one pool of the process, for all programs
 * that share it. So programs whose calls alternate, as of a forward and a backward pass, need the memory of one of them. */
RAL_API void ral_share_memory(ral_context* context);

/* GOMP_parallel_start, GOMP_parallel_end and omp_get_max_threads of an OpenMP library (GNU's, LLVM's, Intel's): the first runs `body` on
 * the threads of the caller's team beside the caller, for `threads` = 0 as many as the third says, less one; the second waits until all are
 * done. */
typedef struct ral_team {
  void (*start)(void (*body)(void*), void* state, unsigned threads);
  void (*end)(void);
  int (*threads)(void);
} ral_team;

/* Of a program on the CPU, before its first call: its launches run on the threads of an OpenMP library that the callers compute with as
 * well, since those would keep cores busy for some time after each of their own regions. Calls are parallel regions of it then. Where
 * its teams have fewer threads than the program, and in forked children, launches have the pool's threads. */
RAL_API void ral_use_team(ral_context* context, const ral_team* team);
RAL_API int32_t ral_graphs(const ral_context* context);
RAL_API void ral_get_graph_stats(ral_context* context, ral_graph_stats* stats);

/* How often calls of a GPU waited for it to fetch what lies there, numbers and the operands of library functions, and how many bytes. */
RAL_API void ral_get_fetches(ral_context* context, int64_t* count, int64_t* bytes);
RAL_API void ral_set_threads(ral_context* context, int32_t threads);                         /* as ral_options.threads */
RAL_API int32_t ral_threads(const ral_context* context);
/* From now on every choice among schedules takes this number, or the last one where there are fewer; -1 = the tree decides. For measuring. */
RAL_API void ral_force_choice(ral_context* context, int64_t number);

/* ---- What the machine can do ----------------------------------------------------------------------------------------------- */

typedef struct ral_cores {
  int32_t online;  /* CPUs that run */
  int32_t allowed; /* of these, the ones in the calling thread's affinity mask */
  int32_t threads; /* the default per call: `allowed`, or `quota` rounded down where that is less; at least 1 */
  double quota;    /* CPUs' worth of time that the process's control groups (version 1 or 2) grant; 0 = no limit */
} ral_cores;

/* `root` stands for the root folder, below which proc and the control groups are read; NULL = this machine's. */
RAL_API ral_status ral_get_cores(const char* root, ral_cores* cores);

typedef struct ral_gpu {
  char name[128];
  int32_t architecture; /* 90 = compute capability 9.0 */
  int32_t processors;   /* streaming multiprocessors */
  int64_t memory;       /* bytes */
} ral_gpu;

/* How many GPUs there are, and for which version of CUDA the driver is (13000 = 13.0). RAL_ERROR_TARGET: none that could be used. */
RAL_API ral_status ral_count_gpus(int32_t* count, int32_t* driver_version);
RAL_API ral_status ral_get_gpu(int32_t id, ral_gpu* gpu);

/* Measures what one core can do at best, in about 0.3 s of an idle machine: f32 operations per second (a multiply-add counts as two;
 * AVX-512 or AVX2 with FMA, in registers), and bytes per second, read plus written, of a copy between buffers larger than the caches. */
RAL_API ral_status ral_measure_limits(double* flops_per_second, double* bytes_per_second);

#ifdef __cplusplus
}
#endif
#endif
