/* Random messages, gaps, errors and failing allocations through native_reader.c, each block checked value
 * by value: `fuzz SEED SECONDS`. To be compiled with the address, leak and undefined sanitizers.
 *
 * Every value lies in an allocation of exactly its size, so that a read beyond it is found.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int refuse_one_in = 0;
static void *some_realloc(void *at, size_t size);
#define realloc some_realloc
#include "../../sources/pyspark_timestream/kafka/client/native/native_reader.c"
#undef realloc

enum { MESSAGES = 4000, HEADERS = 4 };

typedef struct {
  uint8_t *at; /* NULL: a null */
  size_t size;
} value;

typedef struct {
  message seen; /* first, so that the native_reader's pointer is ours */
  int is_out;
  int stamp_type;
  int64_t stamp;
  int headers; /* -1: none */
  char *names[HEADERS];
  value header_values[HEADERS];
} made;

static made all[MESSAGES];
static int next_made, wrong_topic_is_null;
static uint64_t dice;

static uint32_t roll(uint32_t sides) {
  dice ^= dice << 13;
  dice ^= dice >> 7;
  dice ^= dice << 17;
  return (uint32_t)(dice >> 20) % sides;
}

#define CHECK(what)                                                       \
  do {                                                                    \
    if (!(what)) {                                                        \
      fprintf(stderr, "fuzz.c:%d: %s is not so\n", __LINE__, #what);      \
      abort();                                                            \
    }                                                                     \
  } while (0)

static void *some_realloc(void *at, size_t size) {
  return refuse_one_in && roll((uint32_t)refuse_one_in) == 0 ? NULL : realloc(at, size);
}

static value some_value(void) {
  value it = {NULL, 0};
  if (roll(4) == 0) return it;
  it.size = roll(8) == 0 ? roll(20000) : roll(30);
  it.at = malloc(it.size ? it.size : 1);
  for (size_t n = 0; n < it.size; n++) it.at[n] = (uint8_t)roll(256);
  return it;
}

static char *some_name(void) {
  size_t size = roll(12);
  char *name = malloc(size + 1);
  for (size_t n = 0; n < size; n++) name[n] = (char)(1 + roll(255));
  name[size] = 0;
  return name;
}

/* -- what the native_reader believes to be librdkafka ---------------------------------------------- */

static ssize_t consume(void *queue, int timeout_ms, message **to, size_t most) {
  (void)queue, (void)timeout_ms;
  ssize_t count = 0, wanted = (ssize_t)roll(60);
  if (roll(50) == 0) return -1;
  while (count < wanted && count < (ssize_t)most && next_made < MESSAGES) {
    made *it = &all[next_made++];
    it->is_out = 1;
    to[count++] = &it->seen;
  }
  return count;
}

static void destroy(message *it) {
  made *mine = (made *)it;
  CHECK(mine->is_out == 1);
  mine->is_out = 2;
}

static int64_t timestamp(const message *it, int *type) {
  *type = ((const made *)it)->stamp_type;
  return ((const made *)it)->stamp;
}

static int headers_of(const message *it, void **to) {
  *to = (void *)(uintptr_t)it;
  return ((const made *)it)->headers < 0 ? -156 : 0;
}

static int header_at(const void *headers, size_t number, const char **name, const void **bytes,
                     size_t *size) {
  const made *mine = headers;
  if ((int)number >= mine->headers) return -156;
  *name = mine->names[number];
  *bytes = mine->header_values[number].at;
  *size = mine->header_values[number].size;
  return 0;
}

static const char *topic_name(const void *topic) {
  return wrong_topic_is_null && *(const char *)topic == 'u' ? NULL : topic;
}

static const char *text(const message *it) { return it->len ? "an error of some sort" : NULL; }

/* -- making and checking -------------------------------------------------------------------- */

static int64_t make_all(void) {
  static char ours[] = "t", other[] = "u", long_name[400];
  int64_t offset = roll(5);
  memset(long_name, 'x', sizeof long_name - 1);
  for (int n = 0; n < MESSAGES; n++) {
    made *it = &all[n];
    value key = some_value(), payload = some_value();
    memset(it, 0, sizeof *it);
    it->seen = (message){0, ours, 0, payload.at, payload.size, key.at, key.size, offset, NULL};
    it->stamp_type = (int)roll(3);
    it->stamp = (int64_t)roll(1u << 30) * (roll(9) ? 1000 : -1);
    it->headers = (int)roll(HEADERS + 2) - 1;
    for (int h = 0; h < it->headers; h++) {
      it->names[h] = some_name();
      it->header_values[h] = some_value();
    }
    if (roll(40) == 0) {
      it->seen.err = roll(2) ? PARTITION_EOF : -195;
      it->seen.topic = roll(3) ? ours : roll(2) ? other : roll(2) ? long_name : NULL;
      it->seen.partition = roll(3) ? 0 : -1;
    } else {
      offset += 1 + (roll(20) ? 0 : roll(9));
    }
  }
  return offset;
}

static void free_all(void) {
  for (int n = 0; n < MESSAGES; n++) {
    free(all[n].seen.key);
    free(all[n].seen.payload);
    for (int h = 0; h < all[n].headers; h++) {
      free(all[n].names[h]);
      free(all[n].header_values[h].at);
    }
  }
}

static int bit(const buffer *bits, int64_t row) {
  return (bits->at[row / 8] & (1u << (unsigned)(row % 8))) != 0;
}

static void check_value(const column *in, int64_t row, const void *bytes, size_t size) {
  const int32_t *starts = (const int32_t *)(void *)in->starts.at;
  int is_valid = bit(&in->valid, row);
  CHECK(is_valid == (bytes != NULL));
  CHECK((size_t)(starts[row + 1] - starts[row]) == (bytes ? size : 0));
  if (bytes && size) CHECK(memcmp(in->data.at + starts[row], bytes, size) == 0);
}

static void check_row(const block *it, int64_t row, const made *sent, uint32_t needs) {
  CHECK(((int64_t *)(void *)it->offsets.at)[row] == sent->seen.offset);
  if (needs & NEEDS_STAMPS) {
    CHECK(((int32_t *)(void *)it->stamp_types.at)[row] == sent->stamp_type - 1);
    CHECK(((int64_t *)(void *)it->stamps.at)[row] == (sent->stamp_type ? sent->stamp : -1));
  }
  if (needs & NEEDS_KEYS) check_value(&it->keys, row, sent->seen.key, sent->seen.key_len);
  if (needs & NEEDS_VALUES) check_value(&it->values, row, sent->seen.payload, sent->seen.len);
  if (needs & NEEDS_HEADERS) {
    const int32_t *starts = (const int32_t *)(void *)it->header_starts.at;
    CHECK(starts[row + 1] - starts[row] == (sent->headers < 0 ? 0 : sent->headers));
    CHECK(bit(&it->header_valid, row) == (sent->headers >= 0));
    for (int h = 0; h < sent->headers; h++) {
      const value *v = &sent->header_values[h];
      check_value(&it->header_names, starts[row] + h, sent->names[h], strlen(sent->names[h]));
      check_value(&it->header_values, starts[row] + h, v->at, v->size);
    }
  }
}

/* One stream of messages, read to its end in blocks of random limits. */
static void run(void) {
  int64_t last = make_all(), position = roll(9), end = last - roll(9), most;
  int checked = 0, said;
  uint32_t needs = roll(16);
  block it;
  librdkafka functions = {consume,   destroy,    timestamp, headers_of,
                          header_at, topic_name, text};
  native_reader *g = native_open(&functions, NULL);
  CHECK(g);
  next_made = 0;
  wrong_topic_is_null = (int)roll(2);
  refuse_one_in = roll(3) ? 0 : 200;
  native_aim(g, "t", 0);
  while (position < end && (next_made < MESSAGES || g->next < g->count)) {
    most = 1 + roll(200);
    said = native_read(g, position, end, most, 1 + roll(5000), (int32_t)roll(2), needs, &it);
    if (said != DONE) {
      /* The records of the failed block are gone with it: its consumer is given up. */
      CHECK(said == NO_MEMORY && refuse_one_in);
      break;
    }
    CHECK(it.rows <= most && it.reached >= position && it.reached <= (end > position ? last : end));
    for (int64_t row = 0; row < it.rows; row++) {
      while (all[checked].seen.err || all[checked].seen.offset < position) checked++;
      CHECK(all[checked].seen.offset < end);
      check_row(&it, row, &all[checked++], needs);
    }
    position = it.reached;
    drop_block(&it);
  }
  refuse_one_in = 0;
  native_close(g);
  for (int n = 0; n < MESSAGES; n++) CHECK(all[n].is_out == (n < next_made ? 2 : 0));
  CHECK(native_live_buffers() == 0);
  free_all();
}

int main(int count, char **arguments) {
  int64_t until = now_ms() + (count > 2 ? atoi(arguments[2]) : 1) * 1000;
  uint64_t runs = 0, seed = count > 1 ? (uint64_t)atoi(arguments[1]) : 1;
  do {
    dice = 0x9E3779B97F4A7C15u * (seed * 1000003 + ++runs);
    run();
  } while (now_ms() < until);
  printf("%llu streams of %d messages\n", (unsigned long long)runs, MESSAGES);
  return 0;
}
