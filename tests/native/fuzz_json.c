/* Random and damaged JSON through scan_json.c: `fuzz_json SEED SECONDS`. To be compiled with the address,
 * leak and undefined sanitizers.
 *
 * Every block of values, and the room for every column, lies in an allocation of exactly its size,
 * so that a read or write beyond it is found. Numbers are compared with those of strtod.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../../sources/pyspark_timestream/kafka/decode/json/scan_json.c"

enum { ROWS = 40, ROOM = 4000, KINDS = TIME + 1 };

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
      fprintf(stderr, "fuzz_json.c:%d: %s is not so\n", __LINE__, #what); \
      abort();                                                            \
    }                                                                     \
  } while (0)

static const char *NAMES[] = {"a", "bb", "ccc", "", "\xc3\xa9", "when", "a_name_of_more_than_8_bytes"};
enum { NAMED = sizeof NAMES / sizeof *NAMES, WANTED = 2 * NAMED };

static const char *SCALARS[] = {"null", "true",  "false", "0",      "-0",   "12",    "-3.5",
                                "1e5",  "1E-30", "1e400", "\"\"",   "\"x\"", "\"12.5\"", "\"\\n\"",
                                "\"\\ud800\"", "9223372036854775808", "1234567890123456789",
                                "\"a text that is longer than eight bytes\"", "\"\xc3\xa9\"", "\"\xff\""};

typedef struct {
  uint8_t at[ROOM];
  int size;
} text;

static void put(text *to, const char *what) {
  int size = (int)strlen(what);
  if (to->size + size > ROOM) return;
  memcpy(to->at + to->size, what, (size_t)size);
  to->size += size;
}

static void put_blanks(text *to) { put(to, roll(6) ? "" : roll(2) ? " " : "\n\t "); }

static void put_value(text *to, int depth) {
  char number[64];
  switch (depth < 5 ? roll(8) : roll(6)) {
    case 7:
    case 6: {
      int is_object = (int)roll(2);
      put(to, is_object ? "{" : "[");
      for (uint32_t left = roll(4), n = 0; n < left; n++) {
        if (n) put(to, ",");
        put_blanks(to);
        if (is_object) {
          put(to, "\"");
          put(to, roll(3) ? NAMES[roll(NAMED)] : "k\\u00e9");
          put(to, "\":");
        }
        put_value(to, depth + 1);
        put_blanks(to);
      }
      put(to, is_object ? "}" : "]");
      return;
    }
    case 0:
    case 1:
      snprintf(number, sizeof number, "%.*g", (int)roll(19) + 1,
               ((double)roll(1u << 30) - (1 << 29)) / (double)(1 + roll(1000)));
      put(to, number);
      return;
    default:
      put(to, SCALARS[roll(sizeof SCALARS / sizeof *SCALARS)]);
  }
}

static void put_object(text *to) {
  put_blanks(to);
  put(to, "{");
  for (uint32_t left = roll(7), n = 0; n < left; n++) {
    if (n) put(to, ",");
    put_blanks(to);
    put(to, "\"");
    put(to, NAMES[(n + (roll(5) == 0)) % NAMED]);
    put(to, "\":");
    put_blanks(to);
    put_value(to, 0);
    put_blanks(to);
  }
  put(to, "}");
  put_blanks(to);
}

/* A value, perhaps with bytes that are changed, lost or cut off. */
static void put_document(text *to) {
  int before = to->size;
  put_object(to);
  for (uint32_t left = roll(3) ? 0 : 1 + roll(3); left && to->size > before; left--) {
    int at = before + (int)roll((uint32_t)(to->size - before));
    if (roll(4) == 0)
      to->size = at;
    else if (roll(2))
      to->at[at] = (uint8_t)roll(256);
    else
      to->at[at] = (uint8_t) "\"\\{}[]:,0-.eu"[roll(13)];
  }
}

static void *room(size_t size) {
  void *at = calloc(size ? size : 1, 1);
  CHECK(at);
  return at;
}

