/* Takes Kafka records from a librdkafka consumer queue straight into Arrow buffers.
 *
 * One process may have many readers; each serves one thread at a time. librdkafka is not linked:
 * `native_open` is handed its public functions, so this file needs no header of it. The buffers of
 * a block belong to the caller, who frees each with `native_release`; a call that fails leaves none
 * behind. Layouts are those of rdkafka.h and of Arrow's columnar format.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

enum { NEEDS_STAMPS = 1, NEEDS_KEYS = 2, NEEDS_VALUES = 4, NEEDS_HEADERS = 8 };
enum { DONE = 0, NO_MEMORY = -1, TOO_LARGE = -2 };
enum { PARTITION_EOF = -191 };  /* RD_KAFKA_RESP_ERR__PARTITION_EOF */
enum { TAKEN_AT_ONCE = 1024, TOPIC_SIZE = 256, TEXT_SIZE = 512, FIRST_ROOM = 1024 };

/* rd_kafka_message_t, a public struct. */
typedef struct {
  int err;
  void *topic;
  int32_t partition;
  void *payload;
  size_t len;
  void *key;
  size_t key_len;
  int64_t offset;
  void *private_;
} message;

/* librdkafka's functions, in the order in which `native_open` gets them. */
typedef struct {
  ssize_t (*consume_batch_queue)(void *queue, int timeout_ms, message **to, size_t most);
  void (*message_destroy)(message *);
  int64_t (*message_timestamp)(const message *, int *type);
  int (*message_headers)(const message *, void **headers);
  int (*header_get_all)(const void *headers, size_t number, const char **name, const void **value,
                        size_t *size);
  const char *(*topic_name)(const void *topic);
  const char *(*message_errstr)(const message *);
} librdkafka;

typedef struct {
  uint8_t *at;
  int64_t used; /* bytes */
  int64_t room;
} buffer;

/* A binary column: rows + 1 int32 starts, the bytes, and a bit for each row that is not null. */
typedef struct {
  int64_t rows;
  int64_t nulls;
  buffer starts;
  buffer data;
  buffer valid;
} column;

/* What one call brings: columns of the records, how far it got, and at most one problem. */
typedef struct {
  int64_t rows;
  int64_t reached; /* every record below it was delivered or does not exist */
  int64_t inflated; /* bytes of the keys and values that were taken, needed or not */
  int64_t header_nulls;
  int64_t names_beyond_ascii;
  buffer offsets;       /* int64 */
  buffer stamps;        /* int64, -1 where there is none */
  buffer stamp_types;   /* int32, as Spark counts: -1 none, 0 create time, 1 log append time */
  buffer header_starts; /* rows + 1 int32 into the headers */
  buffer header_valid;
  column keys;
  column values;
  column header_names;
  column header_values;
  int32_t problem; /* librdkafka's code; 0: none */
  int32_t problem_partition;
  int64_t problem_offset;
  char problem_topic[TOPIC_SIZE]; /* empty where the problem is about no topic */
  char problem_text[TEXT_SIZE];
} block;

typedef struct {
  librdkafka kafka;
  void *queue;
  message *taken[TAKEN_AT_ONCE];
  ssize_t next;
  ssize_t count;
  char topic[TOPIC_SIZE];
  int32_t partition;
} native_reader;

static int64_t live_buffers = 0;

/* How many buffers are with callers: 0 when all have been released. */
int64_t native_live_buffers(void) { return __atomic_load_n(&live_buffers, __ATOMIC_RELAXED); }

/* The size of `block`, so that a caller can tell that it knows this file's layout. */
int64_t native_block_size(void) { return (int64_t)sizeof(block); }

/* The digest of this file as build_native.py compiled it, so that a caller can tell an older library. */
#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST ""
#endif
const char *native_source_digest(void) { return SOURCE_DIGEST; }

void native_release(void *at) {
  if (!at) return;
  free(at);
  __atomic_sub_fetch(&live_buffers, 1, __ATOMIC_RELAXED);
}

static void copy_text(char *to, size_t size, const char *from) {
  size_t length = from ? strnlen(from, size - 1) : 0;
  if (length) memcpy(to, from, length);
  to[length] = 0;
}

/* -- buffers that grow --------------------------------------------------------------------- */

static int grow(buffer *to, int64_t more) {
  int64_t room = to->room ? to->room : FIRST_ROOM;
  while (room < to->used + more) room *= 2;
  uint8_t *at = realloc(to->at, (size_t)room);
  if (!at) return NO_MEMORY;
  if (!to->at) __atomic_add_fetch(&live_buffers, 1, __ATOMIC_RELAXED);
  to->at = at;
  to->room = room;
  return DONE;
}

static inline int push(buffer *to, const void *bytes, int64_t size) {
  if (to->room - to->used < size && grow(to, size) != DONE) return NO_MEMORY;
  if (size) memcpy(to->at + to->used, bytes, (size_t)size);
  to->used += size;
  return DONE;
}

static inline int push_start(buffer *starts, int64_t start) {
  int32_t narrow = (int32_t)start;
  return start > INT32_MAX ? TOO_LARGE : push(starts, &narrow, sizeof narrow);
}

