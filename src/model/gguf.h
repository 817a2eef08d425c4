/* SPDX-License-Identifier: MIT
 *
 * Checked access to a GGUF model, split over files or not. The only place that calls ggml's gguf.h, whose typed getters
 * abort on a wrong type: here every mismatch is an error that names the key, what it is and what it should be.
 * Offsets and sizes of all tensors are checked against the files' lengths when it opens.
 *
 * A struct gguf is immutable after opening and may be read by several threads.
 */
#ifndef KVASIR_MODEL_GGUF_H
#define KVASIR_MODEL_GGUF_H

#include "base/err.h"

#include <stddef.h>

struct gguf; /* opaque; owns the open files */

/* Sends what ggml says of itself to our log, at debug. Opening a model does it too; before plugins are loaded it must
 * have been called. */
void gguf_take_ggml_log(void);

/* A tensor's place. Strings and struct are owned by the gguf. */
struct gguf_tensor {
    const char *name;
    int64_t ne[4];   /* shape, ne[0] fastest; 1 beyond n_dims */
    int type;        /* enum ggml_type */
    uint32_t file;   /* index of the file that holds it */
    int32_t block;   /* N of "blk.N.", -1 for tensors of no block */
    uint64_t offset; /* absolute byte offset in that file */
    uint64_t size;   /* bytes */
};

/* Opens path; for "NAME-00001-of-000NN.gguf" all NN files. ERR_NOT_FOUND, ERR_IO, ERR_FORMAT, ERR_NOMEM. */
enum err_code gguf_open(const char *path, struct gguf **out, struct err *e) KV_MUST_USE;
/* The same from memory (one file), borrowed until gguf_close. For tests and fuzzing. */
enum err_code gguf_open_mem(const void *data, size_t len, struct gguf **out, struct err *e) KV_MUST_USE;
/* The same from headers alone, of files that lie elsewhere: there is no fd, tensors have places but no bytes. head is
 * borrowed until gguf_close. */
struct gguf_part {
    const char *name; /* for messages and gguf_file_path */
    const void *head; /* at least what gguf_head_need asked for */
    size_t head_len;
    uint64_t file_size;
};
enum err_code gguf_open_heads(const struct gguf_part *parts, uint32_t n, struct gguf **out, struct err *e) KV_MUST_USE;
/* Does [head, head + len) hold the whole header (and its padding) of a file of file_size bytes? *need: 0: yes; else how
 * many bytes of the file to get before asking again: more than len and never more than file_size, at least twice len,
 * more where what was seen says so. ERR_FORMAT, ERR_LIMIT, ERR_UNSUPPORTED, ERR_NOMEM. */
enum err_code gguf_head_need(const void *head, size_t len, uint64_t file_size, uint64_t *need,
                             struct err *e) KV_MUST_USE;
/* "NAME-00002-of-00003.gguf": the length of NAME, the part (from 1) and how many there are. false: no such name. */
bool gguf_split_name(const char *path, size_t *prefix, uint32_t *part, uint32_t *count);
void gguf_close(struct gguf *g);

const char *gguf_path(const struct gguf *g); /* as given to gguf_open, "(memory)" else */
uint32_t gguf_n_files(const struct gguf *g);
int gguf_fd(const struct gguf *g, uint32_t file); /* -1 from memory */
uint64_t gguf_file_size(const struct gguf *g, uint32_t file);
const char *gguf_file_path(const struct gguf *g, uint32_t file);

/* --- metadata (of the first file). `has` never fails. --- */
bool gguf_has(const struct gguf *g, const char *key);

/* Any integer type, in range of the result; bool only for _bool. Missing: ERR_NOT_FOUND; wrong type: ERR_FORMAT;
 * does not fit: ERR_RANGE. All name the key. */
enum err_code gguf_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e) KV_MUST_USE;
enum err_code gguf_i32(const struct gguf *g, const char *key, int32_t *out, struct err *e) KV_MUST_USE;
enum err_code gguf_f32(const struct gguf *g, const char *key, float *out, struct err *e) KV_MUST_USE;
enum err_code gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *e) KV_MUST_USE;
/* NUL-terminated, owned by g. */
enum err_code gguf_str(const struct gguf *g, const char *key, const char **out, struct err *e) KV_MUST_USE;

/* The same with a default: *out keeps its value when the key is missing; a wrong type is still an error. */
enum err_code gguf_opt_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e) KV_MUST_USE;
enum err_code gguf_opt_i32(const struct gguf *g, const char *key, int32_t *out, struct err *e) KV_MUST_USE;
enum err_code gguf_opt_f32(const struct gguf *g, const char *key, float *out, struct err *e) KV_MUST_USE;
enum err_code gguf_opt_bool(const struct gguf *g, const char *key, bool *out, struct err *e) KV_MUST_USE;
enum err_code gguf_opt_str(const struct gguf *g, const char *key, const char **out, struct err *e) KV_MUST_USE;

/* Arrays: a view into g. n_expected: the length it must have, 0 for any. */
enum err_code gguf_arr_f32(const struct gguf *g, const char *key, size_t n_expected, const float **out, size_t *n,
                           struct err *e) KV_MUST_USE;
enum err_code gguf_arr_i32(const struct gguf *g, const char *key, size_t n_expected, const int32_t **out, size_t *n,
                           struct err *e) KV_MUST_USE; /* element type i32 or u32 (each value checked to fit) */
/* Bytes: element type u8. */
enum err_code gguf_arr_u8(const struct gguf *g, const char *key, const uint8_t **out, size_t *n,
                          struct err *e) KV_MUST_USE;
enum err_code gguf_arr_len(const struct gguf *g, const char *key, size_t *n, struct err *e) KV_MUST_USE;
/* Element i of a string array whose type and length were checked by gguf_arr_strs. */
enum err_code gguf_arr_strs(const struct gguf *g, const char *key, size_t n_expected, size_t *n,
                            struct err *e) KV_MUST_USE;
const char *gguf_arr_str_at(const struct gguf *g, const char *key, size_t i); /* NULL when out of range */

/* A scalar or an array[n] of integers per block into out[n]: a scalar fills all. Missing: ERR_NOT_FOUND. */
enum err_code gguf_u32_per_block(const struct gguf *g, const char *key, size_t n, uint32_t *out,
                                 struct err *e) KV_MUST_USE;

/* --- the metadata as bytes, for the model id --- */
size_t gguf_n_kv(const struct gguf *g);
const char *gguf_key(const struct gguf *g, size_t i);
/* Appends a canonical encoding of key i's value: u32 type, then for arrays u32 element type and u64 count, then the
 * little-endian values; strings as u64 length and bytes. */
struct buf;
enum err_code gguf_value_bytes(const struct gguf *g, size_t i, struct buf *out, struct err *e) KV_MUST_USE;

/* --- tensors --- */
size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
int32_t gguf_block_of(const char *name); /* N of "blk.N.", else -1 */
/* How many bytes has a tensor of this type and shape? false: there is no such type, or none of this shape. */
bool gguf_tensor_bytes(int type, const int64_t ne[4], uint64_t *out);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name); /* NULL when missing; hashed */

#endif