/* Of the field `n`, which may be inside one of those before it. */
static field make_field(const field *before, int n, int64_t rows, int64_t bytes) {
  const char *name = NAMES[roll(3) ? n % NAMED : (int)roll(NAMED)];
  field it = {.name = (const uint8_t *)name, .name_size = (int64_t)strlen(name), .parent = -1};
  int parent = (int)roll((uint32_t)n + 1) - 1;
  if (parent >= 0 && before[parent].kind == OBJECT) it.parent = parent;
  it.kind = (int)roll(KINDS + 2);
  if (it.kind >= OBJECT) it.kind = OBJECT;
  if (it.kind == OBJECT) return it;
  it.is_raw = (int)roll(2);
  it.width = it.kind == INTEGER ? 1 << roll(4) : it.kind == FLOAT ? 4 : it.kind == DECIMAL ? 16 : 8;
  it.most = INT64_MAX >> (64 - 8 * it.width > 0 ? 64 - 8 * it.width : 0);
  it.least = -it.most - 1;
  it.may_widen = it.kind == ANY;
  if (it.kind == DECIMAL) {
    wide bound = 1, tenth = 1;
    for (uint32_t left = 1 + roll(38); left; left--) tenth = bound, bound *= 10;
    it.bound[0] = (uint64_t)bound, it.bound[1] = (uint64_t)(bound >> 64);
    it.tenth[0] = (uint64_t)tenth, it.tenth[1] = (uint64_t)(tenth >> 64);
    it.scale = (int32_t)roll(38);
  }
  int is_text = it.kind == TEXT || it.kind == ANY || it.kind == TIME;
  int64_t numbers = it.kind == BOOLEAN ? (rows + 7) / 8 : it.kind == TEXT ? 0 : rows * it.width;
  int64_t size = is_text && bytes > numbers ? bytes : numbers;
  it.valid = room((size_t)(rows + 7) / 8);
  it.values = room((size_t)size);
  it.starts = is_text ? room((size_t)(rows + 1) * sizeof(int32_t)) : NULL;
  return it;
}

/* The double that a value has under a name, if it is read at all: found by strtod. */
static void check_double(const field *it, int64_t row, const uint8_t *at, const uint8_t *end) {
  char name[64], copy[ROOM + 1];
  snprintf(name, sizeof name, "\"%s\":", (const char *)it->name);
  size_t size = (size_t)(end - at);
  memcpy(copy, at, size);
  copy[size] = 0;
  const char *found = strstr(copy, name);
  /* The same name may be in a text, or damaged: only what is plain is compared. */
  if (!found || strstr(found + 1, name) || strlen(copy) != size) return;
  char *behind;
  const char *from = found + strlen(name);
  double expected = strtod(from, &behind), seen;
  if (behind == from || (*behind != ',' && *behind != '}')) return;
  memcpy(&seen, it->values + row * 8, sizeof seen);
  CHECK(seen == expected);
}

static void scan_some(void) {
  static text all;
  int32_t bounds[ROWS + 1] = {0};
  int64_t rows = 1 + roll(ROWS);
  all.size = 0;
  for (int n = 0; n < rows; n++) {
    static text one;
    one.size = 0;
    put_document(&one);
    if (all.size + one.size <= ROOM) {
      memcpy(all.at + all.size, one.at, (size_t)one.size);
      all.size += one.size;
    }
    bounds[n + 1] = all.size;
  }
  uint8_t *data = room((size_t)all.size), *left = room((size_t)rows);
  int32_t *starts = room((size_t)(rows + 1) * sizeof *starts);
  memcpy(data, all.at, (size_t)all.size);
  memcpy(starts, bounds, (size_t)(rows + 1) * sizeof *starts);
  uint8_t *present = roll(2) ? room((size_t)(rows + 3 + 7) / 8) : NULL;
  for (int64_t n = 0; present && n < (rows + 3 + 7) / 8; n++) present[n] = (uint8_t)roll(256);
  field fields[WANTED];
  int32_t count = (int32_t)roll(WANTED + 1);
  for (int n = 0; n < count; n++) fields[n] = make_field(fields, n, rows, all.size);
  int64_t found = scan_json(data, starts, present, 3, rows, fields, count, left), seen = 0;
  for (int64_t row = 0; row < rows; row++) seen += left[row];
  CHECK(found == seen);
  for (int n = 0; n < count; n++) {
    field *it = &fields[n];
    if (it->kind == OBJECT) {
      CHECK(!it->valid && !it->values && !it->nulls && !it->used);
      continue;
    }
    int64_t nulls = 0;
    CHECK(it->used <= all.size);
    for (int64_t row = 0; row < rows; row++) {
      int is_valid = it->valid[row / 8] >> (row % 8) & 1;
      int is_absent = present && !(present[(row + 3) / 8] >> ((row + 3) % 8) & 1);
      nulls += !is_valid;
      CHECK(!is_valid || (!left[row] && !is_absent));
      if (it->starts) CHECK(it->starts[row] <= it->starts[row + 1]);
      if (it->kind == TEXT && !is_valid) CHECK(it->starts[row] == it->starts[row + 1]);
      if (it->kind == DOUBLE && is_valid) check_double(it, row, data + starts[row], data + starts[row + 1]);
    }
    CHECK(nulls == it->nulls);
    free(it->valid);
    free(it->values);
    free(it->starts);
  }
  free(data);
  free(left);
  free(starts);
  free(present);
}

int main(int count, char **given) {
  if (count != 3) return 2;
  dice = strtoull(given[1], NULL, 10) * 2654435769u + 88172645463325252u;
  time_t end = time(NULL) + atoi(given[2]);
  int64_t blocks = 0;
  for (; time(NULL) < end; blocks++) scan_some();
  printf("%lld blocks\n", (long long)blocks);
  return 0;
}