static inline int push_valid(buffer *valid, int64_t row, int is_valid) {
  uint8_t none = 0;
  if (row % 8 == 0 && push(valid, &none, 1) != DONE) return NO_MEMORY;
  if (is_valid) valid->at[row / 8] |= (uint8_t)(1u << (unsigned)(row % 8));
  return DONE;
}

/* Append a value to a column; a null has no `bytes`, an empty value has some and no size. */
static inline int push_value(column *to, const void *bytes, size_t size) {
  int code;
  if (bytes && size > (size_t)INT32_MAX) return TOO_LARGE;
  if ((code = push_valid(&to->valid, to->rows, bytes != NULL))) return code;
  if (bytes && (code = push(&to->data, bytes, (int64_t)size))) return code;
  to->nulls += bytes == NULL;
  to->rows++;
  return push_start(&to->starts, to->data.used);
}

/* -- one record ---------------------------------------------------------------------------- */

static int push_headers(const native_reader *reader, block *to, const message *record) {
  void *headers = NULL;
  int has = reader->kafka.message_headers(record, &headers) == 0 && headers, code;
  const char *name;
  const void *value;
  size_t size;
  if ((code = push_valid(&to->header_valid, to->rows, has))) return code;
  to->header_nulls += !has;
  for (size_t n = 0; has; n++) {
    if (reader->kafka.header_get_all(headers, n, &name, &value, &size) != 0) break;
    for (const char *c = name; *c; c++) to->names_beyond_ascii |= *c & 0x80;
    if ((code = push_value(&to->header_names, name, strlen(name)))) return code;
    if ((code = push_value(&to->header_values, value, size))) return code;
  }
  return push_start(&to->header_starts, to->header_names.rows);
}

static int push_record(const native_reader *reader, block *to, const message *record,
                       uint32_t needs) {
  int code;
  if ((code = push(&to->offsets, &record->offset, sizeof record->offset))) return code;
  if (needs & NEEDS_STAMPS) {
    int type = 0;
    int64_t stamp = reader->kafka.message_timestamp(record, &type);
    int32_t spark_type = type - 1;
    if (type <= 0) stamp = -1;
    if ((code = push(&to->stamps, &stamp, sizeof stamp))) return code;
    if ((code = push(&to->stamp_types, &spark_type, sizeof spark_type))) return code;
  }
  if (needs & NEEDS_KEYS && (code = push_value(&to->keys, record->key, record->key_len)))
    return code;
  if (needs & NEEDS_VALUES && (code = push_value(&to->values, record->payload, record->len)))
    return code;
  if (needs & NEEDS_HEADERS && (code = push_headers(reader, to, record))) return code;
  to->rows++;
  return DONE;
}

/* -- blocks -------------------------------------------------------------------------------- */

static void drop_block(block *to) {
  column *columns[] = {&to->keys, &to->values, &to->header_names, &to->header_values};
  native_release(to->offsets.at);
  native_release(to->stamps.at);
  native_release(to->stamp_types.at);
  native_release(to->header_starts.at);
  native_release(to->header_valid.at);
  for (size_t n = 0; n < sizeof columns / sizeof *columns; n++) {
    native_release(columns[n]->starts.at);
    native_release(columns[n]->data.at);
    native_release(columns[n]->valid.at);
  }
  memset(to, 0, sizeof *to);
}

static int begin_block(block *to, int64_t position, uint32_t needs) {
  int code = DONE;
  memset(to, 0, sizeof *to);
  to->reached = position;
  if (needs & NEEDS_KEYS) code |= push_start(&to->keys.starts, 0);
  if (needs & NEEDS_VALUES) code |= push_start(&to->values.starts, 0);
  if (needs & NEEDS_HEADERS) {
    code |= push_start(&to->header_starts, 0);
    code |= push_start(&to->header_names.starts, 0);
    code |= push_start(&to->header_values.starts, 0);
  }
  return code;
}

/* A header costs two starts at least, though its name may be empty and its value a null. */
static int64_t bytes_of(const block *to) {
  return to->keys.data.used + to->values.data.used + to->header_names.data.used +
         to->header_values.data.used + 2 * (int64_t)sizeof(int32_t) * to->header_names.rows;
}

static const char *topic_of(const native_reader *reader, const message *record) {
  return record->topic ? reader->kafka.topic_name(record->topic) : "";
}

static int is_aimed_at(const native_reader *reader, const message *record) {
  const char *topic = topic_of(reader, record);
  return record->partition == reader->partition && topic && strcmp(topic, reader->topic) == 0;
}

static void note_problem(const native_reader *reader, block *to, const message *record) {
  to->problem = record->err;
  to->problem_partition = record->partition;
  to->problem_offset = record->offset;
  copy_text(to->problem_topic, TOPIC_SIZE, topic_of(reader, record));
  copy_text(to->problem_text, TEXT_SIZE, reader->kafka.message_errstr(record));
}

/* -- what brokers send --------------------------------------------------------------------- */

enum { FETCH = 1, EMPTY_ANSWER = 256 };

typedef int on_response(void *client, int socket, const char *broker, int32_t id, int16_t api,
                        int16_t version, int32_t correlation, size_t size, int64_t took_us,
                        int error, void *opaque);
typedef int on_new(void *client, const void *conf, void *opaque, char *error, size_t error_size);

/* The bytes of the answers to one client's fetches, as they came: compressed. Its own thread for
 * each broker counts them, so it must live as long as the client. */
typedef struct {
  int (*add_on_response)(void *client, const char *name, on_response *, void *opaque);
  int64_t bytes;
} counter;

static int count_response(void *client, int socket, const char *broker, int32_t id, int16_t api,
                          int16_t version, int32_t correlation, size_t size, int64_t took_us,
                          int error, void *opaque) {
  (void)client, (void)socket, (void)broker, (void)id, (void)version, (void)correlation;
  (void)took_us, (void)error;
  counter *to = opaque;
  if (api == FETCH && size > EMPTY_ANSWER)
    __atomic_add_fetch(&to->bytes, (int64_t)size - EMPTY_ANSWER, __ATOMIC_RELAXED);
  return 0;
}

static int count_client(void *client, const void *conf, void *opaque, char *error, size_t size) {
  (void)conf, (void)error, (void)size;
  return ((counter *)opaque)->add_on_response(client, "native_reader", count_response, opaque);
}

/* Count what the client of `conf` gets; NULL without memory. The functions are librdkafka's
 * rd_kafka_conf_interceptor_add_on_new and rd_kafka_interceptor_add_on_response_received. */
counter *native_count(int (*add_on_new)(void *conf, const char *name, on_new *, void *opaque),
                      int (*add_on_response)(void *client, const char *name, on_response *,
                                             void *opaque),
                      void *conf) {
  counter *made = calloc(1, sizeof *made);
  if (!made) return NULL;
  made->add_on_response = add_on_response;
  if (add_on_new(conf, "native_reader", count_client, made) == 0) return made;
  free(made);
  return NULL;
}

int64_t native_counted(const counter *from) {
  return __atomic_load_n(&from->bytes, __ATOMIC_RELAXED);
}

/* Only when the client is destroyed. */
void native_uncount(counter *from) { free(from); }

/* -- the reader ---------------------------------------------------------------------------- */

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The next message; NULL when none came until `deadline_ms`. It waits for one message only, never
 * for a full batch: what is there is worth delivering. */
static message *take(native_reader *reader, int64_t deadline_ms) {
  const librdkafka *kafka = &reader->kafka;
  if (reader->next >= reader->count) {
    reader->next = 0;
    reader->count = kafka->consume_batch_queue(reader->queue, 0, reader->taken, TAKEN_AT_ONCE);
    int left_ms = reader->count > 0 ? 0 : (int)(deadline_ms - now_ms());
    if (left_ms > 0)
      reader->count = kafka->consume_batch_queue(reader->queue, left_ms, reader->taken, 1);
  }
  return reader->next < reader->count ? reader->taken[reader->next++] : NULL;
}

static void drop_taken(native_reader *reader) {
  while (reader->next < reader->count) reader->kafka.message_destroy(reader->taken[reader->next++]);
}

/* A reader over `queue`, or NULL without memory. `functions` has librdkafka's in their order. */
native_reader *native_open(const librdkafka *functions, void *queue) {
  native_reader *reader = calloc(1, sizeof *reader);
  if (!reader) return NULL;
  reader->kafka = *functions;
  reader->queue = queue;
  return reader;
}

/* From now on the queue is about this partition; what was taken for another is dropped. */
void native_aim(native_reader *reader, const char *topic, int32_t partition) {
  drop_taken(reader);
  copy_text(reader->topic, TOPIC_SIZE, topic);
  reader->partition = partition;
}

/* Fill `to` with records from `position` until `end` (exclusive), `most` records, about
 * `most_bytes` of data, a problem, or `wait_ms` without being done, whichever comes first.
 * Returns DONE, or NO_MEMORY or TOO_LARGE (a column of more than 2 GiB) with nothing in `to`. */
int native_read(native_reader *reader, int64_t position, int64_t end, int64_t most,
                int64_t most_bytes, int32_t wait_ms, uint32_t needs, block *to) {
  int64_t deadline_ms = now_ms() + wait_ms;
  int code = begin_block(to, position, needs);
  message *record;
  while (code == DONE && to->reached < end && to->rows < most && bytes_of(to) < most_bytes &&
         !to->problem && (record = take(reader, deadline_ms))) {
    if (record->err == PARTITION_EOF) {
      if (is_aimed_at(reader, record) && record->offset > to->reached) to->reached = record->offset;
    } else if (record->err) {
      note_problem(reader, to, record);
    } else if (record->offset >= end) {
      to->reached = end;
    } else if (record->offset >= to->reached) {
      code = push_record(reader, to, record, needs);
      to->reached = record->offset + 1;
    }
    if (!record->err) to->inflated += (int64_t)(record->len + record->key_len);
    reader->kafka.message_destroy(record);
  }
  if (code != DONE) drop_block(to);
  return code;
}

void native_close(native_reader *reader) {
  if (!reader) return;
  drop_taken(reader);
  free(reader);
}
